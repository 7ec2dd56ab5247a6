"""Measures tests again in child sessions, one whole session after the other, and records what counts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pytest_gpukern.baseline.merge import WriteReport, confirmed_slower, sessions_to_record
from pytest_gpukern.baseline.store import unfit
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.sessions import ChildRun, ChildSessions, Waiting
from pytest_gpukern.values.backend_table import imports_of
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Result, SessionRole
from pytest_gpukern.values.untrusted_json import first_line

if TYPE_CHECKING:
    from pytest_gpukern.run.environment import Environment

SESSIONS_TO_RECORD = 3
"""Fewest sessions of a record if some of them died: with fewer its spread is not known."""


class ExtraSessions(NamedTuple):
    """Holds what came of one test's extra sessions.

    Attributes:
        results: its result in each session in which it ran to its end; none if it is refused.
        reason: why it is, or why there are fewer than were wanted, in words; None if neither is so.
    """

    results: tuple[Result, ...] = ()
    reason: str | None = None


def measure_extra_sessions(
    environment: Environment,
    children: ChildSessions,
    measured: Sequence[Result],
    numbers: range,
    *,
    role: SessionRole = SessionRole.FURTHER,
    progress: Callable[[int, int, int], None] | None = None,
) -> dict[str, ExtraSessions]:
    """Runs tests in fresh sessions, one whole session after the other, so that a test's sessions lie apart.

    A test is refused, and left out of later sessions, if it fails, is skipped, has no valid measurement, is
    not found or kills its process. `numbers` tells one session from another. `progress` gets the session's
    number, how many of its tests have ended, and how many there are. On a GPU, each session but the first
    imports the libraries of what was `measured` beside the one before it, as `Waiting` says.
    """
    extra, problems = {result.nodeid: ExtraSessions() for result in measured}, list[str]()
    libraries, most = imports_of(of.case.backend for of in measured), int(environment.gpu.measures)
    waiting = Waiting(lambda _: children.start(request), most, lambda _: None, libraries)
    request = ChildRequest(environ=waiting.environ(environment.gpu.for_children))
    with closing(waiting):
        for number in numbers:
            wanted = tuple(nodeid for nodeid, of in extra.items() if of.reason is None)
            if not wanted:
                break
            of_session = None
            if progress is not None:
                progress(number, 0, len(wanted))
                of_session = functools.partial(progress, number)
            started = waiting.take(False, [False] * (numbers[-1] - number))
            run = children.run(structs.replace(request, nodeids=wanted), of_session, started)
            if run.problem is not None:
                problems.append(f"session {number}: {run.problem}")
            for nodeid in wanted:
                results, reason = extra[nodeid].results, _why_refused(run, nodeid)
                if reason is not None:
                    extra[nodeid] = ExtraSessions((), f"session {number}: {reason}")
                elif (result := run.result_of(nodeid)) is not None:
                    extra[nodeid] = ExtraSessions((*results, structs.replace(result, role=role)))
    for nodeid, (results, refused) in extra.items():
        if refused is None and len(results) < len(numbers):
            reason = "; ".join(problems) or f"only {len(results)} of {len(numbers)} sessions measured it"
            extra[nodeid] = ExtraSessions(results, reason)
    return extra


def _why_refused(run: ChildRun, nodeid: str) -> str | None:
    """Says why a test's session does not count; returns None also if the session did not reach it."""
    if nodeid == run.during:
        return run.problem
    if nodeid not in run.endings:
        return None if run.ended_early else "the test was not found"
    outcome, text, result, _ = run.endings[nodeid]
    if outcome != "passed":
        return f"{outcome}: {first_line(text)}"
    return "it measured nothing" if result is None else unfit(result)


class Recording:
    """Records what a run found: of each test its own session, and as many more as were asked for.

    Attributes:
        extra: test → what its further sessions came to; None where the run ended before they began.
        short: why fewer sessions of some cases are recorded → their ids.
    """

    def __init__(self, environment: Environment) -> None:
        self._store, self._environment = environment.store, environment
        self.extra: dict[str, ExtraSessions] | None = None
        self.short: dict[str, list[str]] = {}

    def measure(
        self,
        results: Mapping[str, Result],
        failed: Callable[[str], bool],
        cards: Collection[str],
        telling: Callable[[str], Callable[[int, int], None]],
    ) -> None:
        """Measures each test that is to be recorded in further sessions.

        What a worker of xdist measured on its GPU, one of `cards`, is measured on that one again. `failed`
        says whether a test failed by itself. `telling` makes a callable that shows how far we are.
        """
        environment, sessions = self._environment, self._environment.settings.sessions
        again = [
            result
            for nodeid, result in results.items()
            if not (failed(nodeid) or self._is_other_code(result)) and self._would_write(result)
        ]
        extra, done, count = dict[str, ExtraSessions](), 0, sessions - 1
        progress = telling(f"tests in {count} more sessions")

        def show(number: int, finished: int, total: int) -> None:
            progress(done + total * (number - 2) + finished, len(again) * count)

        on_cards = ((result.fingerprint.device_uuid, result) for result in again)
        by_gpu = grouped((uuid if uuid in cards else None, result) for uuid, result in on_cards)
        for uuid, measured in by_gpu.items():
            children = dataclasses.replace(environment.children, card=uuid or environment.children.card)
            numbers = range(2, sessions + 1)
            extra |= measure_extra_sessions(environment, children, measured, numbers, progress=show)
            done += len(measured) * count
        self.extra = extra

    def write(
        self,
        results: Mapping[str, Result],
        sessions: Mapping[str, Sequence[Result]],
        failed: Callable[[str], bool],
    ) -> WriteReport:
        """Writes the baselines; `sessions` are a test's other ones. A file that cannot be written is told."""
        for nodeid, result in results.items():
            self._record(nodeid, result, sessions[nodeid], failed=failed(nodeid))
        return self._store.flush()

    def _record(self, nodeid: str, result: Result, sessions: Sequence[Result], *, failed: bool) -> None:
        store, wanted = self._store, self._environment.settings.sessions
        extra = (self.extra or {}).get(nodeid)
        to_record = sessions_to_record(result, sessions)
        few = extra is not None and (not extra.results or len(to_record) < SESSIONS_TO_RECORD)
        if failed or not self._would_write(result):
            store.add(result, model_key=self._model_key(result), test_failed=failed)  # it says why
        elif self._is_other_code(result):
            store.refuse(result.case, "slower than its current epoch: use --gpukern-baseline=update")
        elif wanted > 1 and self.extra is None:
            store.refuse(result.case, f"the run ended before {wanted} sessions had measured it")
        elif extra is not None and extra.reason is not None and few:
            store.refuse(result.case, extra.reason)
        else:
            if extra is not None and extra.reason is not None:
                shortfall = f"{len(to_record)} of {wanted} sessions recorded: {extra.reason}"
                self.short.setdefault(shortfall, []).append(result.case.id)
            for session in to_record:
                store.add(session, model_key=self._model_key(result))

    def _is_other_code(self, result: Result) -> bool:
        """Returns whether a result would be appended to an epoch that it was confirmed to be slower than.

        With both times in it, the epoch would spread so far that later slowdowns are missed.
        """
        appends = self._environment.settings.baseline == "append"
        return appends and result.case.on_gpu and confirmed_slower(result)

    def _would_write(self, result: Result) -> bool:
        return self._store.would_write(result, model_key=self._model_key(result))

    def _model_key(self, result: Result) -> str:
        return self._environment.gpu.model_key(on_gpu=result.case.on_gpu)
