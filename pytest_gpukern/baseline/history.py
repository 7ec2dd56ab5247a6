"""Holds the recorded sessions of a case with everything they were measured under, for explanations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """

    fingerprint: JsonDict
    times: Mapping[str, RecordedTime]
    kernels: tuple[KernelFacts, ...]
    outputs: Mapping[str, OutputAccuracy]
    bits: Mapping[str, str]
    canaries: Mapping[str, float]
    session: str = ""
    opening: bool = False


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
    )
