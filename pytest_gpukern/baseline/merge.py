"""New sessions going into the content of a baseline file: what `create` adds and `update` opens."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.baseline.record import (
    MOST_SESSIONS,
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedKernel,
    RecordedSession,
    RecordedTime,
    rounded,
)
from pytest_gpukern.result import CaseInfo, JsonDict, Result

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Refusal:
    """A result that was not recorded, and why."""

    case_id: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """A queued result: one session of one case, and the place that it goes to."""

    case: CaseInfo
    model_key: str
    fingerprint: JsonDict
    session: RecordedSession

    @classmethod
    def of(cls, result: Result, *, model_key: str, recorded: str) -> Entry:
        """What is kept of a result; through JSON, so that it equals what a later run reads."""
        plain = Result.from_json(result.to_json())
        session = RecordedSession(
            recorded=recorded,
            fingerprint="",  # named when it is merged, by what the file holds
            first_call_ns=None if plain.first_call_ns is None else rounded(plain.first_call_ns),
            correctness={name: OutputAccuracy.of(error) for name, error in plain.errors.items()},
            measurements={each.key: RecordedTime.of(each) for each in plain.measurements},
            compile_ns=None if plain.compile_ns is None else rounded(plain.compile_ns),
            kernels=_distinct(map(RecordedKernel.of, plain.kernels)),
        )
        return cls(plain.case, model_key, plain.fingerprint, session)


class Merge:
    """Queued sessions going into the content of one file, as freshly read."""

    def __init__(self, baseline: Baseline, opened: str, reason: str | None) -> None:
        self.baseline = baseline
        self.added: list[str] = []
        self.updated: list[str] = []
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
        epoch = record.epochs[-1]
        difference = _difference(epoch, case)
        if difference is not None:
            self._refuse(case, f"{difference}: use --gpukern-baseline=update")
            return
        entries = self._fitting(
            [entry for entry in group if missing & entry.session.measurements.keys()], len(epoch.sessions)
        )
        if entries:
            sessions = tuple(session.only(missing) for session in self._sessions(entries))
            longer = dataclasses.replace(epoch, sessions=(*epoch.sessions, *sessions))
            self._put(case, dataclasses.replace(record, epochs=(*record.epochs[:-1], longer)))
            self.added.append(case.id)

    def update(self, group: list[Entry]) -> None:
        """Opens a new epoch; the record keeps its first one as the anchor."""
        self._open(group, self.baseline.lookup(group[0].case.id))

    def _open(self, group: list[Entry], record: Record | None) -> None:
        case = group[0].case
        entries = self._fitting(group, 0)
        epoch = Epoch(
            opened=self._opened,
            reason=self._reason,
            problem_version=case.problem_version,
            measured_point=case.measured_point,
            sessions=self._sessions(entries),
        )
        if record is None:
            self._put(case, Record(case.point, (epoch,)))
            self.added.append(case.id)
        else:
            self._put(case, dataclasses.replace(record, point=case.point).opening(epoch))
            self.updated.append(case.id)

    def _fitting(self, group: list[Entry], held: int) -> list[Entry]:
        """The entries that agree with the first, as many as an epoch holds; the others are refused."""
        first = group[0].case
        fitting: list[Entry] = []
        for entry in group:
            case = entry.case
            if (case.problem_version, case.measured_point) != (first.problem_version, first.measured_point):
                self._refuse(case, "its sessions differ in problem version or measured point")
            elif held + len(fitting) >= MOST_SESSIONS:
                self._refuse(case, f"an epoch holds at most {MOST_SESSIONS} sessions")
            else:
                fitting.append(entry)
        return fitting

    def _sessions(self, entries: Iterable[Entry]) -> tuple[RecordedSession, ...]:
        return tuple(
            dataclasses.replace(entry.session, fingerprint=self._fingerprint(entry.fingerprint))
            for entry in entries
        )

    def _fingerprint(self, values: JsonDict) -> str:
        """The id of a fingerprint, stored under it if it was not yet."""
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        length = 12
        while self.baseline.fingerprints.get(digest[:length], values) != values:
            length += 1  # another content under this id: a collision, or an edited file
        stored = {**self.baseline.fingerprints, digest[:length]: values}
        self.baseline = dataclasses.replace(self.baseline, fingerprints=stored)
        return digest[:length]

    def _put(self, case: CaseInfo, record: Record) -> None:
        cases = {**self.baseline.cases, case.id: record}
        self.baseline = dataclasses.replace(self.baseline, cases=cases)

    def _refuse(self, case: CaseInfo, reason: str) -> None:
        self.refused.append(Refusal(case.id, reason))


def _distinct(kernels: Iterable[RecordedKernel]) -> tuple[RecordedKernel, ...]:
    """Each once, in order: a kernel is launched with several grids."""
    found: list[RecordedKernel] = []
    for kernel in kernels:
        if kernel not in found:
            found.append(kernel)
    return tuple(found)


def _difference(epoch: Epoch, case: CaseInfo) -> str | None:
    """Why a case as measured now cannot join an epoch, or None."""
    if epoch.problem_version != case.problem_version:
        return f"recorded with problem version {epoch.problem_version}, now {case.problem_version}"
    if epoch.measured_point != case.measured_point:
        return f"recorded at {epoch.measured_point}, now {case.measured_point}"
    return None
