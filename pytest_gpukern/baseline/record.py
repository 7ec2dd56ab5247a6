"""The record of a case in memory: epochs of sessions of times, oldest first.

Every value has `extra`: fields that this version does not know. They are kept when the file is rewritten, so
that a release which adds an optional field does not lose it to an older one working on the same file.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gate import Conditions, SessionTime
from pytest_gpukern.kernel_names import fitted
from pytest_gpukern.stats import quantiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpukern.result import JsonDict, KernelFacts, Measurement, OutputError

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Which quantiles of a session's samples a record keeps."""

DIGITS = 6
"""Significant digits of recorded times and errors: 1e-6 relative, far below any timer's repeatability."""

LONGEST_NAME = 120
"""Characters from which a kernel's name is kept without parameters and template arguments."""

NEWEST_EPOCHS = 3
MOST_SESSIONS = 20
RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)


class BaselineError(Exception):
    """A baseline file that cannot be read or written, or a name that must not become one.

    Attributes:
        path: the file.
        where: the field inside it, such as `cases['…'].epochs[0].opened`, or None.
        problem: what is wrong.
        remedy: what to do about it.
    """

    def __init__(self, path: Path, problem: str, remedy: str, *, where: str | None = None) -> None:
        self.path, self.where, self.problem, self.remedy = path, where, problem, remedy
        field_text = f"{where}: " if where else ""
        super().__init__(f"{path}: {field_text}{problem}. {remedy}.")


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
        )

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return _json(self, quantiles_ns=list(self.quantiles_ns))


@dataclass(frozen=True)
class OutputAccuracy:
    """How far one output was from its reference; None where nothing finite was compared."""

    max_abs: float | None
    max_rel: float | None
    max_ulp: float | None
    extra: JsonDict = field(default_factory=dict)

    @classmethod
    def of(cls, error: OutputError) -> OutputAccuracy:
        """What a record keeps of an output's comparison; non-finite errors become None."""
        return cls(_finite(error.max_abs), _finite(error.max_rel), _finite(error.max_ulp))

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return _json(self)


@dataclass(frozen=True)
class RecordedKernel:
    """What a kernel of a case was compiled to.

    Attributes:
        name: as its author would write it, without parameters where it is long.
        registers: of a thread.
        local_bytes: of a thread: spilled registers, arrays and the call stack.
        shared_bytes: of a block, static and dynamic.
        machine_code_sha256: of the code that the device executes, or None.
        spill_store_bytes: of a thread, stored by instructions that spill; None where it is not known, or
            where it is 0 for want of local memory.
        spill_load_bytes: of a thread, loaded again, likewise.
        extra: unknown fields.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    machine_code_sha256: str | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    extra: JsonDict = field(default_factory=dict)

    @classmethod
    def of(cls, facts: KernelFacts) -> RecordedKernel:
        """What a record keeps of a kernel."""
        shape = facts.shape
        shared = shape.static_shared_bytes + shape.dynamic_shared_bytes
        name = fitted(facts.readable, LONGEST_NAME)
        return cls(
            name,
            shape.registers,
            shape.local_bytes,
            shared,
            facts.machine_code_sha256,
            facts.spill_store_bytes if shape.local_bytes else None,
            facts.spill_load_bytes if shape.local_bytes else None,
        )

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return _json(self)


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
        kernels: what the case launches, where a timer saw it; each once, whatever its grids.
        extra: unknown fields.
    """

    recorded: str
    fingerprint: str
    first_call_ns: float | None
    correctness: dict[str, OutputAccuracy]
    measurements: dict[str, RecordedTime]
    compile_ns: float | None = None
    kernels: tuple[RecordedKernel, ...] = ()
    extra: JsonDict = field(default_factory=dict)

    def only(self, keys: set[str]) -> RecordedSession:
        """The same session with some of its measurements."""
        kept = {key: time for key, time in self.measurements.items() if key in keys}
        return dataclasses.replace(self, measurements=kept)

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return _json(
            self,
            correctness={name: accuracy.to_json() for name, accuracy in self.correctness.items()},
            measurements={key: time.to_json() for key, time in self.measurements.items()},
            kernels=[kernel.to_json() for kernel in self.kernels],
        )


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

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return _json(self, sessions=[session.to_json() for session in self.sessions])


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
        epochs = (*self.epochs, epoch)
        keys = {key for each in epochs for key in each.keys}
        kept = set(range(max(0, len(epochs) - NEWEST_EPOCHS), len(epochs)))
        for key in keys:
            holders = [index for index, each in enumerate(epochs) if key in each.keys]
            kept |= {holders[0], holders[-1]}
        return dataclasses.replace(self, epochs=tuple(epochs[index] for index in sorted(kept)))

    def to_json(self) -> JsonDict:
        """The value as plain JSON."""
        return _json(self, epochs=[epoch.to_json() for epoch in self.epochs])


@dataclass(frozen=True)
class Baseline:
    """The contents of one file: the records of one problem on one device model.

    Attributes:
        problem: the file's `baseline_name`: the problem or test module.
        device_model: key of the device model, or of the CPU model for host variants.
        fingerprints: fingerprint → its identity's values, each stored once.
        cases: case id → record.
        extra: unknown fields.
    """

    problem: str
    device_model: str
    fingerprints: dict[str, JsonDict] = field(default_factory=dict)
    cases: dict[str, Record] = field(default_factory=dict)
    extra: JsonDict = field(default_factory=dict)

    def lookup(self, case_id: str) -> Record | None:
        """The record of a case, or None."""
        return self.cases.get(case_id)

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
                device = fingerprint.get("device_uuid") if on_device else None
                yield SessionTime(key, time.median_ns, time.low_ns, time.high_ns, time.n, conditions, device)

    def referenced(self) -> Baseline:
        """The same without fingerprints that no session refers to."""
        used = {
            session.fingerprint
            for record in self.cases.values()
            for epoch in record.epochs
            for session in epoch.sessions
        }
        kept = {name: value for name, value in self.fingerprints.items() if name in used}
        return dataclasses.replace(self, fingerprints=kept)

    def to_json(self) -> JsonDict:
        """The value as plain JSON, without the schema's version."""
        return _json(self, cases={name: record.to_json() for name, record in self.cases.items()})


def rounded(value: float) -> float:
    """A recorded number: `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _finite(value: float | None) -> float | None:
    return rounded(value) if value is not None and math.isfinite(value) else None


def _json(value: Any, **converted: object) -> JsonDict:
    """A value of this module as a dict: unknown fields, then known ones, some of them already converted.

    A field that has its default is left out: releases before this one did not know it.
    """
    known = [
        each.name
        for each in dataclasses.fields(value)
        if each.name != "extra" and getattr(value, each.name) != each.default
    ]
    return {**value.extra, **{name: converted.get(name, getattr(value, name)) for name in known}}
