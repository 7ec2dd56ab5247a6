"""The rows of a self-test's table: what was found, what is allowed, and whether the target is reached."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpukern.values.result import JsonDict

REPEAT_SHARE = 0.005
REPEAT_TICKS = 2
CASE_S = 0.3
SUITES_S = 180.0
_ROUNDING_NS = 0.05
"""Times are multiples of a nanosecond or of a tick; a comparison must not fail by a float's last digit."""


@dataclass(frozen=True)
class TruthRow:
    """A timer against what is known without it.

    Attributes:
        subject: what was timed, and what was subtracted.
        against: which truth: `own time` or `graph slope`.
        timer: which.
        truth_ns: median over the sessions.
        error_ns: what the timer reads beyond the truth, median over the sessions.
        worst_ns: the error of the session that is farthest off.
        allowed_ns: how far it may be off; None where it is only shown.
        sessions: how many had both.
    """

    subject: str
    against: str
    timer: str
    truth_ns: float
    error_ns: float
    worst_ns: float
    allowed_ns: float | None
    sessions: int

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.allowed_ns is None:
            return None
        return abs(self.error_ns) <= self.allowed_ns + _ROUNDING_NS


@dataclass(frozen=True)
class RepeatRow:
    """How far apart the sessions' medians of one and the same kernel are.

    Attributes:
        kernel: which.
        cache: `cold` or `hot`.
        timer: which.
        median_ns: of the sessions' medians.
        low_ns: the lowest.
        high_ns: the highest.
        tick_ns: the timer's.
        sessions: how many count.
        asked_sessions: how many there should be.
        invalid: why others do not count, in words, or None.
        judged: whether the target is about this timer.
    """

    kernel: str
    cache: str
    timer: str
    median_ns: float
    low_ns: float
    high_ns: float
    tick_ns: float
    sessions: int
    asked_sessions: int
    invalid: str | None
    judged: bool

    @property
    def range(self) -> float:
        """max / min − 1."""
        return self.high_ns / self.low_ns - 1 if self.low_ns > 0 else float("inf")

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if not self.judged:
            return None
        if self.sessions < max(2, self.asked_sessions):
            return False
        few_ticks = self.high_ns - self.low_ns <= REPEAT_TICKS * self.tick_ns + _ROUNDING_NS
        return few_ticks or self.range <= REPEAT_SHARE


@dataclass(frozen=True)
class WallRow:
    """How long it takes to measure a case.

    Attributes:
        kernel: which.
        cache: `cold` or `hot`.
        median_s: over the sessions.
        worst_s: the slowest session.
        sessions: how many measured it.
        asked_sessions: how many there should be.
    """

    kernel: str
    cache: str
    median_s: float
    worst_s: float
    sessions: int
    asked_sessions: int

    @property
    def reached(self) -> bool:
        """Whether the target is reached."""
        return self.median_s <= CASE_S and self.sessions >= self.asked_sessions


@dataclass(frozen=True)
class RivalRow:
    """What another tool reads for a kernel.

    Attributes:
        tool: which.
        kernel: which; empty where `problem` is about the tool.
        cache: what the tool does about the cache.
        median_ns: of the sessions' medians, or None.
        range: max / min − 1 of them, or None.
        of_default: median ÷ the default timer's under the same cache policy, or None.
        of_slope: median ÷ slope of a graph, which is hot, or None.
        sessions: how many had a number.
        problem: why there is none, in words, or None.
    """

    tool: str
    kernel: str
    cache: str
    median_ns: float | None = None
    range: float | None = None
    of_default: float | None = None
    of_slope: float | None = None
    sessions: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class SuitesRow:
    """The suites whole."""

    wall_s: float
    exit_status: int

    @property
    def reached(self) -> bool:
        """Whether they passed, and in time."""
        return self.exit_status == 0 and self.wall_s <= SUITES_S


@dataclass(frozen=True)
class Conclusions:
    """Every row of the table.

    Attributes:
        default_timer: which `auto` chose; of several, all.
        truth: timers against truth.
        repeats: A/A ranges.
        walls: wall times of a case.
        suites: None where they were left out.
        rivals: other tools.
        missing: what should have been measured and was not, in words; each is a target that was missed.
    """

    default_timer: str
    truth: tuple[TruthRow, ...]
    repeats: tuple[RepeatRow, ...]
    walls: tuple[WallRow, ...]
    suites: SuitesRow | None
    rivals: tuple[RivalRow, ...]
    missing: tuple[str, ...]

    @property
    def verdicts(self) -> list[bool]:
        """Whether each target is reached, what was not measured included."""
        rows: Iterable[Any] = (*self.truth, *self.repeats, *self.walls, *filter(None, (self.suites,)))
        found = [row.reached for row in rows if row.reached is not None]
        return [*found, *(False for _ in self.missing)]

    @property
    def reached(self) -> bool:
        """Whether every target is."""
        return bool(self.verdicts) and all(self.verdicts)

    def to_json(self) -> JsonDict:
        """All rows with what was concluded, as plain JSON."""

        def plain(row: Any) -> JsonDict:
            conclusion = {"reached": row.reached} if hasattr(row, "reached") else {}
            return {**dataclasses.asdict(row), **conclusion}

        return {
            "default_timer": self.default_timer,
            "reached": self.reached,
            "truth": [plain(row) for row in self.truth],
            "repeats": [
                {**plain(row), "range": row.range if row.low_ns > 0 else None} for row in self.repeats
            ],
            "walls": [plain(row) for row in self.walls],
            "suites": None if self.suites is None else plain(self.suites),
            "rivals": [plain(row) for row in self.rivals],
            "missing": list(self.missing),
        }
