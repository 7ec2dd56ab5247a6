"""Finds the test that a tool's finding is of, by sessions of fewer tests, and says how each test ends."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpukern.processes.sessions import ChildRun, Ending
from pytest_gpukern.sanitizer.finding import Home, ToolFinding, in_words, python_line
from pytest_gpukern.sanitizer.judge import Judgement
from pytest_gpukern.values.grouping import grouped


@dataclass(frozen=True)
class TestRun:
    """Holds what a tool found in one test.

    Attributes:
        ending: how the test itself ended; None where that is not known.
        together: how many tests shared the smallest session that showed the finding.
    """

    __test__ = False

    judgement: Judgement
    ending: Ending | None = None
    together: int = 1

    @property
    def state(self) -> str:
        """Returns that of the judgement, but `skipped` for what is clean since it was skipped."""
        skipped = self.ending is not None and self.ending.outcome == "skipped"
        return "skipped" if skipped and self.judgement.state == "clean" else self.judgement.state


def attributed(
    nodeids: Sequence[str], run: Callable[[Sequence[str]], tuple[Judgement, ChildRun]]
) -> dict[str, TestRun]:
    """Finds the tests that a tool's findings belong to, by halving a session that is not clean.

    A test is clean only if it ran in a session that ended by itself and was clean as a whole. A finding that
    appears only when tests run together counts against each of them.
    """
    if not nodeids:
        return {}
    judgement, ran = run(nodeids)
    # Fewer tests do not help if the tool itself does not work here.
    if len(nodeids) == 1 or not (judgement.findings or ran.during is not None):
        return {nodeid: _of(nodeid, judgement, ran) for nodeid in nodeids}
    middle = len(nodeids) // 2
    halves = {**attributed(nodeids[:middle], run), **attributed(nodeids[middle:], run)}
    if judgement.findings and not any(test.judgement.findings for test in halves.values()):
        return {
            nodeid: dataclasses.replace(test, judgement=judgement, together=len(nodeids))
            for nodeid, test in halves.items()
        }
    return halves


def _of(nodeid: str, judgement: Judgement, ran: ChildRun) -> TestRun:
    ended = ran.endings.get(nodeid)
    if ended is None and judgement.state == "clean":
        judgement = Judgement(reason="the test did not run under the tool")
    if ended is not None and ended.outcome == "skipped" and judgement.reason:
        judgement = Judgement()  # it launched nothing that a tool could check
    return TestRun(judgement, ended)


_SHOWN_FINDINGS = 5


def ending(by_tool: Mapping[str, TestRun], *, detected_by: str | None, home: Home) -> tuple[str, str]:
    """Returns how a test ends after the tools have looked at it, and why in words.

    It passes only if it passed under every tool and each of them calls it clean. A variant that is broken on
    purpose passes if the tool that must reject it, `detected_by`, has found something.
    """
    if detected_by is not None:
        return _of_broken(by_tool[detected_by], detected_by)
    complaints = [line for tool, test in by_tool.items() for line in _complaints(tool, test, home)]
    if complaints:
        return "failed", "\n".join(complaints)
    ends = [test.ending for test in by_tool.values() if test.ending is not None]
    for outcome in ("failed", "xfailed", "skipped"):
        texts = [end.text for end in ends if end.outcome == outcome]
        if texts and (outcome != "skipped" or len(texts) == len(ends)):
            return outcome, texts[0]
    return "passed", ""


def _of_broken(test: TestRun, tool: str) -> tuple[str, str]:
    if test.ending is not None and test.ending.outcome == "skipped":
        return test.ending.outcome, test.ending.text
    if test.judgement.is_in_a_kernel:
        return "passed", ""
    if test.judgement.findings:
        said = "; ".join(finding.text for finding in test.judgement.findings)
        return "failed", f"broken on purpose, but {tool} names no kernel: {said}"
    if test.judgement.reason:
        return "failed", f"not checked by {tool}: {test.judgement.reason}"
    return "failed", f"broken on purpose for {tool} to reject, but {tool} found nothing"


def _complaints(tool: str, test: TestRun, home: Home) -> list[str]:
    judgement = test.judgement
    if judgement.reason:
        return [f"not checked by {tool}: {judgement.reason}"]
    if not judgement.findings:
        return []
    lines = list(in_lines(tool, judgement.findings, home))
    if judgement.count > len(judgement.findings):
        lines.append(f"  {tool} counted {judgement.count} and saved {len(judgement.findings)}")
    if test.together > 1:
        lines.append(f"  found only with {test.together} tests in one process: any may be to blame")
    if test.ending is not None and test.ending.outcome == "failed":
        lines.append(f"  and the test failed: {test.ending.text}")
    return lines


def in_lines(tool: str, findings: Sequence[ToolFinding], home: Home) -> Iterable[str]:
    """Yields a line for each finding that says something new; threads that do the same are counted."""
    alike = grouped((_without_threads(finding, home), finding) for finding in findings)
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


def counted(tests: Iterable[TestRun]) -> str:
    states = Counter(test.state for test in tests)
    checked = states["clean"] + states["found"]
    words = {"clean": "clean", "found": "with findings"}
    parts = [f"{states[state]} {word}" for state, word in words.items() if states[state]]
    others = [f"{states[state]} {state}" for state in ("not checked", "skipped") if states[state]]
    return ", ".join([f"{checked} checked" + (f" ({', '.join(parts)})" if parts else ""), *others])


def why_nothing_was_checked(tests: Sequence[TestRun]) -> str | None:
    if any(test.state in ("clean", "found") for test in tests):
        return None
    if not tests:
        return "no test that uses this plugin's fixtures on a GPU is selected"
    reasons = [test.judgement.reason for test in tests if test.state == "not checked"]
    return reasons[0] if reasons else f"all {len(tests)} were skipped"
