"""Tests what CUPTI recorded for each call, and the reasons why it could not."""

from __future__ import annotations

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_cupti import (
    ActivityKind,
    ExternalCorrelationKind,
    FakeCupti,
    FakeMachine,
    Result,
    in_a_thread,
    install,
    recorded,
)

from pytest_gpukern.timers.cupti import activity as activity_records
from pytest_gpukern.timers.cupti.activity import OURS, ActivityTrace, activity_trace
from pytest_gpukern.timers.cupti.timer import proven_trace
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.values.result import DeviceActivity, HostCopy, KernelFacts

ALWAYS = {ActivityKind.MEMCPY, ActivityKind.MEMSET, ActivityKind.DRIVER, ActivityKind.EXTERNAL_CORRELATION}
RECORDED = {True: ALWAYS | {ActivityKind.CONCURRENT_KERNEL}, False: ALWAYS | {ActivityKind.KERNEL}}
"""Whether kernels are recorded concurrently → the kinds of records that are asked for."""


@pytest.fixture
def cupti(monkeypatch):
    """CUPTI as `from cupti import cupti` finds it, attached to by nobody yet."""
    made = FakeCupti()
    install(monkeypatch, made)
    for function in (activity_trace, proven_trace):
        function.cache_clear()
    yield made
    for function in (activity_trace, proven_trace):
        function.cache_clear()


@pytest.fixture
def machine(cupti):
    return FakeMachine(cupti)


def unused(cupti):
    """Whether nothing of a recording is left: kinds that cost time, ids, a collector held back."""
    return not cupti.enabled and not cupti.pushed() and gc.isenabled()


# what is recorded


@pytest.mark.parametrize("concurrently", [True, False])
def test_a_kernel_comes_with_its_time_stream_shape_and_call(machine, concurrently):
    call = machine.kernel("_Z3addPf", 1312, grid=(2**31 - 1, 65_535, 3), registers=255)
    (found,) = recorded(ActivityTrace(), call, concurrently=concurrently)
    assert (found.kind, found.name, found.call, found.size_bytes) == ("kernel", "_Z3addPf", OURS + 1, 0)
    assert found.end_ns - found.start_ns == 1312
    assert found.stream == 7
    assert found.kernel == KernelFacts(
        "add(float*)", 255, 8, 4160, grid=(2**31 - 1, 65_535, 3), block=(128, 2, 1), symbol="_Z3addPf"
    )
    assert {type(number) for number in found.kernel.grid} == {int}, "a NumPy number overflows"


def test_no_garbage_is_collected_while_a_thread_of_cuptis_may_do_it(cupti):
    trace = ActivityTrace()
    trace.open(concurrently=True)
    assert not gc.isenabled()
    trace.close()
    assert unused(cupti)


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((1, 1, 3), "memcpy HtoD, pageable"),
        ((1, 2, 3), "memcpy HtoD, pinned"),
        ((2, 3, 1), "memcpy DtoH, pageable"),
        ((8, 3, 3), "memcpy DtoD"),
        ((6, 4, 3), "memcpy AtoD"),
        ((11, 4, 3), "memcpy kind 11"),
        ((1, 9, 3), "memcpy HtoD, kind 9"),
    ],
)
def test_a_copy_is_named_by_its_direction_and_the_hosts_kind_of_memory(machine, kinds, name):
    kind, source, target = kinds
    (found,) = recorded(
        ActivityTrace(), machine.copy(kind=kind, source=source, target=target, size=2**40 + 1)
    )
    assert (found.kind, found.name, found.size_bytes, found.kernel) == ("memcpy", name, 2**40 + 1, None)
    direction, comma, memory = name.removeprefix("memcpy ").partition(", ")
    assert found.host_copy == (HostCopy(direction, memory) if comma else None)


def test_activities_come_in_the_order_of_their_start(machine):
    other = machine.other_stream()
    machine.stream.free_at = machine.now + 10**6
    calls = [machine.kernel("late"), machine.kernel("soon", stream=other), machine.copy(stream=other)]
    assert [found.call for found in recorded(ActivityTrace(), *calls)] == [3, 4, 2]


