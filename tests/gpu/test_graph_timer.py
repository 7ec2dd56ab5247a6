"""Tests the graph timer and the calibration of events on a device, against kernels of known behaviour."""

from contextlib import suppress

import numpy as np
import pytest
from on_device import opened

from pytest_gpukern.timers.timer import Iteration, TimerUnavailable

SOURCE = r"""
extern "C" __global__ void exponential(const float *x, float *y, unsigned long long n) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = expf(x[i]);
}
"""


@pytest.fixture
def timer(runtime):
    from pytest_gpukern.timers.graph import GraphTimer

    return GraphTimer(runtime)


@pytest.fixture
def usable(runtime, timer, spin):
    """Asserts that the stream executes and captures, as it has to after every refusal."""

    def assert_usable():
        spin(1000)()
        runtime.synchronize()
        assert timer.collect([Iteration(spin(300_000))], cold=False).samples_ns

    return assert_usable


# known times


@pytest.mark.parametrize("ns", [200_000, 1_000_000])
@pytest.mark.parametrize("cold", [True, False])
def test_a_call_that_spins_for_a_known_time_reads_that_time_within_1_percent(timer, spin, ns, cold):
    batch = timer.collect([Iteration(spin(ns))] * 4, cold=cold)
    assert batch.iterations == 4
    assert not batch.launch_included
    assert ns <= np.median(batch.samples_ns) <= 1.01 * ns + 1500  # a kernel starts and ends, too


@pytest.mark.parametrize("ns", [2_000, 20_000])
def test_a_short_call_is_captured_often_enough_to_read_close_to_its_time(timer, spin, ns):
    batch = timer.collect([Iteration(spin(ns))] * 2, cold=False)
    assert batch.iterations * np.median(batch.samples_ns) > 150_000
    assert ns <= np.median(batch.samples_ns) <= ns + 2500


def test_a_cold_graph_on_rotated_buffers_is_slower_than_a_hot_one_on_one_buffer(runtime, timer, array):
    from pytest_gpukern.timers.graph import sets_needed

    n = runtime.l2_bytes // 32  # input and output together fill a quarter of the L2
    sets = sets_needed(8 * n, runtime.l2_bytes)
    kernel = runtime.kernel(SOURCE, "exponential")

    def on_new_buffers():
        x, y = array((n,)), array((n,))
        return Iteration(lambda: runtime.launch(kernel, n, x.pointer, y.pointer, np.uint64(n)))

    iterations = [on_new_buffers() for _ in range(sets)]
    for iteration in iterations:
        iteration.run()
    runtime.synchronize()
    hot = np.median(timer.collect(iterations[:1] * sets, cold=False).samples_ns)
    cold = np.median(timer.collect(iterations, cold=True).samples_ns)
    assert cold > 1.1 * hot


def test_what_comes_before_is_run_ahead_of_each_replay_and_not_timed(timer, spin):
    runs = []
    slow = spin(2_000_000)

    def before():
        runs.append(1)
        slow()

    batch = timer.collect([Iteration(spin(300_000), before)] * 2, cold=True)
    assert np.median(batch.samples_ns) < 400_000
    assert len(runs) == 1 + len(batch.samples_ns), "one replay was a trial"


# refusals


def on_another_stream(runtime, spin):
    return spin(1000, stream=runtime.device.create_stream())


def waits_for_the_device(runtime, spin):
    launch = spin(1000)
    return lambda: (launch(), runtime.synchronize())


def allocates(runtime, spin):
    from pytest_gpukern.gpu.runtime import DeviceArray

    launch = spin(1000)
    return lambda: (DeviceArray((1 << 20,), np.float32).free(), launch())


def forks_and_never_joins(runtime, spin):
    other = runtime.device.create_stream()
    here, there = spin(1000), spin(1000, stream=other)
    return lambda: (here(), other.wait(runtime.stream.record()), there())


