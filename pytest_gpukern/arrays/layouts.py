"""Layouts that a variant may be checked in: arrays that are not aligned, or have gaps between their elements.

What is no element of such an array is guard zone, the gaps too: a launch that takes the array for one in C
order reads NaN there, or damages it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpukern.arrays.guard_zones import GUARD_BYTES, Damage, guard_pattern
from pytest_gpukern.arrays.strides import c_strides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from pytest_gpukern.arrays.strides import Strides

LAYOUTS = ("misaligned", "strided")
BOUNDARY_BYTES = 256
"""Multiple at which arrays begin otherwise, as `cudaMalloc`'s do."""


class Placement(NamedTuple):
    """Where the elements of an array lie.

    Attributes:
        offset: elements between a multiple of `BOUNDARY_BYTES` and its first.
        step: along its last axis it takes every so many-th element of a larger array.
    """

    offset: int = 0
    step: int = 1


def placements(layout: str, names: Sequence[str]) -> dict[str, Placement]:
    """Where each array lies in a layout.

    Misaligned, the first begins one element behind a boundary, the next three and so on: an odd number is no
    multiple of any vector, and a launch that goes on to where the first array is aligned is not there for the
    others. Strided, the first takes every second element, the next every third and so on: a launch that
    takes the strides of one array for those of another is wrong.
    """
    if layout == "misaligned":
        return {name: Placement(offset=2 * number + 1) for number, name in enumerate(names)}
    return {name: Placement(step=number + 2) for number, name in enumerate(names)}


@dataclass(frozen=True)
class Placed:
    """An array in an allocation, between guard zones, and what fills the gaps between its elements.

    Args:
        shape: of the array.
        dtype: of the array.
        placement: where its elements lie.
        guard: the four bytes that everything else is filled with.
        zone_bytes: least size of the zone before it, and size of that behind it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    placement: Placement
    guard: int
    zone_bytes: int = GUARD_BYTES

    @property
    def _step(self) -> int:
        return self.placement.step if self.shape else 1

    @property
    def start(self) -> int:
        """Offset of its first byte in the allocation, which begins at a multiple of `BOUNDARY_BYTES`."""
        return self.zone_bytes + self.placement.offset * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size of the allocation."""
        return self.start + math.prod(self.shape) * self._step * self.dtype.itemsize + self.zone_bytes

    @functools.cached_property
    def strides(self) -> Strides:
        """In bytes."""
        steps = c_strides(self.shape, self.dtype.itemsize)
        return tuple(self._step * step for step in steps)

    def view(self, allocation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array in the bytes of the allocation."""
        import numpy as np

        return np.ndarray(self.shape, self.dtype, allocation, self.start, self.strides)

    def put(self, allocation: np.ndarray[Any, Any], contents: np.ndarray[Any, Any]) -> None:
        """Copies contents of its shape and dtype into the bytes of the allocation, bit by bit."""
        raw = f"V{self.dtype.itemsize}"
        self.view(allocation).view(raw)[...] = contents.view(raw)

    def fill(self, allocation: np.ndarray[Any, Any]) -> None:
        """Fills the bytes of the allocation with the guard pattern."""
        allocation[:] = guard_pattern(self.guard, 0, self.nbytes)

    @functools.cached_property
    def _is_element(self) -> np.ndarray[Any, Any]:
        """Of each byte of the allocation, whether it belongs to an element."""
        import numpy as np

        mask = np.zeros(self.nbytes, np.uint8)
        self.put(mask, np.full((*self.shape, self.dtype.itemsize), 1, np.uint8).view(self.dtype)[..., 0])
        return mask.astype(bool)

    def damage(self, name: str, allocation: np.ndarray[Any, Any]) -> list[Damage]:
        """What was written before it, between its elements and behind it.

        Args:
            name: of the array.
            allocation: its bytes.
        """
        import numpy as np

        unlike = (allocation != guard_pattern(self.guard, 0, self.nbytes)) & ~self._is_element
        changed = np.flatnonzero(unlike) - self.start
        itemsize, size = self.dtype.itemsize, math.prod(self.shape)
        end = (size - 1) * self._step * itemsize + itemsize if size else 0
        before, behind = changed[changed < 0], changed[changed >= end]
        between = changed[(changed >= 0) & (changed < end)]
        found = []
        if before.size:
            found.append(Damage(name, False, int(before.size), int(before[-1]) // itemsize, size))
        if between.size:
            index = int(between[0]) // (itemsize * self._step)
            found.append(Damage(name, True, int(between.size), index, size, between=True))
        if behind.size:
            index = size + (int(behind[0]) - end) // itemsize
            found.append(Damage(name, True, int(behind.size), index, size))
        return found


def placed_in(placed: Mapping[str, Placement] | None, name: str) -> Placement | None:
    """Where an array is to lie, or None where it is to be as usual."""
    return (placed or {}).get(name)