@pytest.mark.parametrize("buffer_bytes", [512, 1 << 20])
def test_every_call_keeps_all_of_its_work_however_many_buffers_it_takes(
    monkeypatch, cupti, machine, buffer_bytes
):
    def call():
        machine.copy()()
        machine.kernel("a")()
        machine.kernel("b")()

    monkeypatch.setattr(activity_records, "_BUFFER_BYTES", buffer_bytes)
    found = recorded(ActivityTrace(), *[call] * 100)
    assert [activity.call for activity in found] == [n for n in range(2, 102) for _ in range(3)]
    assert [activity.name for activity in found[-3:]] == ["memcpy HtoD, pageable", "a", "b"]
    assert max(cupti.given_back) <= buffer_bytes


@pytest.mark.parametrize(
    ("name", "text"), [("größer", "größer"), (b"_Z\xff", "_Z\N{REPLACEMENT CHARACTER}"), (None, ""), ("", "")]
)
def test_a_name_that_is_no_text_or_is_missing_is_read_as_well_as_may_be(machine, name, text):
    (found,) = recorded(ActivityTrace(), machine.kernel(name))
    assert found.name == text


def test_work_that_the_runtime_api_launched_is_attributed_once_it_is_followed(cupti, machine):
    """Its records cost as much as all the others, so that they are asked for only where they are needed."""
    trace = ActivityTrace()
    assert [found.call for found in recorded(trace, machine.kernel(api=ActivityKind.RUNTIME))] == [None]
    assert trace.follow_threads()
    assert [found.call for found in recorded(trace, machine.kernel(api=ActivityKind.RUNTIME))] == [OURS + 1]
    assert [found.call for found in recorded(trace, machine.kernel(api=ActivityKind.DRIVER))] == [OURS + 1]
    assert not trace.follow_threads(), "it is followed already"
    assert unused(cupti)


def test_work_between_calls_is_ours_and_not_looked_at(machine):
    """Reading a name takes microseconds, and there are more flushes than calls."""
    trace = ActivityTrace()
    trace.open(concurrently=True)
    machine.kernel("before")()
    trace.push(9)
    machine.kernel("call")()
    trace.pop()
    machine.kernel("after")()
    assert [(a.name, a.kernel is None, a.call) for a in trace.close()] == [
        ("", True, OURS),
        ("call", False, 9),
        ("", True, OURS),
    ]


@pytest.mark.parametrize("api", [ActivityKind.DRIVER, ActivityKind.RUNTIME])
def test_work_of_another_thread_belongs_to_the_call_during_which_it_is_launched(machine, api):
    """As PyTorch's backward passes, once threads are followed."""
    backward = in_a_thread(machine.kernel("backward", api=api))
    calls = [backward, lambda: (backward(), machine.kernel("its own")()), backward]
    trace = ActivityTrace()
    assert [found.call for found in recorded(trace, *calls)] == [None, None, OURS + 2, None]
    trace.follow_threads()
    assert [found.call for found in recorded(trace, *calls)] == [OURS + 1, OURS + 2, OURS + 2, OURS + 3]


def test_a_thread_that_also_launches_between_the_calls_works_for_none(machine):
    trace = ActivityTrace()
    trace.follow_threads()
    trace.open(concurrently=True)
    with ThreadPoolExecutor(1) as heart:

        def beats():
            heart.submit(machine.kernel("beat")).result()

        for call in (OURS + 1, OURS + 2):
            trace.push(call)
            beats()
            machine.kernel("its own")()
            trace.pop()
        beats()
    assert [(found.name, found.call) for found in trace.close()] == [
        ("beat", None),
        ("its own", OURS + 1),
        ("beat", None),
        ("its own", OURS + 2),
        ("beat", None),
    ]


def test_ids_that_somebody_else_pushes_are_not_ours(cupti, machine):
    """PyTorch's profiler uses ids of another kind."""

    def call():
        cupti.activity_push_external_correlation_id(ExternalCorrelationKind.CUSTOM1, 777)
        machine.kernel()()
        cupti.activity_pop_external_correlation_id(ExternalCorrelationKind.CUSTOM1)

    assert [found.call for found in recorded(ActivityTrace(), call)] == [OURS + 1]


# when


