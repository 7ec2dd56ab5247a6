"""Tests the CUPTI timer on a device with known records: spans, busy time, work, and what it refuses."""

from __future__ import annotations

import gzip
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_cupti import ActivityKind, FakeCupti, FakeMachine, in_a_thread, install
from fakes import repeated, with_fresh_arguments

from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.measure.measure import Repeated, Sampler
from pytest_gpukern.measure.statistics import StoppingRule
from pytest_gpukern.timers import launch_queue
from pytest_gpukern.timers.cupti import timer as cupti
from pytest_gpukern.timers.cupti.activity import activity_trace
from pytest_gpukern.timers.cupti.machine_code import machine_code, observed
from pytest_gpukern.timers.cupti.timer import CuptiTimer, proven_trace, serial_cost_ns
from pytest_gpukern.timers.timer import Iteration, NothingLaunched, TimerUnavailable
from pytest_gpukern.values.note import About
from pytest_gpukern.values.result import DeviceWork, HostCopy, KernelFacts

COUNT = 5
EMPTY_NS = 1311
MANY = (4 * FakeMachine.multiprocessors + 1, 1, 1)
"""The smallest grid that is recorded serially."""


@pytest.fixture
def machine(monkeypatch):
    """A device whose work CUPTI records, and nothing proven about it yet."""
    made = FakeMachine(FakeCupti())
    install(monkeypatch, made.cupti)
    monkeypatch.setattr(launch_queue, "blocking_kernel", lambda: made)
    monkeypatch.setattr(cuda, "checked", lambda call: {"cuCtxGetCurrent": 42}[call])
    monkeypatch.setattr(cupti, "empty_kernel", lambda runtime, stream: made.kernel("gpukern_empty", EMPTY_NS))
    cached = (activity_trace, machine_code, proven_trace, serial_cost_ns)
    for function in cached:
        function.cache_clear()
    yield made
    for function in cached:
        function.cache_clear()


def collected(machine, *calls, cold=False, **arguments):
    """A batch of five executions, each of all these calls in order."""

    def run():
        for call in calls:
            call()

    return CuptiTimer(machine, **arguments).collect(repeated(run, COUNT), cold=cold)


def unused(machine):
    return not machine.cupti.enabled and not machine.cupti.pushed() and machine.blocked is None


# time


def test_several_kernels_of_a_call_have_a_span_with_the_gaps_and_a_busy_time_without(machine):
    batch = collected(machine, machine.kernel("a", 1000), machine.kernel("b", 2000))
    assert batch.samples_ns == [1000 + machine.GAP_NS + 2000] * COUNT, "no gap that the host made"
    assert batch.busy_ns == [3000.0] * COUNT


@pytest.mark.parametrize("cold", [True, False])
def test_a_sample_is_the_kernels_own_time_without_what_is_queued_before_and_the_flush(machine, cold):
    before = machine.kernel("before", 40_000)
    iterations = [Iteration(machine.kernel(ns=1312), before)] * COUNT
    batch = CuptiTimer(machine).collect(iterations, cold=cold)
    assert batch.samples_ns == batch.busy_ns == [1312.0] * COUNT
    assert (batch.iterations, batch.launch_included, batch.notes) == (1, False, [])
    assert [work.name for work in batch.work] == ["k"]
    assert unused(machine)


# work


def test_kernels_copies_and_memsets_of_a_call_are_told_apart_in_order(machine):
    copy_in, copy_out = machine.copy(3000, size=4096), machine.copy(5000, kind=2, source=3, target=1, size=64)
    batch = collected(machine, copy_in, machine.memset(700, size=256), machine.kernel("k", 1000), copy_out)
    kernel = KernelFacts("k", 16, 8, 4160, grid=(1, 1, 1), block=(128, 2, 1), symbol="k")
    assert batch.work == (
        DeviceWork("memcpy", "memcpy HtoD, pageable", 1.0, 3000, 4096.0, None, HostCopy("HtoD", "pageable")),
        DeviceWork("memset", "memset", 1.0, 700, 256.0),
        DeviceWork("kernel", "k", 1.0, 1000, 0.0, kernel),
        DeviceWork("memcpy", "memcpy DtoH, pageable", 1.0, 5000, 64.0, None, HostCopy("DtoH", "pageable")),
    )
    assert batch.busy_ns == [1000.0] * COUNT, "kernels only"
    assert batch.samples_ns == [3000 + 700 + 1000 + 5000 + 3 * machine.GAP_NS] * COUNT


