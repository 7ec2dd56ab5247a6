"""Finds threads that calls leave running, and names the test that started each."""

from __future__ import annotations

import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable

_GRACE_S = 0.1
"""Time for a thread that is about to end, or about to write."""
_POOLS = {"concurrent", "multiprocessing"}
_BELOW_POOLS = {"threading", "queue", "selectors", "weakref"}
_enumerate = threading.enumerate
_started_in: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()


def running_threads() -> frozenset[threading.Thread]:
    """Returns Python's threads now, without native ones that called into Python: CUDA and BLAS start some."""
    started = (thread for thread in _enumerate() if not isinstance(thread, threading._DummyThread))
    return frozenset(started)


def threads_left(before: frozenset[threading.Thread], *, first: bool = False) -> list[threading.Thread]:
    """Returns Python's threads that started since `before` and still run, sorted by name.

    A worker that waits for its pool's next task does not count. At the `first` launch of a variant no daemon
    counts, since libraries start services when first needed.
    """
    new = running_threads() - before
    left = [thread for thread in new if not (first and thread.daemon) and _works(thread)]
    return sorted(left, key=lambda thread: thread.name)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Gives threads that may be about to end a moment."""
    ends = time.monotonic() + _GRACE_S
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))


def still_running(left: list[threading.Thread], by: str) -> str:
    """Says which threads still run after what started them (`by`, such as `the launch`) has ended."""
    count, verb = ("a thread", "is") if len(left) == 1 else (f"{len(left)} threads", "are")
    return f"{count} started by {by} {verb} still running: {_named(left)}"


def note_starter(where: str) -> None:
    """Notes which test started the threads that are new since the last note; "" for no test."""
    for thread in _enumerate():
        _started_in.setdefault(thread, where)


def new_threads() -> list[threading.Thread]:
    """Returns the threads that the running test started: all that are newer than the last note."""
    return [thread for thread in _enumerate() if thread not in _started_in and _works(thread)]


def threads_by_id(identities: Iterable[int | None]) -> str:
    """Names the known threads with these ids; CUPTI reports the lower 32 bits of an id."""
    wanted = {identity & 0xFFFFFFFF for identity in identities if identity is not None}
    return _named([thread for thread in _enumerate() if (thread.ident or 0) & 0xFFFFFFFF in wanted])


def _named(threads: list[threading.Thread]) -> str:
    tests = {thread: _started_in.get(thread) for thread in threads}
    return ", ".join(f"{thread.name} of {test}" if test else thread.name for thread, test in tests.items())


def _works(thread: threading.Thread) -> bool:
    """Says whether a thread runs and is not just waiting for the next task of one of Python's pools."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None or not thread.is_alive():
        return False
    if frame.f_code.co_name == "run":  # a task, or a thread whose function is written in C
        return True
    modules = [str(outer.f_globals.get("__name__")) for outer, _ in traceback.walk_stack(frame)]
    tops = {module.partition(".")[0] for module in modules}
    return not tops & _POOLS or not tops <= _POOLS | _BELOW_POOLS