@pytest.mark.parametrize("concurrently", [True, False])
def test_nothing_is_recorded_unless_a_recording_is_open(cupti, machine, concurrently):
    trace = ActivityTrace()
    assert unused(cupti)
    machine.kernel("too early")()
    trace.open(concurrently=concurrently)
    assert cupti.enabled == RECORDED[concurrently]
    trace.push(2)
    machine.kernel("in time")()
    trace.pop()
    found = trace.close()
    assert unused(cupti)
    machine.kernel("too late")()
    assert [activity.name for activity in found] == ["in time"]
    assert trace.close() == []


def test_a_trace_is_used_again_in_another_way_and_keeps_nothing(machine):
    trace = ActivityTrace()
    for name, concurrently in (("first", True), ("second", False), ("third", True)):
        (found,) = recorded(trace, machine.kernel(name), concurrently=concurrently)
        assert (found.name, found.call) == (name, OURS + 1)


def test_a_recording_that_is_closed_within_a_call_leaves_no_id_behind(cupti, machine):
    trace = ActivityTrace()
    trace.open(concurrently=True)
    trace.push(2)
    trace.push(3)
    machine.kernel()()
    assert [found.call for found in trace.close()] == [3]
    assert unused(cupti)


# why not


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'cupti'", name="cupti"), "cupti-python is not installed"),
        (ImportError("libcupti.so.13: cannot open"), "does not load: libcupti.so.13: cannot open"),
        (
            ModuleNotFoundError("No module named 'numpy'", name="numpy"),
            "does not load: No module named 'numpy'",
        ),
        (RuntimeError("driver is too old"), "does not load: driver is too old"),
    ],
)
def test_a_package_that_is_missing_or_does_not_load_is_named(monkeypatch, error, reason):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "cupti":
                raise error

    monkeypatch.delitem(sys.modules, "cupti", raising=False)
    monkeypatch.delitem(sys.modules, "cupti.cupti", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(TimerUnavailable, match=reason):
        ActivityTrace()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Result.ERROR_INSUFFICIENT_PRIVILEGES, "only administrators profile"),
        (Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "another profiler is attached"),
        (Result.ERROR_NOT_COMPATIBLE, "install the cupti-python of the driver's CUDA"),
        (Result.ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED, "virtual GPU does not allow profiling"),
        (Result.ERROR_UNKNOWN, r"ERROR_UNKNOWN \(999\)"),
    ],
)
def test_what_was_unavailable_says_why_and_is_tried_again(cupti, status, reason):
    """Another profiler may have been detached."""
    cupti.errors["cuptiActivityRegisterCallbacks"] = status
    with pytest.raises(TimerUnavailable, match=f"CUPTI: .*{reason}"):
        activity_trace()
    cupti.errors.clear()
    assert activity_trace() is activity_trace()
    assert cupti.registered == 1


@pytest.mark.parametrize(
    ("kind", "concurrently"),
    [(kind, way) for way, kinds in RECORDED.items() for kind in sorted({*kinds, ActivityKind.RUNTIME})],
)
def test_a_kind_that_cannot_be_enabled_says_why_and_leaves_none_enabled(cupti, machine, kind, concurrently):
    """What stays enabled costs every later API call 8 to 15 %, also those that events time."""
    trace = ActivityTrace()
    trace.follow_threads()
    cupti.errors["activity_enable", kind] = Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    with pytest.raises(TimerUnavailable, match="CUPTI: another profiler is attached"):
        trace.open(concurrently=concurrently)
    assert unused(cupti)
    cupti.errors.clear()
    assert len(recorded(trace, machine.kernel())) == 1, "it can be used once the reason is gone"


def test_a_library_that_cupti_python_does_not_find_is_named(cupti, monkeypatch):
    """It raises only where a function is called, and through C that becomes a SystemError."""

    def raised_in_c(*callbacks):
        raise SystemError("an exception is set") from RuntimeError("Failed to dlopen libcupti.so.13")

    monkeypatch.setattr(activity_records, "_functions", lambda: (raised_in_c, None))
    with pytest.raises(TimerUnavailable, match=r"CUPTI cannot be loaded: Failed to dlopen libcupti\.so\.13"):
        activity_trace()


def fails_at(record):
    raise ValueError(f"{record.bytes} bytes")


