"""Lists the kinds of verdict, one row each, with all that judging, options and reports ask of a kind.

To add a kind, write its row here, and return it where `gate.judge` judges. This file loads nothing but the
standard library.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Self


class Tone(enum.StrEnum):
    """Says how a state is meant; a form of the report gives each tone its colour."""

    BAD = "bad"
    DOUBTFUL = "doubt"
    GOOD = "good"
    PLAIN = "faint"


class StateRow(NamedTuple):
    """Describes a kind of verdict, or what stands in the place of one.

    Attributes:
        tone: how it is meant. A reason in the tone of doubt is counted, and shown with -v or if unsettled.
        severity: its place where the worst state comes first, from 0 on.
        fail_on: the kind of `--gpukern-fail-on` with which it fails its test; empty where none does.
        always_fails: whether it fails its test whatever that option says.
        compared: whether new times were compared with others.
        changed: whether it says that the time changed, so that reports look for causes.
        shows_reason: whether reports show its reason, and not only its word.
        decided: whether it says that a time is slower or that it is not.
    """

    tone: Tone
    severity: int
    fail_on: str = ""
    always_fails: bool = False
    compared: bool = False
    changed: bool = False
    shows_reason: bool = False
    decided: bool = False


class VerdictKind(enum.StrEnum):
    """Says how a measurement compares with the record, in the order in which a summary counts the kinds."""

    row: StateRow

    def __new__(cls, word: str, row: StateRow) -> Self:
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.row = row
        return kind

    SAME = "SAME", StateRow(Tone.PLAIN, 8, compared=True, decided=True)
    FASTER = "FASTER", StateRow(Tone.GOOD, 4, compared=True, changed=True, shows_reason=True, decided=True)
    SLOWER = (
        "SLOWER",
        StateRow(Tone.BAD, 3, fail_on="slower", compared=True, changed=True, shows_reason=True, decided=True),
    )
    UNDECIDED = "UNDECIDED", StateRow(Tone.DOUBTFUL, 6, fail_on="undecided", compared=True, shows_reason=True)
    CHANGED = "CHANGED", StateRow(Tone.PLAIN, 6, shows_reason=True)
    """Of machine code; what grew fails with `resources`."""
    SAME_CODE = "SAME CODE", StateRow(Tone.PLAIN, 8, decided=True)
    UNCOMPARABLE = "UNCOMPARABLE", StateRow(Tone.PLAIN, 5, fail_on="uncomparable", shows_reason=True)
    INVALID = "INVALID", StateRow(Tone.BAD, 2, always_fails=True, shows_reason=True)
    NEW = "NEW", StateRow(Tone.PLAIN, 7, fail_on="new")


INCORRECT, FAILED = "INCORRECT", "FAILED"
"""What stands in the place of a verdict: the outputs are wrong, or the test failed by itself."""

_STATES = {
    INCORRECT: StateRow(Tone.BAD, 0, always_fails=True, shows_reason=True),
    FAILED: StateRow(Tone.BAD, 1, always_fails=True, shows_reason=True),
    **{kind.value: kind.row for kind in VerdictKind},
}
STATES: dict[str, StateRow] = dict(sorted(_STATES.items(), key=lambda state: state[1].severity))
"""Verdicts and what stands in their place, the worst first."""


def severity(state: str) -> int:
    """Returns the place of a state among all, the worst first; other words come last."""
    return STATES[state].severity if state in STATES else 1 + max(row.severity for row in STATES.values())
