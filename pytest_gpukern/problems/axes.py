"""Holds the axes of a problem, and the points on them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.problems.call_by_name import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpukern.problems.call_by_name import Point


SIZES = ("smoke", "full", "huge")


@dataclass(frozen=True)
class Axis:
    """Declares the values of one axis of a problem, at the size that CI can run and at full size.

    Attributes:
        smoke: values small enough for a simulator; one should be awkward.
        full: those that matter for speed.
        awkward: values at full size that are there for what goes wrong at them: a prime, not a multiple of
            any block. A variant runs there with the first values of its parameters and is measured in its
            first scope only, unless the run asks for other ones.
        huge: values beyond what 32 bits count, such as 2**31 + 11 elements, for `--gpukern-size=huge` only. A
            problem none of whose axes has any is left out there; its other axes keep their first smoke value.

    Raises:
        ProblemError: there is no value at one size, or one is both full and awkward.
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
    """Maps names to the axes of a problem. A point gives each of them a value."""

    def refuse_unknown(self, names: Iterable[str], whose: str) -> None:
        """Raises ProblemError for what names something that is no axis; its message begins with `whose`."""
        unknown = [name for name in names if name not in self]
        if unknown:
            raise ProblemError(f"{whose} names {unknown[0]!r}, which is not an axis: {sorted(self)}")

    @classmethod
    def declared(cls, axes: Any, whose: str) -> Axes:
        """Returns what is declared as axes; raises ProblemError, whose message begins with `whose`."""
        for name, axis in dict(axes).items():
            if not isinstance(axis, Axis):
                raise ProblemError(
                    f"{whose}: axes has {name!r}: {axis!r}; write {name!r}: Axis(smoke=(…,), full=(…,))"
                )
        return cls(axes)

    def points(self, size: str, chosen: Mapping[str, Sequence[Any]] | None = None) -> list[Point]:
        """Returns the product of the axes at `size`; the `chosen` values of an axis take precedence."""
        if size == "huge" and not any(axis.huge for axis in self.values()):
            return []
        values = {name: (chosen or {}).get(name) or axis.values(size) for name, axis in self.items()}
        return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]

    @property
    def smoke_point(self) -> Point:
        """The first of the smoke points."""
        return {name: axis.smoke[0] for name, axis in self.items()}

    def declare(self, point: Point) -> bool:
        """Says whether every value of a point is one of its axis, not asked for or shrunk by a run."""
        return all(
            point[name] in (*axis.smoke, *axis.values("full"), *axis.huge) for name, axis in self.items()
        )

    def has_huge(self, point: Point) -> bool:
        """Says whether a value of a point is one that 32 bits cannot count, and that has to be asked for."""
        return any(
            point[name] in axis.huge and point[name] not in (*axis.smoke, *axis.values("full"))
            for name, axis in self.items()
        )

    def has_awkward(self, point: Point, chosen: Mapping[str, Sequence[Any]] | None = None) -> bool:
        """Says whether a value of a point is awkward for its axis, and none that was `chosen`."""
        return any(point[name] in axis.awkward for name, axis in self.items() if name not in (chosen or {}))


def boundaries(block: int = 256, warp: int = 32, minimum: int = 0) -> tuple[int, ...]:
    """Returns numbers of elements at which guards, tails and edges of a launch show, in ascending order.

    They are few, and yet leave every remainder modulo 2, 4 and 8 behind a loop that ran, as the tail of a
    loop over vectors has it, and remainders of one too few, none and a few too many behind warps, blocks and
    tiles of two and four blocks: 0, 1, warp - 1, block, block + 1, 4·block - 1, 4·block, 4·block + 2, a prime
    above two blocks, which nothing divides, and what is missing modulo 8 from warp + 2 on. What is below
    `minimum` is left out: a grid of no blocks is no launch (CUDA_ERROR_INVALID_VALUE), so that a problem
    whose variants take no empty arrays says `minimum=1`.

    Raises:
        ProblemError: a block or a warp has no threads.
    """
    if block < 1 or warp < 1:
        raise ProblemError(
            f"boundaries(block={block}, warp={warp}): both count threads and must be 1 or more"
        )
    tile = 4 * block
    # Not ±1 modulo 8, which the edges of blocks are.
    prime = next(n for n in itertools.count(2 * block + 1) if n % 8 in (3, 5) and _is_prime(n))
    sizes = {0, 1, warp - 1, block, block + 1, tile - 1, tile, tile + 2, prime}
    for remainder in range(8):
        if not any(size % 8 == remainder for size in sizes if size > 8):
            sizes.add(next(n for n in itertools.count(max(warp, 8) + 2) if n % 8 == remainder))
    return tuple(size for size in sorted(sizes) if size >= minimum)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
