"""Tests what the CUPTI timer makes of what CUPTI said on a GPU, and what it refuses."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest
from cupti_scenarios import COUNT
from fakes import with_fresh_arguments

from pytest_gpukern.timers.cupti import timer as cupti
from pytest_gpukern.timers.cupti.activity import OURS, Activity
from pytest_gpukern.timers.cupti.machine_code import machine_code
from pytest_gpukern.timers.cupti.timer import CuptiTimer, serial_cost_ns
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable

MEMSET, SERIAL, CONCURRENT = 2, 3, 10
"""Kinds of records."""
QUIET = (False, "", None)


@pytest.mark.parametrize(
    ("name", "works", "launch_included", "note", "suspicion"),
    [
        ("two kernels", {"spin": 1, "spin_again": 1}, *QUIET),
        ("two grids of a kernel", {"_Z7add_onePf": 1}, *QUIET),
        ("copy, kernel, memset", {"memcpy DtoD": 1, "spin": 1, "memset": 1}, *QUIET),
        # A call may use other streams; if the timed one waits for them, they are in the call's time.
        ("forks and joins", {"spin": 1, "spin_again": 1}, *QUIET),
        ("alone aside", {"spin_again": 1}, False, "does not wait", None),
        ("alone aside, any stream", {"spin_again": 1}, *QUIET),
        ("does not fork", {"spin": 1, "spin_again": 1}, True, "does not wait", None),
        ("two streams, any stream", {"spin": 1, "spin_again": 1}, True, "streams of its own", None),
        ("does not join", {"spin": 1, "spin_again": 1}, True, "does not wait", "spin_again ("),
        # Launched one by one, such short work is done before the host has launched what comes behind it.
        ("does not join, briefly", {"spin": 1, "spin_again": 1}, True, "does not wait", "spin_again ("),
        ("many blocks aside", {"_Z7add_onePf": 1}, False, "does not wait", "_Z7add_onePf ("),
        # What the call's threads launch is its own, if they launch nothing between the calls.
        ("a thread of the call", {"spin": 2}, *QUIET),
        ("a heart beats", {"spin": 1}, False, "", "launched by a thread (heartbeat) that also works between"),
        ("cublas", None, *QUIET),
        # A call that waits for the device cannot be queued.
        ("waits between kernels", {"spin": 2}, True, "waits for the device", None),
        ("waits for its kernel", {"spin": 1}, *QUIET),
    ],
)
def test_what_a_call_did_is_told_with_what_is_in_its_time(
    replay, name, works, launch_included, note, suspicion
):
    found = replay.drive(name)
    batch = found["batches"][-1]
    if works is not None:
        assert {work.name: work.count for work in batch.work} == works
    assert all(busy <= span <= 3 * busy for busy, span in zip(batch.busy_ns, batch.samples_ns, strict=True))
    assert batch.launch_included is launch_included
    assert any(note in each.text for each in batch.notes) if note else not batch.notes
    assert suspicion in found["suspicion"] if suspicion else found["suspicion"] is None


def test_a_sample_has_nothing_of_what_is_queued_before(replay):
    assert all(20_000 < span < 25_000 for span in replay.drive("behind others")["batches"][0].samples_ns)


def test_what_only_some_calls_do_has_a_mean_count_and_a_median_time(replay):
    memsets = itertools.count()
    replay.spoil = lambda record: record.kind == MEMSET and next(memsets) == 2
    _, _, memset = replay.drive("copy, kernel, memset")["batches"][0].work
    assert (memset.name, memset.count, memset.size_bytes) == ("memset", 0.8, 0.8 * 2**20)
    assert memset.time_ns > 0


@pytest.mark.parametrize("every", [1, 2])
def test_work_on_two_streams_is_in_the_order_of_its_launches_whichever_starts_first(replay, every):
    calls = itertools.count()

    def spoil(record):
        if record.kind == CONCURRENT and record.name == "spin" and next(calls) % every == 0:
            record.start -= 60_000

    replay.spoil = spoil
    batch = replay.drive("two streams, any stream")["batches"][-1]
    assert [work.name for work in batch.work] == ["spin_again", "spin"]
    assert batch.order == (0, 1)


# serial recording


@pytest.mark.parametrize(("name", "serially"), [("few blocks", False), ("many blocks", True)])
def test_a_kernel_of_more_than_four_blocks_for_each_multiprocessor_is_recorded_serially(
    replay, name, serially
):
    replay.begin(name)
    timer = CuptiTimer(replay)
    timer.collect([Iteration(lambda: None)] * COUNT, cold=False)
    assert ("recorded serially" in timer.measures) is serially
    assert (timer.jitter_ns > 8.0) is serially, "trusted less between sessions"
    replay.events = []


def lasting(serially_ns, concurrently_ns=1000, kernel_ns=50_000):
    """Has the kernels that are recorded serially last so long, in turn; but for the timed one."""
    durations = itertools.cycle(serially_ns)

    def spoil(record):
        if record.kind == SERIAL:
            empty = "empty" in record.name
            record.end = record.start + (next(durations) if empty else kernel_ns)
        elif record.kind == CONCURRENT and "empty" in record.name:
            record.end = record.start + concurrently_ns

    return spoil


@pytest.mark.parametrize(
    ("serially_ns", "mean_ns"),
    [
        ([2700], 2700),
        ([3000, 9000], 3000),  # the mean of the two in the middle would have none of them near it
        ([9000, 3000, 9000, 9000], 9000),
        ([3000, 3256], 3128),
        ([3000, 3257], 3000),
        ([700], 1000),  # it adds nothing
    ],
)
def test_what_serial_recording_adds_is_taken_off(replay, serially_ns, mean_ns):
    """It is the mean of the records near the lower median, for half of them may lie far from the others."""
    replay.spoil = lasting(serially_ns)
    assert replay.drive("many blocks")["batches"][0].samples_ns == [50_000 - (mean_ns - 1000)] * COUNT
    assert serial_cost_ns(replay, cold=False) == mean_ns - 1000, "measured once"


def test_a_kernel_is_never_shorter_than_a_tick_for_what_is_taken_off(replay):
    replay.spoil = lasting([2700], kernel_ns=20)
    assert replay.drive("many blocks")["batches"][0].samples_ns == [32.0] * COUNT


# fresh arguments


def test_calls_that_are_recorded_again_get_fresh_arguments(replay):
    seen = []
    replay.begin("many blocks")
    timer = CuptiTimer(replay)
    timer.collect(with_fresh_arguments(seen.append, COUNT, setup=object), cold=False)
    assert len(set(map(id, seen))) == len(seen) == 2 * COUNT


def test_a_suspicion_before_the_first_batch_makes_a_call_with_fresh_arguments(replay):
    seen = []
    replay.begin("now many blocks, now few")
    first, second = with_fresh_arguments(seen.append, 2, setup=object)
    timer = CuptiTimer(replay)
    assert timer.suspicion(first) is None
    assert len(seen) == 2, "it has many blocks"
    assert timer.suspicion(second) is None
    assert len(set(map(id, seen))) == len(seen) == 2
    replay.events = []


# what cannot be timed


def test_records_that_are_lost_are_counted_and_no_number_is_made_of_the_rest(replay):
    kernels = itertools.count()
    replay.spoil = lambda record: (
        record.kind == CONCURRENT and record.name == "spin" and next(kernels) in (1, 2)
    )
    with pytest.raises(TimerUnavailable, match="2 of 5 executions left no record"):
        replay.drive("a kernel")


@pytest.mark.parametrize("registers", [24, 56])
def test_kernels_of_a_module_that_launches_others_from_the_device_are_refused(replay, registers):
    """CUPTI has no records of those: 46 µs of work read 10 µs. What is linked in may take more registers."""
    packed = Path(__file__).parents[1] / "data" / "launches.cuda-13.0.sm_90.cubin.gz"
    code = gzip.decompress(packed.read_bytes())
    replay.edit = lambda event: {**event, "code": code} if event.get("module") == 23 else event
    replay.drive("modules")
    assert machine_code().any_launches_from_device()
    assert replay.drive("a kernel")["batches"]
    replay.spoil = lambda record: (
        record.kind == CONCURRENT and vars(record).update(name="one", registers_per_thread=registers)
    )
    with pytest.raises(
        TimerUnavailable, match="one comes from a module that launches kernels from the device"
    ):
        replay.drive("a kernel")


@pytest.mark.parametrize("at", [1, 3])
def test_a_call_that_raises_leaves_the_trace_closed_and_the_next_one_is_timed(replay, at):
    count = itertools.count(1)

    def call():
        if next(count) == at:
            replay.astray = True
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        replay.drive("a kernel", call)
    assert replay.unused
    assert len(replay.drive("a kernel")["batches"][0].samples_ns) == COUNT


def test_a_context_that_is_lost_leaves_the_trace_closed_and_is_what_is_reported(replay):
    """As once a kernel has read what it must not."""

    def lost():
        raise OSError("CUDA_ERROR_ILLEGAL_ADDRESS")

    def call():
        replay.synchronize, replay.astray = lost, True

    with pytest.raises(OSError, match="ILLEGAL_ADDRESS"):
        replay.drive("a kernel", call)
    assert replay.unused


def test_a_test_in_a_context_of_its_own_has_no_trace(replay, monkeypatch):
    monkeypatch.setattr(cupti, "in_own_context", lambda: True)
    with pytest.raises(TimerUnavailable, match="the test works in a CUDA context of its own"):
        replay.drive("a trace, cold")
    replay.events = []


def test_no_thread_is_named_while_nothing_has_asked_for_cupti(replay):
    assert cupti.launching_threads(0.0) == ""


# what is made of a call's activities


def did(*activities):
    """Kernels that began and ended then, of the first call or the one of that number, or `ours`."""
    return [
        Activity("kernel", name, began, ended, 7, OURS + (name != "ours") * (call[0] if call else 1))
        for name, began, ended, *call in activities
    ]


@pytest.mark.parametrize(
    ("activities", "beside"),
    [
        ([("ours", 0, 1000), ("a", 900, 2000)], ""),  # rounded
        ([("ours", 0, 1000), ("a", 899, 2000)], "a"),
        ([("a", 0, 1000), ("ours", 900, 2000)], ""),
        ([("a", 0, 1000), ("ours", 899, 2000)], "a"),
        ([("ours", 0, 5000), ("ours", 10, 20), ("a", 1000, 2000)], "a"),
        ([("a", 0, 5000), ("b", 100, 200), ("ours", 1000, 2000), ("ours", 2000, 3000)], "a"),
        ([("a", 0, 500), ("b", 500, 1500), ("ours", 1000, 2000)], "b"),
        ([("a", 0, 1000), ("b", 100, 2000)], ""),
        ([("a", 0, 1000), ("b", 900, 2000, 2)], ""),
        ([("a", 0, 1000), ("b", 899, 2000, 2)], "a"),
        ([("a", 0, 3000), ("b", 1000, 2000), ("c", 2000, 4000, 2), ("d", 3800, 5000, 3)], "ac"),
    ],
)
def test_work_beside_ours_overlaps_by_more_than_rounding(activities, beside):
    assert "".join(each.name for each in cupti.overlapping(did(*activities))) == beside
