"""Tests what is inside a sample by the host's clock, and what is not."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
from fakes import FakeClock, call_taking, repeated, with_fresh_arguments

from pytest_gpukern.timers.host import HostTimer, LaunchTimer
from pytest_gpukern.timers.timer import Iteration

MS = 1_000_000


@pytest.fixture
def clock():
    return FakeClock()


def nothing():
    pass


def test_a_sample_is_the_time_of_the_call_until_the_device_is_idle(clock):
    work = []

    def launch():
        clock.now += 10_000
        work.append(50_000)

    def synchronize():
        clock.now += work.pop() if work else 0

    batch = HostTimer(synchronize, clock=clock).collect(repeated(launch, 3), cold=False)
    assert batch.samples_ns == [60_000.0] * 3
    assert batch.iterations == 1


def test_work_that_was_queued_before_is_waited_for_before_the_clock_starts(clock):
    pending = [MS]

    def synchronize():
        clock.now += pending.pop() if pending else 0

    timer = HostTimer(synchronize, nothing, clock=clock)  # with a flush, so that nothing is calibrated first
    assert timer.collect(repeated(call_taking(clock, 30_000), 1), cold=True).samples_ns == [30_000.0]


@pytest.mark.parametrize("cold", [True, False])
def test_each_iteration_gives_a_sample_in_order(clock, cold):
    iterations = [Iteration(call_taking(clock, ns)) for ns in (50_000, 60_000, 70_000)]
    timer = HostTimer(nothing, nothing, clock=clock)
    assert timer.collect(iterations, cold=cold).samples_ns == [50_000.0, 60_000.0, 70_000.0]
    assert timer.collect(iterations[:1], cold=cold).samples_ns == [50_000.0]
    assert timer.collect([], cold=cold).samples_ns == []


@pytest.mark.parametrize(("call_ns", "fewest"), [(100, 200), (1_000, 20), (5_000, 4), (19_000, 2)])
def test_a_short_call_is_repeated_until_a_sample_is_20_us_and_reported_a_call(clock, call_ns, fewest):
    batch = HostTimer(nothing, clock=clock).collect(repeated(call_taking(clock, call_ns), 2), cold=False)
    assert fewest <= batch.iterations <= 8 * fewest
    assert batch.samples_ns == [call_ns] * 2


def test_a_call_that_takes_no_time_at_all_does_not_calibrate_for_ever(clock):
    calls = []
    batch = HostTimer(nothing, clock=clock).collect(repeated(lambda: calls.append(1), 1), cold=False)
    assert batch.iterations >= 1 << 20
    assert len(calls) < 1 << 23


def test_cold_samples_do_not_keep_later_hot_ones_from_being_repeated(clock):
    timer = HostTimer(nothing, nothing, clock=clock)
    call = call_taking(clock, 1_000)
    assert timer.collect(repeated(call, 1), cold=True).iterations == 1
    assert timer.collect(repeated(call, 1), cold=False).iterations >= 20
    assert timer.collect(repeated(call, 1), cold=True).iterations == 1


def test_a_short_call_that_needs_fresh_arguments_is_not_repeated(clock):
    seen = []

    def call(fresh):
        seen.append(id(fresh))
        clock.now += 300

    iterations = with_fresh_arguments(call, 3, list)
    batch = HostTimer(nothing, clock=clock).collect(iterations, cold=False)
    assert (batch.samples_ns, batch.iterations) == ([300.0] * 3, 1)
    assert len(set(seen)) == len(seen) == 3


@pytest.mark.parametrize("cold", [True, False])
def test_what_comes_before_is_run_once_a_sample_ahead_of_the_flush_and_neither_is_timed(clock, cold):
    order = []

    def before():
        order.append("before")
        clock.now += MS

    def run():
        order.append("run")
        clock.now += 10_000

    def flush():
        order.append("flush")
        clock.now += MS

    timer = HostTimer(nothing, flush, clock=clock)
    timer.collect([Iteration(run, before)], cold=cold)  # calibrates where it is hot
    order.clear()
    batch = timer.collect([Iteration(run, before)] * 2, cold=cold)
    assert batch.samples_ns == [10_000.0] * 2
    once = ["before", "flush", "run"] if cold else ["before", "run", "run"]
    assert order == once * 2


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_collection_rests_while_timing_and_is_afterwards_as_it_was(enabled, fails):
    states, clock = [], FakeClock()

    def call():
        states.append(gc.isenabled())
        clock.now += 30_000
        if fails:
            raise RuntimeError("launch failed")

    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="launch failed") if fails else nullcontext():
            HostTimer(nothing, nothing, clock=clock).collect(repeated(call, 2), cold=True)
        after = gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()
    assert states == [False] * (1 if fails else 2)
    assert after is enabled


def test_the_resolution_is_the_smallest_step_of_the_clock_spread_over_the_calls_of_a_sample():
    readings = iter(range(10**9))
    coarse = HostTimer(nothing, clock=lambda: next(readings) // 4 * 1000)
    assert coarse.resolution_ns == 1000
    assert HostTimer(nothing, clock=FakeClock()).resolution_ns == 1.0, "the clock stands still"
    clock = FakeClock(tick=100)
    timer = HostTimer(nothing, clock=clock)
    assert timer.resolution_ns == 100
    batch = timer.collect(repeated(call_taking(clock, 1_000), 1), cold=False)
    assert batch.iterations > 1
    assert timer.resolution_ns == 100 / batch.iterations


# what a launch costs the host


class Queue:
    """A device that takes 50 µs for what a launch queues in 2 µs; `.longest` is how much was queued."""

    def __init__(self, clock):
        self.clock, self.queued, self.longest = clock, 0, 0

    def launch(self):
        self.clock.now += 2_000
        self.queued += 1
        self.longest = max(self.longest, self.queued)

    def synchronize(self):
        self.clock.now += 50_000 * self.queued
        self.queued = 0


@pytest.mark.parametrize("fresh", [False, True])
def test_a_launch_is_timed_until_it_returns_and_the_queue_is_never_full(clock, fresh):
    device = Queue(clock)
    timer = LaunchTimer(device.synchronize, clock=clock)
    launch = with_fresh_arguments(lambda argument: device.launch(), 20, list)
    for _ in range(3):
        batch = timer.collect(launch if fresh else repeated(device.launch, 20), cold=False)
        assert batch.samples_ns == [2_000.0] * 20
    assert device.longest == batch.iterations == (1 if fresh else 16)
    assert (timer.name, timer.queues) == ("host", False)
    assert "until the call returns" in timer.measures


def test_what_goes_ahead_of_a_launch_is_waited_for_and_in_no_sample(clock):
    device = Queue(clock)
    timer = LaunchTimer(device.synchronize, clock=clock)
    batch = timer.collect([Iteration(device.launch, device.launch)] * 3, cold=False)
    assert batch.samples_ns == [2_000.0] * 3
