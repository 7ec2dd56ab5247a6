"""Tests the graph timer and the calibration of events, on a fake device that only logs its steps."""

from __future__ import annotations

import pytest
from fake_cuda import FakeDevice, install
from fakes import with_fresh_arguments

from pytest_gpukern.timers.event import EventTimer
from pytest_gpukern.timers.graph import GraphTimer, sets_needed
from pytest_gpukern.timers.launch_queue import EventQueue
from pytest_gpukern.timers.replay import empty_kernel_line, replay_line
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable

MIB = 1 << 20


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def driver(monkeypatch, device):
    driver = install(monkeypatch, device)
    yield driver
    assert driver.alive == []


@pytest.fixture
def timer(device, driver):
    timer = GraphTimer(device)
    device.log.clear()
    return timer


def replayed(device):
    """Calls in each replay, in order."""
    return [int(step.split()[-1]) for step in device.log if step.startswith("replay")]


# samples


def test_a_sample_is_a_replay_divided_by_its_calls(device, timer):
    calls = [device.call(ms) for ms in (0.1, 0.2, 0.3)]
    batch = timer.collect([Iteration(call) for call in calls], cold=False)
    assert batch.samples_ns == pytest.approx([200_000.0] * 16)
    assert (batch.iterations, batch.launch_included, batch.notes) == (3, False, [])
    assert replayed(device) == [3] + [3] * 16


def test_short_calls_are_captured_over_and_over_until_a_replay_takes_200_us(device, timer):
    batch = timer.collect([Iteration(device.call(0.002))] * 4, cold=False)
    assert batch.iterations == 100
    assert batch.samples_ns == pytest.approx([2000.0] * 16)
    assert replayed(device) == [4, 100] + [100] * 16


def test_the_calls_keep_their_order_when_they_are_captured_over_and_over(device, timer):
    order = []

    def call(number):
        def run():
            order.append(number)
            device.execute(0.05)

        return Iteration(run)

    timer.collect([call(number) for number in range(3)], cold=True)
    assert order == [0, 1, 2] + [0, 1, 2] * 2 + [0, 1, 2] * 2


@pytest.mark.parametrize(("call_ms", "replays"), [(0.5, 16), (1.5, 6), (6.0, 1), (900.0, 1)])
def test_long_replays_are_fewer(device, timer, call_ms, replays):
    batch = timer.collect([Iteration(device.call(call_ms))] * 2, cold=False)
    assert batch.samples_ns == pytest.approx([1e6 * call_ms] * replays)
    assert replayed(device) == [2] * (1 + replays)


def test_what_a_replay_costs_does_not_make_replays_too_short(device, driver, timer):
    driver.replay_ms = 0.010
    batch = timer.collect([Iteration(device.call(0.002))], cold=False)
    assert batch.samples_ns[0] * batch.iterations >= 200_000 * (1 - 1e-9)  # but for rounding
    assert batch.samples_ns[0] < 2300


def test_calls_that_take_no_time_at_all_are_not_captured_for_ever(device, timer):
    assert timer.collect([Iteration(device.call(0.0))] * 4, cold=False).iterations == 400


@pytest.mark.parametrize("cold", [True, False])
def test_every_different_before_and_the_flush_come_ahead_of_each_replay(device, timer, cold):
    def poison(name):
        return lambda: device.log.append(f"poison {name}")

    a, b = poison("a"), poison("b")
    call = device.call(11.0)
    timer.collect([Iteration(call, a), Iteration(call, b), Iteration(call, a), Iteration(call)], cold=cold)
    before = ["poison a", "poison b", *(["flush"] if cold else [])]
    once = ["idle", "block", *before, "record", "replay of 4", "record", "release", "idle"]
    assert device.log == once + once


@pytest.mark.parametrize(
    ("calls", "call_ms", "cold", "warned"),
    [(1, 0.002, True, True), (1, 0.002, False, False), (1, 0.2, True, False), (2, 0.002, True, False)],
)
def test_cold_calls_that_share_their_buffers_are_warned_of(device, timer, calls, call_ms, cold, warned):
    iterations = [Iteration(device.call(call_ms)) for _ in range(calls)]
    notes = timer.collect(iterations, cold=cold).notes
    text = "the graph's calls shared their buffers: data that fit into the L2 were not cold"
    assert [note.text for note in notes] == ([text] if warned else [])


def test_large_graphs_are_queued_in_small_parts(device, timer):
    timer.collect([Iteration(device.call(0.001))] * 200, cold=False)
    assert device.log.count("replay of 200") == 1 + 16
    assert device.log.count("block") == 1 + 16 // 2


