"""The record of a case in memory: epochs of sessions of times, oldest first.

Every value has `extra`: fields that this version does not know. They are kept when the file is rewritten, so
that a release which adds an optional field does not lose it to an older one working on the same file.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.measure.statistics import quantiles
from pytest_gpukern.values.result import KernelFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from pytest_gpukern.values.result import JsonDict, Measurement, OutputError

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Which quantiles of a session's samples a record keeps."""

DIGITS = 6
"""Significant digits of recorded times and errors: 1e-6 relative, far below any timer's repeatability."""

LONGEST_NAME = 120
"""Characters from which a kernel's name is kept without parameters and template arguments."""

NEWEST_EPOCHS = 3
MOST_SESSIONS = 20


@dataclass(frozen=True)
class RecordedTime:
    """One measurement of one session, in nanoseconds, without its samples.

    Attributes:
        median_ns: median of the samples.
        low_ns: lower bound of its 95 % interval within the session.
        high_ns: upper bound.
        n: number of samples.
        quantiles_ns: the `QUANTILES` of the samples.
        fixed_cost_ns: what the timer read for an empty kernel beyond that kernel's own time, or None.
        sm_mhz: clock of the multiprocessors meanwhile, or None.
        memory_mhz: clock of the memory, or None.
        invalid_samples: samples that were taken besides and not used, because the device was not fit.
        jitter_ns: standard deviation of the median from what the timer itself adds; 0 where not known.
        extra: unknown fields.
    """

    median_ns: float
    low_ns: float
    high_ns: float
    n: int
    quantiles_ns: tuple[float, ...]
    fixed_cost_ns: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    invalid_samples: int = 0
    jitter_ns: float = 0.0
    extra: JsonDict = field(default_factory=dict)

    @classmethod
    def of(cls, measurement: Measurement) -> RecordedTime:
        """What a record keeps of a measurement, rounded to `DIGITS` significant digits."""
        summary = measurement.summary
        return cls(
            median_ns=rounded(summary.median_ns),
            low_ns=rounded(summary.low_ns),
            high_ns=rounded(summary.high_ns),
            n=summary.n,
            quantiles_ns=tuple(rounded(q) for q in quantiles(measurement.samples_ns, QUANTILES)),
            fixed_cost_ns=_finite(measurement.fixed_cost_ns),
            sm_mhz=_finite(measurement.state.get("sm_mhz")),
            memory_mhz=_finite(measurement.state.get("memory_mhz")),
            invalid_samples=measurement.invalid_samples,
            jitter_ns=_finite(measurement.jitter_ns) or 0.0,
        )


@dataclass(frozen=True)
class OutputAccuracy:
    """How far one output was from its reference; None where nothing finite was compared.

    Attributes:
        max_abs: largest absolute error.
        max_rel: largest relative error.
        max_ulp: largest error in units in the last place.
        bits: hash of the output's bytes for the first data set, or None.
        determinism: `bitwise`, `run-to-run` or `tolerant`; None where the session did not look, as in records
            of older releases.
        extra: unknown fields.
    """

    max_abs: float | None
    max_rel: float | None
    max_ulp: float | None
    bits: str | None = None
    determinism: str | None = None
    extra: JsonDict = field(default_factory=dict)

    @classmethod
    def of(cls, error: OutputError) -> OutputAccuracy:
        """What a record keeps of an output's comparison; non-finite errors become None."""
        return cls(
            _finite(error.max_abs),
            _finite(error.max_rel),
            _finite(error.max_ulp),
            error.bits,
            error.determinism,
        )

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return as_json(self)


def as_recorded(kernel: KernelFacts) -> KernelFacts:
    """What a record keeps of a kernel as it was seen."""
    return KernelFacts(
        name=fitted(kernel.name, LONGEST_NAME),
        registers=kernel.registers,
        local_bytes=kernel.local_bytes,
        shared_bytes=kernel.shared_bytes,
        machine_code_sha256=kernel.machine_code_sha256,
        grid=kernel.grid,
        block=kernel.block,
    )


@dataclass(frozen=True)
class SessionEntry:
    """What holds for all that one session measured; each file stores it once.

    Attributes:
        recorded: when, as an ISO 8601 time with its offset.
        fingerprint: key into `Baseline.fingerprints`.
        canaries: name → median time in nanoseconds of the fixed kernels that every session measures.
        extra: unknown fields.
    """

    recorded: str
    fingerprint: str
    canaries: dict[str, float | None] = field(default_factory=dict)
    extra: JsonDict = field(default_factory=dict)

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return as_json(self)


