"""Follows the device's memory through a test: before it, at most, behind its teardown, and what it leaks.

Use is that of the whole device, so that other processes move it; it also moves with what libraries allocate
once, at their first use. So figures come of it, and one finding: of launches that never stop taking more.
What a test keeps is told by the arrays that are alive: these are our own, exact, and no library's workspace.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_gpukern.values.result import DeviceMemory, Finding, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpukern.values.result import JsonDict, Result


MEMORY = "memory"
"""Kind of the findings, and what `--gpukern-gate-on` calls them."""

Arrays = dict[tuple[str, int], int]


@dataclass(frozen=True)
class TeardownMemory:
    """What is known of the device's memory once a test was torn down; travels on that report.

    Attributes:
        figures: in use before, at most and after.
        finding: what the test keeps, or None.
    """

    figures: DeviceMemory
    finding: Finding | None = None

    def to_json(self) -> JsonDict:
        """As plain JSON values."""
        return plain(dataclasses.asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: JsonDict) -> TeardownMemory:
        """The inverse of `to_json`."""
        finding = data.get("finding")
        return cls(DeviceMemory(**data["figures"]), None if finding is None else Finding(**finding))

    def added_to(self, result: Result) -> Result:
        """The test's result with it."""
        found = () if self.finding is None else (self.finding,)
        return dataclasses.replace(result, memory=self.figures, findings=(*result.findings, *found))


class Gauge(Protocol):
    """What is asked; see `backends.memory_accounts.Accounts`."""

    def used_bytes(self) -> int:
        """In use on the device, less what this plugin keeps."""

    def live_bytes(self) -> dict[str, int | None]:
        """Library → bytes of what it has given out; None where it does not count."""

    def high_bytes(self) -> int:
        """What libraries held at most beyond what they hold now."""

    def reset_high(self) -> None:
        """Begins anew with that."""

    def release(self) -> None:
        """Has libraries give back what they keep for later."""

    def synchronize(self) -> None:
        """Waits for the device."""

    def arrays(self) -> Arrays:
        """Every array that Python can see."""


class MemoryWatch:
    """Looks at the device's memory; one a process, and one test at a time.

    Args:
        gauge: what is asked.
        others: whether another process that runs on the device may have moved its use.
        collect: collects garbage.
    """

    def __init__(
        self,
        gauge: Gauge,
        others: Callable[[], bool] = lambda: False,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._gauge = gauge
        self._others = others
        self._collect = collect
        self._arrays: Arrays = {}
        self._arrays_when: tuple[Mapping[str, int | None], int] | None = None
        self._before: int | None = None
        self._live_before: Mapping[str, int | None] = {}
        self._peak = 0
        self._leaks: list[Finding] = []

    def begin(self) -> None:
        """Notes what is in use before a test, once caches were given back.

        Raises:
            CudaError: the context is lost.
        """
        self._gauge.synchronize()
        self._gauge.release()
        self._before = self._peak = self._gauge.used_bytes()
        self._gauge.reset_high()
        self._live_before = self._gauge.live_bytes()
        self._leaks = []
        if self._came_or_went():
            self._look_up_arrays()

    def look(self) -> None:
        """Notes what is in use now, where that is the most so far."""
        if self._before is not None:
            self._peak = max(self._peak, self._gauge.used_bytes())

    def series(self) -> Series:
        """What a measurement notes behind each of its batches."""
        return Series(self)

    def reading(self, launches: int) -> MemoryReading:
        """What is in use and alive after so many launches."""
        used, live = self._gauge.used_bytes(), self._gauge.live_bytes()
        self._peak = max(self._peak, used)
        return MemoryReading(launches, used, sum(each or 0 for each in live.values()))

    def judge(self, readings: Sequence[MemoryReading]) -> None:
        """Keeps what the launches of a measurement leak, if they do; garbage is none."""
        if launch_leak(readings) is None:
            return
        self._collect()
        self._gauge.synchronize()
        leak = launch_leak(readings, self.reading(readings[-1].launches))
        if leak is not None:
            other = "" if leak.exact or not self._others() else "; others run on the device, and may have too"
            self._leaks.append(Finding(MEMORY, leak.text + other))

    def leaks(self) -> tuple[Finding, ...]:
        """What launches of this test leak, each told once though several timers saw it."""
        return tuple(self._leaks[:1])

    def finish(self, *, passed: bool, let_go: Callable[[], object]) -> TeardownMemory | None:
        """The figures of a test, and what it keeps; None where `begin` noted nothing.

        Args:
            passed: whether it did; what a failure's traceback refers to is not kept by the test.
            let_go: drops what pytest itself still refers to, asked for only where memory was kept.

        Raises:
            CudaError: the context is lost.
        """
        if self._before is None:
            return None
        before, self._before = self._before, None
        self._gauge.synchronize()
        high = self._gauge.high_bytes()
        peak = max(self._peak, self._gauge.used_bytes() + high)
        self._gauge.release()
        kept = 0
        if passed and any(self._grown(before).values()):
            let_go()
            known = self._arrays
            kept = self._kept(known, before)
            if kept:  # or it is garbage, which takes longer to find than arrays
                self._collect()
                kept = self._kept(known, before)
        found = Finding(MEMORY, kept_words(kept)) if kept else None
        return TeardownMemory(DeviceMemory(before, peak, self._gauge.used_bytes(), kept), found)

    def _kept(self, known: Arrays, before: int) -> int:
        """Bytes of arrays alive now that a test left, where `known` ones and use were before it."""
        self._gauge.synchronize()
        self._gauge.release()
        grown = self._grown(before)
        self._look_up_arrays()
        return kept_bytes(known, self._arrays, grown)

    def _grown(self, before: int) -> dict[str, int]:
        """Library → by how much what it has given out has grown or shrunk; of one that does not count, the
        device's use, where that is by more than a granule."""
        used = self._gauge.used_bytes() - before
        grown = {}
        for library, live in self._gauge.live_bytes().items():
            if live is None:
                grown[library] = used if abs(used) > GRANULE_BYTES else 0
            else:
                grown[library] = live - (self._live_before.get(library) or 0)
        return grown

    def _came_or_went(self) -> bool:
        """Whether arrays may have since they were looked up, which takes long: by what libraries count, or,
        for one that does not, by the device's use."""
        if self._arrays_when is None:
            return True
        live, used = self._arrays_when
        uncounted = None in live.values()
        moved = abs(self._gauge.used_bytes() - used) > GRANULE_BYTES
        return live != self._gauge.live_bytes() or (uncounted and moved)

    def _look_up_arrays(self) -> None:
        """Notes which arrays are alive; where nothing is, none can be."""
        live = self._gauge.live_bytes()
        self._arrays = self._gauge.arrays() if any(each != 0 for each in live.values()) else {}
        self._arrays_when = live, self._gauge.used_bytes()


class Series:
    """Readings before and behind the batches of one measurement, whose call is warm."""

    def __init__(self, watch: MemoryWatch) -> None:
        self._watch = watch
        self._launches = 0
        self._readings = [watch.reading(0)]

    def note(self, launches: int) -> None:
        """After a batch of so many launches."""
        self._launches += launches
        self._readings.append(self._watch.reading(self._launches))

    def end(self) -> None:
        """After the last."""
        self._watch.judge(self._readings)


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
