"""Tests that samples of several calls become those of one."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_gpukern.timers.timer import Batch, Iteration, PerCall
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import DeviceWork

KERNEL = DeviceWork(kind="kernel", name="axpy", count=4.0, time_ns=800.0)
COPY = DeviceWork(kind="memcpy", name="HtoD", count=8.0, time_ns=40.0, size_bytes=64.0)


class Timer:
    """Says the same of every iteration."""

    name = "cupti"
    measures = "device time"
    queues = True
    jitter_ns = 8.0
    resolution_ns = 32.0
    fixed_cost_ns = None

    def collect(self, iterations, *, cold):
        return Batch(
            [1000.0 + cold] * len(iterations),
            launch_included=True,
            notes=[Note("its own")],
            busy_ns=[900.0] * len(iterations),
            work=(KERNEL, COPY),
        )

    def suspicion(self, iteration):
        return "looked at"


def test_everything_that_was_found_is_divided_by_the_calls():
    batch = PerCall(Timer(), 4).collect([Iteration(int)] * 3, cold=False)
    assert batch == Batch(
        [250.0] * 3,
        iterations=4,
        launch_included=True,
        notes=[Note("its own")],
        busy_ns=[225.0] * 3,
        work=(
            dataclasses.replace(KERNEL, count=1.0, time_ns=200.0),
            dataclasses.replace(COPY, count=2.0, time_ns=10.0, size_bytes=16.0),
        ),
    )


def test_what_the_timer_says_of_itself_is_divided_too():
    inner = Timer()
    timer = PerCall(inner, 4)
    assert (timer.name, timer.measures) == ("cupti", "device time")
    inner.measures = "device time, recorded serially"  # as CUPTI's may become once it knows the call
    assert timer.measures == inner.measures
    assert (timer.jitter_ns, timer.resolution_ns, timer.fixed_cost_ns) == (2.0, 8.0, None)
    assert timer.suspicion(Iteration(int)) == "looked at"


@pytest.mark.parametrize(("cost", "expected"), [(3000.0, 750.0), (0.0, 0.0)])
def test_a_fixed_cost_is_spread_over_the_calls(cost, expected):
    inner = Timer()
    inner.fixed_cost_ns = cost
    assert PerCall(inner, 4).fixed_cost_ns == expected
