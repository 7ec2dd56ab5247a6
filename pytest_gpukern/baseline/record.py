"""Holds the record of a case in memory: epochs of sessions of times, oldest first.

Every value has `extra`: fields that this version does not know. They are kept when the file is rewritten, so
that an older release does not lose the optional fields of a newer one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, field, structs

from pytest_gpukern.gate.change import FEWEST
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.measure.device_clocks import DeviceClocks
from pytest_gpukern.measure.host_load import others_share
from pytest_gpukern.measure.statistics import quantiles
from pytest_gpukern.values.result import Choice, KernelFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from pytest_gpukern.values.result import JsonDict, Measurement, OutputError, Result

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of a session's samples that a record keeps."""

DIGITS = 6
"""Significant digits of recorded times and errors: 1e-6 relative, far below any timer's repeatability."""

DURATION_DIGITS = 3
"""Significant digits of a test's duration, which says only how long a run will take."""

LONGEST_NAME = 120
"""Characters. A longer name of a kernel loses its parameters and template arguments."""

NEWEST_EPOCHS = 3
MOST_SESSIONS = 20
FIRST_SESSIONS = 5


Text = Annotated[str, Meta(min_length=1, description="a text")]
Moment = Annotated[
    str,
    Meta(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$",
        description="a time such as 2026-11-20T10:00:00Z",
    ),
]
Number = Annotated[float, Meta(ge=0, description="a number that is not negative")]
Whole = Annotated[int, Meta(ge=0, description="a whole number of at least 0")]
Key = Annotated[str, Meta(pattern=r"^[^/]+/[^/]+/[^/]+$", description="a key of the form scope/timer/cache")]

NOTHING: Any = MappingProxyType({})
"""No unknown fields. While a file is read, also a placeholder for what the epoch or the record stores."""


class _Inherited(tuple[KernelFacts, ...]):
    """Marks a session that has no kernels of its own."""


INHERITED: Any = _Inherited()
"""While a file is read, the placeholder for kernels that the epoch stores."""


