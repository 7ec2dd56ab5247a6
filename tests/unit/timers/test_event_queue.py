"""Tests the order of steps in the event queue, on a fake stream that only logs them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_cuda import FakeDevice, install
from fakes import repeated

from pytest_gpukern.timers.launch_queue import EventQueue
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.values.note import Note


@pytest.fixture
def queue_on(monkeypatch):
    """Makes an event queue on a fake device; the log starts after it was made."""

    def make(device, stream=None):
        install(monkeypatch, device)
        queue = EventQueue(device, stream or device.stream)
        made, device.log = device.log, []
        return queue, made

    return make


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


def test_a_sample_is_the_time_between_its_own_events(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    iterations = [Iteration(device.call(ms)) for ms in (0.001, 0.5, 0.002)]
    assert queue.collect(iterations, cold=True).samples_ns == pytest.approx([1e3, 5e5, 2e3])


def test_a_call_that_waits_for_the_device_is_timed_as_it_runs_and_the_batch_says_so(queue_on):
    device = FakeDevice()
    queue, _ = queue_on(device)
    batch = queue.collect(repeated(device.waiting_call(), 3), cold=True)
    assert device.log.count("block") == 2, "the second try is of one call, and the last"
    assert batch.notes == [Note("the call waits for the device, so its time contains the host's launch cost")]
    assert batch.samples_ns == pytest.approx([2000.0] * 3)
    after = device.log[len(device.log) - device.log[::-1].index("release") :]
    assert after == ["idle", *["idle", "flush", "idle", "record", "call", "record"] * 3, "idle"]
    device.log.clear()
    assert queue.collect(repeated(device.waiting_call(), 2), cold=False).notes == batch.notes
    assert "block" not in device.log, "it is not tried again"
    assert "flush" not in device.log


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
