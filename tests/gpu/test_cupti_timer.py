"""Tests the CUPTI timer on a device, against kernels that know how long they ran."""

import functools
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
from cupti_scenarios import SPIN as SOURCE
from on_device import opened

from pytest_gpukern.timers.timer import Iteration, TimerUnavailable

TICK_NS = 32


@pytest.fixture(scope="module", autouse=True)
def cupti():
    """CUPTI, or why these tests do not run."""
    from pytest_gpukern.gpu.runtime import runtime
    from pytest_gpukern.timers.cupti.timer import proven_trace

    try:
        return proven_trace(runtime())
    except TimerUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def timer_on(runtime):
    """Makes timers of a stream."""
    from pytest_gpukern.timers.cupti.timer import CuptiTimer

    return functools.partial(CuptiTimer, runtime)


@pytest.fixture
def timer(timer_on):
    return timer_on()


@pytest.fixture
def spin(runtime, array):
    """Makes calls that spin for so long, loaded and run once; `spin.spun(n)` has their last n readings."""
    from cuda.core import LaunchConfig, launch

    config = LaunchConfig(grid=1, block=1)
    slots = array((1 << 16,), np.uint64)
    numbers = itertools.count()

    def make(ns, stream=None, name="spin"):
        kernel = runtime.kernel(SOURCE, name)

        def call():
            slot = slots.pointer + 8 * next(numbers)
            launch(stream or runtime.stream, config, kernel, np.uint64(ns), slot)

        call()
        runtime.synchronize()
        return call

    def spun(count):
        done = next(numbers)
        return slots.download()[:done][-count:].astype(np.float64)

    make.spun = spun
    return make


def middle(values):
    """Mean of the middle half: finer than the ticks that single readings come in."""
    ordered = np.sort(np.asarray(values, np.float64))
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())


# the time


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("ns", [1_500, 5_000, 20_000, 100_000, 1_000_000])
def test_a_kernel_reads_as_long_as_it_says_it_ran(timer, spin, ns, cold):
    """The record has the start and exit of its one block, some 0.7 µs, which its own reading has not: a short
    spin has the same. Each of the two readings comes in ticks."""
    count = 100 if ns < 10**6 else 40

    def read(duration):
        batch = timer.collect([Iteration(spin(duration))] * count, cold=cold)
        assert len(batch.samples_ns) == count
        assert not batch.notes
        return middle(batch.samples_ns), middle(spin.spun(count))

    (record, own), (short_record, short_own) = read(ns), read(500)
    assert own >= ns
    truth = own - short_own
    assert record - short_record == pytest.approx(truth, rel=0.01, abs=2 * TICK_NS)


def test_the_launch_cost_of_a_slow_host_is_not_between_two_kernels(timer, spin):
    import time

    first, second = spin(10_000), spin(20_000, name="spin_again")

    def slow():
        first()
        time.sleep(0.002)
        second()

    batch = timer.collect([Iteration(slow)] * 8, cold=True)
    assert not batch.launch_included
    assert middle(batch.samples_ns) < 40_000


def test_two_kernels_of_a_call_have_a_span_a_busy_time_and_two_entries_in_order(timer, spin):
    first, second = spin(10_000), spin(30_000, name="spin_again")
    batch = timer.collect([Iteration(lambda: (first(), second()))] * 50, cold=True)
    assert all(span >= busy for span, busy in zip(batch.samples_ns, batch.busy_ns, strict=True))
    assert [(work.kind, work.name, work.count) for work in batch.work] == [
        ("kernel", "spin", 1.0),
        ("kernel", "spin_again", 1.0),
    ]
    assert 10_000 <= batch.work[0].time_ns < 13_000
    assert 30_000 <= batch.work[1].time_ns < 33_000
    assert middle(batch.busy_ns) == pytest.approx(sum(work.time_ns for work in batch.work), abs=2 * TICK_NS)


def test_copies_and_memsets_inside_a_call_are_counted_apart(runtime, timer, spin, array):
    from pytest_gpukern.gpu.runtime import checked

    nbytes = 1 << 20
    source, target = array((nbytes,), np.uint8), array((nbytes,), np.uint8)
    kernel, stream = spin(10_000), int(runtime.stream.handle)

    def call():
        checked("cuMemcpyDtoDAsync", target.pointer, source.pointer, nbytes, stream)
        kernel()
        target.fill(7, runtime.stream)

    batch = timer.collect([Iteration(call)] * 30, cold=True)
    assert [(work.kind, work.size_bytes) for work in batch.work] == [
        ("memcpy", nbytes),
        ("kernel", 0),
        ("memset", nbytes),
    ]
    assert batch.work[0].name == "memcpy DtoD"
    assert middle(batch.busy_ns) == pytest.approx(batch.work[1].time_ns, abs=TICK_NS), "the kernel alone"
    assert middle(batch.samples_ns) >= sum(work.time_ns for work in batch.work) - TICK_NS


