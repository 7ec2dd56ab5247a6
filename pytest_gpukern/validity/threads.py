"""Threads that timed calls left behind: work that a timer on one stream does not see."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_enumerate = threading.enumerate


@dataclass(frozen=True)
class Threads:
    """The threads of this process at one moment.

    Attributes:
        python: those that Python started and that were running.
        native: number of all, those of C libraries included; None where the system does not tell.
    """

    python: frozenset[threading.Thread]
    native: int | None


def running_threads() -> Threads:
    """The threads of this process now; native ones that merely called into Python are not counted as its."""
    started = (thread for thread in _enumerate() if not isinstance(thread, threading._DummyThread))
    try:
        native = sum(1 for _ in _TASKS.iterdir())
    except OSError:
        native = None
    return Threads(frozenset(started), native)


def thread_fault(before: Threads, after: Threads) -> str | None:
    """Why threads cast doubt on the calls between two moments, naming them, or None.

    A Python thread that was not there before and still runs is a fault: it may do the work that the call
    seems to have done. Take `before` after the warm-up, when the pools that a library keeps are there.
    """
    left = sorted(thread.name for thread in after.python - before.python if thread.is_alive())
    if not left:
        return None
    count = "a thread" if len(left) == 1 else f"{len(left)} threads"
    verb = "is" if len(left) == 1 else "are"
    return (
        f"{count} started by the timed calls {verb} still running: {', '.join(left)}; a call must do its own "
        "work, or join the threads that do it"
    )


def thread_note(before: Threads, after: Threads) -> str | None:
    """That native threads were added, or None: no fault, as CUDA and BLAS start theirs when first needed."""
    if before.native is None or after.native is None:
        return None
    added = after.native - before.native - len(after.python - before.python)
    return f"{added} native threads were started during the measurement" if added > 0 else None
