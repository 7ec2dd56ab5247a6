"""Merges new sessions into the content of a baseline file, and selects the sessions that a record takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from pytest_gpukern.baseline.record import (
    DURATION_DIGITS,
    Baseline,
    Epoch,
    Record,
    RecordedLaunches,
    RecordedSession,
    SessionEntry,
    accuracy_of,
    finite,
    time_of,
)
from pytest_gpukern.gate.comparability import Conditions, difference
from pytest_gpukern.values.fingerprint import NO_PROVENANCE, Fingerprint
from pytest_gpukern.values.result import CaseInfo, Result, SessionRole
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind


@dataclass(frozen=True)
class Refusal:
    """Says which case was not recorded, and why."""

    case_id: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """Holds a queued result: one session of one case, and what it was measured on."""

    case: CaseInfo
    fingerprint: Fingerprint
    session: RecordedSession
    shared: SessionEntry

    @classmethod
    def of(cls, result: Result, *, recorded: str) -> Entry:
        """Returns what is kept of a result, which came as JSON: so it equals what a later run reads."""
        session = RecordedSession(
            session=result.session or "unknown",
            times={timed.key: time_of(timed) for timed in result.measurements},
            first_call_ns=finite(result.first_call_ns),
            compile_ns=finite(result.compile_ns),
            duration_s=finite(result.duration_s, DURATION_DIGITS),
            autotuned=result.autotuned,
            correctness={name: accuracy_of(error) for name, error in result.errors.items()},
            launches=RecordedLaunches.of(result),
        )
        shared = SessionEntry(
            recorded,
            "unknown",  # merging names it, by what the file holds
            {name: finite(ns) for name, ns in result.canaries.items()},
            None if result.provenance == NO_PROVENANCE else result.provenance,
        )
        return cls(result.case, result.fingerprint, session, shared)


@dataclass
class WriteReport:
    """Says what became of queued sessions.

    Attributes:
        added: ids of cases that were recorded for the first time, or in a scope that they lacked.
        appended: ids of cases whose current epoch has more sessions now.
        updated: ids of cases whose record has a new epoch.
        refused: results that must not become a baseline.
        errors: files that could not be read or written; they are as they were.
    """

    written: list[Path] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    appended: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    errors: list[FileError] = field(default_factory=list)


class Merge:
    """Merges queued sessions into the content of one file, as freshly read, and reports what it did."""

    def __init__(self, baseline: Baseline, opened: str, reason: str | None, report: WriteReport) -> None:
        self.baseline = structs.replace(
            baseline,
            fingerprints=dict(baseline.fingerprints),
            sessions=dict(baseline.sessions),
            cases=dict(baseline.cases),
        )
        self._opened = opened
        self._reason = reason
        self._report = report

    def join(self, mode: str, group: list[Entry]) -> None:
        """Adds sessions of one case.

        `create` adds a case, or those of its measurements that are missing; what is there stays as it is.
        `append` adds to the current epochs of what was measured, or opens a case's first. `update` opens a
        new epoch; the record keeps its first one as the anchor.
        """
        case, keys = group[0].case, {key for entry in group for key in entry.session.times}
        record = self.baseline.cases.get(case.id)
        if record is None:
            self._open(group, None)
        elif mode == "update":
            current = {session.session for session in record.epochs[-1].sessions}
            if {entry.session.session for entry in group} <= current:
                self._refuse(case, "the current epoch holds these sessions already")
            else:
                self._open(group, record)
        elif mode == "append":
            self._report.appended += self._into(keys, group, record)
        elif missing := keys - record.keys:
            self._report.added += self._into(missing, group, record)

    def _open(self, group: list[Entry], record: Record | None) -> None:
        case = group[0].case
        sessions = [self._session(entry) for entry in self._fitting(group)]
        epoch = Epoch(
            opened=self._opened,
            reason=self._reason,
            problem_version=case.problem_version,
            sessions=(),
            correctness=sessions[0].correctness or {},
            launches=sessions[0].launches or RecordedLaunches(),
        ).adding(sessions, self.baseline.sessions)
        if record is None:
            self.baseline.cases[case.id] = Record(case.point, (epoch,))
            self._report.added.append(case.id)
        else:
            self.baseline.cases[case.id] = structs.replace(record, point=case.point).opening(epoch)
            self._report.updated.append(case.id)

    def _into(self, keys: set[str], group: list[Entry], record: Record) -> list[str]:
        """Adds measurements to the epochs that judge them, or the newest; returns the case if any fitted."""
        case, epochs, places = group[0].case, list(record.epochs), dict[int, set[str]]()
        now = Conditions.of(case, device_model=self.baseline.device_model)
        for key in keys:
            known = (self.baseline.past(case.id, key) or self.baseline.past(case.id))[0]
            places.setdefault(known.epoch, set()).add(key)
            differs = difference(known.key, now, [known])
            if differs is not None:
                self._refuse(case, f"{differs}: use --gpukern-baseline=update")
                return []
        lacking = [entry for entry in group if keys & entry.session.times.keys()]
        sessions = [self._session(entry) for entry in self._fitting(lacking, record.sessions)]
        if not sessions:
            return []
        for place, those in places.items():
            parts = (session.only(those) for session in sessions if those & session.times.keys())
            epochs[place] = epochs[place].adding(parts, self.baseline.sessions)
        self.baseline.cases[case.id] = structs.replace(record, epochs=tuple(epochs))
        return [case.id]

    def _fitting(self, group: list[Entry], recorded: Iterable[RecordedSession] = ()) -> list[Entry]:
        """Returns the entries that agree with the first and are not recorded yet; refuses the others.

        Two measurements by one process are not independent, so a session counts once.
        """
        first = group[0].case
        seen = {(known.session, key) for known in recorded for key in known.times}
        fitting: list[Entry] = []
        for entry in group:
            case, session = entry.case, entry.session
            own = {(session.session, key) for key in session.times}
            if case.problem_version != first.problem_version:
                self._refuse(case, "its sessions differ in problem version")
            elif own & seen:
                self._refuse(case, f"session {session.session} is recorded already")
            else:
                seen |= own
                fitting.append(entry)
        return fitting

    def _session(self, entry: Entry) -> RecordedSession:
        """Returns an entry's session, and stores once what the session's cases share."""
        fingerprint, name, sessions = (
            self._fingerprint(entry.fingerprint),
            entry.session.session,
            self.baseline.sessions,
        )
        while name in sessions and sessions[name].fingerprint != fingerprint:
            name += "+"  # two processes under one id
        shared = sessions.get(name, entry.shared)
        canaries = {**entry.shared.canaries, **shared.canaries}
        sessions[name] = structs.replace(shared, fingerprint=fingerprint, canaries=canaries)
        return structs.replace(entry.session, session=name)

    def _fingerprint(self, values: Fingerprint) -> str:
        """Returns the id of a fingerprint, and stores it if it is new."""
        digest, length, stored = values.identity(), 12, self.baseline.fingerprints
        while stored.setdefault(digest[:length], values) != values:
            length += 1  # other values have this id: a collision, or an edited file
        return digest[:length]

    def _refuse(self, case: CaseInfo, reason: str) -> None:
        self._report.refused.append(Refusal(case.id, reason))


def confirmed_slower(result: Result) -> bool:
    """Returns whether a time of the test is SLOWER for good; a host's is so without confirmation."""
    return any(
        verdict.kind is VerdictKind.SLOWER and verdict.gates and not verdict.suspected
        for verdict in result.verdicts.values()
    )


def unselected(result: Result, sessions: Sequence[Result]) -> list[Result]:
    """Returns the sessions that a record takes, of all that a run measured of a test; oldest first.

    If they confirmed a slowdown, we leave out those that raised the suspicion. More sessions followed because
    these were slow, so their mean is biased upwards (the winner's curse). In an epoch of three sessions, a
    biased one moves the mean by a third of its bias, and hides as much of the next slowdown. The verdict does
    not rest on them either.

    If they refuted it, we keep all. The first session alone decides whether more follow, so over many runs
    the mean of all sessions is that of the case (Wald's identity). Leaving out slow sessions only would cut
    off the upper tail: the record would be too fast and too narrow, and later runs would be blamed for it.

    Args:
        result: what the run reports, with its verdicts.
        sessions: the others, as they were measured. Those before the first that confirms raised the
            suspicion together with `result`.
    """
    roles = [session.role for session in sessions]
    if SessionRole.CONFIRMING in roles and confirmed_slower(result):
        return list(sessions[roles.index(SessionRole.CONFIRMING) :])
    return [result, *sessions]
