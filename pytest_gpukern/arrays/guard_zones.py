"""Guard zones before and after an array: what a launch writes out of bounds shows there.

The zones are filled with a NaN of every floating-point type, so that what is read out of bounds shows in the
result too. Those of inputs and outputs differ in every byte: a launch that reads one element too many mostly
writes one too many, and what it writes is then made of the NaN that it read, often with the same bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

GUARD_BYTES = 8192
"""Least size of a zone: what a block of 1024 threads writes too much in float64. A multiple of 256, so that
an array behind a zone is aligned as the allocation is."""
INPUT_GUARD, OUTPUT_GUARD = 0x7FFE_7FFE, 0xFFFD_FFD3
"""Four bytes that zones are filled with: NaN as float16, bfloat16, float32 and float64, and no poison."""


@dataclass(frozen=True)
class Damage:
    """What was written into one guard zone.

    Attributes:
        array: name of the input or output.
        behind: whether the zone is the one behind the end, or the one before the beginning.
        changed_bytes: how many bytes are not what they were.
        index: flat index that the changed element nearest to the array would have; negative before it.
        size: number of elements of the array.
        between: whether the zone is the gaps between elements; `index` is then of that before the first gap.
    """

    array: str
    behind: bool
    changed_bytes: int
    index: int
    size: int
    between: bool = False


@functools.lru_cache(64)
def guard_pattern(guard: int, start: int, nbytes: int) -> np.ndarray[Any, Any]:
    """What `nbytes` of a zone hold whose first is `start` bytes behind a multiple of four; read-only."""
    import numpy as np

    start %= 4
    word = guard.to_bytes(4, "little")
    return np.frombuffer(word * (-(-(start + nbytes) // 4) or 1), np.uint8)[start : start + nbytes]


def damage(
    name: str,
    before: np.ndarray[Any, Any],
    behind: np.ndarray[Any, Any],
    *,
    guard: int,
    nbytes: int,
    itemsize: int,
    fill: int | None = None,
) -> list[Damage]:
    """What was written before and behind an array that begins at a multiple of four.

    Args:
        name: of the array.
        before: bytes of the zone before it, which ends where it begins.
        behind: bytes of the zone behind it, which begins where it ends.
        guard: what the zones were filled with.
        nbytes: size of the array.
        itemsize: size of an element.
        fill: the word that whole words of the array were filled with last, the last of which may reach up to
            three bytes into the zone; None where none were.
    """
    import numpy as np

    expected = guard_pattern(guard, nbytes % 4, behind.size)
    spilled = -nbytes % 4
    if fill is not None and spilled:
        expected = expected.copy()
        expected[:spilled] = np.frombuffer(np.uint32(fill).tobytes(), np.uint8)[4 - spilled :]
    found = []
    unlike = before != guard_pattern(guard, -before.size % 4, before.size)
    if unlike.any():
        changed = np.flatnonzero(unlike)
        distance = before.size - int(changed[-1])
        found.append(Damage(name, False, int(changed.size), -distance // itemsize, nbytes // itemsize))
    unlike = behind != expected
    if unlike.any():
        changed = np.flatnonzero(unlike)
        index = (nbytes + int(changed[0])) // itemsize
        found.append(Damage(name, True, int(changed.size), index, nbytes // itemsize))
    return found