PUSH = "activity_push_external_correlation_id"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda cupti, trace: cupti.errors.update({(PUSH, OURS): Result.ERROR_UNKNOWN}), "ERROR_UNKNOWN"),
        (
            lambda cupti, trace: cupti.errors.update({(PUSH, OURS + 1): Result.ERROR_INVALID_PARAMETER}),
            r"CUPTI: ERROR_INVALID_PARAMETER \(1\)",
        ),
        (
            lambda cupti, trace: cupti.errors.update(activity_flush_all=Result.ERROR_UNKNOWN),
            "CUPTI: ERROR_UNKNOWN",
        ),
        # On CUPTI's thread an exception would be lost, or end the process.
        (
            lambda cupti, trace: trace.listeners.update({ActivityKind.MEMSET: fails_at}),
            "records could not be read: 256 bytes",
        ),
    ],
)
def test_what_fails_in_a_recording_says_why_and_the_next_one_works(cupti, machine, spoil, reason):
    trace = ActivityTrace()
    spoil(cupti, trace)
    with pytest.raises(TimerUnavailable, match=reason):
        recorded(trace, machine.memset(size=256))
    assert unused(cupti)
    cupti.errors.clear()
    trace.listeners.clear()
    assert recorded(trace, machine.kernel())[-1].name == "k"


def test_a_call_that_pops_an_id_it_did_not_push_says_so_and_recording_ends(cupti, machine):
    trace = ActivityTrace()
    with pytest.raises(TimerUnavailable, match="ERROR_QUEUE_EMPTY"):
        recorded(trace, lambda: cupti.activity_pop_external_correlation_id(ExternalCorrelationKind.CUSTOM0))
    assert unused(cupti)
    assert len(recorded(trace, machine.kernel())) == 1


# one execution in full


def in_full(trace, call):
    trace.open(concurrently=True)
    try:
        call()
    finally:
        activities = trace.close_in_full()
    return activities


def test_an_execution_in_full_has_all_that_reports_show_of_it(cupti, machine):
    def call():
        machine.copy(3000, size=4096)()
        machine.memset(700, size=256)()
        machine.kernel("_Z3addPf", 1312, grid=(8, 4, 2), registers=40)()
        machine.copy(5000, kind=2, source=3, target=2, size=64)()

    found = in_full(ActivityTrace(), call)
    where = {"device": 0, "context": 1, "stream": 7}
    copied = {"source": "Pageable", "target": "Device"}
    assert found == [
        DeviceActivity("memcpy", "memcpy HtoD", 0, 3000, **where, size_bytes=4096, **copied),
        DeviceActivity("memset", "memset", 3500, 4200, **where, size_bytes=256, source="Device"),
        DeviceActivity(
            *("kernel", "add(float*)", 4700, 6012),
            **where,
            grid=(8, 4, 2),
            block=(128, 2, 1),
            registers=40,
            static_shared_bytes=64,
            dynamic_shared_bytes=4096,
        ),
        DeviceActivity(
            *("memcpy", "memcpy DtoH", 6512, 11_512),
            **where,
            size_bytes=64,
            source="Device",
            target="Pinned",
        ),
    ]
    assert {type(number) for each in found for number in (each.start_ns, *(each.grid or ()))} == {int}
    assert unused(cupti)


def test_work_of_other_threads_is_in_it_without_following_them(machine):
    """Records of runtime calls cost more than all others."""
    backward = in_a_thread(machine.kernel("backward", api=ActivityKind.RUNTIME))
    found = in_full(ActivityTrace(), lambda: (backward(), machine.kernel("own")()))
    assert [each.name for each in found] == ["backward", "own"]


def test_an_execution_that_fails_leaves_nothing_to_the_next_recording(cupti, machine):
    def fails():
        machine.kernel("failing")()
        raise KeyError("of the call")

    trace = ActivityTrace()
    with pytest.raises(KeyError):
        in_full(trace, fails)
    assert unused(cupti)
    assert [found.name for found in recorded(trace, machine.kernel("next"))] == ["next"]


# buffers, and layouts of records


def test_the_newest_version_of_a_layout_counts_and_not_that_of_another_record(cupti, machine):
    older = np.dtype([("kind", "i4"), ("start", "i4")])
    for layout in ("kernel", "kernel9", "memset3", "memcpy", "memcpy_pto_p4"):
        setattr(cupti, f"activity_{layout}_dtype", older)
    found = recorded(ActivityTrace(), machine.kernel(), machine.copy(), machine.memset())
    assert [activity.kind for activity in found] == ["kernel", "memcpy", "memset"]


