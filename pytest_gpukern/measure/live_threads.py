"""Finds threads that timed calls left behind: work that a timer on one stream does not see."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_TASKS = Path("/proc/self/task")
_GRACE_S = 0.01
"""A thread that has said that it is done may still have to end."""
_POOLS = {"concurrent", "multiprocessing"}
_BELOW_POOLS = {"threading", "queue", "selectors", "weakref"}
_enumerate = threading.enumerate


@dataclass(frozen=True)
class Threads:
    """Holds the threads of this process at one moment: those of Python, and the number of all where known."""

    python: frozenset[threading.Thread]
    native: int | None


def running_threads() -> Threads:
    """Returns the threads of this process now; native ones that called into Python are not Python's."""
    started = (thread for thread in _enumerate() if not isinstance(thread, threading._DummyThread))
    try:
        native = sum(1 for _ in _TASKS.iterdir())
    except OSError:
        native = None
    return Threads(frozenset(started), native)


def thread_fault(before: Threads, after: Threads) -> str | None:
    """Says why threads cast doubt on the calls between two moments, naming them, or None.

    A Python thread that was not there before and still runs is a fault: it may do the work that the call
    seems to have done. Take `before` after the warm-up, when the pools that a library keeps are there.
    """
    left = [thread for thread in after.python - before.python if thread.is_alive()]
    return _still_running(left, "the timed calls")


def thread_left_working(before: Threads, after: Threads, *, first: bool) -> str | None:
    """Says why threads cast doubt on the one launch between two moments, naming them, or None.

    Take `after` once it has returned and the device is idle. A worker that waits for its pool's next task is
    not counted, and at the first launch of a variant no daemon: libraries start services when first needed.
    """
    ends = time.monotonic() + _GRACE_S
    left = [thread for thread in after.python - before.python if not (first and thread.daemon)]
    working = [thread for thread in left if _works(thread)]
    for thread in working:
        thread.join(max(0.0, ends - time.monotonic()))
    return _still_running([thread for thread in working if _works(thread)], "the launch")


def _works(thread: threading.Thread) -> bool:
    """Says whether a thread runs and does not wait for the next task of a pool that it belongs to."""
    frame = sys._current_frames().get(thread.ident or 0)
    return thread.is_alive() and frame is not None and not waits_in_pool(frame)


def waits_in_pool(frame: FrameType) -> bool:
    """Says whether a thread, whose innermost frame this is, belongs to a pool of Python's and has no task."""
    if frame.f_code.co_name == "run":  # of a task or of a thread that is a function in C
        return False
    tops = set()
    outer: FrameType | None = frame
    while outer is not None:
        tops.add(str(outer.f_globals.get("__name__")).partition(".")[0])
        outer = outer.f_back
    return bool(tops & _POOLS) and tops <= _POOLS | _BELOW_POOLS


def _still_running(left: list[threading.Thread], by: str) -> str | None:
    if not left:
        return None
    count = "a thread" if len(left) == 1 else f"{len(left)} threads"
    verb = "is" if len(left) == 1 else "are"
    names = ", ".join(sorted(thread.name for thread in left))
    return (
        f"{count} started by {by} {verb} still running: {names}; a call must do its own "
        "work, or join the threads that do it"
    )


def thread_note(before: Threads, after: Threads) -> str | None:
    """Says that native threads were added, or None: no fault, as CUDA and BLAS start theirs late."""
    if before.native is None or after.native is None:
        return None
    added = after.native - before.native - len(after.python - before.python)
    return f"{added} native threads were started during the measurement" if added > 0 else None
