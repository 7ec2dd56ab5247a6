"""What one session under a tool comes to: clean, at fault, or not checked; values in, a judgement out."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.sanitizer.finding import Finding
from pytest_gpukern.sanitizer.log import read_log
from pytest_gpukern.sanitizer.xml_report import ReportError, findings_in

if TYPE_CHECKING:
    from pytest_gpukern.sanitizer.log import Log

ERRORS_FOUND = 86
"""The exit status that the tool is told to end with where it found something; pytest has 0 to 5, and without
it the tool ends with 0 whatever it found."""
_LONGEST = 500
_OF_PYTEST = (0, 1, 5)  # fine, tests failed, none were selected


class State(enum.StrEnum):
    """Whether the tool has vouched for what ran."""

    CLEAN = "clean"
    FOUND = "found"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Evidence:
    """What a session under a tool left behind.

    Attributes:
        tool: `memcheck`, `racecheck`, `initcheck` or `synccheck`.
        status: exit status of the tool's process; negative for a signal, None where it was ended for its
            silence.
        xml: what it saved, or None where it saved nothing.
        log: what it said.
        problem: why what ran did not come to its own end, in words, or None.
    """

    tool: str
    status: int | None
    xml: str | None
    log: str
    problem: str | None = None


@dataclass(frozen=True)
class Judgement:
    """What a session under a tool comes to.

    Attributes:
        state: clean, found or not checked.
        findings: what was found.
        reason: why it was not checked, in words; empty otherwise.
        count: how many findings the tool's summary counts; more than it saves, where it finds very many.
    """

    state: State
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    count: int = 0

    @property
    def is_in_a_kernel(self) -> bool:
        """Whether a finding names a kernel or a thread, so that the tool did not only complain."""
        return any(finding.kernel is not None or finding.thread is not None for finding in self.findings)


def judge(evidence: Evidence) -> Judgement:
    """Clean only where log, XML and exit status all say so; found where any of them names a fault."""
    log, damage = read_log(evidence.log), None
    findings: tuple[Finding, ...] = ()
    try:
        findings = findings_in(evidence.xml) if evidence.xml is not None else ()
    except ReportError as error:
        damage = str(error)
    if findings:
        return Judgement(State.FOUND, findings, count=log.count or 0)
    if log.count and not log.blind:
        return Judgement(State.FOUND, (_only_in_the_log(evidence.tool, log),), count=log.count)
    reason = _why_unchecked(evidence, log, damage)
    return Judgement(State.CLEAN) if reason is None else Judgement(State.UNCHECKED, reason=reason)


def _why_unchecked(evidence: Evidence, log: Log, damage: str | None) -> str | None:
    tool = evidence.tool
    if log.blind:
        return f"{tool} says: {'; '.join(dict.fromkeys(log.blind))}"[:_LONGEST]
    if evidence.problem is not None:
        return evidence.problem
    if evidence.status is None:
        return f"{tool} was ended for its silence: {log.last_words}"
    if log.count is None:
        return f"{tool} ended {_status(evidence.status)} without its summary: {log.last_words}"
    if damage is not None:
        return f"{tool}: {damage}"
    if evidence.xml is None:
        return f"{tool} saved no XML, which it does where it finds nothing, too"
    if evidence.status == ERRORS_FOUND:
        return f"{tool} ended {_status(ERRORS_FOUND)}, which means errors, and its summary tells of none"
    if evidence.status not in _OF_PYTEST:
        return f"{tool} ended {_status(evidence.status)}: {log.last_words}"
    return None


def _status(status: int) -> str:
    return f"with status {status}" if status >= 0 else f"by signal {-status}"


def _only_in_the_log(tool: str, log: Log) -> Finding:
    """Stands for errors that are counted in the summary, and are not in the XML."""
    lines = [line.strip("= \t") for line in log.text.splitlines()]
    said = next((line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")), "")
    text = f"{log.count} errors by {tool}'s summary, none in its XML: {said}"
    return Finding(kind="log", text=text, record=log.text)
