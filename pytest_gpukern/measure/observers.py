"""Defines what an observer is: it looks at the device around timed work, never during it.

To add one, write a file with a class derived from `Observer`, and its row in `OBSERVERS`. Its findings travel
under its name in `Measurement.observations` and `Result.observations`; no other code needs to know it.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_gpukern.values.result import Finding, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpukern.gpu.clock_probe import ClockProbe
    from pytest_gpukern.gpu.nvml import DeviceState
    from pytest_gpukern.gpu.processes import DeviceWatch
    from pytest_gpukern.gpu.theory import Floor
    from pytest_gpukern.timers.timer import Batch, Timer
    from pytest_gpukern.values.result import JsonDict, Measurement, Result
    from pytest_gpukern.values.settings import Settings


class ObserverRow(NamedTuple):
    """The module and class of an observer."""

    module: str
    class_name: str


OBSERVERS = {
    "plausibility": ObserverRow("pytest_gpukern.measure.plausibility", "Plausibility"),
    "memory": ObserverRow("pytest_gpukern.measure.device_memory", "MemoryObserver"),
    "clocks": ObserverRow("pytest_gpukern.measure.device_clocks", "ClockObserver"),
    "load": ObserverRow("pytest_gpukern.measure.host_load", "HostLoadObserver"),
}
"""Name → row. The first is nearest to the timed work: the last to look before it, the first to look after."""

_FRESH_S = 0.02


@dataclass
class Instruments:
    """The instruments that observe a device, once a process.

    Attributes:
        states: asks NVML.
        probe: measures the SM clock; None if it cannot be launched.
        max_sm_mhz: highest SM clock of the device, if known.
        max_memory_mhz: highest memory clock, if known.
    """

    states: DeviceWatch
    probe: ClockProbe | None = None
    max_sm_mhz: float | None = None
    max_memory_mhz: float | None = None

    def __post_init__(self) -> None:
        self._last: DeviceState | None = None
        self._asked = float("-inf")

    @property
    def age_s(self) -> float:
        """Seconds since we asked NVML."""
        return time.monotonic() - self._asked

    def state(self, *, within_s: float = _FRESH_S) -> DeviceState:
        """Returns the device's state, at most `within_s` seconds old, since asking takes milliseconds."""
        if self._last is None or self.age_s > within_s:
            self._last = self.states.state()
            self._asked = time.monotonic()
        return self._last


class Bench(Protocol):
    """The measuring process, as observers see it."""

    settings: Settings

    @property
    def measures(self) -> bool:
        """Whether kernels are timed in this run, on a real GPU."""

    @property
    def instruments(self) -> Instruments | None:
        """The device's instruments; None without a GPU. The first read opens them: hold the device then."""


@dataclass(frozen=True)
class Call:
    """A call that is measured in one scope, by one timer or several.

    Attributes:
        scope: one of `problems.variants.SCOPES`.
        on_gpu: whether it uses a GPU at all.
        floor: the least time that the declared work can take, if known.
    """

    scope: str
    on_gpu: bool
    floor: Floor | None = None


@dataclass(frozen=True)
class Look:
    """An observer's finding after a batch.

    Attributes:
        settled: whether the samples count for good; if not, a later look decides.
        fault: why the samples since the last look do not count, or None.
        hopeless: why measuring again is useless, or None.
    """

    settled: bool = True
    fault: str | None = None
    hopeless: str | None = None


class Observation:
    """Looks at one measurement by one timer. By default it does nothing."""

    def before(self) -> None:
        """Is called before a batch; the device is idle."""

    def after(self, batch: Batch, *, last: bool) -> Look:  # noqa: ARG002
        """Says whether the samples of a batch count. May pause before it returns; the device is idle.

        Args:
            batch: what was taken.
            last: whether sampling ends here, unless the batch does not count.
        """
        return Look()

    def finish(self, measurement: Measurement) -> Measurement:
        """Adds what was seen in all batches, once sampling has ended."""
        return measurement