@dataclass(frozen=True)
class RecordedSession:
    """What one process measured of one case.

    Attributes:
        recorded: when, as an ISO 8601 time with its offset.
        fingerprint: key into `Baseline.fingerprints`.
        first_call_ns: time of the first call, compilation included, or None.
        correctness: output name → accuracy.
        measurements: `scope/timer/cache` → time; never empty. Of a scope that two timers read, both.
        compile_ns: time that compiling took, or None.
        kernels: what the case launches, where a timer saw it; each launch configuration once.
        session: key into `Baseline.sessions`; None in records of older releases.
        extra: unknown fields.
    """

    recorded: str
    fingerprint: str
    first_call_ns: float | None
    correctness: dict[str, OutputAccuracy]
    measurements: dict[str, RecordedTime]
    compile_ns: float | None = None
    kernels: tuple[KernelFacts, ...] = ()
    session: str | None = None
    extra: JsonDict = field(default_factory=dict)

    def only(self, keys: AbstractSet[str]) -> RecordedSession:
        """The same session with some of its measurements."""
        kept = {key: time for key, time in self.measurements.items() if key in keys}
        return dataclasses.replace(self, measurements=kept)


@dataclass(frozen=True)
class Epoch:
    """The sessions of a record between two deliberate updates.

    The problem version and the point as measured belong here, not to the record: an update may follow a
    change of either, and the older epochs keep what they were measured with.
    """

    opened: str
    reason: str | None
    problem_version: int
    measured_point: JsonDict
    sessions: tuple[RecordedSession, ...]
    extra: JsonDict = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The measurements that its sessions hold."""
        return {key for session in self.sessions for key in session.measurements}

    def holding(self, key: str) -> list[RecordedSession]:
        """Its sessions that hold a measurement, oldest first."""
        return [session for session in self.sessions if key in session.measurements]

    def adding(self, sessions: Iterable[RecordedSession]) -> Epoch:
        """The epoch with further sessions; of every measurement it keeps the newest `MOST_SESSIONS`."""
        longer = dataclasses.replace(self, sessions=(*self.sessions, *sessions))
        surplus: dict[int, set[str]] = {}
        for key in longer.keys:
            holders = [i for i, each in enumerate(longer.sessions) if key in each.measurements]
            for index in holders[:-MOST_SESSIONS]:
                surplus.setdefault(index, set()).add(key)
        trimmed = (
            each.only(each.measurements.keys() - surplus[i]) if i in surplus else each
            for i, each in enumerate(longer.sessions)
        )
        return dataclasses.replace(longer, sessions=tuple(each for each in trimmed if each.measurements))


@dataclass(frozen=True)
class Record:
    """What a baseline stores for one case: its point as asked for, and its epochs, oldest first."""

    point: JsonDict
    epochs: tuple[Epoch, ...]
    extra: JsonDict = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The measurements that any epoch holds."""
        return {key for epoch in self.epochs for key in epoch.keys}

    def current(self, key: str) -> Epoch | None:
        """The newest epoch that holds a measurement: an update of one scope leaves the others judged."""
        return next((epoch for epoch in reversed(self.epochs) if key in epoch.keys), None)

    def anchor(self, key: str) -> Epoch | None:
        """The oldest epoch that holds a measurement: against many small steps that add up unseen."""
        return next((epoch for epoch in self.epochs if key in epoch.keys), None)

    def opening(self, epoch: Epoch) -> Record:
        """The record with a new current epoch.

        Of the older ones stay the newest two, and the oldest and the newest of every measurement.
        """
        return dataclasses.replace(self, epochs=(*self.epochs, epoch)).with_newest(NEWEST_EPOCHS)

    def with_newest(self, count: int) -> Record:
        """The record with its newest epochs, and the oldest and the newest of every measurement."""
        epochs = self.epochs
        kept = set(range(max(0, len(epochs) - count), len(epochs)))
        for key in self.keys:
            holders = [index for index, each in enumerate(epochs) if key in each.keys]
            kept |= {holders[0], holders[-1]}
        return dataclasses.replace(self, epochs=tuple(epochs[index] for index in sorted(kept)))


