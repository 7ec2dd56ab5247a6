"""Reads what compute-sanitizer says in its log: its summary, and what else it says that is no report.

Recorded logs (`tests/unit/data/sanitizer`) hold a banner, a report of several lines for each finding, and a
summary; those of clean runs the banner and the summary alone. Any other line that speaks of an error, a
warning or of something that was not done counts as an admission that not everything was looked at: which
ones there are is documented nowhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@dataclass(frozen=True)
class Log:
    """What a tool's log comes to.

    Attributes:
        count: errors and hazards by its own summary; None where it has not come to one.
        blind: sentences that say, or may say, that something was not looked at.
        text: all of it.
    """

    count: int | None
    blind: tuple[str, ...]
    text: str

    @property
    def last_words(self) -> str:
        """Its last lines in one, or that there are none."""
        lines = [line.strip("= \t") for line in self.text.splitlines() if line.strip("= \t")]
        return " / ".join(lines[-3:])[-500:] or "it said nothing"


def read_log(text: str) -> Log:
    """What a log says; several summaries, as of several processes, are added up."""
    said = [line.removeprefix(PREFIX).rstrip() for line in text.splitlines() if line.startswith(PREFIX)]
    counts = [count for line in said if (count := _count(line.strip())) is not None]
    blind = tuple(line for line in _outside_reports(said) if _AMISS.search(line))
    return Log(count=sum(counts) if counts else None, blind=blind, text=text)


def _count(line: str) -> int | None:
    """Errors or hazards by a line, or None where it is no such summary.

    A summary of hazards counts those that were printed, and in brackets all; one of errors counts all, and a
    further line those that were not printed.
    """
    errors, hazards = _ERRORS.fullmatch(line), _HAZARDS.fullmatch(line)
    if hazards is not None:
        return max(int(hazards[1]), int(hazards[2]) + int(hazards[3]))
    return int(errors[1]) if errors is not None else None


def _outside_reports(lines: list[str]) -> Iterator[str]:
    """What is said that is neither report nor banner nor summary, each with the lines indented below it."""
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
