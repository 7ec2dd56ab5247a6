"""Shows how far a long run is: one line in place on a terminal, a line every 30 s in a log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import shorten
from pytest_gpukern.values.untrusted_json import printable

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 30.0
_LONG_S = 2.0
"""A shorter run shows no line."""
_ERASE_BELOW = "\x1b[J"


class Progress:
    """Shows one line about a run.

    On a terminal, the line stands below what pytest writes, and is gone at the end. In a log it is a line of
    its own.

    Args:
        reporter: pytest's terminal reporter; None shows nothing.
        in_place: whether it writes to a terminal that understands escape sequences.
        every_s: seconds between two lines of a log.
        clock: returns seconds.
    """

    def __init__(
        self,
        reporter: Any,
        *,
        in_place: bool,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.in_place = in_place and reporter is not None
        self._reporter = reporter
        self._every_s = every_s
        self._clock = clock
        self._started_s = self._last_s = clock()
        self._text = ""

    def show(self, what: str, finished: int, total: int, *, share: float) -> None:
        """Shows `gpukern: 37 of 98 · measuring exp/cupy.exp/n=1000 · 2 min 10 s, about 3 min 34 s left`.

        Args:
            what: the test and its phase.
            finished: number of tests that have ended.
            total: number of all tests.
            share: part of the run that is over; the time left is by the pace so far.
        """
        now_s = self._clock()
        elapsed_s = now_s - self._started_s
        left = f", about {units.duration(elapsed_s * (1 - share) / share)} left" if 0 < share < 1 else ""
        before, after = f"gpukern: {finished} of {total} · ", f" · {units.duration(elapsed_s)}{left}"
        if self.in_place and elapsed_s >= _LONG_S:
            width = self._reporter._tw.fullwidth - 1  # a line that wraps could not be rewritten
            room = width - len(before) - len(after)
            self._text = f"{before}{shorten(printable(what), room)}{after}"[:width]
            self.redraw()
        elif self._reporter is not None and not self.in_place and now_s - self._last_s >= self._every_s:
            self._last_s = now_s
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
        """Erases the line, before something else is written."""
        if self._text:
            self._write(_ERASE_BELOW)

    def end(self) -> None:
        """Erases the line for good."""
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
    last_s = time.monotonic()

    def progress(finished: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            tell(f"{line}: {finished} of {total}")

    return progress