class Observer:
    """Looks at the device for a whole process. By default it does nothing."""

    def __init__(self, name: str, bench: Bench) -> None:
        self.name = name
        self.bench = bench

    def begin_test(self) -> None:
        """Is called before the setup of a test that measures; this process holds the device."""

    def observe(self, call: Call, timer: Timer, *, beside: bool) -> Observation | None:  # noqa: ARG002
        """Begins to look at one measurement of a warm call; None if there is nothing to see.

        Args:
            call: the measured call.
            timer: takes the times.
            beside: whether a main timer has just measured the call.
        """
        return None

    def measured(self, call: Call, measurement: Measurement) -> Measurement:  # noqa: ARG002
        """Adds to the main measurement once all timers are done; may execute the call."""
        return measurement

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest | None:  # noqa: ARG002
        """Returns what it saw of the test, after teardown; this process holds the device.

        Args:
            passed: whether the test's body passed; a failure's traceback keeps objects alive.
            let_go: drops what pytest itself still refers to, such as values of fixtures.
        """
        return None

    @classmethod
    def add_to(cls, result: Result, name: str, values: JsonDict) -> Result:
        """Adds what `end_test` saw to the test's result, in the process that reports."""
        return dataclasses.replace(result, observations={**result.observations, name: values})


@dataclass(frozen=True)
class SeenInTest:
    """An observer's view of a test: plain JSON for the result, and a finding worth a line, or None."""

    values: JsonDict
    finding: Finding | None = None


@dataclass(frozen=True)
class ObservedTest:
    """All observers' views of a test by name, and their findings; travels on the report of its teardown."""

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> JsonDict:
        """Returns it as plain JSON values."""
        return plain(dataclasses.asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: JsonDict) -> ObservedTest:
        """Reads the result of `to_json`."""
        return cls(data["values"], tuple(Finding(**finding) for finding in data["findings"]))

    def added_to(self, result: Result) -> Result:
        """Returns the test's result with what observers saw."""
        for name, values in self.values.items():
            result = _class_of(OBSERVERS[name]).add_to(result, name, values)
        return dataclasses.replace(result, findings=(*result.findings, *self.findings))


class Observers:
    """Opens all observers for a process, and asks them in turn."""

    def __init__(self, bench: Bench, rows: Mapping[str, ObserverRow] | None = None) -> None:
        rows = OBSERVERS if rows is None else rows
        self._all: list[Observer] = [_class_of(row)(name, bench) for name, row in rows.items()]

    def begin_test(self) -> None:
        """Calls all observers; raises CudaError if the context is lost."""
        for each in self._all:
            each.begin_test()

    def observe(self, call: Call, timer: Timer, *, beside: bool = False) -> list[Observation]:
        """Returns the observations of one measurement of a warm call, the nearest to the timed work first."""
        begun = (each.observe(call, timer, beside=beside) for each in reversed(self._all))
        return [observation for observation in begun if observation is not None][::-1]

    def measured(self, call: Call, measurement: Measurement) -> Measurement:
        """Returns a call's main measurement with what observers add once all timers are done."""
        for each in self._all:
            measurement = each.measured(call, measurement)
        return measurement

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> ObservedTest:
        """Returns what observers saw of a test; raises CudaError if the context is lost."""
        values, findings = {}, []
        for each in self._all:
            seen = each.end_test(passed=passed, let_go=let_go)
            if seen is not None:
                values[each.name] = seen.values
                findings += [seen.finding] if seen.finding is not None else []
        return ObservedTest(values, tuple(findings))


def with_notes(measurement: Measurement, *notes: str | None) -> Measurement:
    """Returns the measurement with these notes after its others; skips None."""
    summary = measurement.summary
    told = tuple(note for note in notes if note)
    summary = dataclasses.replace(summary, warnings=(*summary.warnings, *told))
    return dataclasses.replace(measurement, summary=summary)


def _class_of(row: ObserverRow) -> type[Observer]:
    return getattr(importlib.import_module(row.module), row.class_name)  # type: ignore[no-any-return]
