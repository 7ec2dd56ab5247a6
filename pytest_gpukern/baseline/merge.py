"""Merges new sessions into the content of a baseline file, and selects the sessions that a record takes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from pytest_gpukern.baseline.record import (
    DURATION_DIGITS,
    NOTHING,
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedSession,
    RecordedTime,
    SessionEntry,
    as_recorded,
    rounded,
)
from pytest_gpukern.values.result import CaseInfo, JsonDict, Result, SessionRole
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Refusal:
    """Says which case was not recorded, and why."""

    case_id: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """Holds a queued result: one session of one case, and what it was measured on."""

    case: CaseInfo
    model_key: str
    fingerprint: JsonDict
    session: RecordedSession
    canaries: dict[str, float | None]

    @classmethod
    def of(cls, result: Result, *, model_key: str, recorded: str) -> Entry:
        """Returns what is kept of a result, passed through JSON so that it equals what a later run reads."""
        plain = Result.from_json(result.to_json())
        session = RecordedSession(
            recorded=recorded,
            fingerprint="",  # merging names it, by what the file holds
            first_call_ns=None if plain.first_call_ns is None else rounded(plain.first_call_ns),
            correctness={name: OutputAccuracy.of(error) for name, error in plain.errors.items()},
            measurements={each.key: RecordedTime.of(each) for each in plain.measurements},
            compile_ns=None if plain.compile_ns is None else rounded(plain.compile_ns),
            kernels=tuple(dict.fromkeys(map(as_recorded, plain.kernels))),
            session=plain.session or None,
            autotuned=plain.autotuned or NOTHING,
            duration_s=None if plain.duration_s is None else rounded(plain.duration_s, DURATION_DIGITS),
        )
        canaries = {name: None if ns is None else rounded(ns) for name, ns in plain.canaries.items()}
        return cls(plain.case, model_key, plain.fingerprint, session, canaries)


class Merge:
    """Merges queued sessions into the content of one file, as freshly read."""

    def __init__(self, baseline: Baseline, opened: str, reason: str | None) -> None:
        self.baseline = baseline
        self.added: list[str] = []
        self.updated: list[str] = []
        self.appended: list[str] = []
        self.kept: list[str] = []
        self.refused: list[Refusal] = []
        self._opened = opened
        self._reason = reason

    def create(self, group: list[Entry]) -> None:
        """Adds a case, or those of its measurements that are missing; what is there stays as it is."""
        case = group[0].case
        record = self.baseline.lookup(case.id)
        if record is None:
            self._open(group, None)
            return
        missing = {key for entry in group for key in entry.session.measurements} - record.keys
        if not missing:
            self.kept.append(case.id)
            return
        lacking = [entry for entry in group if missing & entry.session.measurements.keys()]
        added = self._into({len(record.epochs) - 1: missing}, lacking, record)
        self.added += [case.id] if added else []

    def append(self, group: list[Entry]) -> None:
        """Adds sessions to the current epochs of what they measured, or opens a case's first."""
        case = group[0].case
        record = self.baseline.lookup(case.id)
        if record is None:
            self._open(group, None)
            return
        places: dict[int, set[str]] = {}
        for key in {key for entry in group for key in entry.session.measurements}:
            epoch = record.current(key) or record.epochs[-1]
            places.setdefault(record.epochs.index(epoch), set()).add(key)
        added = self._into(places, group, record)
        self.appended += [case.id] if added else []

    def update(self, group: list[Entry]) -> None:
        """Opens a new epoch; the record keeps its first one as the anchor."""
        case = group[0].case
        record = self.baseline.lookup(case.id)
        if record is not None:
            current = {session.session for session in record.epochs[-1].sessions} - {None}
            if {entry.session.session for entry in group} <= current:
                self._refuse(case, "the current epoch holds these sessions already")
                return
        self._open(group, record)

    def _open(self, group: list[Entry], record: Record | None) -> None:
        case = group[0].case
        epoch = Epoch(
            opened=self._opened,
            reason=self._reason,
            problem_version=case.problem_version,
            measured_point=case.measured_point,
            sessions=(),
        ).adding(map(self._session, self._fitting(group)))
        if record is None:
            self._put(case, Record(case.point, (epoch,)))
            self.added.append(case.id)
        else:
            self._put(case, structs.replace(record, point=case.point).opening(epoch))
            self.updated.append(case.id)

    def _into(self, places: dict[int, set[str]], group: list[Entry], record: Record) -> bool:
        """Adds measurements to existing epochs, given by index; returns whether any fitted."""
        case = group[0].case
        epochs = list(record.epochs)
        for index in places:
            difference = _difference(epochs[index], case)
            if difference is not None:
                self._refuse(case, f"{difference}: use --gpukern-baseline=update")
                return False
        entries = self._fitting(group, [epochs[index] for index in places])
        if not entries:
            return False
        sessions = [self._session(entry) for entry in entries]
        for index, keys in places.items():
            parts = (session.only(keys) for session in sessions if keys & session.measurements.keys())
            epochs[index] = epochs[index].adding(parts)
        self._put(case, structs.replace(record, epochs=tuple(epochs)))
        return True

    def _fitting(self, group: list[Entry], epochs: Iterable[Epoch] = ()) -> list[Entry]:
        """Returns the entries that agree with the first and are not recorded yet; refuses the others.

        Two measurements by one process are not independent, so a session counts once.
        """
        first = group[0].case
        seen = {
            (each.session, key) for epoch in epochs for each in epoch.sessions for key in each.measurements
        }
        fitting: list[Entry] = []
        for entry in group:
            case, session = entry.case, entry.session
            own = {(session.session, key) for key in session.measurements}
            if (case.problem_version, case.measured_point) != (first.problem_version, first.measured_point):
                self._refuse(case, "its sessions differ in problem version or measured point")
            elif session.session is not None and own & seen:
                self._refuse(case, f"session {session.session} is recorded already")
            else:
                seen |= own
                fitting.append(entry)
        return fitting

    def _session(self, entry: Entry) -> RecordedSession:
        """Returns an entry's session, and stores once what the session's cases share."""
        fingerprint = self._fingerprint(entry.fingerprint)
        session = structs.replace(entry.session, fingerprint=fingerprint)
        if session.session is None:
            return session
        known = self.baseline.sessions.get(session.session)
        if known is None:
            known = SessionEntry(session.recorded, fingerprint)
        elif known.fingerprint != fingerprint:
            return session  # two processes under one id: the session keeps its own fields
        known = structs.replace(known, canaries={**entry.canaries, **known.canaries})
        sessions = {**self.baseline.sessions, session.session: known}
        self.baseline = dataclasses.replace(self.baseline, sessions=sessions)
        return structs.replace(session, recorded=known.recorded)

    def _fingerprint(self, values: JsonDict) -> str:
        """Returns the id of a fingerprint, and stores it if it is new."""
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        length = 12
        while self.baseline.fingerprints.get(digest[:length], values) != values:
            length += 1  # other values have this id: a collision, or an edited file
        stored = {**self.baseline.fingerprints, digest[:length]: values}
        self.baseline = dataclasses.replace(self.baseline, fingerprints=stored)
        return digest[:length]

    def _put(self, case: CaseInfo, record: Record) -> None:
        cases = {**self.baseline.cases, case.id: record}
        self.baseline = dataclasses.replace(self.baseline, cases=cases)

    def _refuse(self, case: CaseInfo, reason: str) -> None:
        self.refused.append(Refusal(case.id, reason))


def _difference(epoch: Epoch, case: CaseInfo) -> str | None:
    """Says why a case as measured now cannot join an epoch, or returns None."""
    if epoch.problem_version != case.problem_version:
        return f"recorded with problem version {epoch.problem_version}, now {case.problem_version}"
    if epoch.measured_point != case.measured_point:
        return f"recorded at {epoch.measured_point}, now {case.measured_point}"
    return None


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