def test_one_kernel_launched_often_is_one_entry_and_with_another_grid_another(machine):
    small, large = machine.kernel("k", 1000), machine.kernel("k", 4000, grid=(8, 1, 1))
    work = collected(machine, small, small, large).work
    assert [(each.count, each.time_ns, each.kernel.grid[0]) for each in work] == [(2, 2000, 1), (1, 4000, 8)]


def test_what_only_some_calls_do_has_a_mean_count_and_a_median_time(machine):
    number = []

    def call():
        number.append(1)
        machine.kernel("always", 1000)()
        if len(number) % 5 == 0:
            machine.kernel("seldom", 8000)()
        if len(number) % 5:
            machine.kernel("mostly", 300)()

    work = CuptiTimer(machine).collect(repeated(call, 10), cold=False).work
    assert [(each.name, each.count, each.time_ns) for each in work] == [
        ("always", 1.0, 1000),
        ("mostly", 0.8, 300),
        ("seldom", 0.2, 0),
    ]


# serial recording


@pytest.fixture
def serial(machine):
    """A device that reads kernels recorded serially 1.7 µs longer, in steps of one nanosecond."""
    machine.cupti.serial_cost_ns = 1700
    return machine


def ways(machine, timer, *calls):
    """Whether the kernels of these executions, one after the other, were recorded concurrently."""
    opened = []
    trace_open = timer._trace.open

    def noted(*, concurrently):
        opened.append(concurrently)
        trace_open(concurrently=concurrently)

    timer._trace.open = noted
    try:
        for call in calls:
            timer.collect([Iteration(call)], cold=False)
    finally:
        del timer._trace.open
    return opened


@pytest.mark.parametrize("cold", [True, False])
def test_a_kernel_of_many_blocks_is_recorded_serially_and_what_that_adds_is_taken_off(serial, cold):
    batch = collected(serial, serial.kernel(ns=48_600, grid=MANY), cold=cold)
    assert batch.samples_ns == batch.busy_ns == [48_600.0] * COUNT
    assert [work.time_ns for work in batch.work] == [48_600.0]
    assert unused(serial)


@pytest.mark.parametrize(
    ("grid", "concurrently"), [((528, 1, 1), True), (MANY, False), ((8, 8, 8), True), ((8, 8, 9), False)]
)
def test_four_blocks_for_each_multiprocessor_are_few_in_any_direction(serial, grid, concurrently):
    timer = CuptiTimer(serial)
    timer.collect(repeated(serial.kernel(grid=grid), COUNT), cold=False)
    assert ("serially" not in timer.measures) is concurrently
    assert (timer.jitter_ns > 8.0) is not concurrently, "trusted less between sessions"
    assert ways(serial, timer, serial.kernel(grid=grid)) == [concurrently], "as in any session"


@pytest.mark.parametrize("what", ["two kernels", "a copy", "a kernel and a copy"])
def test_what_is_not_one_kernel_is_recorded_concurrently(serial, what):
    many = serial.kernel(ns=2000, grid=MANY)
    calls = {
        "two kernels": [many, many],
        "a copy": [serial.copy()],
        "a kernel and a copy": [many, serial.copy()],
    }[what]
    timer = CuptiTimer(serial)
    timer.collect(repeated(lambda: [call() for call in calls], COUNT), cold=False)
    assert "serially" not in timer.measures


def test_the_calls_are_recorded_again_only_until_the_way_is_known(serial):
    timer = CuptiTimer(serial)
    seen = []

    def call(argument):
        seen.append(argument)
        serial.kernel(grid=MANY)()

    for executions in (2 * COUNT, 3 * COUNT):
        timer.collect(with_fresh_arguments(call, COUNT, setup=object), cold=False)
        assert len(set(map(id, seen))) == len(seen) == executions


def test_a_call_with_now_many_blocks_now_few_settles_for_the_way_that_suits_both(serial):
    """Otherwise executions that come one at a time would be recorded again forever."""
    timer = CuptiTimer(serial)
    grids = iter([MANY, (1, 1, 1)] * 10)  # ends with an error, not never
    alternating = [lambda: serial.kernel(grid=next(grids))()] * 3
    assert ways(serial, timer, *alternating) == [True, False, True, True, True]
    assert "serially" not in timer.measures


