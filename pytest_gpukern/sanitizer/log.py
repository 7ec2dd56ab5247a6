"""Reads what compute-sanitizer says in its log: its summary, and what it admits not to have seen."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "========="
_SUMMARY = re.compile(
    r"^=+ (?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed)", re.MULTILINE
)
_BLIND = (
    "Internal Sanitizer",
    "Internal error",
    "might go undetected",
    "Device not supported",
    "is not supported by the selected tool",
    "is not supported on this device",
    "unsupported driver",
    "Failed to write",
    "No attachable process",
    "didn't terminate successfully",
    "terminated before first instrumented",
    "errors were skipped",
    "Results might be incorrect",
)
"""Parts of sentences by which the tool says that it has not looked, or not at everything, as they are in its
release 2026.4."""


@dataclass(frozen=True)
class Log:
    """What a tool's log comes to.

    Attributes:
        count: errors and hazards by its own summary; None where it has not come to one.
        blind: sentences that say that something was not looked at.
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
    counts = [int(errors or hazards) for errors, hazards in _SUMMARY.findall(text)]
    said = (line.strip("= \t") for line in text.splitlines() if line.startswith(PREFIX))
    return Log(
        count=sum(counts) if counts else None,
        blind=tuple(line for line in said if admits_blindness(line)),
        text=text,
    )


def admits_blindness(text: str) -> bool:
    """Whether a sentence of the tool's says that it has not looked, or not at everything."""
    return any(part in text for part in _BLIND)
