"""Merges sessions or another file into the content of a baseline file; selects what a record takes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from msgspec import structs

from pytest_gpukern.baseline.record import Baseline, Epoch, Record, only
from pytest_gpukern.gate.comparability import Conditions, difference
from pytest_gpukern.values.result import CaseInfo, Result, SessionRole
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind


@dataclass(frozen=True)
class Refusal:
    """Says which case was not recorded, and why."""

    case_id: str
    reason: str


@dataclass
class WriteReport:
    """Says what became of queued sessions.

    Attributes:
        added: ids of cases that were recorded for the first time, or in a scope that they lacked.
        appended: ids of cases whose current epoch has more sessions now.
        updated: ids of cases whose record has a new epoch.
        rivals: cases of which each of two files opened an epoch: the one that judges, and the other.
        refused: results that must not become a baseline.
        errors: files that could not be read or written; they are as they were.
    """

    written: list[Path] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    appended: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    rivals: list[tuple[str, Epoch, Epoch]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    errors: list[FileError] = field(default_factory=list)


class Merge:
    """Merges queued sessions into the content of one file, as freshly read, and reports what it did."""

    def __init__(self, baseline: Baseline, opened: str, reason: str | None, report: WriteReport) -> None:
        self.baseline = replace(baseline, cases=dict(baseline.cases))
        self._opened = opened
        self._reason = reason
        self._report = report
        known = (session for record in baseline.cases.values() for session in record.sessions)
        self._moments = {session.session: session.recorded for session in known}

    def join(self, mode: str, group: list[Result]) -> None:
        """Adds sessions of one case, as `record.trimmed` returns them.

        `create` adds a case, or the measurements that its record lacks; what is there stays as it is.
        `append` adds to the current epochs of what was measured, or opens a case's first. `update` opens a
        new epoch; the record keeps its first one as the anchor.
        """
        case, keys = group[0].case, {timed.key for session in group for timed in session.measurements}
        record = self.baseline.cases.get(case.id)
        if record is None:
            self._open(group, None)
        elif mode == "update":
            current = {session.session for session in record.epochs[-1].sessions}
            if {session.session for session in group} <= current:
                self._refuse(case, "the current epoch holds these sessions already")
            else:
                self._open(group, record)
        elif mode == "append":
            self._report.appended += self._into(keys, group, record)
        elif missing := keys - record.keys:
            self._report.added += self._into(missing, group, record)

    def _open(self, group: list[Result], record: Record | None) -> None:
        case = group[0].case
        sessions = [self._session(session) for session in self._fitting(group)]
        epoch = Epoch(self._opened, (), self._reason).adding(sessions)
        if record is None:
            self.baseline.cases[case.id] = Record(case.id, (epoch,), self.baseline.device_model)
            self._report.added.append(case.id)
        else:
            self.baseline.cases[case.id] = record.opening(epoch)
            self._report.updated.append(case.id)

    def _into(self, keys: set[str], group: list[Result], record: Record) -> list[str]:
        """Adds measurements to the epochs that judge them, or the newest; returns the case if any fitted."""
        case, epochs, places = group[0].case, list(record.epochs), dict[int, set[str]]()
        now = Conditions(case.problem_version, self.baseline.device_model)
        for key in keys:
            known = (record.past(key) or record.past())[0]
            places.setdefault(known.epoch, set()).add(key)
            differs = difference(known.key, now, [known])
            if differs is not None:
                self._refuse(case, f"{differs}: use --gpukern-baseline=update")
                return []
        lacking = [session for session in group if only(session, keys).measurements]
        sessions = [self._session(session) for session in self._fitting(lacking, record.sessions)]
        if not sessions:
            return []
        for place, own in places.items():
            parts = (only(session, own) for session in sessions)
            epochs[place] = epochs[place].adding(part for part in parts if part.measurements)
        self.baseline.cases[case.id] = structs.replace(record, epochs=tuple(epochs))
        return [case.id]

    def _fitting(self, group: list[Result], recorded: Iterable[Result] = ()) -> list[Result]:
        """Returns the sessions that agree with the first and are not recorded yet; refuses the others.

        Two measurements by one process are not independent, so a session counts once.
        """
        first = group[0].case
        seen = {(known.session, timed.key) for known in recorded for timed in known.measurements}
        fitting: list[Result] = []
        for session in group:
            case = session.case
            own = {(session.session, timed.key) for timed in session.measurements}
            if case.problem_version != first.problem_version:
                self._refuse(case, "its sessions differ in problem version")
            elif own & seen:
                self._refuse(case, f"session {session.session} is recorded already")
            else:
                seen |= own
                fitting.append(session)
        return fitting

    def _session(self, session: Result) -> Result:
        """Returns a session with the moment of its process."""
        return structs.replace(session, recorded=self._moments.setdefault(session.session, session.recorded))

    def _refuse(self, case: CaseInfo, reason: str) -> None:
        self._report.refused.append(Refusal(case.id, reason))


def united(ours: Baseline, theirs: Baseline, report: WriteReport) -> Baseline:
    """Returns the records of two files: epochs by when they were opened, sessions in their epochs.

    Where both opened an epoch since the last one that they share, the one opened last judges: it is the last
    decision on the case. Nothing is left out, also beyond what an update or append would keep.
    """
    cases = dict(ours.cases)
    for case_id, record in theirs.cases.items():
        own, other = _by_opening(ours.of(case_id)), _by_opening(record)
        shared = {key: _longer(own[key], other[key]) for key in own.keys() & other.keys()}
        in_order = heapq.merge(own.items(), other.items(), key=lambda entry: entry[1].opened)
        epochs = tuple((dict(in_order) | shared).values())
        cases[case_id] = structs.replace(record, epochs=epochs)
        if not own:
            report.added.append(case_id)
            continue
        report.appended += [case_id] * any(epoch != own[key] for key, epoch in shared.items())
        report.updated += [case_id] * bool(other.keys() - shared.keys())
        last = {[*own][-1], [*other][-1]}
        if not last & shared.keys():
            past, current = sorted(((own | other)[key] for key in last), key=epochs.index)
            report.rivals.append((case_id, current, past))
    return replace(ours, cases=cases)


def _by_opening(record: Record) -> dict[tuple[str, str | None, int], Epoch]:
    """Returns the epochs of a record by what they have in common with the same ones in another file."""
    keys = [(epoch.opened, epoch.reason) for epoch in record.epochs]
    return {(*keys[i], keys[:i].count(keys[i])): epoch for i, epoch in enumerate(record.epochs)}


def _longer(epoch: Epoch, other: Epoch) -> Epoch:
    """Returns an epoch with what another file has measured in it beyond its own."""
    known = [(session.session, timed) for session in epoch.sessions for timed in session.measurements]
    more = []
    for session in other.sessions:
        new = tuple(timed for timed in session.measurements if (session.session, timed) not in known)
        more += [structs.replace(session, measurements=new)] if new else []
    sessions = heapq.merge(epoch.sessions, more, key=attrgetter("recorded"))
    return structs.replace(epoch, sessions=tuple(sessions))


def confirmed_slower(result: Result) -> bool:
    """Returns whether a time of the test is SLOWER for good; a host's is so without confirmation."""
    return any(
        verdict.kind is VerdictKind.SLOWER and verdict.gates and not verdict.suspected
        for verdict in result.verdicts.values()
    )


def sessions_to_record(result: Result, sessions: Sequence[Result]) -> list[Result]:
    """Returns the sessions that a record takes, of all that a run measured of a test; oldest first.

    If they confirmed a slowdown, we leave out the sessions that raised the suspicion. More followed because
    these were slow, so their mean is biased upwards (the winner's curse), and would hide a part of the next
    slowdown. The verdict does not rest on them either.

    If they refuted it, we keep all. The first session alone decides whether more follow, so over many runs
    the mean of all is the case's mean (Wald's identity). Without the slow ones the record would be too fast
    and too narrow, and later runs would be blamed for it.

    Args:
        result: what the run reports, with its verdicts.
        sessions: the other sessions, as they were measured. Any before the first that confirms raised the
            suspicion together with `result`.
    """
    roles = [session.role for session in sessions]
    if SessionRole.CONFIRMING in roles and confirmed_slower(result):
        return list(sessions[roles.index(SessionRole.CONFIRMING) :])
    return [result, *sessions]
