"""Finds threads that calls leave behind, and names threads by the test that started them."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

_TASKS = Path("/proc/self/task")
_GRACE_S = 0.1
"""For a thread that has said that it is done, and still has to end, or that is about to write."""
_POOLS = {"concurrent", "multiprocessing"}
_BELOW_POOLS = {"threading", "queue", "selectors", "weakref"}
_enumerate = threading.enumerate
_started_in: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()


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


def threads_left(before: Threads, *, first: bool = False) -> list[threading.Thread]:
    """Returns Python's threads that were not there before and still run, by their names.

    A worker that waits for its pool's next task is not counted, and at the first launch of a variant no
    daemon: libraries start services when first needed.
    """
    new = running_threads().python - before.python
    left = [thread for thread in new if not (first and thread.daemon) and _works(thread)]
    return sorted(left, key=lambda thread: thread.name)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Waits a moment for threads that may be about to end."""
    ends = time.monotonic() + _GRACE_S
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))


def still_running(left: list[threading.Thread], by: str) -> str:
    """Says which threads outlive what started them, such as `the launch`."""
    count, verb = ("a thread", "is") if len(left) == 1 else (f"{len(left)} threads", "are")
    return f"{count} started by {by} {verb} still running: {_named(left)}"


def note_starter(where: str) -> None:
    """Notes in which test threads were started that nobody has noted yet; no name stands for none."""
    for thread in _enumerate():
        _started_in.setdefault(thread, where)


def new_threads() -> list[threading.Thread]:
    """Returns the threads that nobody has noted yet: those that the test at hand has started."""
    return [thread for thread in _enumerate() if thread not in _started_in and _works(thread)]


def threads_by_id(identities: Iterable[int | None]) -> str:
    """Names the threads with these ids, of which CUPTI tells the lower 32 bits, as far as they are known."""
    wanted = {identity & 0xFFFFFFFF for identity in identities if identity is not None}
    return _named([each for each in _enumerate() if (each.ident or 0) & 0xFFFFFFFF in wanted])


def thread_note(before: Threads, after: Threads) -> str | None:
    """Says that native threads were added, or None: no fault, as CUDA and BLAS start theirs late."""
    if before.native is None or after.native is None:
        return None
    added = after.native - before.native - len(after.python - before.python)
    return f"{added} native threads were started during the measurement" if added > 0 else None


def _named(threads: list[threading.Thread]) -> str:
    tests = {thread: _started_in.get(thread) for thread in threads}
    return ", ".join(f"{each.name} of {test}" if test else each.name for each, test in tests.items())


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
