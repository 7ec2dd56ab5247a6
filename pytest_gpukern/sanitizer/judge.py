"""Reads what a session under a tool left behind, and judges it: clean, at fault, or not checked.

NVIDIA documents a part of the XML, for suppressions
(https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html#error-suppression), and promises
nothing of the rest. The names here are those of recorded files (`tests/unit/data/sanitizer`). A record with
other parts is a finding all the same. Recorded logs hold a banner, a report of several lines for each
finding, and a summary. Any other line about an error, a warning or something that was not done means that the
tool did not look at everything. No documentation lists such lines.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_gpukern.processes.process import end_in_words, last_lines
from pytest_gpukern.sanitizer.finding import Access, Index, Place, ToolFinding
from pytest_gpukern.sanitizer.tool import ERRORS_FOUND, LOG, RECORDS

_LONGEST = 500
_OF_PYTEST = (0, 1, 5)  # fine, tests failed, none were selected


@dataclass(frozen=True)
class Judgement:
    """Holds the judgement on a session under a tool: clean if there are neither findings nor a reason.

    Attributes:
        reason: why it was not checked, in words; empty otherwise.
        count: how many findings the tool's summary counts; more than it saves, where it finds very many.
    """

    findings: tuple[ToolFinding, ...] = ()
    reason: str = ""
    count: int = 0

    @property
    def state(self) -> str:
        """Returns `found`, `not checked` or `clean`: whether the tool has vouched for what ran."""
        return "found" if self.findings else "not checked" if self.reason else "clean"

    @property
    def is_in_a_kernel(self) -> bool:
        """Returns whether a finding names a kernel or a thread; else the tool only complained."""
        return any(finding.kernel is not None or finding.thread is not None for finding in self.findings)


def judge_folder(folder: Path, tool: str, status: int | None, problem: str | None = None) -> Judgement:
    """Judges a session by the files that a tool left in its folder, as far as they are there."""
    xml, log = (
        file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
        for file in (folder / RECORDS, folder / LOG)
    )
    return judge(tool, status, xml, log or "", problem)


def judge(tool: str, status: int | None, xml: str | None, log: str, problem: str | None = None) -> Judgement:
    """Judges clean only where log, XML and exit status all say so; found where any of them names a fault.

    Args:
        tool: `memcheck`, `racecheck`, `initcheck` or `synccheck`.
        status: as of `subprocess`; None if it was stopped for its silence.
        xml: what it saved, if anything.
        log: what it said.
        problem: why the session did not end by itself, in words, or None.
    """
    (count, blind), damage = read_log(log), None
    findings: tuple[ToolFinding, ...] = ()
    try:
        findings = findings_in(xml) if xml is not None else ()
    except ValueError as error:
        damage = str(error)
    if findings:
        return Judgement(findings, count=count or 0)
    lines = [line.strip("= \t") for line in log.splitlines()]
    if count and not blind:
        said = next((line for line in lines if line and not line.startswith(_BANNER)), "")
        text = f"{tool}'s summary counts {count} errors, its XML has none: {said}"
        return Judgement((ToolFinding(text),), count=count)
    last_words = last_lines("\n".join(lines))
    if blind:
        reason = f"{tool} says: {'; '.join(dict.fromkeys(blind))}"[:_LONGEST]
    elif problem is not None:
        reason = problem
    elif status is None:
        reason = f"{tool} was stopped, since it said nothing for too long: {last_words}"
    elif count is None:
        reason = f"{tool} ended {end_in_words(status)} without its summary: {last_words}"
    elif damage is not None:
        reason = f"{tool}: {damage}"
    elif xml is None:
        reason = f"{tool} saved no XML, but it saves one even if it finds nothing"
    elif status == ERRORS_FOUND:
        reason = f"{tool} ended with status {ERRORS_FOUND}, which means errors, but its summary counts none"
    elif status not in _OF_PYTEST:
        reason = f"{tool} ended {end_in_words(status)}: {last_words}"
    else:
        reason = ""
    return Judgement(reason=reason)


_ROOT = "ComputeSanitizerOutput"


def findings_in(text: str) -> tuple[ToolFinding, ...]:
    """Returns every record, in the order of the file; ValueError if it is not all of the tool's XML."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"its XML is not whole: {error}") from error
    if root.tag != _ROOT:
        raise ValueError(f"its XML begins with <{root.tag}>, not with <{_ROOT}>")
    return tuple(_finding(record) for record in root.iter("record"))


