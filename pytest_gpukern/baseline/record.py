"""Defines the content of a baseline file: the records of cases, as epochs of sessions of times, oldest first.

The model is the schema: msgspec reads and writes these values as they are. What several sessions share is
stored once. `Baseline` puts it together again, as `SessionTime`.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct, field, structs

from pytest_gpukern.gate.change import FEWEST
from pytest_gpukern.gate.comparability import Conditions, Number, OutputAccuracy, SessionTime, Text
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.measure.device_clocks import DeviceClocks
from pytest_gpukern.measure.host_load import others_share
from pytest_gpukern.measure.statistics import quantiles
from pytest_gpukern.values.fingerprint import Fingerprint, Provenance
from pytest_gpukern.values.result import Choice, KernelFacts, Measurement, OutputError, Result, Whole
from pytest_gpukern.values.untrusted_json import Json

SCHEMA = 3
"""The version of the files. Raise it when a reader of the old one would misunderstand the new."""

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


Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$")]
Key = Annotated[str, Meta(pattern=r"^[^/]+/[^/]+/[^/]+$")]


def time_of(measurement: Measurement) -> SessionTime:
    """Returns what a record keeps of a measurement, rounded to `DIGITS` significant digits."""
    summary, clocks = measurement.summary, DeviceClocks.of(measurement)
    q05, q25, q50, q75, q95 = (rounded(q) for q in quantiles(measurement.samples_ns, QUANTILES))
    return SessionTime(
        summary.n,
        rounded(summary.median_ns),
        rounded(summary.low_ns),
        rounded(summary.high_ns),
        (q05, q25, q50, q75, q95),
        mean_ns=finite(statistics.fmean(measurement.samples_ns)),
        sm_mhz=finite(clocks.sm_mhz),
        memory_mhz=finite(clocks.memory_mhz),
        invalid_samples=measurement.invalid_samples,
        fixed_cost_ns=finite(measurement.fixed_cost_ns),
        jitter_ns=finite(measurement.jitter_ns) or None,
        others_share=finite(others_share(measurement)),
    )


def accuracy_of(error: OutputError) -> OutputAccuracy:
    """Returns what a record keeps of an output's comparison; non-finite errors become None."""
    errors = (finite(error.max_abs), finite(error.max_rel), finite(error.max_ulp))
    return OutputAccuracy(*errors, error.bits, error.determinism)


def as_recorded(kernel: KernelFacts) -> KernelFacts:
    unknown = dict.fromkeys(("symbol", "blocks_per_sm", "occupancy", "limited_by"))
    return structs.replace(kernel, name=fitted(kernel.name, LONGEST_NAME), **unknown)


def choice_of(result: Result) -> Choice:
    """Returns what an autotuner or a library chose in a new result, to compare with a record's."""
    return Choice.of(result.autotuned, map(as_recorded, result.kernels))