def test_what_serial_recording_adds_is_that_of_the_session(serial):
    serial.cupti.serial_cost_ns = 900
    assert serial_cost_ns(serial, cold=True) == serial_cost_ns(serial, cold=False) == 900.0
    serial.cupti.serial_cost_ns = 5000
    assert serial_cost_ns(serial, cold=True) == 900.0, "measured once"


def test_serial_recording_that_adds_nothing_has_nothing_taken_off(machine):
    machine.cupti.serial_cost_ns = -300
    assert serial_cost_ns(machine, cold=True) == 0.0


@pytest.mark.parametrize(
    ("serially_ns", "mean_ns"),
    [
        ([3000, 9000], 3000),  # the mean of the two in the middle would have none of them near it
        ([9000, 3000, 9000, 9000], 9000),
        ([3000, 3256], 3128),
        ([3000, 3257], 3000),
    ],
)
def test_what_serial_recording_adds_is_the_mean_of_the_records_near_the_lower_median(
    machine, monkeypatch, serially_ns, mean_ns
):
    """Half of the records may lie far from the others."""
    durations = itertools.cycle(serially_ns)

    def launch():
        serially = ActivityKind.KERNEL in machine.cupti.enabled
        machine.kernel("gpukern_empty", next(durations) if serially else EMPTY_NS)()

    monkeypatch.setattr(cupti, "empty_kernel", lambda runtime, stream: launch)
    assert serial_cost_ns(machine, cold=False) == mean_ns - EMPTY_NS


def test_a_kernel_is_never_shorter_than_a_tick_for_what_is_taken_off(serial):
    assert collected(serial, serial.kernel(ns=20, grid=MANY)).samples_ns == [32.0] * COUNT


# calls with streams of their own


def test_a_call_on_the_timed_stream_is_queued_though_any_stream_would_do(machine):
    batch = collected(machine, machine.kernel("a", 1000), machine.kernel("b", 2000), any_stream=True)
    assert batch.samples_ns == [1000 + machine.GAP_NS + 2000] * COUNT
    assert not batch.launch_included


def test_a_call_that_uses_a_stream_of_its_own_begins_from_an_idle_device(machine):
    """Its own stream does not wait behind the blocking kernel: queued, one call would run into the next."""
    own = machine.other_stream()
    batch = collected(
        machine, machine.kernel("own", 9000, stream=own), machine.kernel("k", 1000), any_stream=True
    )
    assert batch.samples_ns == [9000.0] * COUNT
    assert batch.busy_ns == [9000.0] * COUNT, "kernels that run at once are busy once"
    assert batch.launch_included
    assert "streams of its own" in batch.notes[0].text
    assert [(each.name, each.time_ns) for each in batch.work] == [("own", 9000), ("k", 1000)]


def test_a_call_of_one_kernel_on_a_stream_of_its_own_has_no_launch_cost_in_it(machine):
    own = machine.other_stream()
    batch = collected(machine, machine.kernel(ns=1000, stream=own), any_stream=True)
    assert batch.samples_ns == [1000.0] * COUNT
    assert (batch.launch_included, batch.notes) == (False, [])


def test_a_stream_of_its_own_is_known_from_then_on_and_arguments_are_fresh(machine):
    own = machine.other_stream()
    seen = []

    def call(argument):
        seen.append(argument)
        machine.kernel(ns=1000, stream=own)()

    timer = CuptiTimer(machine, any_stream=True)
    timer.collect(with_fresh_arguments(call, COUNT, setup=object), cold=True)
    assert len(set(map(id, seen))) == len(seen) == 2 * COUNT
    timer.collect(with_fresh_arguments(call, COUNT, setup=object), cold=True)
    assert len(seen) == 3 * COUNT


# what escapes


@pytest.fixture
def heart(machine, monkeypatch):
    """Has a thread of its own launch a kernel whenever it is called, and between the calls too."""
    with ThreadPoolExecutor(1, "heart") as thread:

        def beat():
            thread.submit(machine.kernel("theirs", 7000)).result()

        synchronize = machine.synchronize
        monkeypatch.setattr(machine, "synchronize", lambda: (beat(), synchronize()))
        yield beat