@pytest.mark.parametrize("longer", [0, 8])
@pytest.mark.parametrize("kernels", [0, 3])
def test_a_buffer_is_kept_until_it_is_given_back_and_dropped_then(cupti, machine, kernels, longer):
    cupti.longer[ActivityKind.CONCURRENT_KERNEL] = longer
    trace = ActivityTrace()
    trace.open(concurrently=True)
    cupti.request_buffer()
    for _ in range(kernels):
        machine.kernel()()
    (memory,) = (weakref.ref(memory) for memory in trace._buffers._buffers.values())
    gc.collect()
    assert cupti._address == memory().ctypes.data
    assert cupti._size == memory().nbytes
    cupti.activity_flush_all(1)
    trace._buffers.error = None  # its traceback has the frame
    assert memory() is None
    trace.close()


def without_field(cupti, layout, field):
    declared = getattr(cupti, layout)
    setattr(cupti, layout, declared[[name for name in declared.names if name != field]])


@pytest.mark.parametrize(
    ("spoil", "missing"),
    [
        (lambda cupti: delattr(cupti, "activity_memset4_dtype"), "activity_memset_dtype"),
        (
            lambda cupti: without_field(cupti, "activity_kernel10_dtype", "local_memory_per_thread"),
            "local_memory_per_thread",
        ),
        (lambda cupti: setattr(cupti, "activity_memcpy6_dtype", np.dtype("u8")), "no fields"),
        (lambda cupti: delattr(sys.modules["cupti"], "cycupti"), "cycupti"),
        (lambda cupti: delattr(cupti.cycupti, "__pyx_capi__"), "__pyx_capi__"),
        (lambda cupti: cupti.cycupti.__pyx_capi__.pop("cuptiActivityGetNextRecord"), "GetNextRecord"),
        (lambda cupti: cupti.export("cuptiActivityRegisterCallbacks", b"int (void)"), "incorrect name"),
    ],
)
def test_what_cupti_python_does_not_export_as_known_is_named(cupti, spoil, missing):
    spoil(cupti)
    with pytest.raises(TimerUnavailable, match=f"does not export what we need: .*{missing}"):
        ActivityTrace()


@pytest.mark.parametrize("by", [8, -8])
@pytest.mark.parametrize(
    "kind", [ActivityKind.EXTERNAL_CORRELATION, ActivityKind.CONCURRENT_KERNEL, ActivityKind.MEMSET]
)
def test_records_of_another_length_than_declared_fail_wherever_they_lie(cupti, machine, kind, by):
    cupti.longer[kind] = by
    trace = ActivityTrace()
    for calls in (
        (machine.memset(), machine.kernel(), machine.memset()),
        (machine.memset(), machine.kernel()),
    ):
        with pytest.raises(
            TimerUnavailable, match=r"records could not be read: .*not as long as cupti-python declares"
        ):
            recorded(trace, lambda calls=calls: [call() for call in calls])
    cupti.longer.clear()
    assert len(recorded(trace, machine.kernel())) == 1, "the next recording is read"


def test_the_first_flush_of_a_process_may_launch_more_than_one_kernel(machine, monkeypatch):
    flush = machine.flush_l2

    def first(stream=None):
        monkeypatch.setattr(machine, "flush_l2", flush)
        machine.kernel("fill")()
        flush(stream)

    monkeypatch.setattr(machine, "flush_l2", first)
    assert proven_trace(machine) is activity_trace()


def test_a_buffer_that_cannot_be_made_is_reported_where_the_records_are_wanted(monkeypatch, cupti, machine):
    """CUPTI drops the records then."""

    def no_memory(*arguments):
        raise MemoryError("no memory for a buffer")

    trace = ActivityTrace()
    with monkeypatch.context() as scarce:
        scarce.setattr(np, "empty", no_memory)
        with pytest.raises(TimerUnavailable, match="no memory for a buffer"):
            recorded(trace, machine.kernel())
    assert cupti.dropped == 3
    assert not cupti.enabled
    assert len(recorded(trace, machine.kernel())) == 1
