"""Tests what the package makes of what CUPTI said on a GPU, and why it cannot use CUPTI."""

from __future__ import annotations

import itertools
import json
import os
import sys

import numpy as np
import pytest
from cupti_replay import SCENARIOS, Status, plain, recording
from record_cupti import FILE, NEXT, REGISTER

from pytest_gpukern.timers.cupti import activity
from pytest_gpukern.timers.cupti.activity import OURS, ActivityTrace, activity_trace
from pytest_gpukern.timers.cupti.timer import proven_trace
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.values.result import HostCopy

FOLLOWED = "a thread, followed"
OUTCOMES = FILE.with_name("outcomes.json")
MEMCPY, MEMSET, DRIVER, KERNEL, EXTERNAL = 1, 2, 4, 10, 39
"""Kinds of records."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_cupti_said_on_a_gpu_is_read_as_it_was_there(replay, name):
    """What the package made of it there was the same. `GPUKERN_WRITE_GOLDEN=1` writes it anew."""
    try:
        outcome = plain(replay.drive(name))
    except TimerUnavailable as error:
        outcome = {"raised": [type(error).__name__, str(error)]}
    outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    if os.environ.get("GPUKERN_WRITE_GOLDEN"):
        outcomes[name] = outcome
        lines = [f"{json.dumps(each)}: {json.dumps(outcomes[each])}" for each in sorted(outcomes)]
        OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    assert outcome == outcomes[name]


def changing(kind, **fields):
    """Spoils the records of a kind."""
    return lambda record: vars(record).update(fields) if record.kind == kind else None


# what is recorded


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((1, 1, 3), "memcpy HtoD, pageable"),
        ((2, 3, 2), "memcpy DtoH, pinned"),
        ((6, 4, 3), "memcpy AtoD"),
        ((10, 3, 3), "memcpy PtoP"),
        ((11, 4, 3), "memcpy kind 11"),
        ((1, 9, 3), "memcpy HtoD, kind 9"),
    ],
)
def test_a_copy_is_named_by_its_direction_and_the_hosts_kind_of_memory(replay, kinds, name):
    fields = dict(zip(("copy_kind", "src_kind", "dst_kind"), kinds, strict=True))
    replay.spoil = changing(MEMCPY, bytes=2**40 + 1, **fields)
    (copy,) = (each for each in replay.drive("two streams") if each.kind == "memcpy")
    assert (copy.name, copy.size_bytes) == (name, 2**40 + 1)
    direction, comma, memory = name.removeprefix("memcpy ").partition(", ")
    assert copy.host_copy == (HostCopy(direction, memory) if comma else None)


@pytest.mark.parametrize(
    ("name", "text"), [("größer", "größer"), (b"_Z\xff", "_Z\N{REPLACEMENT CHARACTER}"), (None, ""), ("", "")]
)
def test_a_name_that_is_no_text_or_is_missing_is_read_as_well_as_may_be(replay, name, text):
    replay.spoil = changing(KERNEL, name=name)
    assert [found.name for found in replay.drive("a kernel, recorded")] == [text]


def test_work_between_calls_is_ours_and_its_name_is_not_looked_at(replay):
    replay.spoil = changing(EXTERNAL, external_id=OURS)
    (found,) = replay.drive("a kernel, recorded")
    assert (found.call, found.name, found.kernel) == (OURS, "", None)


def test_ids_that_somebody_else_pushes_are_not_ours(replay):
    """PyTorch's profiler uses ids of another kind."""
    replay.spoil = changing(EXTERNAL, external_kind=4)
    assert [found.call for found in replay.drive("a kernel, recorded")] == [None]


@pytest.mark.parametrize(("at", "call"), [(1001, OURS + 1), (2000, OURS + 1), (2001, None)])
def test_a_thread_works_for_the_call_during_which_it_launches(replay, at, call):
    times = itertools.cycle((1000, 2000, 3000, 4000))
    replay.edit = lambda event: (
        {**event, "result": next(times)} if event.get("call") == "get_timestamp" else event
    )
    replay.spoil = changing(DRIVER, start=at)
    assert [found.call for found in replay.drive(FOLLOWED)] == [call, OURS + 2]


def test_buffers_that_were_given_back_are_dropped(replay):
    replay.drive("small buffers")
    assert not activity_trace()._buffers._buffers


# why not


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'cupti'", name="cupti"), "cupti-python is not installed"),
        (ImportError("libcupti.so.13: cannot open"), "does not load: libcupti.so.13: cannot open"),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "does not load: No module named"),
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
        (Status.ERROR_INSUFFICIENT_PRIVILEGES, "only administrators profile"),
        (Status.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "another profiler is attached"),
        (Status.ERROR_NOT_COMPATIBLE, "install the cupti-python of the driver's CUDA"),
        (Status.ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED, "virtual GPU does not allow profiling"),
        (Status.ERROR_UNKNOWN, r"ERROR_UNKNOWN \(999\)"),
    ],
)
def test_what_was_unavailable_says_why_and_is_tried_again(replay, status, reason):
    """Another profiler may have been detached."""
    replay.refuse = lambda name, *arguments: status
    with pytest.raises(TimerUnavailable, match=f"CUPTI: .*{reason}"):
        replay.drive("a kernel, recorded")
    replay.refuse = lambda name, *arguments: None
    assert len(replay.drive("a kernel, recorded")) == 1
    assert activity_trace() is activity_trace()