def test_what_threads_of_the_call_launch_is_in_its_time(machine):
    """PyTorch runs backward passes in a thread of its own, and waits for it."""
    backward = in_a_thread(machine.kernel("backward", 7000))
    timer = CuptiTimer(machine, any_stream=True)
    call = Iteration(lambda: (machine.kernel("forward", 1000)(), backward()), before=backward)
    batch = timer.collect([call] * COUNT, cold=True)
    assert batch.samples_ns == [1000 + machine.GAP_NS + 7000] * COUNT
    assert [work.name for work in batch.work] == ["forward", "backward"]
    assert timer.suspicion(call) is None
    only = timer.collect(repeated(backward, COUNT), cold=False)
    assert only.samples_ns == [7000.0] * COUNT


def forked(machine, *, forks=True, joins=True, ns=9000):
    """A call on a stream of its own beside the timed one, which may wait for it, and that for this."""
    own = machine.other_stream()

    def call():
        if forks:
            machine.wait(own, machine.stream)
        machine.kernel("own", ns, stream=own)()
        machine.kernel("k", 1000)()
        if joins:
            machine.wait(machine.stream, own)

    return call


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("any_stream", [True, False])
def test_a_call_that_forks_and_joins_is_queued_and_takes_its_span(machine, any_stream, cold):
    timer, call = CuptiTimer(machine, any_stream=any_stream), forked(machine)
    batch = timer.collect(repeated(call, COUNT), cold=cold)
    assert batch.samples_ns == [9000.0] * COUNT
    assert not batch.launch_included
    assert timer.suspicion(Iteration(call)) is None


def test_a_call_that_does_not_wait_for_the_timed_stream_begins_from_an_idle_device(machine):
    timer, call = CuptiTimer(machine), forked(machine, forks=False)
    for _ in range(2):
        batch = timer.collect(repeated(call, COUNT), cold=True)
        assert batch.samples_ns == [9000.0] * COUNT
        assert batch.launch_included
        unordered, gaps = batch.notes
        assert "another stream does not wait for the given one" in unordered.text
        assert "streams of its own" in gaps.text
        assert (unordered.about, gaps.about) == (About.READER, About.LAUNCH_COST)
    assert timer.suspicion(Iteration(call)) is None


def test_short_work_on_a_stream_that_waits_for_nobody_is_noted(machine):
    """It is done too soon to be seen after the timed stream."""
    own = machine.other_stream()
    alone = machine.kernel(ns=1000, stream=own)
    assert "does not wait for the given one" in collected(machine, alone).notes[0].text
    assert collected(machine, alone, any_stream=True).notes == []


@pytest.mark.parametrize("forks", [True, False])
def test_work_that_outlasts_the_timed_stream_is_suspicious_unless_any_stream_will_do(machine, forks):
    call = Iteration(forked(machine, forks=forks, joins=False, ns=500_000))
    assert CuptiTimer(machine).suspicion(call) == (
        "own (500 µs in all) ran outside the timed stream and outlasted it; make the given stream wait for it"
    )
    assert CuptiTimer(machine, any_stream=True).suspicion(call) is None


@pytest.mark.parametrize("ns", [4000, 9000])
def test_short_work_that_outlasts_the_timed_stream_is_found_while_calls_are_queued(machine, ns):
    """Once they are launched one by one, it is done before the host has launched what comes behind it."""
    timer = CuptiTimer(machine)
    call = forked(machine, joins=False, ns=ns)
    timer.collect(repeated(call, COUNT), cold=True)
    assert "ran outside the timed stream and outlasted it" in timer.suspicion(Iteration(call))


def test_a_kernel_of_many_blocks_outlasts_the_timed_stream_too(machine):
    """Recorded serially, nothing would run beside anything else."""
    call = Iteration(machine.kernel("own", 500_000, grid=MANY, stream=machine.other_stream()))
    assert "own (500 µs" in CuptiTimer(machine).suspicion(call)


@pytest.mark.parametrize("any_stream", [True, False])
def test_work_of_a_thread_that_also_launches_between_the_calls_is_suspicious(machine, heart, any_stream):
    timer = CuptiTimer(machine, any_stream=any_stream)
    found = timer.suspicion(Iteration(lambda: (machine.kernel()(), heart())))
    assert found.startswith("theirs (")
    assert "ran during the calls, launched by a thread (heart_0) that also works between the calls" in found


def test_a_thread_that_launches_when_the_call_has_returned_is_suspicious(machine, monkeypatch):
    late, synchronize = in_a_thread(machine.kernel("late")), machine.synchronize
    monkeypatch.setattr(machine, "synchronize", lambda: (late(), synchronize()))
    assert CuptiTimer(machine).suspicion(Iteration(machine.kernel())).startswith("late (")


