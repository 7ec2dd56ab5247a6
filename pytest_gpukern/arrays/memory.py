"""Describes where the elements of an array lie: strides, guard zones around it, and unusual layouts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Strides = tuple[int, ...]


class Span(NamedTuple):
    """Holds addresses from `start` up to `stop`, in bytes; it is empty if they are equal."""

    start: int
    stop: int

    def overlaps(self, other: Span) -> bool:
        return max(self.start, other.start) < min(self.stop, other.stop)


def c_strides(shape: tuple[int, ...], itemsize: int) -> Strides:
    """Returns the strides of an array in C order without gaps, in bytes."""
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def out_of_c_order(shape: tuple[int, ...], strides: Strides | None, itemsize: int) -> Strides | None:
    """Returns the strides in bytes, or None if the array is contiguous in C order, or empty."""
    if strides is None or 0 in shape:
        return None
    expected = c_strides(shape, itemsize)
    differ = any(  # the stride of an axis of length one has no meaning
        length > 1 and one != other for length, one, other in zip(shape, strides, expected, strict=True)
    )
    return tuple(strides) if differ else None


def span_of(pointer: int, shape: tuple[int, ...], strides: Strides | None, itemsize: int) -> Span:
    """Returns the span of an array, gaps included; strides may be negative."""
    if 0 in shape:
        return Span(pointer, pointer)
    steps = strides if strides is not None else c_strides(shape, itemsize)
    reaches = [(length - 1) * step for length, step in zip(shape, steps, strict=True)]
    start = pointer + sum(min(0, reach) for reach in reaches)
    stop = pointer + sum(max(0, reach) for reach in reaches) + itemsize
    return Span(start, stop)


GUARD_BYTES = 8192
"""Smallest size of a zone: one stray float64 from each of 1024 threads. A multiple of 256, so that an array
after a zone is aligned as the allocation is."""
INPUT_GUARD, OUTPUT_GUARD = 0x7FFE_7FFE, 0xFFFD_FFD3
"""Words that we fill zones with: NaN as float16, bfloat16, float32 and float64, but never a poison."""


@dataclass(frozen=True)
class Damage:
    """Describes what was written into one guard zone.

    Attributes:
        array: name of the input or output.
        behind: whether the zone is after the end of the array, or else before its beginning.
        changed_bytes: number of bytes that changed.
        index: flat index that the changed element nearest to the array would have; negative before it.
        size: number of elements of the array.
        between: whether the zone is the gaps between elements; `index` is then the element before the first
            changed gap.
    """

    array: str
    behind: bool
    changed_bytes: int
    index: int
    size: int
    between: bool = False


@functools.lru_cache(64)
def guard_pattern(guard: int, start: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Returns, read-only, what a zone of `nbytes` holds if it begins `start` bytes after a word."""
    start %= 4
    word = guard.to_bytes(4, "little")
    return np.frombuffer(word * (-(-(start + nbytes) // 4) or 1), np.uint8)[start : start + nbytes]


LAYOUTS = ("misaligned", "strided")
BOUNDARY_BYTES = 256
"""Arrays without a layout begin at a multiple of this, as memory of `cudaMalloc` does."""


class Placement(NamedTuple):
    """Describes where the elements of an array lie.

    Attributes:
        offset: number of elements between a multiple of `BOUNDARY_BYTES` and the first element.
        step: along the last axis it takes every `step`-th element of a larger array.
    """

    offset: int = 0
    step: int = 1


def placements(layout: str, names: Sequence[str]) -> dict[str, Placement]:
    """Returns where each array lies in a layout.

    Misaligned arrays begin one element after a boundary, three, and so on. An odd number is no multiple of a
    vector, and where the first array becomes aligned, the others are not. Strided arrays take every second
    element, every third, and so on, so a launch that mixes up their strides is wrong.
    """
    if layout == "misaligned":
        return {name: Placement(offset=2 * number + 1) for number, name in enumerate(names)}
    return {name: Placement(step=number + 2) for number, name in enumerate(names)}


@dataclass(frozen=True)
class Placed:
    """Describes an array in an allocation with guard zones before, after and between its elements.

    The word `guard` fills everything else. `zone_bytes` is the smallest size of the zone before the array,
    and the size of the zone after it.
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
        """The offset of the first byte in the allocation, which begins at a multiple of `BOUNDARY_BYTES`."""
        return self.zone_bytes + self.placement.offset * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of the allocation."""
        return self.start + math.prod(self.shape) * self._step * self.dtype.itemsize + self.zone_bytes

    @property
    def strides(self) -> Strides:
        return c_strides(self.shape, self._step * self.dtype.itemsize)

    def view(self, allocation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.ndarray(self.shape, self.dtype, allocation, self.start, self.strides)

    def put(self, allocation: np.ndarray[Any, Any], contents: np.ndarray[Any, Any]) -> None:
        """Copies contents of the same shape and dtype into the allocation, bit by bit."""
        raw = f"V{self.dtype.itemsize}"
        self.view(allocation).view(raw)[...] = contents.view(raw)

    def damage(self, name: str, read: Callable[[int, int], np.ndarray[Any, Any]]) -> list[Damage]:
        """Returns what was written into the zones; `read` returns bytes of the allocation."""
        zones = []
        for start, pattern in self.zones():
            unlike = (read(start, start + pattern.size) != pattern).view(np.uint8)
            if self._step > 1:
                self.put(unlike, np.zeros(self.shape, self.dtype))
            zones.append(np.flatnonzero(unlike) + start - self.start)
        changed = np.concatenate(zones)  # offsets from the first element, in order
        itemsize, size, step = self.dtype.itemsize, math.prod(self.shape), self._step
        end = (size - 1) * step * itemsize + itemsize if size else 0
        before, behind = changed[changed < 0], changed[changed >= end]
        between = changed[(changed >= 0) & (changed < end)]
        damages = []
        if before.size:
            damages.append(Damage(name, False, int(before.size), int(before[-1]) // itemsize, size))
        if between.size:
            index = int(between[0]) // (itemsize * step)
            damages.append(Damage(name, True, int(between.size), index, size, between=True))
        if behind.size:
            index = size + (int(behind[0]) - end) // itemsize
            damages.append(Damage(name, True, int(behind.size), index, size))
        return damages

    def zones(self) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Yields what to write, and where, before the contents: around an array, or all if it has gaps."""
        around = (0, self.start), (self.nbytes - self.zone_bytes, self.nbytes)
        for start, stop in ((0, self.nbytes),) if self._step > 1 else around:
            yield start, guard_pattern(self.guard, start, stop - start)
