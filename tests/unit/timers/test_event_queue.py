"""The order of things in the event queue, on a stream that only writes down what it is given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_cuda import MS, FakeDevice, install
from fakes import repeated, with_fresh_arguments

from pytest_gpukern.timers.launch_queue import EventQueue
from pytest_gpukern.timers.timer import Iteration


@pytest.fixture
def queue_on(monkeypatch):
    """Makes an event queue on a fake device; the log starts after it was made."""

    def make(device, stream=None):
        install(monkeypatch, device)
        queue = EventQueue(device, stream or device.stream)
        made, device.log = device.log, []
        return queue, made

    return make


def test_the_flush_kernel_is_loaded_and_the_device_idle_before_anything_is_blocked(queue_on):
    _, made = queue_on(FakeDevice())
    assert made[:3] == ["reset L2", "flush", "idle"]
    assert "block" not in made[:3]


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


def test_everything_is_queued_between_block_and_release(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    batch = queue.collect(repeated(device.call(), 3), cold=True)
    sample = ["flush", "record", "call", "record"]
    assert device.log == ["idle", "block", *sample * 3, "release", "idle"]
    assert batch.samples_ns == pytest.approx([2000.0] * 3)
    assert batch.iterations == 1
    assert batch.warnings == []


def test_nothing_is_flushed_where_the_cache_may_be_hot(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    queue.collect(repeated(device.call(), 2), cold=False)
    assert "flush" not in device.log


def test_a_sample_is_the_time_between_its_own_events(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    iterations = [Iteration(device.call(ms)) for ms in (0.001, 0.5, 0.002)]
    assert queue.collect(iterations, cold=True).samples_ns == pytest.approx([1e3, 5e5, 2e3])


def test_more_than_the_launch_queue_holds_is_queued_in_parts_and_stays_in_order(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    durations = [0.001 * (1 + i) for i in range(150)]
    batch = queue.collect([Iteration(device.call(ms)) for ms in durations], cold=False)
    assert batch.samples_ns == pytest.approx([1e6 * ms for ms in durations])
    assert parts(device) == [64, 64, 22]


def parts(device):
    """How many calls were queued behind each blocking kernel."""
    steps = "".join("B" if step == "block" else "." for step in device.log if step in ("block", "call"))
    return [len(part) for part in steps.split("B")[1:]]


def nothing():
    pass


@pytest.mark.parametrize(
    ("iteration", "cold", "largest"),
    [
        ({"launches": 10}, False, 42),
        ({"launches": 10}, True, 39),
        ({"launches": 600}, False, 1),
        ({"before": nothing}, True, 64),
        ({"before": nothing, "launches": 30}, True, 15),
    ],
)
def test_calls_that_are_known_to_launch_much_are_queued_in_smaller_parts(queue_on, iteration, cold, largest):
    device = FakeDevice()
    queue, _ = queue_on(device)
    queue.collect([Iteration(device.call(), **iteration)] * 70, cold=cold)
    assert parts(device)[0] == largest
    assert sum(parts(device)) == 70


def test_the_call_that_launches_most_bounds_them_all(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    call = device.call()
    queue.collect([Iteration(call)] * 9 + [Iteration(call, launches=254)], cold=False)
    assert parts(device) == [2] * 5


def test_a_host_that_is_slow_to_launch_does_not_outlast_the_blocking_kernel(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    launch = device.call()

    def slow():
        launch()
        device.host_ns += 16 * MS

    batch = queue.collect(repeated(slow, 7), cold=False)
    assert (parts(device), batch.launch_included) == ([3, 3, 1], False)
    assert batch.samples_ns == pytest.approx([2000.0] * 7)


def test_nothing_to_time_gives_no_samples(queue_on):
    queue, _ = queue_on(FakeDevice())
    assert queue.collect([], cold=True).samples_ns == []


def test_what_comes_before_an_iteration_is_queued_ahead_of_its_flush_and_not_timed(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)

    def before():
        device.log.append("before")
        device.now_ms += 7.0

    batch = queue.collect([Iteration(device.call(), before)] * 2, cold=True)
    sample = ["before", "flush", "record", "call", "record"]
    assert device.log == ["idle", "block", *sample * 2, "release", "idle"]
    assert batch.samples_ns == pytest.approx([2000.0] * 2)


def test_the_stream_is_let_go_when_the_call_raises(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)

    def call():
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        queue.collect(repeated(call, 3), cold=False)
    assert device.log[-1] == "release"


def test_a_full_launch_queue_makes_batches_smaller_and_stays_small(queue_on):
    device = FakeDevice(room=8)
    queue, _ = queue_on(device)
    call = device.call()
    batch = queue.collect(repeated(call, 100), cold=False)
    assert (len(batch.samples_ns), batch.warnings) == (100, [])
    assert parts(device) == [9, *[4] * 25]
    assert call.count == 9 + 100
    queue.collect(repeated(call, 100), cold=False)
    assert call.count == 9 + 100 + 100, "the second batch does not try more than fitted"


def test_samples_of_a_batch_that_timed_out_are_not_used(queue_on):
    device = FakeDevice(room=3)
    queue, _ = queue_on(device)
    durations = iter([9.0] * 4 + [0.002] * 64)
    samples = queue.collect(repeated(lambda: device.execute(next(durations)), 64), cold=False).samples_ns
    assert samples == pytest.approx([2000.0] * 64)


def test_a_call_that_waits_for_the_device_is_timed_as_it_runs_and_the_batch_says_so(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    batch = queue.collect(repeated(device.waiting_call(), 3), cold=True)
    assert device.log.count("block") == 2, "the second try is of one call, and the last"
    assert batch.warnings == ["the call waits for the device, so the host's launch cost is in the number"]
    assert batch.samples_ns == pytest.approx([2000.0] * 3)
    after = device.log[len(device.log) - device.log[::-1].index("release") :]
    assert after == ["idle", *["idle", "flush", "idle", "record", "call", "record"] * 3, "idle"]
    device.log.clear()
    assert queue.collect(repeated(device.waiting_call(), 2), cold=False).warnings == batch.warnings
    assert "block" not in device.log, "it is not tried again"
    assert "flush" not in device.log


def test_arguments_are_fresh_for_every_attempt(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    seen = []

    def call(fresh):
        seen.append(fresh)
        device.wait()

    queue.collect(with_fresh_arguments(call, 2, list), cold=False)
    assert len({id(fresh) for fresh in seen}) == len(seen) == 1 + 1 + 2


def test_arguments_that_were_used_before_the_call_turned_out_to_wait_are_made_anew(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    seen = []

    def call(fresh):
        seen.append(fresh)
        if len(seen) not in (2, 3):
            device.wait()

    batch = queue.collect(with_fresh_arguments(call, 3, list), cold=False)
    assert (len(batch.samples_ns), batch.launch_included) == (3, True)
    assert len({id(fresh) for fresh in seen}) == len(seen) == 1 + 3 + 3


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
