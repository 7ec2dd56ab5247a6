"""Defines what an observer is: it looks at the device around timed work, never during it.

To add one, write a file with a class derived from `Observer`, and its row in `OBSERVERS`. What it sees
travels under its name in `Measurement.observations` and `Result.observations`. Reports write that with the
labels and units of the row; no other code needs to know it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import structs

from pytest_gpukern.gpu.nvml import COUNTED_EVENTS, DeviceState
from pytest_gpukern.gpu.processes import DeviceWatch
from pytest_gpukern.gpu.theory import Floor
from pytest_gpukern.timers.timer import Batch, Timer
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Finding, Measurement, Observations, Result, Value
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.stored import Stored

if TYPE_CHECKING:
    from pytest_gpukern.gpu.clock_probe import ClockProbe


class Figure(NamedTuple):
    """How reports name a value that an observer sees, and its unit.

    `bytes` and `ns` are written in larger units, and a `share` of 1 in percent.
    """

    label: str
    unit: str = ""


@dataclass(frozen=True)
class ObserverRow:
    """An observer, and how reports write what it sees.

    Attributes:
        observer_class: `module:name` of its class.
        label: names what it sees in reports, such as `device memory`; the figures follow it.
        figures: name of each value that it may see → its label and unit, in the order of reports.
        in_reports: whether reports write what it sees; else only code that asks for it by name reads it.
        waits: whether its `finish` may wait: then it looks after all others.
    """

    observer_class: str
    label: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    in_reports: bool = True
    waits: bool = False


OBSERVERS = {
    "plausibility": ObserverRow("pytest_gpukern.measure.plausibility:Plausibility"),
    "compilation": ObserverRow("pytest_gpukern.measure.compilation:CompilationObserver"),
    "memory": ObserverRow(
        "pytest_gpukern.measure.device_memory:MemoryObserver",
        "device memory of libraries",
        {
            "before_bytes": Figure("before", "bytes"),
            "peak_bytes": Figure("at most", "bytes"),
            "after_bytes": Figure("after", "bytes"),
            "kept_bytes": Figure("kept", "bytes"),
        },
    ),
    "clocks": ObserverRow(
        "pytest_gpukern.measure.device_clocks:ClockObserver",
        "device",
        {
            "sm_mhz": Figure("SM clock", "MHz"),
            "sm_mhz_low": Figure("lowest", "MHz"),
            "sm_mhz_high": Figure("highest", "MHz"),
            "memory_mhz": Figure("memory clock", "MHz"),
            "clock_events": Figure("clocks held by"),
            "temperature_c": Figure("GPU at", "°C"),
            "memory_temperature_c": Figure("memory at", "°C"),
            "power_w": Figure("power", "W"),
            "memory_used_bytes": Figure("memory in use", "bytes"),
        },
    ),
    "load": ObserverRow(
        "pytest_gpukern.measure.host_load:HostLoadObserver",
        "host",
        {
            "others_share": Figure("used by other programs", "share"),
            "least_ns": Figure("without them at least", "ns"),
            "most_ns": Figure("without them at most", "ns"),
            "loop_ns": Figure("CPU time of a fixed loop", "ns"),
        },
        waits=True,
    ),
    "card": ObserverRow(
        "pytest_gpukern.measure.card_state:CardObserver",
        "card",
        {
            "power_limit_w": Figure("power limit", "W"),
            "ecc": Figure("ECC"),
            "corrected_errors": Figure("corrected memory errors"),
            "uncorrected_errors": Figure("uncorrected memory errors"),
            "remapped_rows": Figure("replaced rows"),
            "row_remap_pending": Figure("rows to replace"),
            "row_remap_failed": Figure("rows not replaced"),
            "pcie.generation": Figure("PCIe generation"),
            "pcie.width": Figure("PCIe lanes"),
            "pcie.max_generation": Figure("newest PCIe generation"),
            "pcie.max_width": Figure("most PCIe lanes"),
            **{f"limited_s.{event}": Figure(f"held by {event}", "s") for event in COUNTED_EVENTS},
        },
        in_reports=False,
    ),
}
"""Name → row. The first is nearest to the timed work: the last to look before it, the first to look after.

