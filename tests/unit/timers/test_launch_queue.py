"""Tests executions behind a blocking kernel, on a fake device that only logs its steps."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fakes import repeated, with_fresh_arguments

from pytest_gpukern.timers import launch_queue as module
from pytest_gpukern.timers.launch_queue import LaunchQueue
from pytest_gpukern.timers.timer import Iteration

MS = 1_000_000
STREAM = "the stream"


class FakeDevice:
    """Runtime and blocking kernel in one; `log` has every step.

    The blocking kernel times out where more than `capacity` calls are queued behind it, as with a launch
    queue that is full, or where a call waits for the device.
    """

    def __init__(self, capacity=10**9):
        self.log = []
        self.capacity = capacity
        self.now_ns = 0
        self.blocked = self.timed_out = False
        self.queued = 0

    def perf_counter_ns(self):
        return self.now_ns

    # runtime

    def reset_persisting_l2(self):
        self.log.append("reset L2")

    def flush_l2(self, stream):
        assert stream == STREAM
        self.log.append("flush")

    def synchronize(self):
        self.log.append("idle")
        if self.blocked:
            self.time_out()

    # blocking kernel

    def block(self, stream):
        assert stream == STREAM
        self.blocked, self.timed_out, self.queued = True, False, 0
        self.log.append("block")

    def release(self):
        self.blocked = False
        self.log.append("release")

    def time_out(self):
        self.now_ns += 250 * MS
        self.blocked, self.timed_out = False, True

    def call(self, *, takes_ns=0, waits=False):
        """A call whose launch takes the host so long; it may wait for the device itself."""

        def run(argument=None):
            self.log.append("call" if argument is None else f"call {argument}")
            self.now_ns += takes_ns
            self.queued += 1
            if self.blocked and (waits or self.queued > self.capacity):
                self.time_out()

        return run


class FakeMarks:
    """Writes into the device's log; `counted` has the executions that count, by their part's first number."""

    def __init__(self, device):
        self.log = device.log
        self.parts, self.counted = [], 0

    def open(self, count):
        self.parts.append(count)
        self.log.append(f"open {count}")

    def preparing(self):
        return nullcontext()

    def start(self, number):
        self.log.append(f"start {number}")

    def end(self, number):
        self.log.append(f"end {number}")

    def take(self, count):
        self.counted += count
        self.log.append(f"take {count}")

    def restart(self):
        self.counted = 0
        self.log.append("restart")


@pytest.fixture
def queue_on(monkeypatch):
    """Makes a launch queue on a fake device and its marks; the log starts after they were made."""

    def make(device):
        monkeypatch.setattr(module, "blocking_kernel", lambda: device)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter_ns=device.perf_counter_ns))
        queue = LaunchQueue(device, STREAM)
        made, device.log[:] = list(device.log), []
        return queue, FakeMarks(device), made

    return make


def executed(device, iterations, queue_on, *, cold=False):
    """Executes on a new queue: whether all was queued, and the marks."""
    queue, marks, _ = queue_on(device)
    return queue.execute(iterations, marks, cold=cold), marks


def test_the_flush_kernel_is_loaded_and_the_device_idle_before_anything_is_blocked(queue_on):
    _, _, made = queue_on(FakeDevice())
    assert made == ["reset L2", "flush", "idle"]


def test_all_of_a_part_is_queued_between_block_and_release(queue_on):
    device = FakeDevice()
    before = lambda: device.log.append("before")  # noqa: E731
    queued, marks = executed(device, [Iteration(device.call(), before)] * 2, queue_on, cold=True)
    assert device.log == [
        *("idle", "open 2", "block"),
        *("before", "flush", "start 0", "call", "end 0"),
        *("before", "flush", "start 1", "call", "end 1"),
        *("release", "idle", "take 2"),
    ]
    assert queued
    assert marks.counted == 2


@pytest.mark.parametrize(
    ("launches", "has_before", "cold", "parts"),
    [
        (None, False, True, [64, 64, 2]),
        (5, True, False, [64, 64, 2]),  # 7 entries each: 73 would fit
        (6, True, True, [56, 56, 18]),  # 9 entries each
        (None, True, True, [64, 64, 2]),  # five assumed: 8 entries
        (100, True, True, [4] * 32 + [2]),
        (2000, False, False, [1] * 130),
    ],
)
def test_a_part_takes_at_most_64_executions_and_half_of_the_launch_queue(
    queue_on, launches, has_before, cold, parts
):
    device = FakeDevice()
    before = (lambda: None) if has_before else None
    iterations = [Iteration(device.call(), before, launches=launches)] * 130
    queued, marks = executed(device, iterations, queue_on, cold=cold)
    assert queued
    assert marks.parts == parts
    assert marks.counted == device.log.count("call") == 130


def test_a_slow_host_queues_only_as_long_as_the_blocking_kernel_is_sure_to_wait(queue_on):
    device = FakeDevice()
    made = []
    call = device.call(takes_ns=24 * MS)
    iterations = with_fresh_arguments(call, 5, lambda: made.append(1) or len(made))
    queued, marks = executed(device, iterations, queue_on)
    assert queued
    assert marks.parts == [5, 3, 1], "two calls of 24 ms pass 40 ms"
    assert marks.counted == 5
    assert [line for line in device.log if line.startswith("call")] == [f"call {n}" for n in range(1, 6)]


def test_a_launch_queue_that_is_full_gets_half_of_what_it_held(queue_on):
    device = FakeDevice(capacity=20)
    queued, marks = executed(device, repeated(device.call(), 64), queue_on)
    assert queued
    assert marks.parts == [64, 10, 10, 10, 10, 10, 10, 4], "the 21st blocks the host until it is too late"
    assert marks.counted == 64
    assert device.log.count("restart") == 0


def test_what_was_queued_too_much_is_queued_less_from_then_on(queue_on):
    device = FakeDevice(capacity=20)
    queue, marks, _ = queue_on(device)
    queue.execute(repeated(device.call(), 64), marks, cold=False)
    again = FakeMarks(device)
    queue.execute(repeated(device.call(), 20), again, cold=False)
    assert again.parts == [10, 10]


def test_what_was_executed_in_vain_is_executed_again_with_fresh_arguments(queue_on):
    device = FakeDevice(capacity=3)
    made = []
    iterations = with_fresh_arguments(device.call(), 6, lambda: made.append(1) or len(made))
    _, marks = executed(device, iterations, queue_on)
    calls = [line for line in device.log if line.startswith("call")]
    assert len(set(calls)) == len(calls), "no argument is used twice"
    assert marks.counted == 6
    assert marks.parts[0] == 6


def test_a_call_that_waits_for_the_device_is_executed_from_an_idle_one_each_time(queue_on):
    device = FakeDevice()
    queued, marks = executed(device, repeated(device.call(waits=True), 3), queue_on, cold=True)
    assert not queued
    start = device.log.index("restart")
    assert device.log[start:] == [
        *("restart", "open 3"),
        *("idle", "flush", "idle", "start 0", "call", "end 0"),
        *("idle", "flush", "idle", "start 1", "call", "end 1"),
        *("idle", "flush", "idle", "start 2", "call", "end 2"),
        *("idle", "take 3"),
    ]
    assert marks.counted == 3
    assert device.log[:start].count("block") == 2, "64 at once, then one alone, are enough to know"


def test_a_call_that_waits_is_known_from_then_on(queue_on):
    device = FakeDevice()
    queue, marks, _ = queue_on(device)
    queue.execute(repeated(device.call(waits=True), 3), marks, cold=False)
    device.log.clear()
    assert not queue.execute(repeated(device.call(waits=True), 2), FakeMarks(device), cold=False)
    assert "block" not in device.log


def test_a_call_that_comes_to_wait_has_all_executed_again_with_fresh_arguments(queue_on):
    """Samples with and without the launch cost must not be mixed."""
    device = FakeDevice()
    made, calls = [], []
    quick, waiting = device.call(), device.call(waits=True)

    def call(argument):
        calls.append(argument)
        (waiting if len(calls) > 64 else quick)(argument)

    iterations = with_fresh_arguments(call, 70, lambda: made.append(1) or len(made))
    queued, marks = executed(device, iterations, queue_on)
    assert not queued
    assert marks.counted == 70
    assert len(set(calls)) == len(calls)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("part", ["run", "before"])
def test_an_execution_that_raises_leaves_the_stream_free(queue_on, waits, part):
    device = FakeDevice()
    queue, marks, _ = queue_on(device)
    if waits:
        queue.execute(repeated(device.call(waits=True), 1), FakeMarks(device), cold=False)

    def fails():
        raise RuntimeError("no memory")

    good, bad = Iteration(device.call()), Iteration(device.call(), fails)
    if part == "run":
        bad = Iteration(fails)
    with pytest.raises(RuntimeError, match="no memory"):
        queue.execute([good, bad, good], marks, cold=False)
    assert not device.blocked
    assert marks.counted == 0
    assert queue.execute([good], marks, cold=False) is not waits, "it can be used again"