@pytest.mark.parametrize(
    ("what", "count", "why"),
    [
        (on_another_stream, 20, r"^0 of 20 calls were captured"),
        (waits_for_the_device, 3, "cannot be captured"),
        (allocates, 3, "cannot be captured"),
        (forks_and_never_joins, 1, "cannot be captured"),
    ],
)
def test_what_cannot_be_captured_is_refused(runtime, timer, spin, usable, what, count, why):
    call = what(runtime, spin)
    with pytest.raises(TimerUnavailable, match=why):
        timer.collect([Iteration(call)] * count, cold=False)
    usable()


def test_work_that_escapes_while_some_is_captured_is_suspicious(runtime, timer, spin):
    other = runtime.device.create_stream()
    here, there = spin(10_000), spin(500_000, stream=other)

    def both():
        there()
        here()

    assert "outside the timed stream" in timer.suspicion(Iteration(both))
    assert timer.suspicion(Iteration(here)) is None


# libraries


def numba_call(backend, counters):
    from numba import cuda

    x = cuda.as_cuda_array(counters)

    @cuda.jit
    def add_one(values):
        i = cuda.grid(1)
        if i < values.size:
            values[i] += 1

    return lambda: add_one[8, 128, backend.stream](x)


def cupy_call(backend, counters):
    import cupy

    x = cupy.asarray(counters)
    return lambda: cupy.add(x, 1, out=x)


@pytest.mark.parametrize(
    ("name", "make", "dtype", "cold"),
    [("numba", numba_call, np.uint32, False), ("cupy", cupy_call, np.float32, True)],
)
def test_a_launch_of_a_library_is_captured(runtime, timer, array, name, make, dtype, cold):
    backend, counters = opened(name), array((1024,), dtype)
    call = make(backend, counters)
    with backend.current():
        call()
        runtime.synchronize()
        batch = timer.collect([Iteration(call)] * 3, cold=cold)
    values = counters.download()
    assert (values == values[0]).all()
    assert values[0] > batch.iterations * len(batch.samples_ns)


@pytest.mark.parametrize("what", ["cuBLAS", "allocating"])
def test_a_call_of_cupy_that_may_not_be_captured_is_timed_or_refused_in_words(
    runtime, timer, array, usable, what
):
    backend = opened("cupy")
    import cupy

    a, b, c = (cupy.asarray(array((512 * 512,))).reshape(512, 512) for _ in range(3))

    def call():
        return cupy.matmul(a, b, out=c) if what == "cuBLAS" else cupy.exp(a)

    with backend.current():
        call()
        runtime.synchronize()
        with suppress(TimerUnavailable):
            assert timer.collect([Iteration(call)] * (3 if what == "cuBLAS" else 20), cold=False).samples_ns
        assert float(call().sum()) == (0 if what == "cuBLAS" else 512 * 512)
        backend.synchronize()
    usable()


# calibration


@pytest.mark.parametrize("own_stream", [True, False])
@pytest.mark.parametrize("cold", [True, False])
def test_events_cost_between_half_a_microsecond_and_ten(runtime, spin, own_stream, cold):
    from pytest_gpukern.timers.event import EventTimer

    stream = runtime.stream if own_stream else runtime.device.default_stream
    timer = EventTimer(runtime, stream)
    timer.collect([Iteration(spin(5000, stream=stream))] * 4, cold=cold)
    assert 500 < timer.fixed_cost_ns < 10_000


def test_a_replay_costs_less_than_ten_microseconds_beside_its_calls(runtime, timer, spin):
    from pytest_gpukern.timers.replay import empty_kernel_line

    line = empty_kernel_line(runtime)
    assert 200 < line.slope < 3000
    assert -500 < line.intercept < 10_000
    batch = timer.collect([Iteration(spin(1000))], cold=False)
    assert timer.fixed_cost_ns == pytest.approx(line.intercept / batch.iterations)