@dataclass(frozen=True)
class Baseline:
    """The contents of one file: the records of one problem on one device model.

    Attributes:
        problem: the file's `baseline_name`: the problem or test module.
        device_model: key of the device model, or of the CPU model for host variants.
        fingerprints: fingerprint → its identity's values, each stored once.
        cases: case id → record.
        sessions: session id → what holds for all that it measured.
        extra: unknown fields.
    """

    problem: str
    device_model: str
    fingerprints: dict[str, JsonDict] = field(default_factory=dict)
    cases: dict[str, Record] = field(default_factory=dict)
    sessions: dict[str, SessionEntry] = field(default_factory=dict)
    extra: JsonDict = field(default_factory=dict)

    def lookup(self, case_id: str) -> Record | None:
        """The record of a case, or None."""
        return self.cases.get(case_id)

    def newer_epoch(self, case_id: str, key: str) -> Epoch | None:
        """The newest epoch of a case where that has no times under `key`, and an older one has."""
        record = self.cases.get(case_id)
        current = record.current(key) if record is not None else None
        if record is None or current is None or current is record.epochs[-1]:
            return None
        return record.epochs[-1]

    def session_times(self, case_id: str, key: str) -> tuple[SessionTime, ...]:
        """What the gate compares a measurement with, from the current epoch.

        Where the case was never measured under `key` but was in the same scope, those sessions are returned
        with their own key, so that the gate can say in what they differ. Other scopes are no substitute.
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
        """The sessions of the oldest epoch under `key`; none where that is the current one."""
        record = self.cases.get(case_id)
        first = record.anchor(key) if record else None
        return () if record is None or first is record.current(key) else tuple(self._times(first, key))

    def all_times(self) -> Iterator[tuple[SessionTime, ...]]:
        """The current sessions of every case under every key."""
        for record in self.cases.values():
            for key in sorted(record.keys):
                yield tuple(self._times(record.current(key), key))

    def _times(self, epoch: Epoch | None, key: str) -> Iterator[SessionTime]:
        for session in epoch.sessions if epoch else ():
            time = session.measurements.get(key)
            if epoch is not None and time is not None:
                conditions = Conditions(epoch.problem_version, epoch.measured_point, self.device_model)
                fingerprint = self.fingerprints.get(session.fingerprint, {})
                # A host variant's session names the GPU beside it too, which its time has nothing to do with.
                on_device = fingerprint.get("device_model_key") == self.device_model
                uuid = fingerprint.get("device_uuid") if on_device else None
                device = uuid if isinstance(uuid, str) else None
                yield SessionTime(key, time.median_ns, time.low_ns, time.high_ns, time.n, conditions, device)

    def without(self, case_ids: Iterable[str]) -> Baseline:
        """The same without some of its cases."""
        dropped = set(case_ids)
        kept = {name: record for name, record in self.cases.items() if name not in dropped}
        return dataclasses.replace(self, cases=kept)

    def referenced(self) -> Baseline:
        """The same without sessions and fingerprints that no record refers to."""
        recorded = [
            session for record in self.cases.values() for epoch in record.epochs for session in epoch.sessions
        ]
        named = {session.session for session in recorded}
        sessions = {name: entry for name, entry in self.sessions.items() if name in named}
        used = {entry.fingerprint for entry in sessions.values()}
        used |= {session.fingerprint for session in recorded}
        fingerprints = {name: value for name, value in self.fingerprints.items() if name in used}
        return dataclasses.replace(self, fingerprints=fingerprints, sessions=sessions)


def rounded(value: float) -> float:
    """A recorded number: `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _finite(value: float | None) -> float | None:
    return rounded(value) if value is not None and math.isfinite(value) else None


def as_json(value: Any) -> JsonDict:
    """A value of this module as a dict: unknown fields, then known ones.

    A field that has its default is left out: releases before this one did not know it.
    """
    known = [
        each.name
        for each in dataclasses.fields(value)
        if each.name != "extra" and not _is_default(value, each)
    ]
    return {**value.extra, **{name: getattr(value, name) for name in known}}


def _is_default(value: Any, each: dataclasses.Field[Any]) -> bool:
    factory = each.default_factory
    default = each.default if factory is dataclasses.MISSING else factory()
    return bool(getattr(value, each.name) == default)
