"""Says every 30 s how far a long run is."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_gpukern.report import units

EVERY_S = 30.0


def telling_now_and_then(
    tell: Callable[[str], None], what: str, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int], None]:
    """Returns a function that hears how far a run is, and tells it when due: `tests: 40 of 98, 1 min 0 s`."""
    began_s = told_s = clock()

    def progress(finished: int, total: int) -> None:
        nonlocal told_s
        if clock() - told_s >= EVERY_S:
            told_s = clock()
            tell(f"{what}: {finished} of {total}, {units.duration(told_s - began_s)}")

    return progress