# refusals


def test_the_timer_can_be_used_after_a_refusal(device, timer):
    with pytest.raises(TimerUnavailable):
        timer.collect([Iteration(device.waiting_call())], cold=True)
    assert timer.collect([Iteration(device.call(0.3))], cold=True).samples_ns == pytest.approx([3e5] * 16)


def test_a_call_that_needs_fresh_arguments_is_refused_without_a_call(device, timer):
    seen = []
    iterations = with_fresh_arguments(seen.append, 2, list)
    with pytest.raises(TimerUnavailable, match="fresh arguments"):
        timer.collect(iterations, cold=False)
    with pytest.raises(TimerUnavailable, match="fresh arguments"):
        timer.node_time_ns(iterations[0])
    assert seen == []


# what it knows about itself


def test_the_resolution_is_that_of_events_spread_over_the_calls(device, timer):
    assert timer.resolution_ns == 500
    timer.collect([Iteration(device.call(0.002))], cold=False)
    assert timer.resolution_ns == 5


def test_the_fixed_cost_is_what_a_replay_costs_beside_its_calls_spread_over_them(device, driver, timer):
    driver.replay_ms = 0.004
    assert timer.fixed_cost_ns is None
    batch = timer.collect([Iteration(device.call(0.002))], cold=False)
    assert timer.fixed_cost_ns == pytest.approx(4000 / batch.iterations)
    assert batch.samples_ns[0] == pytest.approx(2000 + timer.fixed_cost_ns)


def test_node_time_is_the_slope_without_what_a_replay_costs(device, driver, timer):
    driver.replay_ms = 0.004
    assert timer.node_time_ns(Iteration(device.call(0.002))) == pytest.approx(2000)


def test_the_graphs_of_a_slope_take_turns(device, driver):
    queue = EventQueue(device, device)
    device.log.clear()
    replay_line(queue, device, device.call(), (2, 5))
    assert replayed(device) == [2, 5] * 5


# buffers


@pytest.mark.parametrize(
    ("footprint", "l2", "sets"),
    [(200 * MIB, 50 * MIB, 2), (100 * MIB, 50 * MIB, 2), (99 * MIB, 50 * MIB, 3), (25 * MIB, 50 * MIB, 5)],
)
def test_between_two_uses_of_a_set_the_others_touch_twice_the_l2(footprint, l2, sets):
    assert sets_needed(footprint, l2) == sets
    assert (sets - 1) * footprint >= 2 * l2


# calibration of events


@pytest.fixture
def costly_events(device, monkeypatch):
    """Each pair of events reads 3 µs more than what is between them; 1.5 µs more after a flush."""
    flushed = {"now": False}

    def record(event):
        device.now_ms += 0.0015
        event.at_ms = device.now_ms
        device.now_ms += 0.0015 + (0.0015 if flushed["now"] else 0)
        flushed["now"] = False

    monkeypatch.setattr(device, "record", record)
    monkeypatch.setattr(device, "flush_l2", lambda stream: flushed.update(now=True))


@pytest.mark.parametrize(("cold", "cost"), [(False, 3000), (True, 4500)])
def test_events_cost_what_they_read_for_an_empty_kernel_beyond_its_own_time(
    device, driver, costly_events, cold, cost
):
    timer = EventTimer(device)
    timer.collect([Iteration(device.call())], cold=cold)
    assert timer.fixed_cost_ns == pytest.approx(cost)
    assert empty_kernel_line(device).slope == pytest.approx(1000), "the empty kernel takes 1 µs"


def test_the_cost_is_found_once_a_process(device, driver, costly_events):
    EventTimer(device).fixed_cost_ns  # noqa: B018 - the first to ask measures it
    timer = EventTimer(device)
    device.log.clear()
    assert timer.fixed_cost_ns == pytest.approx(4500)
    assert "gpukern_empty" not in device.log


def test_samples_that_could_not_be_queued_have_no_known_fixed_cost(device, driver):
    timer = EventTimer(device)
    assert timer.collect([Iteration(device.waiting_call())], cold=True).launch_included
    assert timer.fixed_cost_ns is None


def test_the_cost_on_the_legacy_stream_is_measured_there(monkeypatch):
    device = FakeDevice()
    install(monkeypatch, device)
    legacy = FakeDevice(handle=1)
    device.default_stream = legacy
    timer = EventTimer(device, legacy)
    assert timer.fixed_cost_ns is not None
    assert legacy.log.count("gpukern_empty") > 30