def test_copies_from_and_to_pageable_memory_are_named(runtime, timer_on, spin, array):
    host = np.random.default_rng(0).random(1 << 18)
    device = array(host.shape, np.float64)
    kernel = spin(10_000)

    def call():
        device.upload(host)
        kernel()
        runtime.synchronize()
        device.download()

    timer = timer_on(any_stream=True)
    batch = timer.collect([Iteration(call)] * 5, cold=False)
    assert batch.launch_included
    assert [work.name for work in batch.work] == ["memcpy HtoD, pageable", "spin", "memcpy DtoH, pageable"]
    assert [work.size_bytes for work in batch.work] == [host.nbytes, 0, host.nbytes]
    assert timer.suspicion(Iteration(call)) is None


# attribution


def test_five_hundred_samples_in_a_row_are_all_attributed(timer, spin):
    call = spin(2_000)
    samples = timer.collect([Iteration(call)] * 500, cold=True).samples_ns
    assert len(samples) == 500
    assert min(samples) >= 2_000
    assert timer.suspicion(Iteration(call)) is None


def forked(runtime, spin, *, joins):
    """A call on a stream of its own beside the timed one, which waits for it or does not."""
    own = runtime.device.create_stream()
    here, there = spin(10_000), spin(100_000, own, name="spin_again")

    def call():
        own.wait(runtime.stream.record())
        there()
        here()
        if joins:
            runtime.stream.wait(own.record())

    return call


@pytest.mark.parametrize("cold", [True, False])
def test_a_call_that_forks_and_joins_is_queued_and_takes_its_span(runtime, timer, spin, cold):
    call = forked(runtime, spin, joins=True)
    batch = timer.collect([Iteration(call)] * 20, cold=cold)
    assert 100_000 <= np.median(batch.samples_ns) < 115_000, "both at once"
    assert not batch.launch_included
    assert timer.suspicion(Iteration(call)) is None


def test_work_that_outlasts_the_timed_stream_is_found(runtime, timer, spin):
    found = timer.suspicion(Iteration(forked(runtime, spin, joins=False)))
    assert found.startswith("spin_again (")
    assert "make the given stream wait for it" in found


def test_what_threads_of_the_call_launch_is_in_its_time(timer, spin):
    from cuda.core import Device

    own, theirs = spin(10_000), spin(20_000, name="spin_again")

    def launches():
        Device(0).set_current()
        theirs()

    def call():
        own()
        thread = threading.Thread(target=launches)
        thread.start()
        thread.join()

    batch = timer.collect([Iteration(call)] * 10, cold=True)
    assert [(work.name, work.count) for work in batch.work] == [("spin", 1.0), ("spin_again", 1.0)]
    assert 30_000 <= np.median(batch.samples_ns) < 40_000
    assert timer.suspicion(Iteration(call)) is None


def test_work_of_a_thread_that_goes_on_between_the_calls_is_found(runtime, timer, spin):
    from cuda.core import Device

    own, theirs = spin(10_000), spin(5_000, runtime.device.create_stream(), name="spin_again")
    stopped = threading.Event()

    def beats():
        Device(0).set_current()
        while not stopped.wait(0.0005):
            theirs()

    heart = threading.Thread(target=beats, name="heartbeat")
    heart.start()
    try:
        for _ in range(5):
            timer.collect([Iteration(own)] * 50, cold=True)
    finally:
        stopped.set()
        heart.join()
    runtime.synchronize()
    found = timer.suspicion(Iteration(own))
    assert "spin_again" in found
    assert "launched by a thread (heartbeat) that also works between the calls" in found


def test_work_that_still_runs_when_a_batch_begins_is_no_suspicion(runtime, timer, spin):
    """Fresh arguments may be on their way while the first batch is made ready."""
    call, earlier = spin(5_000), spin(20_000_000, runtime.device.create_stream(), name="spin_again")
    earlier()
    samples = timer.collect([Iteration(call)] * 20, cold=True).samples_ns
    assert np.median(samples) < 7_000
    assert timer.suspicion(Iteration(call)) is None


def test_a_call_that_puts_nothing_on_the_device_is_refused(timer):
    with pytest.raises(TimerUnavailable, match="puts nothing on the device"):
        timer.collect([Iteration(lambda: None)] * 3, cold=True)


def test_a_call_that_waits_for_the_device_is_timed_all_the_same(runtime, timer, spin):
    launch = spin(20_000)

    def waits():
        launch()
        runtime.synchronize()

    batch = timer.collect([Iteration(waits)] * 10, cold=True)
    assert 20_000 <= np.median(batch.samples_ns) < 22_000
    assert not batch.launch_included, "one kernel's own time has no launch cost in it"


