"""A call that puts nothing on the device: who sees it, and that no other timer makes up a number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_gpukern.timers.cupti import timer as cupti
from pytest_gpukern.timers.cupti.activity import Activity
from pytest_gpukern.timers.timer import Iteration, NothingLaunched, TimerUnavailable

STREAM = 7


class Trace:
    """Records what the calls say that they do."""

    def __init__(self):
        self.call = None
        self.found = []

    def open(self, *, concurrently):
        self.found = []

    def push(self, call):
        self.call = call

    def pop(self):
        self.call = None

    def close(self):
        return self.found

    def follow_runtime_api(self):
        return False

    def stream_number(self, handle):
        return STREAM

    def record(self, *, call):
        self.found.append(Activity("kernel", "axpy", 10, 20, STREAM, call))


class Queue:
    """Executes one after the other."""

    def __init__(self, runtime, stream, *, queues):
        pass

    def execute(self, iterations, marks, *, cold):
        marks.open(len(iterations))
        for number, iteration in enumerate(iterations):
            marks.start(number)
            iteration.execute()
            marks.end(number)
        marks.take(len(iterations))
        return True


@pytest.fixture
def trace():
    return Trace()


@pytest.fixture
def timer(monkeypatch, trace):
    monkeypatch.setattr(cupti, "LaunchQueue", Queue)
    monkeypatch.setattr(cupti, "proven_trace", lambda runtime: trace)
    stream = SimpleNamespace(handle=1)
    runtime = SimpleNamespace(synchronize=lambda: None, stream=stream, multiprocessors=4)
    return cupti.CuptiTimer(runtime, any_stream=True)


@pytest.mark.parametrize("look", ["collect", "suspicion"])
def test_calls_without_any_activity_put_nothing_on_the_device(timer, look):
    host = Iteration(lambda: None)
    with pytest.raises(NothingLaunched, match="puts nothing on the device: no kernel, copy or memset"):
        timer.collect([host] * 3, cold=True) if look == "collect" else timer.suspicion(host)


def test_what_another_thread_launched_is_not_nothing(timer, trace):
    elsewhere = Iteration(lambda: trace.record(call=None))
    with pytest.raises(TimerUnavailable, match=r"another thread than the call's launched axpy") as raised:
        timer.collect([elsewhere], cold=False)
    assert not isinstance(raised.value, NothingLaunched)


def test_one_record_missing_of_many_is_another_matter(timer, trace):
    works = Iteration(lambda: trace.record(call=trace.call))
    assert timer.collect([works] * 2, cold=False).samples_ns == [10.0, 10.0]
    with pytest.raises(TimerUnavailable, match="1 of 2 executions left no record") as raised:
        timer.collect([works, Iteration(lambda: None)], cold=False)
    assert not isinstance(raised.value, NothingLaunched)


def test_the_execution_that_is_looked_at_is_made_after_the_one_before_ran(timer, trace):
    log = []

    def begin():
        log.append("begun")
        return Iteration(lambda: (log.append("ran"), trace.record(call=trace.call)), fresh=begin)

    executed = begin()
    executed.run()
    assert timer.suspicion(executed) is None
    assert log == ["begun", "ran"] * 2