REFUSABLE = {
    (event["call"], *event["arguments"])
    for event in recording()[FOLLOWED]["events"]
    if event.get("call", "").startswith("activity_") and event["call"] != "activity_disable"
}


@pytest.mark.parametrize("refused", sorted(REFUSABLE))
def test_whatever_cupti_refuses_says_why_and_the_next_recording_works(replay, refused):
    """What stays enabled costs every later API call 8 to 15 %, also those that events time."""
    outcome = plain(replay.drive(FOLLOWED))
    replay.refuse = lambda *called: Status.ERROR_UNKNOWN if called == refused else None
    with pytest.raises(TimerUnavailable, match=r"^CUPTI: ERROR_UNKNOWN \(999\)$"):
        replay.drive(FOLLOWED)
    replay.refuse = lambda *called: None
    if "pop" in refused[0]:
        replay.pushed.clear()
    assert replay.unused
    assert plain(replay.drive(FOLLOWED)) == outcome


def test_a_library_that_cupti_python_does_not_find_is_named(replay, monkeypatch):
    """It raises only where a function is called, and through C that becomes a SystemError."""

    def raised_in_c(*callbacks):
        raise SystemError("an exception is set") from RuntimeError("Failed to dlopen libcupti.so.13")

    monkeypatch.setattr(activity, "_functions", lambda: (raised_in_c, None))
    with pytest.raises(TimerUnavailable, match=r"CUPTI cannot be loaded: Failed to dlopen libcupti\.so\.13"):
        activity_trace()


def test_an_error_on_cuptis_thread_says_why_and_the_next_recording_works(replay):
    """There an exception would be lost, or end the process."""

    def fails_at(record):
        raise ValueError(f"{record.bytes} bytes")

    activity_trace().listeners[MEMSET] = fails_at
    with pytest.raises(TimerUnavailable, match="records could not be read: 262144 bytes"):
        replay.drive("all kinds")
    activity_trace().listeners.clear()
    assert len(replay.drive("all kinds")) == 8


# cupti-python


def test_the_newest_version_of_a_layout_counts_and_not_that_of_another_record(replay):
    older = np.dtype([("kind", "i4"), ("start", "i4")])
    for layout in ("kernel", "kernel9", "memset3", "memcpy", "memcpy_pto_p4"):
        setattr(replay, f"activity_{layout}_dtype", older)
    assert {found.kind for found in replay.drive("all kinds")} == {"kernel", "memcpy", "memset"}


def without_field(replay, layout, field):
    declared = getattr(replay, layout)
    setattr(replay, layout, declared[[name for name in declared.names if name != field]])


@pytest.mark.parametrize(
    ("spoil", "missing"),
    [
        (lambda replay: delattr(replay, "activity_memset4_dtype"), "activity_memset_dtype"),
        (lambda replay: without_field(replay, "activity_kernel10_dtype", "grid_z"), "grid_z"),
        (lambda replay: setattr(replay, "activity_memcpy6_dtype", np.dtype("u8")), "no fields"),
        (lambda replay: delattr(sys.modules["cupti"], "cycupti"), "cycupti"),
        (lambda replay: delattr(replay.cycupti, "__pyx_capi__"), "__pyx_capi__"),
        (lambda replay: replay.cycupti.__pyx_capi__.pop(NEXT), "GetNextRecord"),
        (lambda replay: replay.export(REGISTER, b"int (void)"), "incorrect name"),
    ],
)
def test_what_cupti_python_does_not_export_as_known_is_named(replay, spoil, missing):
    spoil(replay)
    with pytest.raises(TimerUnavailable, match=f"does not export what we need: .*{missing}"):
        ActivityTrace()


@pytest.mark.parametrize("by", [8, -8])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(EXTERNAL, "all kinds"), (KERNEL, "all kinds"), (MEMSET, "all kinds"), (KERNEL, "a kernel, recorded")],
)
def test_records_of_another_length_than_declared_fail_wherever_they_lie(replay, kind, name, by):
    replay.longer[kind] = by
    replay.spoil = lambda record: record.kind == DRIVER  # so that a kernel comes last
    with pytest.raises(TimerUnavailable, match=r"could not be read: .*not as long as cupti-python declares"):
        replay.drive(name)
    replay.longer.clear()
    assert replay.drive(name), "the next recording is read"


def test_a_buffer_that_cannot_be_made_is_reported_where_the_records_are_wanted(replay, monkeypatch):
    def no_memory(*arguments):
        raise MemoryError("no memory for a buffer")

    with monkeypatch.context() as scarce:
        scarce.setattr(np, "empty", no_memory)
        with pytest.raises(TimerUnavailable, match="no memory for a buffer"):
            replay.drive("a kernel, recorded")
    assert len(replay.drive("a kernel, recorded")) == 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda record: True, "recorded 0 kernels instead of one"),
        (lambda record: vars(record).update(start=5, end=5), "recorded 1 kernels instead of one"),
    ],
)
def test_a_cupti_that_attaches_and_says_nothing_is_not_used(replay, spoil, reason):
    replay.spoil = lambda record: record.kind == KERNEL and spoil(record)
    replay.begin("a kernel")
    with pytest.raises(TimerUnavailable, match=reason):
        proven_trace(replay)
    replay.events = []