def test_a_call_that_fills_the_launch_queue_is_timed_as_a_whole(timer, spin):
    launch = spin(1_000)
    batch = timer.collect([Iteration(lambda: [launch() for _ in range(300)])] * 5, cold=True)
    assert batch.work[0].count == 300
    assert min(batch.busy_ns) >= 300_000
    assert not batch.launch_included


# streams of a call's own


def test_kernels_on_the_default_stream_are_queued_like_those_on_any_other(runtime, timer_on, spin):
    """It is what a plain test is timed on: the legacy default stream, which the blocking kernel holds too."""
    default = runtime.device.default_stream
    first, second = spin(10_000, default), spin(20_000, default, name="spin_again")
    timer = timer_on(default, any_stream=True)
    batch = timer.collect([Iteration(lambda: (first(), second()))] * 20, cold=True)
    assert not batch.launch_included
    assert 30_000 <= middle(batch.samples_ns) < 40_000
    assert timer.suspicion(Iteration(first)) is None


def test_a_call_with_a_stream_of_its_own_begins_from_an_idle_device(runtime, timer_on, spin):
    default = runtime.device.default_stream
    own, timed = spin(200_000, runtime.device.create_stream()), spin(20_000, default, name="spin_again")
    timer = timer_on(default, any_stream=True)
    batch = timer.collect([Iteration(lambda: (own(), timed()))] * 10, cold=True)
    assert batch.launch_included
    assert 200_000 <= np.median(batch.samples_ns) < 220_000, "both at once"
    assert np.median(batch.busy_ns) <= np.median(batch.samples_ns)
    assert timer.suspicion(Iteration(own)) is None


# libraries

N = 1 << 16