def test_a_suspicion_before_the_first_batch_makes_a_call_with_fresh_arguments(machine):
    seen = []
    call = lambda argument: (seen.append(argument), machine.kernel()())  # noqa: E731
    first, second = with_fresh_arguments(call, 2, setup=object)
    timer = CuptiTimer(machine)
    assert timer.suspicion(first) is None
    assert len(seen) == 1
    timer.collect([second], cold=True)
    assert len(set(map(id, seen))) == len(seen) == 2
    assert timer.suspicion(second) is None
    assert len(seen) == 2


def test_work_that_escapes_only_later_makes_the_measurement_invalid(machine, monkeypatch):
    """A library's helper thread may wake up at any time, and go on from then."""
    count, synchronize = [], machine.synchronize
    late = in_a_thread(machine.kernel("theirs", 7000))

    def call():
        count.append(1)
        machine.kernel()()

    monkeypatch.setattr(machine, "synchronize", lambda: (len(count) >= 100 and late(), synchronize()))
    rule = StoppingRule(0, 200, 200)
    found = Sampler(Repeated(call), CuptiTimer(machine), "kernel", "hot", 1000.0, rule).measure()
    assert "theirs" in found.invalid


def test_threads_that_go_on_launching_are_named_once_cupti_is_in_use(machine, heart, monkeypatch):
    monkeypatch.setattr(cupti, "runtime", lambda: machine)
    monkeypatch.setattr(cupti.time, "sleep", lambda _: heart())
    assert cupti.launching_threads(0.0) == "", "nothing has asked for CUPTI yet"
    CuptiTimer(machine)
    assert cupti.launching_threads(0.0) == "a thread (heart_0)"
    assert unused(machine)


def test_where_no_thread_launches_none_is_named(machine, monkeypatch):
    monkeypatch.setattr(cupti, "runtime", lambda: machine)
    CuptiTimer(machine)
    assert cupti.launching_threads(0.0) == ""


# what cannot be timed


def test_a_call_that_puts_nothing_on_the_device_is_refused(machine):
    with pytest.raises(NothingLaunched, match="puts nothing on the device: no kernel, copy or memset"):
        collected(machine, lambda: None)
    assert unused(machine)


def test_the_reason_says_that_only_another_thread_launched(machine, heart):
    reason = r"launched nothing: a thread \(heart_0\) that also works between the calls launched theirs \("
    with pytest.raises(TimerUnavailable, match=reason) as raised:
        collected(machine, heart)
    assert not isinstance(raised.value, NothingLaunched)


def test_records_that_are_lost_are_counted_and_no_number_is_made_of_the_rest(machine):
    kernels = []

    def lost(record):
        if record.kind != ActivityKind.CONCURRENT_KERNEL or record.name != "k":
            return False
        kernels.append(record)
        return len(kernels) in (2, 3)

    machine.cupti.lost = lost
    with pytest.raises(TimerUnavailable, match="2 of 5 executions left no record"):
        collected(machine, machine.kernel())
    assert unused(machine)


@pytest.mark.parametrize("registers", [24, 56])
def test_kernels_of_a_module_that_launches_others_from_the_device_are_refused(machine, registers):
    """CUPTI has no records of those: 46 µs of work read 10 µs. What is linked in may take more registers."""
    packed = Path(__file__).parents[1] / "data" / "launches.cuda-13.0.sm_90.cubin.gz"
    code = gzip.decompress(packed.read_bytes())
    with observed(lambda code: code.launches()):
        machine.cupti.module_loaded(code, "parent")
        machine.cupti.module_loaded(b"some code", "plain")
    assert collected(machine, machine.kernel("plain")).samples_ns == [1000.0] * COUNT
    assert cubin.registers(code)["parent"] == 24
    assert machine_code().any_launches_from_device()
    parent = machine.kernel("parent", registers=registers)
    with pytest.raises(
        TimerUnavailable, match="parent comes from a module that launches kernels from the device"
    ):
        collected(machine, machine.kernel("plain"), parent)
    assert unused(machine)


def test_a_cupti_that_attaches_and_stays_silent_is_not_used(machine):
    machine.cupti.lost = lambda record: True
    with pytest.raises(TimerUnavailable, match="recorded 0 kernels instead of one"):
        CuptiTimer(machine)
    assert unused(machine)
    machine.cupti.lost = lambda record: False
    assert collected(machine, machine.kernel(ns=1000)).samples_ns == [1000.0] * COUNT