class RecordedTime(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Holds one measurement of one session in nanoseconds, without samples; fields are a file's columns.

    Attributes:
        n: number of samples.
        median_ns: median of the samples.
        low_ns: lower bound of its 95 % interval within the session.
        high_ns: upper bound.
        q05_ns: quantile of the samples, as `q25_ns`, `q75_ns`, `q95_ns` and `q50_ns`.
        sm_mhz: clock of the multiprocessors during the samples, or None.
        memory_mhz: clock of the memory, or None.
        invalid_samples: other samples, not used because the device was not fit, if any.
        fixed_cost_ns: what the timer read for an empty kernel beyond that kernel's own time, or None.
        jitter_ns: standard deviation of the median from what the timer itself adds, where it is known.
        q50_ns: the middle quantile where it is not the median.
        mean_ns: mean of the samples; None in records of older releases.
        others_share: which share of the host's CPUs other programs used meanwhile, where that is known.
        extra: unknown fields.
    """

    n: Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
    median_ns: Annotated[float, Meta(gt=0, description="a number that is positive")]
    low_ns: Number
    high_ns: Number
    q05_ns: Number
    q25_ns: Number
    q75_ns: Number
    q95_ns: Number
    sm_mhz: Number | None = None
    memory_mhz: Number | None = None
    invalid_samples: Whole | None = None
    fixed_cost_ns: Number | None = None
    jitter_ns: Number | None = None
    q50_ns: Number | None = None
    mean_ns: Number | None = None
    others_share: Number | None = None
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")

    @property
    def quantiles_ns(self) -> tuple[float, ...]:
        """Returns the `QUANTILES` of the samples."""
        middle = self.median_ns if self.q50_ns is None else self.q50_ns
        return (self.q05_ns, self.q25_ns, middle, self.q75_ns, self.q95_ns)

    @classmethod
    def of(cls, measurement: Measurement) -> RecordedTime:
        """Returns what a record keeps of a measurement, rounded to `DIGITS` significant digits."""
        summary, clocks = measurement.summary, DeviceClocks.of(measurement)
        median_ns = rounded(summary.median_ns)
        q05, q25, q50, q75, q95 = (rounded(q) for q in quantiles(measurement.samples_ns, QUANTILES))
        return cls(
            n=summary.n,
            median_ns=median_ns,
            low_ns=rounded(summary.low_ns),
            high_ns=rounded(summary.high_ns),
            q05_ns=q05,
            q25_ns=q25,
            q75_ns=q75,
            q95_ns=q95,
            sm_mhz=_finite(clocks.sm_mhz),
            memory_mhz=_finite(clocks.memory_mhz),
            invalid_samples=measurement.invalid_samples or None,
            fixed_cost_ns=_finite(measurement.fixed_cost_ns),
            jitter_ns=_finite(measurement.jitter_ns) or None,
            q50_ns=q50 if q50 != median_ns else None,
            mean_ns=_finite(statistics.fmean(measurement.samples_ns)),
            others_share=others_share(measurement),
        )


class OutputAccuracy(Struct, frozen=True, omit_defaults=True, gc=False):
    """Says how far one output was from its reference; None where nothing finite was compared.

    Attributes:
        max_abs: largest absolute error.
        max_rel: largest relative error.
        max_ulp: largest error in units in the last place.
        bits: hash of the output's bytes for the first data set, or None.
        determinism: `bitwise`, `run-to-run` or `tolerant`; None where the session did not look, as in records
            of older releases.
        extra: unknown fields.
    """

    max_abs: Number | None
    max_rel: Number | None
    max_ulp: Number | None
    bits: Text | None = None
    determinism: Text | None = None
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")

    @classmethod
    def of(cls, error: OutputError) -> OutputAccuracy:
        """Returns what a record keeps of an output's comparison; non-finite errors become None."""
        errors = (_finite(error.max_abs), _finite(error.max_rel), _finite(error.max_ulp))
        return cls(*errors, error.bits, error.determinism)


def as_recorded(kernel: KernelFacts) -> KernelFacts:
    """Returns what a record keeps of a kernel."""
    return KernelFacts(
        name=fitted(kernel.name, LONGEST_NAME),
        registers=kernel.registers,
        local_bytes=kernel.local_bytes,
        shared_bytes=kernel.shared_bytes,
        machine_code_sha256=kernel.machine_code_sha256,
        grid=kernel.grid,
        block=kernel.block,
    )


def choice_of(result: Result) -> Choice:
    """Returns what an autotuner or a library chose in a new result, to compare with a record's."""
    return Choice.of(result.autotuned, map(as_recorded, result.kernels))


class SessionEntry(Struct, frozen=True, omit_defaults=True):
    """Holds what all cases of one session share; each file stores it once.

    Attributes:
        recorded: when, as an ISO 8601 time with its offset.
        fingerprint: key into `Baseline.fingerprints`.
        canaries: name → median time in nanoseconds of the fixed kernels that every session measures.
        extra: unknown fields.
    """

    recorded: Moment
    fingerprint: Text
    canaries: dict[str, Number | None] = {}
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")


class RecordedSession(Struct, frozen=True, omit_defaults=True):
    """Holds what one process measured of one case.

    Attributes:
        recorded: when, as an ISO 8601 time with its offset; a file has it where the session's entry differs.
        fingerprint: key into `Baseline.fingerprints`; stored as `recorded` is.
        first_call_ns: time of the first call, compilation included, or None.
        correctness: output name → accuracy; a file has it where it differs from that of its epoch.
        measurements: `scope/timer/cache` → time; never empty. A scope that two timers read has both.
        compile_ns: time that compiling took, or None.
        kernels: what the case launches, where a timer saw it; each launch configuration once. As
            `correctness`, a file has them where they differ.
        session: key into `Baseline.sessions`; None in records of older releases.
        autotuned: kernel → configuration that an autotuner chose for it, as texts.
        duration_s: how long the whole test took, in seconds; None in records of older releases.
        extra: unknown fields.
    """

    recorded: Moment = ""
    fingerprint: Text = ""
    first_call_ns: Number | None = None
    correctness: Mapping[str, OutputAccuracy] = NOTHING
    measurements: Annotated[
        Mapping[Key, RecordedTime], Meta(min_length=1, description="at least one measurement")
    ] = field(default=NOTHING, name="times")
    compile_ns: Number | None = None
    kernels: tuple[KernelFacts, ...] = INHERITED
    session: Text | None = None
    duration_s: Number | None = None
    autotuned: Mapping[str, Mapping[str, str]] = NOTHING
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")

    @property
    def choice(self) -> Choice:
        """Returns what an autotuner or a library chose."""
        return Choice.of(self.autotuned, self.kernels)

    def only(self, keys: AbstractSet[str]) -> RecordedSession:
        """Returns the session with some of its measurements."""
        kept = {key: time for key, time in self.measurements.items() if key in keys}
        return structs.replace(self, measurements=kept)


class Epoch(Struct, frozen=True, omit_defaults=True):
    """Holds the sessions of a record between two deliberate updates.

    The problem version and the measured point belong here, not to the record: an update may follow a change
    of either, and older epochs keep theirs.

    Attributes:
        opened: when, as an ISO 8601 time with its offset.
        problem_version: the version that was measured.
        sessions: oldest first, never empty.
        measured_point: values of the axes as run; a file has them where they differ from the record's point.
        reason: why the epoch was opened, where somebody said.
        correctness: what its sessions share, in a file; empty in memory, where each session has its own.
        kernels: as `correctness`.
        extra: unknown fields.
    """

    opened: Moment
    problem_version: Whole
    sessions: Annotated[
        tuple[RecordedSession, ...], Meta(min_length=1, description="a list with at least one entry")
    ]
    measured_point: Mapping[str, Any] = NOTHING
    reason: Text | None = None
    correctness: Mapping[str, OutputAccuracy] = NOTHING
    kernels: tuple[KernelFacts, ...] = INHERITED
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")

    @property
    def keys(self) -> set[str]:
        """Returns the measurements that its sessions hold."""
        return {key for session in self.sessions for key in session.measurements}

    def holding(self, key: str) -> list[RecordedSession]:
        """Returns its sessions that hold a measurement, oldest first."""
        return [session for session in self.sessions if key in session.measurements]

    def first(self, key: str) -> int:
        """Returns how many of its sessions under a key opened it: they stay, as the anchor against drift.

        If those are too few to gate, the first appended ones count too.
        """
        holding = self.holding(key)
        opened = sum(1 for _ in itertools.takewhile(lambda each: each.recorded <= self.opened, holding))
        return min(opened if opened >= FEWEST else FIRST_SESSIONS, MOST_SESSIONS // 2)

    def adding(self, sessions: Iterable[RecordedSession]) -> Epoch:
        """Returns the epoch with more sessions; it keeps `MOST_SESSIONS` of every measurement.

        These are the ones that opened it, against steps that add up, and the newest.
        """
        longer = structs.replace(self, sessions=(*self.sessions, *sessions))
        surplus: dict[int, set[str]] = {}
        for key in longer.keys:
            holders = [i for i, each in enumerate(longer.sessions) if key in each.measurements]
            first = longer.first(key)
            for index in holders[first : first - MOST_SESSIONS]:
                surplus.setdefault(index, set()).add(key)
        trimmed = (
            each.only(each.measurements.keys() - surplus[i]) if i in surplus else each
            for i, each in enumerate(longer.sessions)
        )
        return structs.replace(longer, sessions=tuple(each for each in trimmed if each.measurements))


class Record(Struct, frozen=True, omit_defaults=True):
    """Holds what a baseline stores for one case: its point as asked for, and its epochs, oldest first."""

    point: dict[str, Any]
    epochs: Annotated[tuple[Epoch, ...], Meta(min_length=1, description="a list with at least one entry")]
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")

    @property
    def keys(self) -> set[str]:
        """Returns the measurements that any epoch holds."""
        return {key for epoch in self.epochs for key in epoch.keys}

    def current(self, key: str) -> Epoch | None:
        """Returns the newest epoch that holds a measurement: an update of one scope leaves others judged."""
        return next((epoch for epoch in reversed(self.epochs) if key in epoch.keys), None)

    def anchor(self, key: str) -> Epoch | None:
        """Returns the oldest epoch that holds a measurement: it shows small steps that have added up."""
        return next((epoch for epoch in self.epochs if key in epoch.keys), None)

    @property
    def duration_s(self) -> float | None:
        """Returns how long the test took in the newest session that knows it, in seconds, or None."""
        sessions = [session for epoch in self.epochs for session in epoch.sessions]
        known = [session for session in reversed(sessions) if session.duration_s is not None]
        return max(known, key=lambda session: session.recorded).duration_s if known else None

    def opening(self, epoch: Epoch) -> Record:
        """Returns the record with a new current epoch.

        It keeps the two before it, and the oldest and the newest that hold each measurement.
        """
        epochs = (*self.epochs, epoch)
        kept = set(range(max(0, len(epochs) - NEWEST_EPOCHS), len(epochs)))
        for key in self.keys | epoch.keys:
            holders = [index for index, each in enumerate(epochs) if key in each.keys]
            kept |= {holders[0], holders[-1]}
        return structs.replace(self, epochs=tuple(epochs[index] for index in sorted(kept)))


@dataclass(frozen=True)
class Baseline:
    """Holds the contents of one file: the records of one problem on one device model.

    Attributes:
        problem: the file's `baseline_name`: the problem or test module.
        device_model: key of the device model, or of the CPU model for host variants.
        fingerprints: fingerprint → its identity's values, each stored once.
        cases: case id → record.
        sessions: session id → what all its cases share.
        extra: unknown fields.
    """

    problem: str
    device_model: str
    fingerprints: dict[str, JsonDict] = dataclasses.field(default_factory=dict)
    cases: dict[str, Record] = dataclasses.field(default_factory=dict)
    sessions: dict[str, SessionEntry] = dataclasses.field(default_factory=dict)
    extra: JsonDict = dataclasses.field(default_factory=dict)

    def lookup(self, case_id: str) -> Record | None:
        """Returns the record of a case, or None."""
        return self.cases.get(case_id)

    def devices(self, case_id: str) -> set[str]:
        """Returns the UUIDs of the GPUs of the machines on which a case was recorded."""
        sessions = (session for epoch in self.cases[case_id].epochs for session in epoch.sessions)
        return {str(self.fingerprints.get(each.fingerprint, {}).get("device_uuid")) for each in sessions}

    def session_times(self, case_id: str, key: str) -> tuple[SessionTime, ...]:
        """Returns what the gate compares a measurement with, from the current epoch.

        If the case was never measured under `key`, these are the sessions in the same scope with their own
        key, so that the gate can say how they differ. Other scopes are no substitute.
        """
        record = self.cases.get(case_id)
        if record is None:
            return ()
        scope = key.partition("/")[0]
        similar = sorted(other for other in record.keys if other.partition("/")[0] == scope)
        return tuple(
            time
            for wanted in ([key] if key in similar else similar)
            for time in self._times(record.current(wanted), wanted)
        )

    def anchor_times(self, case_id: str, key: str) -> tuple[SessionTime, ...]:
        """Returns the sessions of the oldest epoch under `key`; none if that is the current one."""
        record = self.cases.get(case_id)
        first = record.anchor(key) if record else None
        return () if record is None or first is record.current(key) else tuple(self._times(first, key))

    def all_times(self) -> Iterator[tuple[SessionTime, ...]]:
        """Yields the current sessions of every case under every key, apart by what an autotuner chose."""
        for record in self.cases.values():
            for key in sorted(record.keys):
                groups: dict[object, list[SessionTime]] = {}
                for time in self._times(record.current(key), key):
                    groups.setdefault(time.choice.configurations, []).append(time)
                yield from map(tuple, groups.values())

    def _times(self, epoch: Epoch | None, key: str) -> Iterator[SessionTime]:
        if epoch is not None:
            first = epoch.first(key)
            for number, session in enumerate(epoch.holding(key)):
                time = session.measurements[key]
                conditions = Conditions(epoch.problem_version, epoch.measured_point, self.device_model)
                fingerprint = self.fingerprints.get(session.fingerprint, {})
                # A host variant's session names the machine's GPU too, which does not affect its time.
                on_device = fingerprint.get("device_model_key") == self.device_model
                uuid = fingerprint.get("device_uuid") if on_device else None
                device = uuid if isinstance(uuid, str) else None
                opening = number < first
                median, low, high = time.median_ns, time.low_ns, time.high_ns
                yield SessionTime(key, median, low, high, time.n, conditions, device, opening, session.choice)

    def without(self, case_ids: Iterable[str]) -> Baseline:
        """Returns the baseline without some of its cases."""
        dropped = set(case_ids)
        kept = {name: record for name, record in self.cases.items() if name not in dropped}
        return dataclasses.replace(self, cases=kept)

    def referenced(self) -> Baseline:
        """Returns the baseline without sessions and fingerprints that no record refers to."""
        recorded = [
            session for record in self.cases.values() for epoch in record.epochs for session in epoch.sessions
        ]
        named = {session.session for session in recorded}
        sessions = {name: entry for name, entry in self.sessions.items() if name in named}
        used = {entry.fingerprint for entry in sessions.values()}
        used |= {session.fingerprint for session in recorded}
        fingerprints = {name: value for name, value in self.fingerprints.items() if name in used}
        return dataclasses.replace(self, fingerprints=fingerprints, sessions=sessions)


def rounded(value: float, digits: int = DIGITS) -> float:
    """Rounds a number to be recorded to so many significant digits."""
    return float(f"{value:.{digits}g}")


def _finite(value: float | None) -> float | None:
    return rounded(value) if value is not None and math.isfinite(value) else None
