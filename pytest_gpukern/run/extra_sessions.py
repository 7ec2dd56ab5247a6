"""Measures tests again in child sessions, one whole session after the other, and says which do not count."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from pytest_gpukern.baseline.store import unfit
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.sessions import ChildRun, ChildSessions
from pytest_gpukern.values.result import Result, SessionRole
from pytest_gpukern.values.untrusted_json import first_line

SESSIONS_TO_RECORD = 3
"""Fewest sessions of a record if some of them died: with fewer its spread is not known."""


class ExtraSessions(NamedTuple):
    """Holds what came of one test's extra sessions.

    Attributes:
        results: its result in each session in which it ran to its end.
        refused: whether its sessions do not count.
        reason: why, or why there are fewer than were wanted, in words; None if neither is so.
    """

    results: tuple[Result, ...] = ()
    refused: bool = False
    reason: str | None = None


def measure_extra_sessions(
    children: ChildSessions,
    nodeids: Sequence[str],
    numbers: range,
    *,
    environ: Mapping[str, str],
    role: SessionRole = SessionRole.FURTHER,
    progress: Callable[[int, int, int], None] | None = None,
) -> dict[str, ExtraSessions]:
    """Runs tests in fresh sessions, one whole session after the other, so that a test's sessions lie apart.

    A test is refused, and left out of later sessions, if it fails, is skipped, has no valid measurement, is
    not found or kills its process. `numbers` tells one session from another. `progress` gets the session's
    number, how many of its tests have ended, and how many there are.
    """
    extra, problems = dict.fromkeys(nodeids, ExtraSessions()), list[str]()
    for number in numbers:
        wanted = tuple(nodeid for nodeid in nodeids if not extra[nodeid].refused)
        if not wanted:
            break
        of_session = None
        if progress is not None:
            progress(number, 0, len(wanted))
            of_session = functools.partial(progress, number)
        run = children.run(ChildRequest(wanted, environ=environ), of_session)
        if run.problem is not None:
            problems.append(f"session {number}: {run.problem}")
        for nodeid in wanted:
            results, reason = extra[nodeid].results, _why_refused(run, nodeid)
            if reason is not None:
                extra[nodeid] = ExtraSessions(results, True, f"session {number}: {reason}")
            elif (result := run.result_of(nodeid)) is not None:
                extra[nodeid] = ExtraSessions((*results, structs.replace(result, role=role)))
    for nodeid, (results, refused, _) in extra.items():
        if not refused and len(results) < len(numbers):
            reason = "; ".join(problems) or f"only {len(results)} of {len(numbers)} sessions measured it"
            extra[nodeid] = ExtraSessions(results, reason=reason)
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