# when a call fails or waits


@pytest.mark.parametrize("at", [1, 3])
def test_a_call_that_raises_leaves_the_trace_closed_and_the_pushes_balanced(machine, at):
    count = []

    def call():
        machine.kernel()()
        count.append(1)
        if len(count) == at:
            raise RuntimeError("no memory")

    timer = CuptiTimer(machine)
    with pytest.raises(RuntimeError, match="no memory"):
        timer.collect(repeated(call, COUNT), cold=True)
    assert unused(machine)
    again = timer.collect(repeated(machine.kernel(ns=2000), COUNT), cold=True)
    assert again.samples_ns == [2000.0] * COUNT


def test_a_context_that_is_lost_leaves_the_trace_closed_and_is_what_is_reported(machine):
    class CudaError(Exception):
        """As the driver's, once a kernel has read what it must not."""

    timer = CuptiTimer(machine)

    def call():
        machine.kernel()()
        machine.lost_context = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS")

    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        timer.collect(repeated(call, COUNT), cold=True)
    assert unused(machine)


@pytest.mark.parametrize("any_stream", [True, False])
def test_a_call_that_waits_for_the_device_is_timed_from_an_idle_one_and_says_so(machine, any_stream):
    def waits():
        machine.kernel("a", 1000)()
        machine.synchronize()
        machine.kernel("b", 1000)()

    batch = CuptiTimer(machine, any_stream=any_stream).collect(repeated(waits, COUNT), cold=True)
    assert batch.launch_included
    assert "waits for the device" in batch.notes[0].text
    assert batch.samples_ns == [1000 + machine.LAUNCH_NS + 1000] * COUNT
    assert batch.busy_ns == [2000.0] * COUNT


def test_a_call_of_one_kernel_that_waits_for_it_has_no_launch_cost_in_it(machine):
    def waits():
        machine.kernel(ns=1000)()
        machine.synchronize()

    batch = CuptiTimer(machine).collect(repeated(waits, COUNT), cold=True)
    assert batch.samples_ns == [1000.0] * COUNT
    assert (batch.launch_included, batch.notes) == (False, [])


def test_what_was_executed_in_vain_is_in_no_sample_and_no_suspicion(machine):
    """It ran while the blocking kernel had already given up."""
    machine.capacity = 40
    calls = []

    def call():
        calls.append(1)
        machine.kernel(ns=1000 if len(calls) > 21 else 77_000)()

    timer = CuptiTimer(machine)
    iterations = repeated(call, 40)
    batch = timer.collect(iterations, cold=True)
    assert len(calls) > 40, "some were executed again"
    assert batch.samples_ns == [1000.0] * 40
    assert not batch.launch_included
    assert timer.suspicion(iterations[0]) is None


# one execution in full


@pytest.fixture
def at_home(machine, monkeypatch):
    """The device as that of this process; a test may work elsewhere."""
    monkeypatch.setattr(cupti, "runtime", lambda: machine)
    monkeypatch.setattr(cupti, "in_own_context", lambda: False)
    return machine


@pytest.mark.parametrize("cold", [True, False])
def test_a_trace_is_of_the_execution_and_not_of_what_prepares_it(at_home, cold):
    machine, flushed = at_home, []
    flush = machine.flush_l2
    proven_trace(machine)
    machine.flush_l2 = lambda stream=None: (flushed.append(stream), flush(stream))
    before, stream = machine.kernel("poison", 40_000), machine.other_stream()
    trace = cupti.trace_of("launch", Iteration(machine.kernel("own", 1000), before), stream, cold=cold)
    assert trace.scope == "launch"
    (own,) = trace.activities
    assert (own.name, own.end_ns - own.start_ns) == ("own", 1000)
    assert own.start_ns == 0
    assert flushed == ([stream] if cold else [])
    assert unused(machine)


def test_a_test_in_a_context_of_its_own_has_no_trace(at_home, monkeypatch):
    monkeypatch.setattr(cupti, "in_own_context", lambda: True)
    with pytest.raises(TimerUnavailable, match="the test works in a CUDA context of its own"):
        cupti.trace_of("kernel", Iteration(at_home.kernel()), at_home.stream, cold=True)
