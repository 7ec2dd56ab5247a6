"""Device memory that only ever grows over the batches of a session."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WARM_UP_SHARE = 0.25  # memory pools fill first
_FEWEST_STEPS = 3


def memory_growth(used_bytes: Sequence[int | None]) -> str | None:
    """That device memory grew from batch to batch, in words, or None.

    The first quarter of the readings is left to pools that fill. Of the rest none may be lower than the one
    before, at least three must be higher, one of them in the last third: a pool that doubles now and then
    settles, a leak does not.

    Args:
        used_bytes: memory in use after each batch of a session; readings that are None are left out.
    """
    known = [used for used in used_bytes if used is not None]
    warm = known[int(_WARM_UP_SHARE * len(known)) :]
    steps = [later - earlier for earlier, later in itertools.pairwise(warm)]
    growing = sum(step > 0 for step in steps)
    late = steps[-max(1, len(steps) // 3) :]
    if growing < _FEWEST_STEPS or min(steps) < 0 or not any(late):
        return None
    return (
        f"device memory grew by {_mib(warm[-1] - warm[0])} over the last {len(warm)} batches, from "
        f"{_mib(warm[0])} to {_mib(warm[-1])}, and never fell: the calls leave memory behind"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:.4g} MiB"
