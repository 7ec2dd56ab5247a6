"""Tests finding threads that a launch leaves running, and the tests that started them."""

from __future__ import annotations

import _thread
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from pytest_gpukern.gpu import live_threads
from pytest_gpukern.gpu.live_threads import (
    note_starter,
    running_threads,
    still_running,
    threads_by_id,
    threads_left,
    wait_for,
)


def left_by(launch, *, first=False):
    """The names of the threads that a launch leaves."""
    before = running_threads()
    launch()
    return [thread.name for thread in threads_left(before, first=first)]


@pytest.fixture
def stop():
    """Set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        if thread.name.startswith("left"):
            thread.join()


def waiting(stop, daemon=False, name="left behind"):
    """A launch that leaves a thread behind."""
    return lambda: threading.Thread(target=stop.wait, name=name, daemon=daemon).start()


@pytest.mark.parametrize(("first", "daemon"), [(True, False), (False, False), (False, True)])
def test_a_thread_that_a_launch_leaves_is_told(stop, first, daemon):
    assert left_by(waiting(stop, daemon), first=first) == ["left behind"]


def test_a_service_that_a_library_starts_at_the_first_launch_is_fine(stop):
    assert left_by(waiting(stop, True), first=True) == []


def test_a_thread_that_is_about_to_end_is_waited_for(stop, monkeypatch):
    monkeypatch.setattr(live_threads, "_GRACE_S", 60.0)
    before = running_threads()
    threading.Timer(0.01, stop.set).start()
    waiting(stop)()
    wait_for(threads_left(before))
    assert threads_left(before) == []


def test_a_thread_of_a_library_that_only_called_into_python_is_not_counted(stop):
    known = threading.Event()
    native = []

    def call_into_python():
        native.append(threading.current_thread())
        known.set()
        stop.wait()

    _thread.start_new_thread(call_into_python, ())  # which threading does not know of
    assert known.wait(10)
    assert native[0].name.startswith("Dummy")
    assert native[0] not in running_threads()


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2, "left"), lambda: ThreadPool(2)])
def test_workers_that_wait_for_their_pools_next_task_are_fine(make):
    pools = []

    def launch():
        pools.append(make())
        list(pools[0].map(str, range(8)))

    try:
        assert left_by(launch) == []
    finally:
        (pools[0].shutdown if isinstance(pools[0], ThreadPoolExecutor) else pools[0].terminate)()


@pytest.mark.parametrize("in_python", [True, False])
def test_a_worker_that_has_a_task_is_reported(stop, in_python):
    lock = threading.Lock()
    lock.acquire()
    pool, reached = ThreadPoolExecutor(1, "left"), threading.Event()

    def task():
        reached.set()
        stop.wait()

    def launch():
        if in_python:
            pool.submit(task)
            reached.wait()
        else:
            pool.submit(lock.acquire)
            (worker,) = pool._threads
            while sys._current_frames()[worker.ident or 0].f_code.co_name != "run":
                pass

    try:
        assert left_by(launch) == ["left_0"]
    finally:
        stop.set()
        lock.release()
        pool.shutdown()


def test_a_thread_is_named_with_the_test_that_started_it(stop):
    note_starter("")  # whatever is there already
    before = running_threads()
    waiting(stop, name="left by one")()
    note_starter("test_it.py::test_one")
    waiting(stop, name="left by this one")()
    left = threads_left(before)
    assert still_running(left, "the call") == (
        "2 threads started by the call are still running: left by one of test_it.py::test_one, "
        "left by this one"
    )
    # CUPTI reports 32 bits of a thread's id.
    assert threads_by_id([left[0].ident & 0xFFFFFFFF, None]) == "left by one of test_it.py::test_one"
    assert threads_by_id([1]) == ""
