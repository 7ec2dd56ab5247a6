"""Tests executions behind a blocking kernel and the events around them, on a device that only logs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_cuda import FakeDevice, install
from fakes import repeated, with_fresh_arguments

from pytest_gpukern.timers import launch_queue as module
from pytest_gpukern.timers.launch_queue import EventQueue, escaped_work
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.values.note import Note

MS = 1_000_000


@pytest.fixture
def queue_on(monkeypatch):
    """Makes an event queue on a fake device; the log starts after it was made."""

    def make(device, stream=None):
        install(monkeypatch, device)
        queue = EventQueue(device, stream or device.stream)
        made, device.log = device.log, []
        return queue, made

    return make


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def queue(queue_on, device):
    return queue_on(device)[0]


def call_on(device, *, takes_ns=0):
    """A call whose launch takes the host so long; the log has its argument."""

    def call(*argument):
        device.execute(0.002, " ".join(map(str, ("call", *argument))))
        device.host_ns += takes_ns

    return call


def numbered(call, count):
    """Iterations whose calls are given 1, 2, 3 and so on, each once."""
    made = []
    return with_fresh_arguments(call, count, lambda: made.append(1) or len(made))


def calls(device):
    return [step for step in device.log if step.startswith("call")]


def parts(device):
    """How many calls were queued behind each block."""
    queued = "\n".join(device.log).split("block")[1:]
    return [part.partition("release")[0].count("call") for part in queued]


# queued


def test_the_flush_kernel_is_loaded_and_the_device_idle_before_anything_is_blocked(queue_on):
    assert queue_on(FakeDevice())[1] == ["reset L2", "flush", "idle"]


def test_all_of_a_part_is_queued_between_block_and_release(queue, device):
    before = lambda: device.log.append("before")  # noqa: E731
    batch = queue.collect([Iteration(device.call(), before)] * 2, cold=True)
    one = ["before", "flush", "record", "call", "record"]
    assert device.log == ["idle", "block", *one, *one, "release", "idle"]
    assert not batch.launch_included
    assert len(batch.samples_ns) == 2


@pytest.mark.parametrize(
    ("launches", "has_before", "cold", "expected"),
    [
        (None, False, True, [64, 64, 2]),
        (5, True, False, [64, 64, 2]),  # 7 entries each: 73 would fit
        (6, True, True, [56, 56, 18]),  # 9 entries each
        (None, True, True, [64, 64, 2]),  # five assumed: 8 entries
        (100, True, True, [4] * 32 + [2]),
        (2000, False, False, [1] * 130),
    ],
)
def test_a_part_takes_at_most_64_executions_and_half_of_the_launch_queue(
    queue, device, launches, has_before, cold, expected
):
    before = (lambda: None) if has_before else None
    batch = queue.collect([Iteration(device.call(), before, launches=launches)] * 130, cold=cold)
    assert not batch.launch_included
    assert parts(device) == expected
    assert len(batch.samples_ns) == device.log.count("call") == 130


def test_a_slow_host_queues_only_as_long_as_the_blocking_kernel_is_sure_to_wait(queue, device):
    batch = queue.collect(numbered(call_on(device, takes_ns=24 * MS), 5), cold=False)
    assert parts(device) == [2, 2, 1], "two calls of 24 ms pass 40 ms"
    assert len(batch.samples_ns) == 5
    assert calls(device) == [f"call {n}" for n in range(1, 6)]


def test_a_launch_queue_that_is_full_gets_half_of_what_it_held_from_then_on(queue_on):
    device = FakeDevice(room=20)
    queue, _ = queue_on(device)
    batch = queue.collect(repeated(device.call(), 64), cold=False)
    assert not batch.launch_included
    assert parts(device) == [21, *[10] * 6, 4], "the 21st blocks the host until it is too late"
    assert len(batch.samples_ns) == 64
    device.log.clear()
    queue.collect(repeated(device.call(), 20), cold=False)
    assert parts(device) == [10, 10]


def test_what_was_executed_in_vain_is_executed_again_with_fresh_arguments(queue_on):
    device = FakeDevice(room=3)
    queue, _ = queue_on(device)
    batch = queue.collect(numbered(call_on(device), 6), cold=False)
    assert len(set(calls(device))) == len(calls(device)) > 6, "no argument is used twice"
    assert len(batch.samples_ns) == 6


# calls that wait for the device


def test_a_call_that_waits_for_the_device_is_timed_as_it_runs_and_the_batch_says_so(queue, device):
    batch = queue.collect(repeated(device.waiting_call(), 3), cold=True)
    assert device.log.count("block") == 2, "the second try is of one call, and the last"
    assert batch.launch_included
    assert batch.notes == [Note("the call waits for the device, so its time contains the host's launch cost")]
    assert batch.samples_ns == pytest.approx([2000.0] * 3)
    after = device.log[len(device.log) - device.log[::-1].index("release") :]
    assert after == ["idle", *["idle", "flush", "idle", "record", "call", "record"] * 3, "idle"]
    device.log.clear()
    assert queue.collect(repeated(device.waiting_call(), 2), cold=False).notes == batch.notes
    assert "block" not in device.log, "it is not tried again"
    assert "flush" not in device.log


def test_a_call_that_comes_to_wait_has_all_executed_again_with_fresh_arguments(queue, device):
    """Samples with and without the launch cost must not be mixed."""
    launch = call_on(device)

    def call(argument):
        launch(argument)
        if len(calls(device)) > 64:
            device.wait()

    batch = queue.collect(numbered(call, 70), cold=False)
    assert batch.launch_included
    assert len(batch.samples_ns) == 70
    assert len(set(calls(device))) == len(calls(device))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("part", ["run", "before"])
def test_an_execution_that_raises_leaves_the_stream_free(queue, device, waits, part):
    if waits:
        queue.collect(repeated(device.waiting_call(), 1), cold=False)

    def fails():
        raise RuntimeError("no memory")

    good, bad = Iteration(device.call()), Iteration(device.call(), fails)
    if part == "run":
        bad = Iteration(fails)
    with pytest.raises(RuntimeError, match="no memory"):
        queue.collect([good, bad, good], cold=False)
    assert not device.blocked
    again = queue.collect([good], cold=False)
    assert again.launch_included is waits, "it can be used again"
    assert len(again.samples_ns) == 1


# events


def test_the_resolution_is_the_smallest_step_between_readings_of_an_empty_pair(queue_on):
    device = FakeDevice()
    steps = iter([0.0, 0.001, 0.0, 0.0015, 0.0, 0.003] + [0.0] * 1000)

    def record(event):
        device.now_ms += next(steps)
        event.at_ms = device.now_ms

    device.record = record
    queue, _ = queue_on(device)
    assert queue.resolution_ns == pytest.approx(500.0)


def test_without_any_step_the_resolution_is_what_cuda_documents(queue_on):
    queue, _ = queue_on(FakeDevice())
    assert queue.resolution_ns == 500.0


def test_a_sample_is_the_time_between_its_own_events(queue, device):
    iterations = [Iteration(device.call(ms)) for ms in (0.001, 0.5, 0.002)]
    first = queue.collect(iterations, cold=True).samples_ns
    assert first == pytest.approx([1e3, 5e5, 2e3])
    queue.collect(iterations[1:2], cold=True)
    assert len(first) == 3, "a later batch leaves it alone"


def test_another_stream_than_the_runtimes_is_blocked_flushed_and_recorded_on(queue_on):
    device, recorded = FakeDevice(), []

    def record(event):
        recorded.append(event)
        event.at_ms = 0.0

    other = SimpleNamespace(record=record)
    queue, _ = queue_on(device, other)
    recorded.clear()
    queue.collect(repeated(lambda: None, 2), cold=True)
    assert len(recorded) == 4
    assert device.streams == {id(other)}


# work outside the stream


def lagging(device, monkeypatch, lag_ns, call_ns=0):
    """Returns a call of `call_ns`, after which the device is busy for `lag_ns`, and 1 µs otherwise."""
    clock = SimpleNamespace(now=0, busy=False)

    def synchronize():
        clock.now += lag_ns if clock.busy else 1000
        clock.busy = False

    def call():
        clock.now += call_ns
        clock.busy = True

    device.synchronize = synchronize
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: clock.now)
    return call


@pytest.mark.parametrize(
    ("call_ns", "lag_ns", "found"),
    [
        (0, 1000, None),
        (0, 20_000, None),
        (0, 500_000, "499 µs of work ran outside the timed stream; make the given stream wait for it"),
        (9_000_000, 46_000, None),  # less than 0.5 % of the call
        (9_000_000, 47_000, "46 µs of work ran outside the timed stream; make the given stream wait for it"),
    ],
)
def test_work_that_outlasts_the_end_event_by_much_is_suspicious(device, monkeypatch, call_ns, lag_ns, found):
    assert escaped_work(device, device, Iteration(lagging(device, monkeypatch, lag_ns, call_ns))) == found


def test_one_undisturbed_call_of_several_clears_a_call_of_suspicion(device, monkeypatch):
    call = lagging(device, monkeypatch, 500_000)
    made = []

    def disturbed_at_times():
        made.append(1)
        if len(made) != 4:
            call()

    assert escaped_work(device, device, Iteration(disturbed_at_times)) is None


def test_looking_uses_no_arguments_twice(device):
    seen = []
    (iteration,) = with_fresh_arguments(seen.append, 1, list)
    assert escaped_work(device, device, iteration) is None
    assert len({id(fresh) for fresh in seen}) == len(seen) == 5
