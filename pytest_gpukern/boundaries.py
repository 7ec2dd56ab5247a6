"""Sizes at which kernels go wrong: nothing, one, the edges of a warp and of a block, a prime."""

from __future__ import annotations

import math

from pytest_gpukern.by_name import ProblemError


def boundaries(block: int = 256, warp: int = 32, minimum: int = 0) -> tuple[int, ...]:
    """Numbers of elements at which guards, tails and edges of a launch show, in ascending order.

    They are 0, 1, warp - 1, warp + 1, block - 1, block, block + 1 and the first prime above two blocks, which
    nothing divides; what is below `minimum` is left out. A grid of no blocks is no launch
    (CUDA_ERROR_INVALID_VALUE), so that a problem whose variants take no empty arrays says `minimum=1`.

    Raises:
        ProblemError: a block or a warp has no threads.
    """
    if block < 1 or warp < 1:
        raise ProblemError(
            f"boundaries(block={block}, warp={warp}): both count threads, so they are 1 or more"
        )
    sizes = {0, 1, warp - 1, warp + 1, block - 1, block, block + 1, _prime_above(2 * block)}
    return tuple(size for size in sorted(sizes) if size >= minimum)


def _prime_above(number: int) -> int:
    candidate = number + 1
    while any(candidate % divisor == 0 for divisor in range(2, math.isqrt(candidate) + 1)):
        candidate += 1
    return candidate
