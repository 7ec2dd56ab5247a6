"""Tests the CUPTI timer on a device, against kernels that know how long they ran."""

import functools
import subprocess
import sys

import numpy as np
import pytest
from on_device import opened

from pytest_gpukern.timers.timer import Iteration, TimerUnavailable
from suites.selftest import SpinningKernel

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


def middle(values):
    """Mean of the middle half: finer than the ticks that single readings come in."""
    ordered = np.sort(np.asarray(values, np.float64))
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())


# the time


@pytest.mark.parametrize("ns", [1_500, 5_000, 20_000, 100_000, 1_000_000])
def test_a_kernel_reads_as_long_as_it_says_it_ran_also_if_the_cache_is_cold(runtime, timer, ns):
    """The self-test holds hot ones to that. The record has the start and exit of its one block, some 0.7 µs,
    which its own reading has not: a short spin has the same. Each of the two readings comes in ticks."""
    spinning = SpinningKernel(runtime)

    def read(duration):
        calls = [Iteration(spinning.call(duration, slot)) for slot in range(40)]
        batch = timer.collect(calls, cold=True)
        assert not batch.notes
        return middle(batch.samples_ns), middle(spinning.own_ns(40))

    (record, own), (short_record, short_own) = read(ns), read(500)
    spinning.free()
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