class RecordedLaunches(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Says what a call launches; the sessions of an epoch mostly share it.

    Attributes:
        kernels: each launch configuration once, by its first launch; empty where no timer saw them.
        order: place in `kernels` of each launch of a call; empty where calls differ, or it is not known.
    """

    kernels: tuple[KernelFacts, ...] = ()
    order: tuple[Whole, ...] = ()

    @classmethod
    def of(cls, result: Result) -> RecordedLaunches:
        seen = [as_recorded(kernel) for kernel in result.kernels]
        kernels = list(dict.fromkeys(seen))
        launched = next(
            (timed for timed in result.measurements if timed.order and timed.scope == "kernel"), None
        )
        if launched is None:
            return cls(tuple(kernels))
        works = [place for place, work in enumerate(launched.work) if work.kind == "kernel"]
        order = [works.index(place) for place in launched.order if place in works]
        known = len(works) == len(seen)  # else the kernels are those of another measurement
        return cls(tuple(kernels), tuple(kernels.index(seen[place]) for place in order) if known else ())


class SessionEntry(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what all cases of one session share; each file stores it once.

    Attributes:
        recorded: when, as an ISO 8601 time with its offset.
        fingerprint: key into `Baseline.fingerprints`.
        canaries: name → median time in nanoseconds of the fixed kernels that every session measures.
        provenance: commit, branch and CI run that it was recorded on; None where nothing of it is known.
    """

    recorded: Moment
    fingerprint: Text
    canaries: dict[str, Number | None] = {}
    provenance: Provenance | None = None


class RecordedSession(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what one process measured of one case.

    Attributes:
        session: key into `Baseline.sessions`.
        times: `scope/timer/cache` → time; never empty.
        duration_s: how long the whole test took, in seconds.
        correctness: output name → accuracy, where that differs from its epoch's.
        launches: what a call launches, where that differs from its epoch's.
    """

    session: Text
    times: Annotated[dict[Key, SessionTime], Meta(min_length=1)]
    first_call_ns: Number | None = None
    compile_ns: Number | None = None
    duration_s: Number | None = None
    autotuned: dict[str, dict[str, str]] = {}
    correctness: dict[str, OutputAccuracy] | None = None
    launches: RecordedLaunches | None = None

    def only(self, keys: AbstractSet[str]) -> RecordedSession:
        return structs.replace(self, times={key: time for key, time in self.times.items() if key in keys})


class Epoch(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds the sessions of a record between two deliberate updates.

    The problem version and the measured point belong here, not to the record: an update may follow a change
    of either, and older epochs keep theirs.

    Attributes:
        opened: when, as an ISO 8601 time with its offset.
        sessions: oldest first, never empty.
        reason: why the epoch was opened, where somebody said.
        correctness: what its sessions share.
        launches: likewise.
    """

    opened: Moment
    problem_version: Whole
    measured_point: dict[str, Json]
    sessions: Annotated[tuple[RecordedSession, ...], Meta(min_length=1)]
    reason: Text | None = None
    correctness: dict[str, OutputAccuracy] = {}
    launches: RecordedLaunches = RecordedLaunches()

    @property
    def keys(self) -> set[str]:
        return {key for session in self.sessions for key in session.times}

    def holding(self, key: str) -> list[RecordedSession]:
        return [session for session in self.sessions if key in session.times]

    def first(self, key: str, entries: Mapping[str, SessionEntry]) -> int:
        """Returns how many of its sessions under a key opened it: they stay, as the anchor against drift.

        If those are too few to gate, the first appended ones count too.
        """
        moments = (entries[session.session].recorded for session in self.holding(key))
        opened = sum(1 for _ in itertools.takewhile(lambda moment: moment <= self.opened, moments))
        return min(opened if opened >= FEWEST else FIRST_SESSIONS, MOST_SESSIONS // 2)

    def adding(self, sessions: Iterable[RecordedSession], entries: Mapping[str, SessionEntry]) -> Epoch:
        """Returns the epoch with more sessions; it keeps `MOST_SESSIONS` of every measurement.

        These are the ones that opened it, against steps that add up, and the newest.
        """
        longer = structs.replace(self, sessions=(*self.sessions, *map(self._sharing, sessions)))
        surplus = defaultdict[int, set[str]](set)
        for key in longer.keys:
            holders = [i for i, session in enumerate(longer.sessions) if key in session.times]
            first = longer.first(key, entries)
            for index in holders[first : first - MOST_SESSIONS]:
                surplus[index].add(key)
        trimmed = (
            session.only(session.times.keys() - surplus[i]) for i, session in enumerate(longer.sessions)
        )
        return structs.replace(longer, sessions=tuple(session for session in trimmed if session.times))

    def _sharing(self, session: RecordedSession) -> RecordedSession:
        return structs.replace(
            session,
            correctness=None if session.correctness == self.correctness else session.correctness,
            launches=None if session.launches == self.launches else session.launches,
        )


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Holds what a baseline stores for one case: its point as asked for, and its epochs, oldest first."""

    point: dict[str, Json]
    epochs: Annotated[tuple[Epoch, ...], Meta(min_length=1)]

    @property
    def sessions(self) -> list[RecordedSession]:
        return [session for epoch in self.epochs for session in epoch.sessions]

    @property
    def keys(self) -> set[str]:
        return {key for epoch in self.epochs for key in epoch.keys}

    def current(self, key: str | None) -> Epoch | None:
        """Returns the newest epoch that holds a measurement: an update of one scope leaves others judged."""
        return next((epoch for epoch in reversed(self.epochs) if key is None or key in epoch.keys), None)

    def opening(self, epoch: Epoch) -> Record:
        """Returns the record with a new current epoch.

        It keeps the two before it, and the oldest and the newest that hold each measurement.
        """
        epochs = (*self.epochs, epoch)
        kept = set(range(max(0, len(epochs) - NEWEST_EPOCHS), len(epochs)))
        for key in self.keys | epoch.keys:
            holders = [index for index, held in enumerate(epochs) if key in held.keys]
            kept |= {holders[0], holders[-1]}
        return structs.replace(self, epochs=tuple(epochs[index] for index in sorted(kept)))


_NO_RECORD = Record({}, ())


@dataclass(frozen=True)
class RecordedEpoch:
    """Says when an epoch was opened, as an ISO 8601 time, and why, where somebody said."""

    opened: str
    reason: str | None


@dataclass(frozen=True)
class RecordedCase:
    """Holds the times of all epochs of a case.

    Attributes:
        epochs: oldest first.
        times: `scope/timer/cache` → recorded times, oldest first, as reports show them.
    """

    epochs: tuple[RecordedEpoch, ...]
    times: dict[str, tuple[SessionTime, ...]]


class Baseline(Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """Holds the content of one file: the records of one problem on one device model.

    Attributes:
        problem: the file's `baseline_name`: the problem or test module.
        device_model: key of the device model, or of the CPU model for host variants.
        fingerprints: key → what it stands for.
        sessions: session id → what all its cases share.
        cases: case id → record.
    """

    problem: Text
    device_model: Text
    fingerprints: dict[Text, Fingerprint] = {}
    sessions: dict[Text, SessionEntry] = {}
    cases: dict[str, Record] = field(default_factory=dict, name="records")

    def fingerprint_of(self, session: RecordedSession) -> Fingerprint:
        return self.fingerprints[self.sessions[session.session].fingerprint]

    def session_times(self, case_id: str, key: str) -> tuple[SessionTime, ...]:
        """Returns what the gate compares a measurement with, from the current epoch.

        If the case was never measured under `key`, these are the sessions in the same scope with their own
        key, so that the gate can say how they differ. Other scopes are no substitute.
        """
        record, scope = self.cases.get(case_id, _NO_RECORD), key.partition("/")[0]
        similar = sorted(other for other in record.keys if other.partition("/")[0] == scope)
        wanted = [key] if key in similar else similar
        return tuple(time for other in wanted for time in self.past(case_id, other))

    def launches(self, case_id: str, key: str) -> RecordedLaunches | None:
        """Returns what the newest session of the current epoch under a key launched, or None."""
        epoch = self.cases.get(case_id, _NO_RECORD).current(key)
        if epoch is None:
            return None
        newest = max(epoch.holding(key), key=lambda session: self.sessions[session.session].recorded)
        return newest.launches or epoch.launches

    def newer_epoch(self, case_id: str, key: str) -> str | None:
        """Returns when the newest epoch of a case was opened if `key` is judged by an older one, or None."""
        record = self.cases.get(case_id, _NO_RECORD)
        current = record.current(key)
        return None if current is None or current is record.epochs[-1] else record.epochs[-1].opened

    def anchor_times(self, case_id: str, key: str) -> tuple[SessionTime, ...]:
        """Returns the sessions of the oldest epoch under `key`; none if that is the current one.

        They show small steps that have added up.
        """
        record = self.cases.get(case_id, _NO_RECORD)
        first = next((epoch for epoch in record.epochs if key in epoch.keys), None)
        return () if first is record.current(key) else self._times(record, first, key)

    def all_times(self) -> Iterator[tuple[SessionTime, ...]]:
        """Yields the current sessions of every case under every key, apart by what an autotuner chose."""
        for case_id, record in self.cases.items():
            for key in sorted(record.keys):
                groups: dict[object, list[SessionTime]] = {}
                for time in self.past(case_id, key):
                    groups.setdefault(time.choice.configurations, []).append(time)
                yield from map(tuple, groups.values())

    def past(self, case_id: str, key: str | None = None) -> tuple[SessionTime, ...]:
        """Returns the sessions of the epoch that a measurement is judged by, oldest first.

        Without a `key` it returns each session of the newest epoch once, with one of its times.
        """
        record = self.cases.get(case_id, _NO_RECORD)
        return self._times(record, record.current(key), key)

    def history(self, case_id: str) -> RecordedCase | None:
        record = self.cases.get(case_id)
        if record is None:
            return None
        times = {
            key: tuple(t.for_report() for epoch in record.epochs for t in self._times(record, epoch, key))
            for key in sorted(record.keys)
        }
        epochs = tuple(RecordedEpoch(epoch.opened, epoch.reason) for epoch in record.epochs)
        return RecordedCase(epochs, times)

    def _times(self, record: Record, epoch: Epoch | None, key: str | None) -> tuple[SessionTime, ...]:
        if epoch is None:
            return ()
        conditions = Conditions(epoch.problem_version, epoch.measured_point, self.device_model)
        sessions = epoch.sessions if key is None else epoch.holding(key)
        first = 0 if key is None else epoch.first(key, self.sessions)
        times = []
        for number, session in enumerate(sessions):
            shared, fingerprint = self.sessions[session.session], self.fingerprint_of(session)
            kernels = (session.launches or epoch.launches).kernels
            timed = key or next(iter(session.times))
            # A host variant's session names the machine's GPU too, which does not affect its time.
            on_device = fingerprint.device_model_key == self.device_model
            time = structs.replace(
                session.times[timed],
                key=timed,
                conditions=conditions,
                device=fingerprint.device_uuid if on_device else None,
                opening=number < first,
                choice=Choice.of(session.autotuned, kernels),
                session=session.session,
                recorded=shared.recorded,
                epoch=record.epochs.index(epoch),
                fingerprint=fingerprint,
                kernels=kernels,
                outputs=epoch.correctness if session.correctness is None else session.correctness,
                canaries=shared.canaries,
            )
            times.append(time)
        return tuple(times)

    def without(self, case_ids: Iterable[str]) -> Baseline:
        kept = self.cases.keys() - set(case_ids)
        cases = {name: self.cases[name] for name in self.cases if name in kept}
        return structs.replace(self, cases=cases).referenced()

    def referenced(self) -> Baseline:
        """Returns the baseline without sessions and fingerprints that no record refers to."""
        named = {session.session for record in self.cases.values() for session in record.sessions}
        sessions = {name: entry for name, entry in self.sessions.items() if name in named}
        used = {entry.fingerprint for entry in sessions.values()}
        fingerprints = {name: value for name, value in self.fingerprints.items() if name in used}
        return structs.replace(self, fingerprints=fingerprints, sessions=sessions)


def rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def finite(value: float | None, digits: int = DIGITS) -> float | None:
    """Rounds a number to be recorded; None for what is not finite or not known."""
    return rounded(value, digits) if value is not None and math.isfinite(value) else None
