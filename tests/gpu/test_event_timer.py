"""Tests the event timer on a device, against kernels of known behaviour."""

import time

import numpy as np
import pytest

from pytest_gpukern.timers.timer import Iteration


@pytest.fixture
def timer(runtime):
    from pytest_gpukern.timers.event import EventTimer

    return EventTimer(runtime)


@pytest.mark.parametrize("ns", [50_000, 200_000, 2_000_000])
@pytest.mark.parametrize("cold", [True, False])
def test_a_kernel_that_spins_for_a_known_time_reads_about_that_time(timer, spin, ns, cold):
    samples = timer.collect([Iteration(spin(ns))] * 30, cold=cold).samples_ns
    assert ns <= np.median(samples) <= ns + 10_000


def test_a_call_that_waits_for_the_device_is_timed_and_says_so(runtime, timer, spin):
    launch = spin(100_000)

    def waits():
        launch()
        runtime.synchronize()

    batch = timer.collect([Iteration(waits)] * 10, cold=True)
    assert len(batch.samples_ns) == 10
    assert "waits for the device" in batch.notes[0].text
    assert np.median(batch.samples_ns) >= 100_000


def test_a_measurement_of_a_spinning_kernel_is_precise_enough_to_stop_early(runtime, spin):
    from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for
    from pytest_gpukern.timers.event import EventTimer

    found = Sampler(
        Repeated(spin(300_000)),
        EventTimer(runtime),
        scope="kernel",
        cache="cold",
        call_ns=3e5,
        rule=rule_for(300000.0),
    ).measure()
    assert "median known" in found.stopped
    assert found.invalid is None
    assert len(found.samples_ns) == found.summary.n


def test_a_call_that_is_known_to_fill_the_launch_queue_is_queued_alone_without_a_time_out(timer, spin):
    launch = spin(1_000)

    def many():
        for _ in range(300):
            launch()

    started = time.perf_counter()
    batch = timer.collect([Iteration(many, launches=300)] * 4, cold=True)
    assert time.perf_counter() - started < 0.2, "no blocking kernel timed out"
    assert not batch.launch_included
    assert np.median(batch.samples_ns) >= 300_000
