"""The event timer's order of things, on a stream that only writes down what it is given."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from pytest_gpukern.timers import event as module
from pytest_gpukern.timers.event import EventTimer


class FakeEvent:
    """Reads the device's time when it was recorded."""

    def __init__(self, device):
        self.device = device
        self.at_ms = None

    def __sub__(self, other):
        return self.at_ms - other.at_ms

    def sync(self):
        self.device.log.append("event reached")


class FakeDevice:
    """Runtime, stream and blocking kernel in one: `log` has every step, `now_ms` is the device's clock."""

    def __init__(self, deadlocks=lambda queued: False):
        self.log = []
        self.now_ms = 0.0
        self.stream = self.device = self
        self.deadlocks = deadlocks
        self.timed_out = False
        self.queued = 0
        self.streams = set()

    # runtime

    def reset_persisting_l2(self):
        self.log.append("reset L2")

    def flush_l2(self, stream):
        self.streams.add(id(stream))
        self.log.append("flush")

    def synchronize(self):
        self.log.append("idle")

    def create_event(self, options):
        assert options == "timing"
        return FakeEvent(self)

    # stream

    def record(self, event):
        event.at_ms = self.now_ms
        self.log.append("record")

    # blocking kernel

    def block(self, stream):
        self.streams.add(id(stream))
        self.queued = 0
        self.log.append("block")

    def release(self):
        self.timed_out = self.deadlocks(self.queued)
        self.log.append("release")

    def kernel(self, duration_ms=0.002):
        """A call that takes `duration_ms` of the device's time; counts in `.count`."""

        def call():
            self.log.append("call")
            self.queued += 1
            self.now_ms += duration_ms
            call.count += 1

        call.count = 0
        return call


@pytest.fixture
def timer_on(monkeypatch):
    """Makes an event timer on a fake device; the log starts after it was made."""
    core = ModuleType("cuda.core")
    core.EventOptions = lambda timing_enabled: "timing" if timing_enabled else "none"
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)

    def make(device, stream=None):
        monkeypatch.setattr(module, "blocking_kernel", lambda: device)
        timer = EventTimer(device, stream)
        made, device.log = device.log, []
        return timer, made

    return make


def test_the_flush_kernel_is_loaded_and_the_device_idle_before_anything_is_blocked(timer_on):
    _, made = timer_on(FakeDevice())
    assert made[:3] == ["reset L2", "flush", "idle"]
    assert "block" not in made[:3]


def test_the_resolution_is_the_smallest_step_between_readings_of_an_empty_pair(timer_on):
    device = FakeDevice()
    steps = iter([0.0, 0.001, 0.0, 0.0015, 0.0, 0.003] + [0.0] * 1000)

    def record(event):
        device.now_ms += next(steps)
        event.at_ms = device.now_ms

    device.record = record
    timer, _ = timer_on(device)
    assert timer.resolution_ns == pytest.approx(500.0)


def test_without_any_step_the_resolution_is_what_cuda_documents(timer_on):
    timer, _ = timer_on(FakeDevice())
    assert timer.resolution_ns == 500.0


def test_everything_is_queued_between_block_and_release(timer_on):
    device = FakeDevice()
    timer, _ = timer_on(device)
    batch = timer.collect(device.kernel(), 3, cold=True)
    sample = ["flush", "record", "call", "record"]
    assert device.log == ["idle", "block", *sample * 3, "release", "idle"]
    assert batch.samples_ns == pytest.approx([2000.0] * 3)
    assert batch.iterations == 1
    assert batch.warnings == []


def test_nothing_is_flushed_where_the_cache_may_be_hot(timer_on):
    device = FakeDevice()
    timer, _ = timer_on(device)
    timer.collect(device.kernel(), 2, cold=False)
    assert "flush" not in device.log


def test_a_sample_is_the_time_between_its_own_events(timer_on):
    device = FakeDevice()
    timer, _ = timer_on(device)
    durations = iter([0.001, 0.5, 0.002])

    def call():
        device.now_ms += next(durations)

    assert timer.collect(call, 3, cold=True).samples_ns == pytest.approx([1e3, 5e5, 2e3])


def test_a_batch_is_never_larger_than_the_launch_queue(timer_on):
    device = FakeDevice()
    timer, _ = timer_on(device)
    assert len(timer.collect(device.kernel(), 500, cold=False).samples_ns) == 64
    fresh = timer.collect(lambda x: None, 500, cold=False, setup=lambda: ((1,), {}))
    assert len(fresh.samples_ns) == 8


def test_fresh_arguments_are_made_before_the_stream_is_blocked(timer_on):
    device = FakeDevice()
    timer, _ = timer_on(device)
    seen = []

    def setup():
        device.log.append("setup")
        return ([],), {"k": len(device.log)}

    def call(fresh, *, k):
        device.log.append("call")
        seen.append(fresh)

    timer.collect(call, 3, cold=False, setup=setup)
    assert device.log[:5] == ["setup", "setup", "setup", "idle", "block"]
    assert device.log.count("setup") == 3
    assert len({id(fresh) for fresh in seen}) == 3


def test_the_stream_is_let_go_when_the_call_raises(timer_on):
    device = FakeDevice()
    timer, _ = timer_on(device)

    def call():
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        timer.collect(call, 3, cold=False)
    assert device.log[-1] == "release"


