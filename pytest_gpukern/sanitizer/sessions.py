"""Runs tests in child sessions under a tool, finds the test that a finding is of, and says how each ends."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpukern.processes.sessions import ChildRequest, ChildSessions
from pytest_gpukern.sanitizer.finding import Home, ToolFinding, has_python_line, in_words, python_line
from pytest_gpukern.sanitizer.judge import Evidence, Judgement, State, judge
from pytest_gpukern.sanitizer.tool import Tool, environment_under
from pytest_gpukern.values.atomic_file import TemporaryFolder
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
        first = self._run(nodeids, host_stacks=False)
        if len(nodeids) > 1 or all(map(has_python_line, first.judgement.findings)):
            return first
        again = self._run(nodeids, host_stacks=True)
        return again if again.judgement.state is State.FOUND else first

    def _run(self, nodeids: Sequence[str], *, host_stacks: bool) -> ToolRun:
        with TemporaryFolder("sanitizer") as folder:
            place = Path(folder)
            child = self.children.run(
                ChildRequest(
                    nodeids=tuple(nodeids),
                    environ={**self.environ, **environment_under(self.tool, os.environ)},
                    command_prefix=self.program.command(self.tool, place, host_stacks=host_stacks),
                ),
                self.progress,
            )
            evidence = Evidence.in_folder(place, self.tool, child.status, child.problem)
        return ToolRun(judge(evidence), child.outcomes, child.results, child.during)


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
    halves = {**attributed(nodeids[:middle], run), **attributed(nodeids[middle:], run)}
    nobody = all(test.judgement.state is not State.FOUND for test in halves.values())
    if session.judgement.state is State.FOUND and nobody:
        return {
            nodeid: dataclasses.replace(test, judgement=session.judgement, together=len(nodeids))
            for nodeid, test in halves.items()
        }
    return halves


def _of(nodeid: str, session: ToolRun) -> TestRun:
    outcome, judgement = session.outcomes.get(nodeid), session.judgement
    if outcome is None and judgement.state is State.CLEAN:
        judgement = Judgement(State.UNCHECKED, reason="the test did not run under the tool")
    if outcome is not None and outcome[0] == "skipped" and judgement.state is State.UNCHECKED:
        judgement = Judgement(State.CLEAN)  # it launched nothing that a tool could check
    return TestRun(judgement, outcome, session.results.get(nodeid))


_SHOWN_FINDINGS = 5
_SHOWN_RECORDS = 2


@dataclass(frozen=True)
class ToolOutcome:
    """Holds how a test ends (`passed`, `failed`, `skipped` or `xfailed`), and why in words.

    `rejected` says that its variant is broken on purpose, and that the right tool rejected it.
    """

    outcome: str
    text: str = ""
    rejected: bool = False


def ending(by_tool: Mapping[str, TestRun], *, detected_by: str | None, home: Home) -> ToolOutcome:
    """Returns how a test ends after the tools have looked at it.

    It passes only if it passed under every tool and each of them calls it clean. A variant that is broken on
    purpose passes if the tool that must reject it, `detected_by`, has found something.
    """
    if detected_by is not None:
        return _of_broken(by_tool[detected_by], detected_by)
    complaints = [line for tool, test in by_tool.items() for line in _complaints(tool, test, home)]
    if complaints:
        return ToolOutcome("failed", "\n".join(complaints))
    ends = [test.outcome for test in by_tool.values() if test.outcome is not None]
    for outcome in ("failed", "xfailed", "skipped"):
        texts = [text.removeprefix("Failed: ") for name, text in ends if name == outcome]
        if texts and (outcome != "skipped" or len(texts) == len(ends)):
            return ToolOutcome(outcome, texts[0])
    return ToolOutcome("passed")


def _of_broken(test: TestRun, tool: str) -> ToolOutcome:
    if test.outcome is not None and test.outcome[0] == "skipped":
        return ToolOutcome("skipped", test.outcome[1])
    if test.judgement.is_in_a_kernel:
        return ToolOutcome("passed", rejected=True)
    if test.judgement.state is State.FOUND:
        said = "; ".join(finding.text for finding in test.judgement.findings)
        return ToolOutcome("failed", f"broken on purpose, but {tool} names no kernel: {said}")
    if test.judgement.state is State.CLEAN:
        return ToolOutcome("failed", f"broken on purpose for {tool} to reject, but {tool} found nothing")
    return ToolOutcome("failed", f"not checked by {tool}: {test.judgement.reason}")


def _complaints(tool: str, test: TestRun, home: Home) -> list[str]:
    judgement = test.judgement
    if judgement.state is State.UNCHECKED:
        return [f"not checked by {tool}: {judgement.reason}"]
    if judgement.state is State.CLEAN:
        return []
    lines = list(in_lines(tool, judgement.findings, home))
    if judgement.count > len(judgement.findings):
        lines.append(f"  {tool} counted {judgement.count} and saved {len(judgement.findings)}")
    if test.together > 1:
        lines.append(f"  found only with {test.together} tests in one process: any may be to blame")
    if test.outcome is not None and test.outcome[0] == "failed":
        lines.append(f"  and the test failed: {test.outcome[1]}")
    return lines


def in_lines(tool: str, findings: Sequence[ToolFinding], home: Home) -> Iterable[str]:
    """Yields a line for each finding that says something new; threads that do the same are counted."""
    alike: dict[Hashable, list[ToolFinding]] = {}
    for finding in findings:
        alike.setdefault(_without_threads(finding, home), []).append(finding)
    for number, same in enumerate(alike.values()):
        if number == _SHOWN_FINDINGS:
            yield f"  and {len(alike) - number} more"
            return
        more = f" ({len(same)} records)" if len(same) > 1 else ""
        yield f"{tool}: {in_words(same[0], home)}{more}"


def _without_threads(finding: ToolFinding, home: Home) -> Hashable:
    """Returns what findings have in common that differ in their threads and blocks only."""
    accesses = tuple((access.what, access.place) for access in finding.accesses)
    return finding.text, finding.kernel, finding.device, accesses, python_line(finding, home)


def records_of(findings: Sequence[ToolFinding]) -> str:
    """Returns the first records as the tool wrote them, and how many more there are."""
    texts = [finding.record for finding in findings[:_SHOWN_RECORDS]]
    if len(findings) > _SHOWN_RECORDS:
        texts.append(f"and {len(findings) - _SHOWN_RECORDS} more records")
    return "\n".join(texts)


def counted(tests: Iterable[TestRun]) -> str:
    """Says how many tests were checked and how they came out."""
    states = Counter(_state(test) for test in tests)
    checked = states["clean"] + states["with findings"]
    parts = [f"{states[state]} {state}" for state in ("clean", "with findings") if states[state]]
    others = [f"{states[state]} {state}" for state in ("not checked", "skipped") if states[state]]
    return ", ".join([f"{checked} checked" + (f" ({', '.join(parts)})" if parts else ""), *others])


def why_nothing_was_checked(tests: Sequence[TestRun]) -> str | None:
    """Says why a tool checked no test, or returns None if it checked one."""
    states = {_state(test) for test in tests}
    if not states.isdisjoint(("clean", "with findings")):
        return None
    if not tests:
        return "no test that uses this plugin's fixtures on a GPU is selected"
    reasons = [test.judgement.reason for test in tests if test.judgement.state is State.UNCHECKED]
    return reasons[0] if reasons else f"all {len(tests)} were skipped"


def _state(test: TestRun) -> str:
    if test.judgement.state is State.FOUND:
        return "with findings"
    if test.judgement.state is State.UNCHECKED:
        return "not checked"
    return "skipped" if test.outcome is not None and test.outcome[0] == "skipped" else "clean"
