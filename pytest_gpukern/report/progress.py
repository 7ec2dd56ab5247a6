"""Shows how far a long run is: one line in place on a terminal, a line every 30 s in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import shorten
from pytest_gpukern.values.untrusted_json import printable

EVERY_S = 30.0
_LONG_S = 2.0
"""A shorter run shows no line."""
_ERASE_BELOW = "\x1b[J"


class TimeLeft:
    """Estimates how long the rest of a run takes.

    A test whose record says how long it took takes that long again, times a ratio: what such tests have taken
    in this run to what their records say. Any other test takes the mean of those that have ended.

    Args:
        recorded_s: test → seconds that it took when it was recorded; empty without records.
    """

    def __init__(self, recorded_s: Mapping[str, float]) -> None:
        self._to_come_s = dict(recorded_s)
        self._known = len(recorded_s)
        self._all_s = sum(recorded_s.values())
        self._known_spent_s = self._measured_spent_s = self._measured_said_s = 0.0

    def end(self, nodeid: str, spent_s: float, *, measured: bool) -> None:
        """Notes that a test has ended, and whether it was measured: one that was skipped tells no ratio."""
        said_s = self._to_come_s.pop(nodeid, None)
        if said_s is None:
            return
        self._known_spent_s += spent_s
        if measured:
            self._measured_spent_s += spent_s
            self._measured_said_s += said_s

    def left_s(
        self, elapsed_s: float, finished: int, total: int, sessions: int = 1, *, workers: int = 1
    ) -> float | None:
        """Returns the seconds until all tests have ended in all sessions; None before the first has ended.

        All tests run in each session, and workers share them.
        """
        if not finished:
            return None
        elapsed_s *= workers
        ratio = self._measured_spent_s / self._measured_said_s if self._measured_said_s else 1.0
        others, others_finished = total - self._known, finished - (self._known - len(self._to_come_s))
        others_spent_s = elapsed_s - self._known_spent_s
        mean_s = others_spent_s / others_finished if others_finished else elapsed_s / finished
        in_this_s = ratio * sum(self._to_come_s.values()) + mean_s * (others - others_finished)
        return (in_this_s + (sessions - 1) * (ratio * self._all_s + mean_s * others)) / workers


class Progress:
    """Shows one line about a run: below what pytest writes on a terminal, or now and then in a log.

    Args:
        reporter: pytest's terminal reporter; None shows nothing.
        in_place: whether it writes to a terminal that understands escape sequences.
        quiet: whether a log gets no lines: pytest's dots show that the run goes on.
        every_s: seconds between two lines of a log.
        clock: returns seconds.
    """

    def __init__(
        self,
        reporter: Any,
        *,
        in_place: bool,
        quiet: bool = False,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.in_place = in_place and reporter is not None
        self._reporter = reporter
        self._every_s = math.inf if quiet else every_s
        self._clock = clock
        self._started_s = self._last_s = clock()
        self._text = ""

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_s

    @property
    def is_due(self) -> bool:
        """Says whether a log gets its next line now, so that nothing is worked out in vain."""
        return not self.in_place and self._clock() - self._last_s >= self._every_s

    def show(self, what: str, finished: int, total: int, *, left_s: float | None) -> None:
        """Shows `gpukern: 37 of 98 · measuring exp/cupy.exp/n=1000 · 2 min 10 s, about 3 min 34 s left`."""
        elapsed_s = self.elapsed_s
        left = f", about {units.duration(left_s)} left" if left_s and 0 < left_s < math.inf else ""
        before, after = f"gpukern: {finished} of {total} · ", f" · {units.duration(elapsed_s)}{left}"
        if self.in_place and elapsed_s >= _LONG_S:
            width = self._reporter._tw.fullwidth - 1  # a line that wraps could not be rewritten
            room = width - len(before) - len(after)
            self._text = f"{before}{shorten(printable(what), room)}{after}"[:width]
            self.redraw()
        elif self._reporter is not None and self.is_due:
            self._last_s = self._started_s + elapsed_s
            self._reporter.ensure_newline()
            if self._reporter._tw.width_of_current_line:  # dots of xdist's workers, which belong to no file
                self._reporter.write_line("")
            self._reporter.write_line(f"{before}{printable(what)}{after}")

    def redraw(self) -> None:
        """Draws the line below the cursor, and puts the cursor back to where pytest goes on."""
        if self._text:
            column = self._reporter._tw.width_of_current_line + 1
            self._write(f"\n{self._text}{_ERASE_BELOW}\x1b[A\x1b[{column}G")

    def clear(self) -> None:
        if self._text:
            self._write(_ERASE_BELOW)

    def end(self) -> None:
        self.clear()
        self._text = ""

    def _write(self, text: str) -> None:
        self._reporter.flush()
        self._reporter._tw._file.write(text)  # not counted as a part of pytest's line
        self._reporter.flush()


def telling_now_and_then(
    tell: Callable[[str], None], line: str, every_s: float = EVERY_S
) -> Callable[[int, int], None]:
    """Returns a function that is told how far a session is and tells it on: `memcheck: 40 of 120`."""
    due_s = time.monotonic() + every_s

    def progress(finished: int, total: int) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + every_s
            tell(f"{line}: {finished} of {total}")

    return progress
