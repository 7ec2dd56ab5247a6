"""Tests the graph timer and the calibration of events on a device, against kernels of known behaviour."""

from contextlib import suppress

import numpy as np
import pytest

from pytest_gpukern.timers.timer import Iteration, TimerUnavailable

SOURCE = r"""
extern "C" __global__ void exponential(const float *x, float *y, unsigned long long n) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = expf(x[i]);
}
extern "C" __global__ void increment(unsigned *x) { *x += 1; }
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


@pytest.fixture
def array(runtime):
    """Makes device arrays of zeros, freed at the end."""
    from pytest_gpukern.gpu.runtime import DeviceArray

    made = []

    def make(n, dtype=np.float32):
        made.append(DeviceArray((n,), dtype))
        made[-1].upload(np.zeros(n, dtype))
        runtime.synchronize()
        return made[-1]

    yield make
    runtime.synchronize()
    for one in made:
        one.free()


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


def test_the_slope_tells_two_spins_apart_by_their_difference_within_1_percent(timer, spin):
    slow, fast = (timer.node_time_ns(Iteration(spin(ns))) for ns in (60_000, 50_000))
    assert slow - fast == pytest.approx(10_000, rel=0.01)
    assert 50_000 <= fast <= 52_500


def test_a_cold_graph_on_rotated_buffers_is_slower_than_a_hot_one_on_one_buffer(runtime, timer, array):
    from pytest_gpukern.timers.graph import sets_needed

    n = runtime.l2_bytes // 32  # input and output together fill a quarter of the L2
    sets = sets_needed(8 * n, runtime.l2_bytes)
    kernel = runtime.kernel(SOURCE, "exponential")

    def on_new_buffers():
        x, y = array(n), array(n)
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


def test_work_on_another_stream_is_not_in_the_graph_and_refused(runtime, timer, spin, usable):
    other = runtime.device.create_stream()
    with pytest.raises(TimerUnavailable, match=r"^0 of 20 calls were captured"):
        timer.collect([Iteration(spin(1000, other))] * 20, cold=False)
    usable()


def test_a_call_that_waits_for_the_device_is_refused(runtime, timer, spin, usable):
    launch = spin(1000)

    def waits():
        launch()
        runtime.synchronize()

    with pytest.raises(TimerUnavailable, match="cannot be captured"):
        timer.collect([Iteration(waits)] * 3, cold=False)
    usable()


def test_a_call_that_allocates_is_refused(timer, spin, usable):
    from pytest_gpukern.gpu.runtime import DeviceArray

    launch = spin(1000)

    def allocates():
        DeviceArray((1 << 20,), np.float32).free()
        launch()

    with pytest.raises(TimerUnavailable, match="cannot be captured"):
        timer.collect([Iteration(allocates)] * 3, cold=False)
    usable()


def test_work_that_forks_to_another_stream_and_never_joins_is_refused(runtime, timer, spin, usable):
    other = runtime.device.create_stream()
    here, there = spin(1000), spin(1000, other)

    def forks():
        here()
        other.wait(runtime.stream.record())
        there()

    with pytest.raises(TimerUnavailable, match="cannot be captured"):
        timer.collect([Iteration(forks)], cold=False)
    usable()


def test_work_that_escapes_while_some_is_captured_is_suspicious(runtime, timer, spin):
    other = runtime.device.create_stream()
    here, there = spin(10_000), spin(500_000, other)

    def both():
        there()
        here()

    assert "outside the timed stream" in timer.suspicion(Iteration(both))
    assert timer.suspicion(Iteration(here)) is None


# libraries


def test_a_numba_launch_is_captured(runtime, timer, array):
    cuda = pytest.importorskip("numba.cuda")
    from pytest_gpukern.backends.numba import NumbaBackend

    backend = NumbaBackend()
    counters = array(1024, np.uint32)
    x = cuda.as_cuda_array(counters)

    @cuda.jit
    def add_one(values):
        i = cuda.grid(1)
        if i < values.size:
            values[i] += 1

    def call():
        add_one[8, 128, backend.stream](x)

    with backend.current():
        call()
        runtime.synchronize()
        batch = timer.collect([Iteration(call)] * 3, cold=False)
    values = counters.download()
    assert (values == values[0]).all()
    assert values[0] > batch.iterations * len(batch.samples_ns)


def test_a_cupy_kernel_is_captured(runtime, timer, array):
    cupy = pytest.importorskip("cupy")
    from pytest_gpukern.backends.cupy import CupyBackend

    backend = CupyBackend()
    counters = array(1024)
    x = cupy.asarray(counters)

    def call():
        cupy.add(x, 1, out=x)

    with backend.current():
        call()
        runtime.synchronize()
        batch = timer.collect([Iteration(call)] * 3, cold=True)
    values = counters.download()
    assert (values == values[0]).all()
    assert values[0] > batch.iterations * len(batch.samples_ns)


def test_cublas_through_cupy_is_timed_or_refused_in_words(runtime, timer, array, usable):
    cupy = pytest.importorskip("cupy")
    from pytest_gpukern.backends.cupy import CupyBackend

    backend = CupyBackend()
    a, b, c = (cupy.asarray(array(512 * 512)).reshape(512, 512) for _ in range(3))

    def call():
        cupy.matmul(a, b, out=c)

    with backend.current():
        call()
        runtime.synchronize()
        with suppress(TimerUnavailable):
            assert timer.collect([Iteration(call)] * 3, cold=False).samples_ns
        cupy.matmul(a, b, out=c)
        backend.synchronize()
    usable()


def test_an_allocating_cupy_call_is_timed_or_refused_in_words(runtime, timer, array, usable):
    cupy = pytest.importorskip("cupy")
    from pytest_gpukern.backends.cupy import CupyBackend

    backend = CupyBackend()
    x = cupy.asarray(array(1 << 20))

    def call():
        return cupy.exp(x)

    with backend.current():
        call()
        runtime.synchronize()
        with suppress(TimerUnavailable):
            assert timer.collect([Iteration(call)] * 20, cold=False).samples_ns
        assert float(cupy.exp(x).sum()) == 1 << 20
    usable()


# calibration


@pytest.mark.parametrize("own_stream", [True, False])
@pytest.mark.parametrize("cold", [True, False])
def test_events_cost_between_half_a_microsecond_and_ten(runtime, spin, own_stream, cold):
    from pytest_gpukern.timers.event import EventTimer

    stream = runtime.stream if own_stream else runtime.device.default_stream
    timer = EventTimer(runtime, stream)
    timer.collect([Iteration(spin(5000, stream))] * 4, cold=cold)
    assert 500 < timer.fixed_cost_ns < 10_000


@pytest.mark.parametrize("ns", [20_000, 100_000])
def test_events_less_their_cost_agree_with_the_slope_of_a_graph_within_5_percent(runtime, timer, spin, ns):
    from pytest_gpukern.timers.event import EventTimer

    iteration = Iteration(spin(ns))
    events = EventTimer(runtime)
    read = np.median(events.collect([iteration] * 60, cold=False).samples_ns)
    assert read - events.fixed_cost_ns == pytest.approx(timer.node_time_ns(iteration), rel=0.05)


def test_a_replay_costs_less_than_ten_microseconds_beside_its_calls(runtime, timer, spin):
    from pytest_gpukern.timers.replay import empty_kernel_line

    line = empty_kernel_line(runtime)
    assert 200 < line.call_ns < 3000
    assert -500 < line.fixed_ns < 10_000
    batch = timer.collect([Iteration(spin(1000))], cold=False)
    assert timer.fixed_cost_ns == pytest.approx(line.fixed_ns / batch.iterations)
