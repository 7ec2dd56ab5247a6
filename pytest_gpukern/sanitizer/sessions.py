"""Runs tests in a child session under a tool, and collects what both of them left behind."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.processes.child_sessions import ChildRequest
from pytest_gpukern.sanitizer.finding import has_python_line
from pytest_gpukern.sanitizer.judge import Evidence, Judgement, State, judge
from pytest_gpukern.sanitizer.tool import environment_under
from pytest_gpukern.values.atomic_file import TemporaryFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpukern.processes.child_sessions import ChildSessions
    from pytest_gpukern.sanitizer.tool import Tool
    from pytest_gpukern.values.result import Result


@dataclass(frozen=True)
class SanitizedSessions:
    """Starts child sessions under one tool of compute-sanitizer."""

    program: Tool
    tool: str
    children: ChildSessions
    environ: Mapping[str, str]
    progress: Callable[[int, int], None] | None = None

    def run(self, nodeids: Sequence[str]) -> ToolRun:
        """Runs tests in one fresh process under the tool, and waits for it.

        The host's stacks cost memcheck minutes if cuBLAS is loaded beside PyTorch. So we keep them in a
        second session only, of a single test with a finding that names no line of Python.
        """
        found = self._run(nodeids, host_stacks=False)
        if len(nodeids) > 1 or all(map(has_python_line, found.judgement.findings)):
            return found
        again = self._run(nodeids, host_stacks=True)
        return again if again.judgement.state is State.FOUND else found

    def _run(self, nodeids: Sequence[str], *, host_stacks: bool) -> ToolRun:
        with TemporaryFolder("sanitizer") as folder:
            place = Path(folder)
            found = self.children.run(
                ChildRequest(
                    nodeids=tuple(nodeids),
                    environ={**self.environ, **environment_under(self.tool, os.environ)},
                    command_prefix=self.program.command(self.tool, place, host_stacks=host_stacks),
                ),
                self.progress,
            )
            evidence = Evidence.in_folder(place, self.tool, found.status, found.problem)
        return ToolRun(judge(evidence), found.outcomes, found.results, found.during)


@dataclass(frozen=True)
class ToolRun:
    """Holds what one session under a tool left behind.

    Attributes:
        judgement: on the session as a whole.
        outcomes: test → (`passed`, `failed`, `skipped` or `xfailed`, why in words), of those that ended.
        results: test → its result.
        died_in: the test that was running when the session ended early, or None.
    """

    judgement: Judgement
    outcomes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    died_in: str | None = None


@dataclass(frozen=True)
class TestRun:
    """Holds what a tool found in one test.

    Attributes:
        judgement: clean, found or not checked.
        outcome: how the test itself ended; None where that is not known.
        result: the test's own, if it has one.
        together: how many tests shared the smallest session that showed the finding.
    """

    __test__ = False

    judgement: Judgement
    outcome: tuple[str, str] | None = None
    result: Result | None = None
    together: int = 1


def attributed(nodeids: Sequence[str], run: Callable[[Sequence[str]], ToolRun]) -> dict[str, TestRun]:
    """Finds the tests that a tool's findings belong to, by halving a session that is not clean.

    A test is clean only if it ran in a session that ended by itself and was clean as a whole. A finding that
    appears only when tests run together counts against each of them.
    """
    if not nodeids:
        return {}
    session = run(nodeids)
    # Fewer tests do not help if the tool itself does not work here.
    worth_halving = session.judgement.state is State.FOUND or session.died_in is not None
    if session.judgement.state is State.CLEAN or len(nodeids) == 1 or not worth_halving:
        return {nodeid: _of(nodeid, session) for nodeid in nodeids}
    middle = len(nodeids) // 2
    found = {**attributed(nodeids[:middle], run), **attributed(nodeids[middle:], run)}
    nobody = all(test.judgement.state is not State.FOUND for test in found.values())
    if session.judgement.state is State.FOUND and nobody:
        return {
            nodeid: dataclasses.replace(test, judgement=session.judgement, together=len(nodeids))
            for nodeid, test in found.items()
        }
    return found


def _of(nodeid: str, session: ToolRun) -> TestRun:
    outcome, judgement = session.outcomes.get(nodeid), session.judgement
    if outcome is None and judgement.state is State.CLEAN:
        judgement = Judgement(State.UNCHECKED, reason="the test did not run under the tool")
    if outcome is not None and outcome[0] == "skipped" and judgement.state is State.UNCHECKED:
        judgement = Judgement(State.CLEAN)  # it launched nothing that a tool could check
    return TestRun(judgement, outcome, session.results.get(nodeid))