def test_copies_and_memsets_inside_a_call_are_counted_apart(calls, timer):
    nbytes = 1 << 20
    parts = calls.copy(nbytes // 4), calls.spin(10_000), calls.memset(nbytes // 4)
    batch = timer.collect([Iteration(lambda: [part() for part in parts])] * 30, cold=True)
    assert [(work.kind, work.size_bytes) for work in batch.work] == [
        ("memcpy", nbytes),
        ("kernel", 0),
        ("memset", nbytes),
    ]
    assert batch.work[0].name == "memcpy DtoD"
    assert np.median(batch.busy_ns) == pytest.approx(batch.work[1].time_ns, abs=TICK_NS), "the kernel alone"
    assert middle(batch.samples_ns) >= sum(work.time_ns for work in batch.work) - TICK_NS


def test_copies_from_and_to_pageable_memory_are_named(calls, timer_on):
    count = 1 << 18
    parts = calls.upload(count), calls.spin(10_000), calls.sync, calls.download(count)
    call = Iteration(lambda: [part() for part in parts])
    timer = timer_on(any_stream=True)
    batch = timer.collect([call] * 5, cold=False)
    assert batch.launch_included
    assert [work.name for work in batch.work] == ["memcpy HtoD, pageable", "spin", "memcpy DtoH, pageable"]
    assert [work.size_bytes for work in batch.work] == [4 * count, 0, 4 * count]
    assert timer.suspicion(call) is None


# attribution


def test_five_hundred_samples_in_a_row_are_all_attributed(timer, spin):
    call = spin(2_000)
    samples = timer.collect([Iteration(call)] * 500, cold=True).samples_ns
    assert len(samples) == 500
    assert min(samples) >= 2_000
    assert timer.suspicion(Iteration(call)) is None


@pytest.mark.parametrize("cold", [True, False])
def test_a_call_that_forks_and_joins_is_queued_and_takes_its_span(calls, timer, cold):
    call = Iteration(calls.forked())
    batch = timer.collect([call] * 20, cold=cold)
    assert 100_000 <= np.median(batch.samples_ns) < 115_000, "both at once"
    assert not batch.launch_included
    assert timer.suspicion(call) is None


def test_work_that_outlasts_the_timed_stream_is_found(calls, timer):
    found = timer.suspicion(Iteration(calls.forked(joins=False)))
    assert found.startswith("spin_again (")
    assert "make the given stream wait for it" in found


def test_what_threads_of_the_call_launch_is_in_its_time(calls, timer):
    own, theirs = calls.spin(10_000), calls.in_thread(calls.spin(20_000, name="spin_again"))
    call = Iteration(lambda: (own(), theirs()))
    batch = timer.collect([call] * 10, cold=True)
    assert [(work.name, work.count) for work in batch.work] == [("spin", 1.0), ("spin_again", 1.0)]
    assert 30_000 <= np.median(batch.samples_ns) < 40_000
    assert timer.suspicion(call) is None


def test_work_of_a_thread_that_goes_on_between_the_calls_is_found(calls, timer):
    own = calls.spin(10_000)
    with calls.closing:
        calls.heart(calls.spin(5_000, stream=calls.other_stream(), name="spin_again"))
        for _ in range(5):
            timer.collect([Iteration(own)] * 50, cold=True)
    calls.sync()
    found = timer.suspicion(Iteration(own))
    assert "spin_again" in found
    assert "launched by a thread (heartbeat) that also works between the calls" in found


def test_work_that_still_runs_when_a_batch_begins_is_no_suspicion(calls, timer):
    """Fresh arguments may be on their way while the first batch is made ready."""
    call, earlier = calls.spin(5_000), calls.spin(20_000_000, stream=calls.other_stream(), name="spin_again")
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
    first, second = spin(10_000, stream=default), spin(20_000, stream=default, name="spin_again")
    timer = timer_on(default, any_stream=True)
    batch = timer.collect([Iteration(lambda: (first(), second()))] * 20, cold=True)
    assert not batch.launch_included
    assert 30_000 <= middle(batch.samples_ns) < 40_000
    assert timer.suspicion(Iteration(first)) is None


def test_a_call_with_a_stream_of_its_own_begins_from_an_idle_device(runtime, timer_on, calls):
    default = runtime.device.default_stream
    own = calls.spin(200_000, stream=calls.other_stream())
    timed = calls.spin(20_000, stream=default, name="spin_again")
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


@pytest.mark.parametrize(("name", "make"), [("numba", numba_call), ("cupy", cupy_call)])
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


def test_shared_memory_is_that_of_the_kernel_and_the_launch(calls, timer):
    (work,) = timer.collect([Iteration(calls.shaped())] * 3, cold=False).work
    assert (work.kernel.grid, work.kernel.block) == ((3, 2, 1), (64, 4, 1))
    assert work.kernel.shared_bytes - 2048 in (1024, 2048)  # with or without what the system reserves
    assert work.kernel.registers > 0


# before and after events

READS_BEFORE_AND_AFTER = """
import sys
import numpy as np
sys.path.insert(0, {here!r})
from cupti_scenarios import Gpu
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.timers.event import EventTimer

gpu = Gpu()
call, events = Iteration(gpu.spin(20_000)), EventTimer(gpu.runtime)

def read():
    return float(np.median([s for _ in range(5) for s in events.collect([call] * 60, cold=True).samples_ns]))

read()
before = read()
assert "cupti" not in sys.modules
from pytest_gpukern.timers.cupti.timer import CuptiTimer
cupti = CuptiTimer(gpu.runtime)
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


def test_a_trace_has_what_was_launched(runtime, calls):
    from pytest_gpukern.timers.cupti.timer import trace_of

    count = 1 << 20
    parts = (
        *(calls.upload(count), calls.spin(50_000), calls.shaped(), calls.memset(256)),
        *(calls.sync, calls.download(count)),
    )
    call = Iteration(lambda: [part() for part in parts])
    trace = trace_of("end_to_end", call, runtime.stream, cold=True)
    sys.stdout.write("\n".join(map(str, (*trace.activities, ""))))  # `pytest -rP` shows it
    copied_in, spun, shaped, filled, copied_out = trace.activities
    assert (copied_in.name, copied_in.source, copied_in.target) == ("memcpy HtoD", "Pageable", "Device")
    assert (copied_out.name, copied_out.source, copied_out.target) == ("memcpy DtoH", "Device", "Pageable")
    assert copied_in.size_bytes == copied_out.size_bytes == 4 * count
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