def numba_call(backend):
    from numba import cuda

    @cuda.jit
    def saxpy(a, x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a * x[i] + y[i]

    x = cuda.to_device(np.ones(N, np.float32))
    out = cuda.device_array_like(x)
    launch = saxpy[N // 256, 256, backend.stream]

    def call():
        launch(2.0, x, x, out)

    call.registers = lambda: set(saxpy.get_regs_per_thread().values())
    return call, "saxpy"


def cupy_call(backend):
    import cupy

    x = cupy.ones(N, cupy.float32)
    out = cupy.empty_like(x)
    return lambda: cupy.exp(x, out=out), "exp"


def cublas_call(backend):
    import cupy

    a = cupy.ones((512, 512), cupy.float32)
    out = cupy.empty_like(a)
    return lambda: cupy.matmul(a, a, out=out), ""


@pytest.mark.parametrize(
    ("name", "make"),
    [("numba", numba_call), ("cupy", cupy_call), ("cupy", cublas_call)],
    ids=["numba", "cupy", "cublas"],
)
def test_kernels_of_every_library_are_attributed(timer_on, name, make):
    backend = opened(name)
    with backend.current():
        call, part_of_the_name = make(backend)
        call()
        backend.synchronize()
        timer = timer_on(backend.timed_stream)
        batch = timer.collect([Iteration(call)] * 200, cold=True)
        assert timer.suspicion(Iteration(call)) is None
    assert len(batch.samples_ns) == 200
    kernels = [work for work in batch.work if work.kind == "kernel"]
    assert kernels
    assert all(work.count == 1 for work in kernels)
    assert part_of_the_name in kernels[0].name
    assert not batch.launch_included


def test_grid_block_and_registers_are_those_of_the_launch(timer):
    backend = opened("numba")
    with backend.current():
        call, _ = numba_call(backend)
        call()
        (work,) = timer.collect([Iteration(call)] * 3, cold=False).work
    assert (work.kernel.grid, work.kernel.block) == ((N // 256, 1, 1), (256, 1, 1))
    assert call.registers() == {work.kernel.registers}
    assert work.kernel.local_bytes == 0


def test_shared_memory_is_that_of_the_kernel_and_the_launch(runtime, timer, array):
    from cuda.core import LaunchConfig, launch

    out = array((256,))
    kernel = runtime.kernel(SOURCE, "shaped")
    config = LaunchConfig(grid=(3, 2), block=(32, 8), shmem_size=4096)

    def call():
        launch(runtime.stream, config, kernel, out.pointer)

    call()
    (work,) = timer.collect([Iteration(call)] * 3, cold=False).work
    assert (work.kernel.grid, work.kernel.block) == ((3, 2, 1), (32, 8, 1))
    assert work.kernel.shared_bytes - 4096 in (1024, 2048)  # with or without what the system reserves
    assert work.kernel.registers > 0


# before and after events

READS_BEFORE_AND_AFTER = """
import sys
import numpy as np
sys.path.insert(0, {here!r})
from cupti_scenarios import SPIN as SOURCE
from cuda.core import LaunchConfig, launch
from pytest_gpukern.gpu.runtime import DeviceArray, runtime
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.timers.event import EventTimer

r = runtime()
spun, kernel = DeviceArray((1,), np.uint64), r.kernel(SOURCE, "spin")
config = LaunchConfig(grid=1, block=1)
call = Iteration(lambda: launch(r.stream, config, kernel, np.uint64(20_000), spun.pointer))
events = EventTimer(r)

def read():
    return float(np.median([s for _ in range(5) for s in events.collect([call] * 60, cold=True).samples_ns]))

read()
before = read()
assert "cupti" not in sys.modules
from pytest_gpukern.timers.cupti.timer import CuptiTimer
cupti = CuptiTimer(r)
recorded = float(np.median(cupti.collect([call] * 60, cold=True).samples_ns))
print(before, recorded, read())
"""


def test_between_recordings_events_read_what_they_read_without_cupti(tmp_path):
    """In a process of its own, where nothing has attached CUPTI before."""
    from pathlib import Path

    script = READS_BEFORE_AND_AFTER.format(here=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, recorded, after = map(float, done.stdout.split())
    assert 20_000 <= recorded < 22_000
    assert after == pytest.approx(before, abs=500)


PLAIN_TEST = """
import numpy as np
from numba import cuda

@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]

def test_saxpy(gpu_benchmark):
    x = cuda.to_device(np.ones(1 << 20, np.float32))
    out = cuda.device_array_like(x)
    gpu_benchmark(saxpy[(1 << 20) // 256, 256], 2.0, x, x, out)
"""


def test_where_cupti_refuses_events_time_and_the_first_warning_says_why(pytester, measured):
    pytester.makeconftest("""
from cupti import cupti
def refuse(kind):
    raise cupti.cuptiError(cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
cupti.activity_enable = refuse
""")
    done, (found,) = measured(PLAIN_TEST)
    done.assert_outcomes(passed=1)
    (only,) = found["measurements"]
    assert only["timer"] == "event"
    reason = "CUPTI: another profiler is attached to this process"
    assert only["summary"]["notes"][0]["text"] == f"timed by events, not by CUPTI: {reason}"


# one execution in full


def test_a_trace_has_what_was_launched(runtime, spin, array):
    from cuda.core import LaunchConfig, launch

    from pytest_gpukern.timers.cupti.timer import trace_of

    host = np.random.default_rng(0).random(1 << 20, dtype=np.float32)
    device, out = array(host.shape), array((256,))
    kernel = runtime.kernel(SOURCE, "shaped")
    config = LaunchConfig(grid=(3, 2, 1), block=(64, 4, 1), shmem_size=2048)
    spinning = spin(50_000)

    def call():
        device.upload(host)
        spinning()
        launch(runtime.stream, config, kernel, out.pointer)
        out.fill(7, runtime.stream)
        runtime.synchronize()
        device.download()

    call()
    runtime.synchronize()
    trace = trace_of("end_to_end", Iteration(call), runtime.stream, cold=True)
    sys.stdout.write("\n".join(map(str, (*trace.activities, ""))))  # `pytest -rP` shows it
    copied_in, spun, shaped, filled, copied_out = trace.activities
    assert (copied_in.name, copied_in.source, copied_in.target) == ("memcpy HtoD", "Pageable", "Device")
    assert (copied_out.name, copied_out.source, copied_out.target) == ("memcpy DtoH", "Device", "Pageable")
    assert copied_in.size_bytes == copied_out.size_bytes == host.nbytes
    assert (spun.name, spun.grid, spun.block) == ("spin", (1, 1, 1), (1, 1, 1))
    assert 50_000 <= spun.end_ns - spun.start_ns < 60_000
    assert (shaped.name, shaped.grid, shaped.block) == ("shaped", (3, 2, 1), (64, 4, 1))
    assert (shaped.static_shared_bytes, shaped.dynamic_shared_bytes) == (1024, 2048)
    assert shaped.registers > 0
    assert (filled.kind, filled.size_bytes, filled.source) == ("memset", 1024, "Device")
    assert {each.device for each in trace.activities} == {0}
    assert len({(each.context, each.stream) for each in (spun, shaped, filled)}) == 1
    assert min(each.start_ns for each in trace.activities) == 0


def test_what_is_timed_behind_a_trace_costs_what_it_did_before(runtime, timer, spin):
    from pytest_gpukern.timers.cupti.timer import trace_of

    call = spin(20_000)
    before = middle(timer.collect([Iteration(call)] * 100, cold=True).samples_ns)
    trace_of("kernel", Iteration(call), runtime.stream, cold=True)
    assert not timer._trace._enabled
    assert middle(timer.collect([Iteration(call)] * 100, cold=True).samples_ns) == pytest.approx(
        before, abs=2 * TICK_NS
    )
