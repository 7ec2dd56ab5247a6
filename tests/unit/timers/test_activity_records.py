"""Records as they lie in CUPTI's buffers: what is read of them, and when cupti-python has to read them."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
from fake_cupti import (
    EPOCH_NS,
    LAYOUTS,
    WAYS,
    ActivityKind,
    ExternalCorrelationKind,
    FakeMachine,
    RawCupti,
    Result,
    install,
    recorded,
)

from pytest_gpukern.timers.cupti import activity as activity_records
from pytest_gpukern.timers.cupti.activity import (
    ActivityTrace,
    LayoutUnknownError,
    RecordBuffers,
    activity_trace,
)
from pytest_gpukern.timers.cupti.timer import proven_trace
from pytest_gpukern.timers.timer import TimerUnavailable

READ = [name for name in LAYOUTS if name != "activity_api_dtype"]
FUNCTIONS = ["cuptiActivityRegisterCallbacks", "cuptiActivityGetNextRecord"]
LENGTH = r"records could not be read: .*not as long as cupti-python declares"


@pytest.fixture
def cupti(monkeypatch):
    """CUPTI whose buffers can be read."""
    made = RawCupti()
    install(monkeypatch, made)
    for function in (activity_trace, proven_trace):
        function.cache_clear()
    yield made
    for function in (activity_trace, proven_trace):
        function.cache_clear()


@pytest.fixture
def machine(cupti):
    """A device whose work CUPTI records."""
    return FakeMachine(cupti)


class Received:
    """What came of all buffers, and the errors."""

    def __init__(self, cupti):
        self.records, self.errors, self.buffers = [], [], 0
        self.reader = RecordBuffers(cupti, self.take, self.errors.append)
        assert self.reader.register()
        cupti.enabled = set(ActivityKind) - {ActivityKind.KERNEL}

    def take(self, records):
        self.records += records
        self.buffers += 1


@pytest.fixture
def received(cupti):
    """Has all kinds of records, read from buffers once these are flushed."""
    return Received(cupti)


def flushed(cupti, received):
    """The records by kind."""
    cupti.activity_flush_all(1)
    assert received.errors == []
    return {
        kind: [record for record in received.records if record.kind == kind]
        for kind in {record.kind for record in received.records}
    }


def everything(machine):
    """Calls that leave one record or several of every kind."""
    other = machine.other_stream()
    return [
        machine.kernel("_Z3addPf", 1312, grid=(2**31 - 1, 65_535, 3), registers=255),
        machine.copy(kind=2, source=3, target=1, size=2**40 + 1),
        machine.memset(size=1024, stream=other),
        lambda: (machine.kernel("a")(), machine.kernel("b", stream=other)(), machine.copy()()),
        machine.kernel("by the runtime", api=ActivityKind.RUNTIME),
    ]


# what is read


def test_buffers_and_objects_give_the_same_activities(monkeypatch):
    found = {}
    for way, made in WAYS.items():
        cupti = made()
        install(monkeypatch, cupti)
        trace, machine = ActivityTrace(), FakeMachine(cupti)
        found[way] = recorded(trace, *everything(machine))
        assert trace.reads_buffers is (way == "buffers")
        assert vars(cupti).get("given_back") != []
    assert len(found["objects"]) == 7
    assert found["buffers"] == found["objects"]


def test_the_fields_of_a_kernel_are_those_that_were_written(cupti, received, machine):
    machine.kernel("_Z3addPf", 1312, grid=(2**31 - 1, 65_535, 3), registers=255)()
    (kernel,) = flushed(cupti, received)[ActivityKind.CONCURRENT_KERNEL]
    assert (kernel.name, kernel.stream_id, kernel.correlation_id) == ("_Z3addPf", 7, 1)
    assert (kernel.start, kernel.end) == (EPOCH_NS + 1_002_000, EPOCH_NS + 1_003_312)
    assert (kernel.grid_x, kernel.grid_y, kernel.grid_z) == (2**31 - 1, 65_535, 3)
    assert (kernel.block_x, kernel.block_y, kernel.block_z) == (128, 2, 1)
    assert (kernel.static_shared_memory, kernel.dynamic_shared_memory) == (64, 4096)
    assert (kernel.registers_per_thread, kernel.local_memory_per_thread) == (255, 8)


def test_the_fields_of_the_other_kinds_are_those_that_were_written(cupti, received, machine):
    cupti.activity_push_external_correlation_id(ExternalCorrelationKind.CUSTOM1, 2**63 + 5)
    machine.copy(3000, kind=2, source=3, target=5, size=2**40 + 1)()
    machine.memset(700, size=2**33)()
    cupti.activity_enable(ActivityKind.CONCURRENT_KERNEL)  # before which there is no record of a function
    cupti.module_loaded(b"code", "_Z3mulPf")
    found = flushed(cupti, received)
    (copy,), (memset,), (function,) = (
        found[kind] for kind in (ActivityKind.MEMCPY, ActivityKind.MEMSET, ActivityKind.FUNCTION)
    )
    assert (function.name, function.module_id) == ("_Z3mulPf", 1)
    assert (copy.copy_kind, copy.src_kind, copy.dst_kind, copy.bytes) == (2, 3, 5, 2**40 + 1)
    assert (copy.end - copy.start, memset.end - memset.start, memset.bytes) == (3000, 700, 2**33)
    assert (copy.stream_id, memset.stream_id, copy.correlation_id, memset.correlation_id) == (7, 7, 1, 2)
    assert [
        (each.external_kind, each.external_id, each.correlation_id)
        for each in found[ActivityKind.EXTERNAL_CORRELATION]
    ] == [(ExternalCorrelationKind.CUSTOM1, 2**63 + 5, 1), (ExternalCorrelationKind.CUSTOM1, 2**63 + 5, 2)]


def test_values_are_pythons_own(cupti, received, machine):
    """A NumPy number overflows, and would make every sum and comparison slower."""
    machine.kernel()()
    (kernel,) = flushed(cupti, received)[ActivityKind.CONCURRENT_KERNEL]
    assert {type(value) for value in kernel} == {int, str}


@pytest.mark.parametrize(
    ("name", "text"), [("größer", "größer"), (b"_Z\xff", "_Z\N{REPLACEMENT CHARACTER}"), (None, ""), ("", "")]
)
def test_a_name_that_is_no_text_or_is_missing_is_read_as_well_as_may_be(cupti, received, machine, name, text):
    machine.kernel(name)()
    (kernel,) = flushed(cupti, received)[ActivityKind.CONCURRENT_KERNEL]
    assert kernel.name == text


def test_records_of_other_kinds_are_left_out(cupti, received, machine):
    machine.kernel()()
    machine.kernel(api=ActivityKind.RUNTIME)()
    assert set(flushed(cupti, received)) == {ActivityKind.CONCURRENT_KERNEL}
    assert sum(cupti.given_back) == 2 * (LAYOUTS["activity_kernel10_dtype"].itemsize + 40), "they were there"


def test_the_newest_version_of_a_layout_counts(cupti, machine):
    """Of two numbers of different length, too, and not the one without a number."""
    older = np.dtype([("kind", "i4"), ("start", "i4")])
    cupti.activity_kernel_dtype = cupti.activity_kernel9_dtype = cupti.activity_memset3_dtype = older
    cupti.activity_memcpy_dtype = older
    trace = ActivityTrace()
    found = recorded(trace, *everything(machine))
    assert trace.reads_buffers
    assert len(found) == 7


def test_layouts_of_other_records_are_not_taken_for_these(cupti):
    cupti.activity_memcpy_pto_p4_dtype = cupti.activity_kernel99_dtypes = np.dtype([("kind", "i4")])
    del cupti.activity_api_dtype
    assert ActivityTrace().reads_buffers


# buffers


@pytest.mark.parametrize("size", [256, 1024])
def test_all_buffers_of_a_recording_are_read(monkeypatch, cupti, machine, size):
    monkeypatch.setattr(activity_records, "_BUFFER_BYTES", size)
    found = recorded(ActivityTrace(), *[machine.kernel(ns=1000 + number) for number in range(50)])
    assert [activity.end_ns - activity.start_ns for activity in found] == [1000 + n for n in range(50)]
    assert [activity.call for activity in found] == list(range(2, 52))
    assert len(cupti.given_back) >= 50 * 280 / size
    assert max(cupti.given_back) <= size


def test_a_buffer_that_is_given_back_without_a_record_is_nothing(cupti, received):
    cupti.request_buffer()
    assert flushed(cupti, received) == {}
    assert cupti.given_back == [0]
    assert received.buffers == 0
    assert not received.reader._buffers


def memories(reader):
    return [weakref.ref(memory) for memory in reader._buffers.values()]


@pytest.mark.parametrize("kernels", [0, 3])
def test_a_buffer_is_kept_until_it_is_given_back_and_dropped_then(cupti, received, machine, kernels):
    cupti.request_buffer()
    for _ in range(kernels):
        machine.kernel()()
    (memory,) = memories(received.reader)
    gc.collect()
    assert memory() is not None
    assert cupti._address == memory().ctypes.data
    assert cupti._size == memory().nbytes
    flushed(cupti, received)
    assert memory() is None


def test_a_buffer_that_cannot_be_read_is_dropped_too(cupti, received, machine):
    cupti.longer[ActivityKind.MEMSET] = 8
    machine.memset()()
    (memory,) = memories(received.reader)
    cupti.activity_flush_all(1)
    assert [type(error) for error in received.errors] == [LayoutUnknownError]
    received.errors.clear()  # its traceback has the frame
    assert memory() is None


def test_a_buffer_that_cupti_still_has_is_kept_when_objects_are_read(cupti, machine):
    """CUPTI may write to it whenever it likes."""
    trace = ActivityTrace()
    cupti.request_buffer()
    (memory,) = memories(trace._buffers)
    trace.read_objects()
    gc.collect()
    assert memory() is not None
    assert not trace.reads_buffers
    assert [activity.name for activity in recorded(trace, machine.kernel("k"))] == ["k"]


# when they cannot be read


def without_field(cupti, layout, field):
    declared = getattr(cupti, layout)
    setattr(cupti, layout, declared[[name for name in declared.names if name != field]])


def no_cycupti(cupti, monkeypatch):
    monkeypatch.delattr(sys.modules["cupti"], "cycupti")


SPOILT = {
    **{f"no {layout}": (lambda cupti, _, name=layout: delattr(cupti, name)) for layout in READ},
    **{
        f"no kind in {layout}": (lambda cupti, _, name=layout: without_field(cupti, name, "kind"))
        for layout in READ
    },
    "no field": lambda cupti, _: without_field(cupti, "activity_kernel10_dtype", "local_memory_per_thread"),
    "no fields": lambda cupti, _: setattr(cupti, "activity_memset4_dtype", np.dtype("u8")),
    **{
        f"no {name}": (lambda cupti, _, name=name: cupti.cycupti.__pyx_capi__.pop(name)) for name in FUNCTIONS
    },
    **{
        f"{name} changed": (lambda cupti, _, name=name: cupti.export(name, b"int (void)"))
        for name in FUNCTIONS
    },
    "no cycupti": no_cycupti,
    "no functions": lambda cupti, _: delattr(cupti.cycupti, "__pyx_capi__"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_where_something_is_missing_or_other_than_known_objects_are_read(monkeypatch, cupti, machine, what):
    SPOILT[what](cupti, monkeypatch)
    with pytest.raises(LayoutUnknownError):
        RecordBuffers(cupti, None, None)
    trace = ActivityTrace()
    assert not trace.reads_buffers
    assert len(recorded(trace, *everything(machine))) == 7
    assert (cupti.given_back, cupti.registered) == ([], 1)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("no activity_memset4_dtype", "has no layout of memset records"),
        ("no field", "layout of kernel records has no field 'local_memory_per_thread'"),
        ("no cycupti", "does not export CUPTI's functions: .*cycupti"),
        ("no cuptiActivityGetNextRecord", "no cuptiActivityGetNextRecord of the signature that is known"),
        ("cuptiActivityRegisterCallbacks changed", "no cuptiActivityRegisterCallbacks of the signature"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, cupti, what, reason):
    SPOILT[what](cupti, monkeypatch)
    with pytest.raises(LayoutUnknownError, match=reason):
        RecordBuffers(cupti, None, None)


def test_where_cupti_does_not_take_the_callbacks_objects_are_read(cupti, machine):
    cupti.errors["cuptiActivityRegisterCallbacks"] = Result.ERROR_INVALID_PARAMETER
    trace = ActivityTrace()
    assert not trace.reads_buffers
    assert len(recorded(trace, *everything(machine))) == 7
    assert cupti.given_back == []


# when reading fails


@pytest.mark.parametrize("by", [8, -8])
@pytest.mark.parametrize(
    "kind", [ActivityKind.EXTERNAL_CORRELATION, ActivityKind.CONCURRENT_KERNEL, ActivityKind.MEMSET]
)
def test_records_of_another_length_than_declared_fail_wherever_they_lie(cupti, machine, kind, by):
    """Also the last one of a buffer."""
    cupti.longer[kind] = by
    trace = ActivityTrace()
    with pytest.raises(TimerUnavailable, match=LENGTH):
        recorded(trace, lambda: (machine.memset()(), machine.kernel()(), machine.memset()()))
    with pytest.raises(TimerUnavailable, match=LENGTH):
        recorded(trace, lambda: (machine.memset()(), machine.kernel()()))
    cupti.longer.clear()
    assert len(recorded(trace, machine.kernel())) == 1, "the next recording is read"


def test_records_of_other_kinds_may_have_any_length(cupti, machine):
    cupti.longer[ActivityKind.DRIVER] = 16
    assert len(recorded(ActivityTrace(), *everything(machine))) == 7


def test_where_buffers_are_read_cupti_is_proven_with_them(cupti, machine):
    assert proven_trace(machine).reads_buffers
    assert (machine.flushes, cupti.registered) == (2, 1)


def test_the_first_flush_of_a_process_may_launch_more_than_one_kernel(machine, monkeypatch):
    flush = machine.flush_l2

    def first(stream=None):
        monkeypatch.setattr(machine, "flush_l2", flush)
        machine.kernel("fill")()
        flush(stream)

    monkeypatch.setattr(machine, "flush_l2", first)
    assert proven_trace(machine).reads_buffers


@pytest.mark.parametrize("kind", [ActivityKind.EXTERNAL_CORRELATION, ActivityKind.CONCURRENT_KERNEL])
def test_where_the_first_recording_cannot_be_read_cupti_is_proven_with_objects(cupti, machine, kind):
    cupti.longer[kind] = 8
    trace = proven_trace(machine)
    assert not trace.reads_buffers
    assert (machine.flushes, cupti.registered) == (3, 2)
    assert [activity.name for activity in recorded(trace, machine.kernel("k"))] == ["k"]


def test_where_objects_fail_as_well_it_is_their_failure_that_is_told(cupti, machine):
    cupti.longer[ActivityKind.EXTERNAL_CORRELATION] = 8
    cupti.activity_register_callbacks = lambda *callbacks: cupti._may_fail("as objects")
    cupti.errors["as objects"] = Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    with pytest.raises(TimerUnavailable, match="another profiler is attached"):
        proven_trace(machine)


def test_what_the_taker_of_records_raises_reaches_no_thread_of_cuptis(cupti, received, machine):
    """Pytest would tell of an exception that nobody caught."""
    reason = ValueError("not understood")

    def fails(records):
        raise reason

    received.reader._hand_over = fails
    machine.kernel()()
    cupti.activity_flush_all(1)
    assert received.errors == [reason]


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
