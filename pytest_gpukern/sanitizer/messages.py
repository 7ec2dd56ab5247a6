"""Says how a test ends after tools looked at it: values in, words out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.sanitizer.finding import in_words, python_line
from pytest_gpukern.sanitizer.judge import State

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from pytest_gpukern.sanitizer.finding import Home, ToolFinding
    from pytest_gpukern.sanitizer.sessions import TestRun

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


def ending(found: Mapping[str, TestRun], *, detected_by: str | None, home: Home) -> ToolOutcome:
    """Returns how a test ends after the tools have looked at it.

    It passes only if it passed under every tool and each of them calls it clean. A variant that is broken on
    purpose passes if the tool that must reject it, `detected_by`, has found something.
    """
    if detected_by is not None:
        return _of_broken(found[detected_by], detected_by)
    complaints = [line for tool, test in found.items() for line in _complaints(tool, test, home)]
    if complaints:
        return ToolOutcome("failed", "\n".join(complaints))
    ends = [test.outcome for test in found.values() if test.outcome is not None]
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
