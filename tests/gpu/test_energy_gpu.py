"""Tests the energy of calls on a real board, or the reason if the device waits for the host."""

import sys

import numpy as np
import pytest

from pytest_gpukern.gpu.nvml import open_nvml
from pytest_gpukern.gpu.processes import DeviceWatch
from pytest_gpukern.measure.energy import HOST_BOUND, energy_of_a_call
from pytest_gpukern.measure.measure import Repeated

# Multiply-adds on all multiprocessors, eight chains a thread so that each of them keeps its pipes full.
BURN = r"""
extern "C" __global__ void burn(float *out, unsigned long long rounds) {
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = threadIdx.x + i;
  for (unsigned long long round = 0; round < rounds; ++round)
    for (int i = 0; i < 8; ++i) x[i] = fmaf(x[i], 0.999f, 1.0f);
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += x[i];
  if (sum == -1.0f) *out = sum;
}
extern "C" __global__ void nothing() {}
"""


@pytest.fixture
def energy_of(runtime, gpu_device):
    """Tells the energy of a call that takes so many nanoseconds on the timed stream."""
    with open_nvml() as nvml:
        watch = DeviceWatch(nvml, gpu_device)
        if watch.state().energy_mj is None:
            pytest.skip(f"NVML has no energy counter for {gpu_device}")

        def tell(call, call_ns):
            call()
            runtime.synchronize()
            told = energy_of_a_call(
                Repeated(call),
                watch.state,
                runtime.synchronize,
                runtime.stream.record,
                call_ns=call_ns,
            )
            sys.stdout.write(f"{told}\n")  # worth reading with `pytest -rP`
            return told

        tell.limit_w = nvml.limits(gpu_device.uuid).power_w
        yield tell


@pytest.fixture
def burn(runtime):
    """Makes launches of multiply-adds for about so many nanoseconds; each with the time that it takes."""
    from cuda.core import LaunchConfig, launch

    from pytest_gpukern.gpu.runtime import DeviceArray
    from pytest_gpukern.timers.event import EventTimer
    from pytest_gpukern.timers.timer import Iteration

    kernel, timer = runtime.kernel(BURN, "burn"), EventTimer(runtime)
    config = LaunchConfig(grid=runtime.resident_threads // 256, block=256)
    out = DeviceArray((1,), np.float32)

    def launched(rounds):
        return lambda: launch(runtime.stream, config, kernel, out.pointer, np.uint64(rounds))

    def taken_ns(call):
        return float(np.median(timer.collect([Iteration(call)] * 20, cold=False).samples_ns))

    def make(ns):
        taken_ns(launched(20_000))  # clocks rise
        rounds = int(20_000 * ns / taken_ns(launched(20_000)))
        return launched(rounds), taken_ns(launched(rounds))

    yield make
    runtime.synchronize()
    out.free()


@pytest.mark.parametrize("ns", [25_000, 200_000])
def test_a_kernel_that_fills_the_device_draws_more_than_100_w_and_no_more_than_the_board_may(
    energy_of, burn, ns
):
    call, taken_ns = burn(ns)
    told = energy_of(call, taken_ns)
    assert told.untold is None
    assert 100 < told.power_w < 1.1 * energy_of.limit_w
    # Back to back a call takes what it takes alone, but for gaps of 1 or 2 µs, throttling, and readings.
    assert told.call_mj / told.power_w * 1e6 == pytest.approx(taken_ns, rel=0.3)


def test_an_empty_kernel_takes_less_than_its_launch_and_has_the_reason(runtime, energy_of):
    from cuda.core import LaunchConfig, launch

    kernel, config = runtime.kernel(BURN, "nothing"), LaunchConfig(grid=1, block=1)
    told = energy_of(lambda: launch(runtime.stream, config, kernel), 1500.0)
    assert told.untold == HOST_BOUND


def test_a_call_of_many_launches_fills_the_launch_queue_and_is_told(energy_of, spin):
    one = spin(20_000)
    told = energy_of(lambda: [one() for _ in range(64)], 64 * 22_000.0)
    assert told.untold is None
    assert told.power_w > 20
