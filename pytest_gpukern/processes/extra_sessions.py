"""Measures tests again in child sessions, one whole session after the other, and says which do not count."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from pytest_gpukern.baseline.store import unfit
from pytest_gpukern.processes.sessions import ChildRequest, ChildRun, ChildSessions
from pytest_gpukern.values.result import Result, SessionRole

FEWEST_TO_RECORD = 3
"""Fewest sessions of a record if some of them died: with fewer its spread is not known."""


@dataclass
class ExtraSessions:
    """Holds what came of extra sessions.

    Attributes:
        results: test → its result in each session in which it ran to its end.
        refused: test → why its sessions do not count, in words.
        problems: sessions that ended early, in words; tests that they did not reach lack a result.
    """

    results: dict[str, list[Result]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, other: ExtraSessions) -> None:
        self.results |= other.results
        self.refused |= other.refused
        self.problems += other.problems

    def of(self, nodeid: str, wanted: int) -> tuple[list[Result], str | None]:
        """Returns the results of one test, and why there are fewer than `wanted`, or None."""
        results = self.results.get(nodeid, [])
        reason = self.refused.get(nodeid)
        if reason is None and len(results) < wanted:
            reason = "; ".join(self.problems) or f"only {len(results)} of {wanted} sessions measured it"
        return results, reason


def measure_extra_sessions(
    children: ChildSessions,
    nodeids: Sequence[str],
    numbers: Iterable[int],
    *,
    environ: Mapping[str, str],
    role: SessionRole = SessionRole.FURTHER,
    progress: Callable[[int, int, int], None] | None = None,
) -> ExtraSessions:
    """Runs tests in fresh sessions, one whole session after the other, so that a test's sessions lie apart.

    A test is refused, and left out of later sessions, if it fails, is skipped, has no valid measurement, is
    not found or kills its process. `numbers` tells one session from another. `progress` gets the session's
    number, how many of its tests have ended, and how many there are.
    """
    extra = ExtraSessions(results={nodeid: [] for nodeid in nodeids})
    for number in numbers:
        wanted = tuple(nodeid for nodeid in nodeids if nodeid not in extra.refused)
        if not wanted:
            break
        of_session = None
        if progress is not None:
            progress(number, 0, len(wanted))
            of_session = functools.partial(progress, number)
        run = children.run(ChildRequest(wanted, environ=environ), of_session)
        if run.problem is not None:
            extra.problems.append(f"session {number}: {run.problem}")
        for nodeid in wanted:
            reason = _why_refused(run, nodeid)
            if reason is not None:
                extra.refused[nodeid] = f"session {number}: {reason}"
            elif (result := run.result_of(nodeid)) is not None:
                extra.results[nodeid].append(structs.replace(result, role=role))
    return extra


def _why_refused(run: ChildRun, nodeid: str) -> str | None:
    """Says why a test's session does not count; returns None also if the session did not reach it."""
    if nodeid == run.during:
        return run.problem
    if nodeid not in run.endings:
        return None if run.ended_early else "the test was not found"
    outcome, text, result = run.endings[nodeid]
    if outcome != "passed":
        return f"{outcome}: {text}"
    return "it measured nothing" if result is None else unfit(result)
