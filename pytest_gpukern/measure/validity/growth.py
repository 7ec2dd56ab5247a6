"""Device memory that launches leave behind, or that a test keeps: readings in, sentences out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRANULE_BYTES = 2 * 2**20
"""The steps in which the driver gives memory to a process, and so those of what is free on a device."""

LEAST_KEPT_BYTES = 2**20
"""Arrays that are smaller together are no leak worth a line: a table of constants, say."""

_WARM_UP_SHARE = 0.25  # memory pools fill first
_FEWEST_STEPS = 3


@dataclass(frozen=True)
class MemoryReading:
    """Device memory at one moment of a measurement.

    Attributes:
        launches: timed launches before it.
        used_bytes: in use on the device, by whatever process, less what this plugin keeps for itself.
        live_bytes: of arrays that are alive, as the libraries of this process account for them: exact, and
            nobody else's.
    """

    launches: int
    used_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class Leak:
    """Memory that launches left behind; `exact` where libraries account for it, so that it is our own."""

    text: str
    exact: bool


def grows(values: Sequence[int]) -> bool:
    """Whether readings only ever grow: none is lower than the one before, at least three are higher, one of
    them in the last third. A pool that doubles now and then settles, a leak does not."""
    steps = [later - earlier for earlier, later in itertools.pairwise(values)]
    rises = sum(step > 0 for step in steps)
    return rises >= _FEWEST_STEPS and min(steps) >= 0 and any(steps[-max(1, len(steps) // 3) :])


def launch_leak(readings: Sequence[MemoryReading], settled: MemoryReading | None = None) -> Leak | None:
    """That the launches of a measurement leave memory behind, or None.

    Live bytes that grow with the launches by 1 MiB or more. Where no library accounts for the memory, use of
    the whole device that grows by more than one granule of 2 MiB; the first quarter of the readings is left
    to pools that fill.

    Args:
        readings: before and behind the batches of a measurement, oldest first.
        settled: after the last one, once garbage was collected: what is gone by then was no leak.
    """
    if not readings:
        return None
    last = settled or readings[-1]
    live = last.live_bytes - readings[0].live_bytes
    if grows([each.live_bytes for each in readings]) and live >= LEAST_KEPT_BYTES:
        return Leak(_words(live, readings[0], last, "and all of it is still alive"), exact=True)
    warm = readings[int(_WARM_UP_SHARE * len(readings)) :]
    used = last.used_bytes - warm[0].used_bytes
    if grows([each.used_bytes for each in warm]) and used > GRANULE_BYTES:
        why = "of the device's memory, and use never fell; no library accounts for it"
        return Leak(_words(used, warm[0], last, why), exact=False)
    return None


def kept_bytes(
    before: Mapping[tuple[str, int], int],
    after: Mapping[tuple[str, int], int],
    grown_bytes: Mapping[str, int],
) -> int:
    """Bytes of arrays that a test left alive; 0 where they are fewer than 1 MiB together.

    What a library allocates for itself at its first use (modules, handles, workspaces such as the 32 MiB of
    cuBLAS on Hopper, plans) is no array that Python sees, so that it is not among them.

    Args:
        before: (library, address) → bytes of each array that was alive before the test.
        after: those that are alive after its teardown, once garbage was collected.
        grown_bytes: library → by how much what it accounts for has grown meanwhile, or shrunk. An array that
            it does not own, or that took the place of another, adds nothing to that; arrays of before that
            are gone, such as a module's, take something off, which is added again.
    """
    kept = 0
    for library, grown in grown_bytes.items():
        new = sum(size for key, size in after.items() if key[0] == library and key not in before)
        gone = sum(size for key, size in before.items() if key[0] == library and key not in after)
        kept += max(0, min(new, grown + gone))
    return kept if kept >= LEAST_KEPT_BYTES else 0


def kept_words(kept: int) -> str:
    """What is said of a test that kept so many bytes."""
    return (
        f"the test leaves {mib(kept)} of arrays alive behind its teardown: something that outlives it, such "
        "as a global or a cache, still refers to them"
    )


def mib(count: int) -> str:
    """Bytes in MiB."""
    return f"{count / 2**20:.4g} MiB"


def _words(grown: int, first: MemoryReading, last: MemoryReading, why: str) -> str:
    launches = last.launches - first.launches
    each = f" (about {_size(grown / launches)} each)" if launches > 0 else ""
    return f"{launches} launches left {mib(grown)} behind{each}, {why}"


def _size(count: float) -> str:
    """Bytes to two digits: launches that a timer makes to find out how long one takes are not counted."""
    return f"{count / 2**20:.2g} MiB" if count >= 2**19 else f"{count / 2**10:.2g} KiB"
