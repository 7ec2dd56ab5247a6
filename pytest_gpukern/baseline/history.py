"""Holds the recorded sessions of a case: with all they were measured under, to explain, or as a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpukern.values.result import UNKNOWN_CHOICE, Choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.baseline.record import (
        Baseline,
        OutputAccuracy,
        RecordedSession,
        RecordedTime,
    )
    from pytest_gpukern.values.result import JsonDict, KernelFacts


@dataclass(frozen=True)
class PastSession:
    """Holds one recorded session of a case, with what the file stores for several.

    Attributes:
        fingerprint: device, driver and library versions.
        times: `scope/timer/cache` → time.
        kernels: what the case launched; empty where no timer saw it.
        outputs: output name → accuracy.
        bits: output name → hash of its bytes, for outputs whose hash was taken.
        canaries: name → time of the session's canaries in nanoseconds.
        session: id of the process that measured, the same in all its cases; empty where it is not known.
        opening: whether its epoch was opened with this session; else it was appended.
        choice: what an autotuner or a library chose in it.
    """

    fingerprint: JsonDict
    times: Mapping[str, RecordedTime]
    kernels: tuple[KernelFacts, ...]
    outputs: Mapping[str, OutputAccuracy]
    bits: Mapping[str, str]
    canaries: Mapping[str, float]
    session: str = ""
    opening: bool = False
    choice: Choice = UNKNOWN_CHOICE


@dataclass(frozen=True)
class Past:
    """Holds the sessions of one epoch of a case, oldest first.

    Attributes:
        problem_version: the version that was measured.
        measured_point: values of the axes as run.
        sessions: never empty.
    """

    problem_version: int
    measured_point: JsonDict
    sessions: tuple[PastSession, ...]


class RecordedMedian(NamedTuple):
    """Holds one recorded time of a case, in nanoseconds.

    Attributes:
        recorded: when it was measured, as an ISO 8601 time; empty where that is not known.
        epoch: index of its epoch, oldest first.
        session: id of the process that measured; empty where it is not known.
        device: UUID of the card; empty for a host, or where it is not known.
        median_ns: median of its samples.
        low_ns: lower bound of its 95 % interval within the session.
        high_ns: upper bound.
    """

    recorded: str
    epoch: int
    session: str
    device: str
    median_ns: float
    low_ns: float | None
    high_ns: float | None


class RecordedEpoch(NamedTuple):
    """Says when an epoch was opened, as an ISO 8601 time, and why, where somebody said."""

    opened: str
    reason: str | None


@dataclass(frozen=True)
class RecordedCase:
    """Holds the times of all epochs of a case.

    Attributes:
        epochs: oldest first.
        times: `scope/timer/cache` → recorded times, oldest first.
    """

    epochs: tuple[RecordedEpoch, ...]
    times: dict[str, tuple[RecordedMedian, ...]]


def recorded_case(baseline: Baseline, case_id: str) -> RecordedCase | None:
    """Returns all recorded times of a case, or None if it has none."""
    record = baseline.lookup(case_id)
    if record is None:
        return None
    times: dict[str, list[RecordedMedian]] = {}
    for number, epoch in enumerate(record.epochs):
        for session in epoch.sessions:
            device = baseline.fingerprints.get(session.fingerprint, {}).get("device_uuid")
            source = (session.recorded, number, session.session or "", device or "")
            for key, time in session.measurements.items():
                median = RecordedMedian(*source, time.median_ns, time.low_ns, time.high_ns)
                times.setdefault(key, []).append(median)
    epochs = tuple(RecordedEpoch(epoch.opened, epoch.reason) for epoch in record.epochs)
    return RecordedCase(epochs, {key: tuple(found) for key, found in times.items()})


def past_of(baseline: Baseline, case_id: str, key: str | None = None) -> Past | None:
    """Returns the epoch that a measurement is judged by, or None; without a `key` the newest one.

    Sessions that lack the measurement are left out.
    """
    record = baseline.lookup(case_id)
    if record is None:
        return None
    epoch = record.epochs[-1] if key is None else record.current(key)
    if epoch is None:
        return None
    sessions = epoch.sessions if key is None else epoch.holding(key)
    first = 0 if key is None else epoch.first(key)
    return Past(
        epoch.problem_version,
        dict(epoch.measured_point),
        tuple(_past_session(baseline, session, number < first) for number, session in enumerate(sessions)),
    )


def _past_session(baseline: Baseline, session: RecordedSession, opening: bool) -> PastSession:
    entry = baseline.sessions.get(session.session or "")
    return PastSession(
        fingerprint=baseline.fingerprints.get(session.fingerprint, {}),
        times=session.measurements,
        kernels=session.kernels,
        outputs=session.correctness,
        bits={name: each.bits for name, each in session.correctness.items() if each.bits},
        canaries={name: ns for name, ns in (entry.canaries if entry else {}).items() if ns},
        session=session.session or "",
        opening=opening,
        choice=session.choice,
    )
