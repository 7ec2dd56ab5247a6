"""Accounts for the time of a process: how many seconds each phase of its work took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal[
    "starting",
    "preparing",
    "checking",
    "timing",
    "waiting",
    "confirming sessions",
    "recording sessions",
    "paired sessions",
    "compiling",
    "reports",
]
"""Phases of a run; docs/reference/report.md says what is in them."""


class TimeAccount:
    """Adds up the seconds of each phase; seconds of an inner phase do not count for the outer one.

    Only the thread that made the account enters phases. Work of other threads counts for its phase.

    Args:
        clock: nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._since_ns = clock()
        self._spent_ns: dict[Phase, int] = {}
        self._current: Phase | None = None
        self._thread = threading.get_ident()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        if threading.get_ident() != self._thread:
            yield
            return
        outer = self._change(name)
        try:
            yield
        finally:
            self._change(outer)

    def begin(self, name: Phase | None) -> dict[str, float]:
        """Begins a phase outside of all others, or none; returns the seconds of each phase until now."""
        self._change(name)
        return self.lap()

    def lap(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last lap."""
        self._change(self._current)
        spent_ns, self._spent_ns = self._spent_ns, {}
        return {name: ns / 1e9 for name, ns in spent_ns.items()}

    def _change(self, name: Phase | None) -> Phase | None:
        """Ends the current phase, begins another one, and returns the one that ended."""
        now_ns, before = self._clock(), self._current
        if before is not None:
            self._spent_ns[before] = self._spent_ns.get(before, 0) + now_ns - self._since_ns
        self._since_ns, self._current = now_ns, name
        return before


ACCOUNT = TimeAccount()

phase = ACCOUNT.phase


def add_to(total: dict[str, float], more: dict[str, float]) -> None:
    for name, spent_s in more.items():
        total[name] = total.get(name, 0.0) + spent_s