`load` is the last that looks at measurements: it may wait, and others would see a machine that rests.
"""

_FRESH_S = 0.02  # about as long as one look through NVML takes: 5 to 28 ms on an H200


@dataclass
class Instruments:
    """The instruments that observe a device, once a process.

    Attributes:
        probe: measures the SM clock; None if it cannot be launched.
    """

    states: DeviceWatch
    probe: ClockProbe | None = None
    max_sm_mhz: float | None = None
    max_memory_mhz: float | None = None
    _last: DeviceState | None = field(default=None, init=False)
    _asked: float = field(default=float("-inf"), init=False)

    @property
    def age_s(self) -> float:
        """Seconds since we asked NVML."""
        return time.monotonic() - self._asked

    def state(self, *, within_s: float = _FRESH_S) -> DeviceState:
        """Returns the device's state, at most `within_s` seconds old."""
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
class ObservedCall:
    """A call that is measured in one scope, by one timer or several.

    Attributes:
        floor: the least time that the declared work can take, if known.
    """

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
            last: whether sampling ends here, unless the batch does not count.
        """
        return Look()

    def finish(self, measurement: Measurement) -> Seen:  # noqa: ARG002
        """Returns what was seen in all batches, once sampling has ended."""
        return Seen()


class Observer:
    """Looks at the device for a whole process. By default it does nothing."""

    def __init__(self, name: str, bench: Bench) -> None:
        self.name = name
        self.bench = bench

    def begin_test(self) -> None:
        """Is called before the setup of a test that measures; this process holds the device, if any."""

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        """Begins to look at one measurement of a warm call; None if there is nothing to see."""
        return None

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest | None:  # noqa: ARG002
        """Returns what it saw of the test, after teardown; this process holds the device, if any.

        Args:
            passed: whether the test's body passed; a failure's traceback keeps objects alive.
            let_go: drops what pytest itself still refers to, such as values of fixtures.
        """
        return None


@dataclass(frozen=True)
class Seen:
    """What an observer saw of a measurement.

    Attributes:
        values: name of a figure → its value; None for what is not known.
        invalid: why the numbers cannot be trusted, or None.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    invalid: str | None = None

    def added_to(self, measurement: Measurement, name: str) -> Measurement:
        """Returns the measurement with what the observer of this name saw; the first `invalid` stays."""
        return structs.replace(
            with_notes(measurement, *self.notes),
            invalid=measurement.invalid or self.invalid,
            observations=_with_values(measurement.observations, name, self.values),
        )


@dataclass(frozen=True)
class SeenInTest:
    """What an observer saw of a test: its figures as in `Seen`, and a finding worth a line, or None."""

    values: Mapping[str, Value]
    finding: Finding | None = None


class ObservedTest(Stored, frozen=True):
    """All observers' views of a test by name, and their findings; travels on the report of its teardown."""

    values: Observations = {}
    findings: tuple[Finding, ...] = ()

    def added_to(self, result: Result) -> Result:
        return structs.replace(
            result,
            observations={**result.observations, **self.values},
            findings=(*result.findings, *self.findings),
        )


class Observers:
    """Opens all observers for a process, and asks them in turn."""

    def __init__(self, bench: Bench, rows: Mapping[str, ObserverRow] | None = None) -> None:
        rows = OBSERVERS if rows is None else rows
        self._all: list[Observer] = [
            resolve_name(row.observer_class)(name, bench)
            for name, row in sorted(rows.items(), key=lambda row: row[1].waits)
        ]

    def begin_test(self) -> None:
        """Calls all observers; raises CudaError if the context is lost."""
        for observer in self._all:
            observer.begin_test()

    def observe(self, call: ObservedCall, timer: Timer) -> dict[str, Observation]:
        """Returns observations of a warm call by observers' names, the nearest to the timed work first."""
        begun = [(observer.name, observer.observe(call, timer)) for observer in reversed(self._all)]
        return {name: observation for name, observation in reversed(begun) if observation is not None}

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> ObservedTest:
        """Returns what observers saw of a test; raises CudaError if the context is lost."""
        values, findings = Observations(), []
        for observer in self._all:
            seen = observer.end_test(passed=passed, let_go=let_go)
            if seen is not None:
                values = _with_values(values, observer.name, seen.values)
                findings += [seen.finding] if seen.finding is not None else []
        return ObservedTest(values, tuple(findings))


def with_notes(measurement: Measurement, *notes: Note, first: bool = False) -> Measurement:
    others = measurement.summary.notes
    summary = structs.replace(measurement.summary, notes=notes + others if first else others + notes)
    return structs.replace(measurement, summary=summary)


def _with_values(observations: Observations, name: str, values: Mapping[str, Value]) -> Observations:
    """Returns the observations with an observer's known values; refuses one that its row does not declare."""
    declared = OBSERVERS[name].figures if name in OBSERVERS else values
    for figure in values:
        if figure not in declared:
            raise ValueError(
                f"the observer {name} saw {figure!r}, which its row in OBSERVERS does not declare: "
                f"its figures are {', '.join(declared) or 'none'}; add a Figure there"
            )
    known: dict[str, Value] = {figure: value for figure, value in values.items() if value is not None}
    return {**observations, name: {**observations.get(name, {}), **known}} if known else observations