def _finding(record: ElementTree.Element) -> ToolFinding:
    threads = (record.find(f"what/{name}") for name in ("thread0", "thread1"))
    accesses = [
        Access(_own(thread, "access") or "access", _index(thread, "threadIdx"), _place(thread.find("where")))
        for thread in threads
        if thread is not None
    ]
    device = [place for where in record.iter("where") if (place := _place(where)) != Place()]
    return ToolFinding(
        text=_said(record) or _own(record, "kind") or _texts(record) or "record",
        kernel=next((place.function for place in device if place.function), None),
        block=_index(record, "blockIdx"),
        thread=_index(record, "threadIdx"),
        accesses=tuple(accesses),
        device=tuple(dict.fromkeys(device)),
    )


def _said(record: ElementTree.Element) -> str:
    """Returns the sentence of a record, with the type of a barrier's error; else all its short texts."""
    what = record.find("what")
    if what is None:
        return ""
    text, kind = _own(what, "text"), _own(what, "type")
    if text is None:
        text = _texts(what)
    elif kind is not None:
        text = f"{text}: {kind[:1].lower()}{kind[1:]}"
    return " ".join(text.split())


def _texts(element: ElementTree.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def _place(element: ElementTree.Element | None) -> Place:
    if element is None:
        return Place()
    line = _own(element, "line") or ""
    number = int(line) if line.isdecimal() else 0
    return Place(_own(element, "func"), _own(element, "path"), number or None)


def _index(record: ElementTree.Element, name: str) -> Index | None:
    for element in record.iter(name):
        with suppress(ValueError):
            x, y, z = (int(_own(element, axis) or "") for axis in "xyz")
            return x, y, z
    return None


def _own(element: ElementTree.Element, name: str) -> str | None:
    return (element.findtext(name) or "").strip() or None


PREFIX = "========="
_BANNER = "COMPUTE-SANITIZER"
_IS_SUMMARY = re.compile(r"[A-Z]+ SUMMARY: ")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?")
_HAZARDS = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_INDENT = " " * 5
_OF_A_REPORT = re.compile(r"^ {5,}(?:at |by |.*\bthread \()", re.IGNORECASE)
"""How the lines below a report's first one begin: where it was, and which threads."""
_AMISS = re.compile(
    r"\b(?:error|warning|fatal|fail\w*|unable|unsupported|skip\w*|cannot|no|not)\b|n't\b", re.IGNORECASE
)


def read_log(text: str) -> tuple[int | None, tuple[str, ...]]:
    """Reads what a log says; several summaries, as of several processes, are added up.

    Returns:
        How many errors and hazards its summary counts, or None where it has no summary; and sentences that
        say, or may say, that something was not looked at.
    """
    said = [line.removeprefix(PREFIX).rstrip() for line in text.splitlines() if line.startswith(PREFIX)]
    counts = [count for line in said if (count := _count(line.strip())) is not None]
    blind = tuple(line for line in _outside_reports(said) if _AMISS.search(line))
    return sum(counts) if counts else None, blind


def _count(line: str) -> int | None:
    """Returns how many errors or hazards a line counts, or None where it is no such summary.

    A summary of hazards counts those that were printed, and in brackets all. A summary of errors counts all,
    and another line those that were not printed.
    """
    errors, hazards = _ERRORS.fullmatch(line), _HAZARDS.fullmatch(line)
    if hazards is not None:
        return max(int(hazards[1]), int(hazards[2]) + int(hazards[3]))
    return int(errors[1]) if errors is not None else None


def _outside_reports(lines: list[str]) -> Iterator[str]:
    """Yields what is neither report nor banner nor summary, each with the lines indented below it."""
    said: list[list[str]] = []
    for line in lines:
        if line.startswith(_INDENT) and said:
            said[-1].append(line)
        else:
            said.append([line])
    for head, *below in said:
        words = head.strip()
        known = not words or words == _BANNER or _IS_SUMMARY.match(words)
        if not (below and _OF_A_REPORT.match(below[0])) and not (known and not below):
            yield " ".join(line.strip() for line in (head, *below)).strip()
