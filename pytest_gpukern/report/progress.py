"""Shows a line now and then while a long run measures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_gpukern.report import units
from pytest_gpukern.report.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.values.result import Result

EVERY_S = 10.0


class Progress:
    """Decides when a progress line is due and what it says; the clock is the caller's."""

    def __init__(self, started_s: float, every_s: float = EVERY_S) -> None:
        self._started_s = started_s
        self._every_s = every_s
        self._last_s = started_s

    def update(self, result: Result | None, finished: int, total: int, now_s: float) -> str | None:
        """Returns `gpukern: 37 of 98 · exp/cupy.exp/n=1000 48.6 µs · 2 min 10 s`, or None if not due."""
        if now_s - self._last_s < self._every_s:
            return None
        self._last_s = now_s
        count = f"{finished} of {total}" if total else f"{finished} finished"
        parts = [f"gpukern: {count}", units.duration(now_s - self._started_s)]
        if result is not None:
            first = rows_of(result, ())[0]
            state = first.verdict if first.verdict == "INCORRECT" else first.time
            parts.insert(1, f"{result.case.id} {state}")
        return " · ".join(parts)


class SessionProgress:
    """Decides when a line about a further session is due and what it says: at its start and now and then."""

    def __init__(self, sessions: int, every_s: float = EVERY_S) -> None:
        self._sessions = sessions
        self._every_s = every_s
        self._number = 0
        self._last_s = 0.0

    def update(self, number: int, finished: int, total: int, now_s: float) -> str | None:
        """Returns `gpukern: session 3 of 5: 40 of 120`, or None if not due."""
        if number == self._number and now_s - self._last_s < self._every_s:
            return None
        self._number, self._last_s = number, now_s
        return f"gpukern: session {number} of {self._sessions}: {finished} of {total}"


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
