"""Defines the axes of a problem and the points on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpukern.problems.call_by_name import Point, ProblemError

_WARP = 32


@dataclass(frozen=True)
class Axis:
    """Declares the values of one axis of a problem, for each size of a run.

    Attributes:
        smoke: values for a quick check, small enough for a simulator; one should be awkward.
        full: values whose speed matters.
        awkward: values of a full run at which kernels tend to fail, such as a prime, which is no multiple of
            a block. A variant runs there with the first values of its parameters, and is measured in its
            first scope only, unless the run asks for others.
        huge: values that 32 bits cannot count, such as 2**31 + 11, for `--gpukern-size=huge` only. Such a run
            leaves out problems without huge values; axes without any keep their first smoke value.

    Raises:
        ProblemError: `smoke` or `full` is empty, or a value is in both `full` and `awkward`.
    """

    smoke: tuple[Any, ...] = ()
    full: tuple[Any, ...] = ()
    awkward: tuple[Any, ...] = ()
    huge: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for size in ("smoke", "full", "awkward", "huge"):
            values = getattr(self, size)
            if not isinstance(values, (tuple, list, range)):
                raise ProblemError(f"Axis({size}={values!r}): write a tuple, such as {size}=({values!r},)")
        if not self.smoke or not self.full:
            raise ProblemError(
                f"{self}: an axis needs a smoke and a full value; write Axis(smoke=(…,), full=(…,))"
            )
        twice = [value for value in self.awkward if value in self.full]
        if twice:
            raise ProblemError(f"{self}: {twice[0]!r} is in full and in awkward; keep one of them")

    def values(self, size: str) -> tuple[Any, ...]:
        """Returns the values at `size`, which is "smoke", "full" or "huge"."""
        if size == "huge":
            return self.huge or self.smoke[:1]
        return self.smoke if size == "smoke" else (*self.full, *self.awkward)


class Axes(dict[str, Axis]):
    """Maps names to the axes of a problem. A point gives each axis a value."""

    def limits(self, given: Any, argument: str) -> dict[str, float]:
        """Returns axis → limit; raises ProblemError, which names the argument, for anything else."""
        if not isinstance(given or {}, Mapping):
            example = f"{{{next(iter(self), 'n')!r}: {given!r}}}"
            raise ProblemError(f"{argument}={given!r}: must map axes to limits; write {example}")
        for name in given or {}:
            if name not in self:
                raise ProblemError(f"{argument} names {name!r}, which is not an axis: {sorted(self)}")
        return dict(given or {})

    @classmethod
    def declared(cls, axes: Any, whose: str) -> Axes:
        """Returns the declared axes; raises ProblemError, whose message begins with `whose`, for bad ones."""
        for name, axis in dict(axes).items():
            if not isinstance(axis, Axis):
                raise ProblemError(
                    f"{whose}: axes has {name!r}: {axis!r}; write {name!r}: Axis(smoke=(…,), full=(…,))"
                )
        return cls(axes)

    def points(self, size: str, chosen: Mapping[str, Sequence[Any]] | None = None) -> list[Point]:
        """Returns the product of the axes at `size`; `chosen` values replace an axis's own."""
        if size == "huge" and not any(axis.huge for axis in self.values()):
            return []
        values = {name: (chosen or {}).get(name) or axis.values(size) for name, axis in self.items()}
        return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]

    @property
    def smoke_point(self) -> Point:
        return {name: axis.smoke[0] for name, axis in self.items()}

    def declare(self, point: Point) -> bool:
        """Says whether every value of a point is declared, and not chosen by a run."""
        return all(
            point[name] in (*axis.smoke, *axis.values("full"), *axis.huge) for name, axis in self.items()
        )

    def has_huge(self, point: Point) -> bool:
        """Says whether a value of a point is huge, and thus runs only on request."""
        return any(
            point[name] in axis.huge and point[name] not in (*axis.smoke, *axis.values("full"))
            for name, axis in self.items()
        )

    def has_awkward(self, point: Point, chosen: Mapping[str, Sequence[Any]] | None = None) -> bool:
        """Says whether a value of a point is awkward for its axis, and was not `chosen`."""
        return any(point[name] in axis.awkward for name, axis in self.items() if name not in (chosen or {}))


def boundaries(block: int = 256, minimum: int = 0) -> tuple[int, ...]:
    """Returns few sizes at which kernels with a wrong guard, tail or edge fail, in ascending order.

    They are 0, 1, 31, block, block + 1, 4·block - 1, 4·block, 4·block + 2 and a prime above two blocks.
    Sizes from 34 on are added until every remainder modulo 8 occurs above 8. So a loop over vectors of
    2, 4 or 8 elements meets every tail. Warps, blocks and tiles are filled, short by one and exceeded.

    Args:
        block: threads in a block.
        minimum: the smallest size to return. Use 1 if variants cannot take empty arrays: CUDA refuses a grid
            without blocks (CUDA_ERROR_INVALID_VALUE).

    Raises:
        ProblemError: `block` is below 1.
    """
    if block < 1:
        raise ProblemError(f"boundaries(block={block}): it counts threads and must be 1 or more")
    tile = 4 * block
    # The edges of blocks are ±1 modulo 8 already.
    candidates = (n for n in itertools.count(2 * block + 1) if n % 8 in (3, 5))
    prime = next(n for n in candidates if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
    sizes = {0, 1, _WARP - 1, block, block + 1, tile - 1, tile, tile + 2, prime}
    for remainder in range(8):
        if not any(size % 8 == remainder for size in sizes if size > 8):
            sizes.add(next(n for n in itertools.count(_WARP + 2) if n % 8 == remainder))
    return tuple(size for size in sorted(sizes) if size >= minimum)