def test_a_full_launch_queue_makes_batches_smaller_and_stays_small(timer_on):
    device = FakeDevice(deadlocks=lambda queued: queued > 8)
    timer, _ = timer_on(device)
    call = device.kernel()
    batch = timer.collect(call, 100, cold=False)
    assert (len(batch.samples_ns), batch.warnings) == (8, [])
    assert call.count == 64 + 8
    timer.collect(call, 100, cold=False)
    assert call.count == 64 + 8 + 8, "the second batch does not try 64 again"


def test_samples_of_a_batch_that_timed_out_are_not_used(timer_on):
    device = FakeDevice(deadlocks=lambda queued: queued > 1)
    timer, _ = timer_on(device)
    durations = iter([9.0] * (64 + 8) + [0.002] * 10)

    def call():
        device.queued += 1
        device.now_ms += next(durations)

    assert timer.collect(call, 64, cold=False).samples_ns == pytest.approx([2000.0])


def test_a_call_that_waits_for_the_device_is_timed_as_it_runs_and_the_batch_says_so(timer_on):
    device = FakeDevice(deadlocks=lambda queued: queued > 0)
    timer, _ = timer_on(device)
    batch = timer.collect(device.kernel(), 3, cold=True)
    assert batch.warnings == ["the call waits for the device, so the host's launch cost is in the number"]
    assert batch.samples_ns == pytest.approx([2000.0] * 3)
    after = device.log[len(device.log) - device.log[::-1].index("release") :]
    assert after == ["idle", *["flush", "idle", "record", "call", "record"] * 3, "idle"]
    device.log.clear()
    assert timer.collect(device.kernel(), 2, cold=False).warnings == batch.warnings
    assert "block" not in device.log, "it is not tried again"
    assert "flush" not in device.log


def test_arguments_are_fresh_for_every_attempt(timer_on):
    device = FakeDevice(deadlocks=lambda queued: queued > 0)
    timer, _ = timer_on(device)
    seen = []

    def call(fresh):
        device.queued += 1
        seen.append(fresh)

    timer.collect(call, 2, cold=False, setup=lambda: (([],), {}))
    assert len({id(fresh) for fresh in seen}) == len(seen) == 2 + 2 + 1 + 2


def test_another_stream_than_the_runtimes_is_blocked_flushed_and_recorded_on(timer_on):
    device, recorded = FakeDevice(), []

    def record(event):
        recorded.append(event)
        event.at_ms = 0.0

    other = SimpleNamespace(record=record)
    timer, _ = timer_on(device, other)
    recorded.clear()
    timer.collect(lambda: None, 2, cold=True)
    assert len(recorded) == 4
    assert device.streams == {id(other)}


def lagging(device, monkeypatch, lag_ns):
    """Makes each wait for an idle device take `lag_ns` after `call` ran, and a little otherwise."""
    clock = {"now": 0, "busy": False}

    def synchronize():
        clock["now"] += lag_ns if clock["busy"] else 1000
        clock["busy"] = False

    def call():
        clock["busy"] = True

    device.synchronize = synchronize
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: clock["now"])
    return call


def test_work_that_outlasts_the_end_event_is_suspicious(timer_on, monkeypatch):
    device = FakeDevice()
    timer, _ = timer_on(device)
    found = timer.suspicion(lagging(device, monkeypatch, 500_000))
    assert found == "499 µs of work ran outside the timed stream; launch it on the given stream"


def test_what_outlasts_a_long_call_is_measured_against_the_call(timer_on, monkeypatch):
    device = FakeDevice()
    timer, _ = timer_on(device)
    clock = {"now": 0, "after": 0}

    def synchronize():
        clock["now"] += clock["after"]
        clock["after"] = 0

    def taking(call_ns, lag_ns):
        def call():
            clock["now"] += call_ns
            clock["after"] = lag_ns

        return call

    device.synchronize = synchronize
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: clock["now"])
    assert timer.suspicion(taking(9_000_000, 44_000)) is None
    assert timer.suspicion(taking(9_000_000, 46_000)).startswith("46 µs of work ran outside")


@pytest.mark.parametrize(("call_ns", "calls"), [(9_000_000, 5), (11_000_000, 1)])
def test_a_long_call_is_looked_at_once(timer_on, monkeypatch, call_ns, calls):
    device = FakeDevice()
    timer, _ = timer_on(device)
    clock = {"now": 0}
    made = []

    def call():
        made.append(1)
        clock["now"] += call_ns

    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: clock["now"])
    assert timer.suspicion(call) is None
    assert len(made) == calls


@pytest.mark.parametrize("lag_ns", [1000, 20_000])
def test_a_device_that_is_idle_soon_after_the_end_event_is_not_suspicious(timer_on, monkeypatch, lag_ns):
    device = FakeDevice()
    timer, _ = timer_on(device)
    assert timer.suspicion(lagging(device, monkeypatch, lag_ns)) is None


def test_one_undisturbed_call_of_several_clears_a_call_of_suspicion(timer_on, monkeypatch):
    device = FakeDevice()
    timer, _ = timer_on(device)
    call = lagging(device, monkeypatch, 500_000)
    calls = []

    def disturbed_at_times():
        calls.append(1)
        if len(calls) != 4:
            call()

    assert timer.suspicion(disturbed_at_times) is None
