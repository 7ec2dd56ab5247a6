"""Tests finding work outside the timed stream by how long the device stays busy."""

from __future__ import annotations

import pytest
from fake_cuda import FakeDevice
from fakes import with_fresh_arguments

from pytest_gpukern.timers import launch_queue as escape
from pytest_gpukern.timers.launch_queue import escaped_work
from pytest_gpukern.timers.timer import Iteration


def lagging(device, monkeypatch, lag_ns):
    """Makes each wait for an idle device take `lag_ns` after `call` ran, and a little otherwise."""
    clock = {"now": 0, "busy": False}

    def synchronize():
        clock["now"] += lag_ns if clock["busy"] else 1000
        clock["busy"] = False

    def call():
        clock["busy"] = True

    device.synchronize = synchronize
    monkeypatch.setattr(escape.time, "perf_counter_ns", lambda: clock["now"])
    return call


def test_work_that_outlasts_the_end_event_is_suspicious(monkeypatch):
    device = FakeDevice()
    found = escaped_work(device, device, Iteration(lagging(device, monkeypatch, 500_000)))
    assert found == "499 µs of work ran outside the timed stream; make the given stream wait for it"


def test_what_outlasts_a_long_call_is_measured_against_the_call(monkeypatch):
    device = FakeDevice()
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
    monkeypatch.setattr(escape.time, "perf_counter_ns", lambda: clock["now"])
    assert escaped_work(device, device, Iteration(taking(9_000_000, 44_000))) is None
    found = escaped_work(device, device, Iteration(taking(9_000_000, 46_000)))
    assert found.startswith("46 µs of work ran outside")


@pytest.mark.parametrize("lag_ns", [1000, 20_000])
def test_a_device_that_is_idle_soon_after_the_end_event_is_not_suspicious(monkeypatch, lag_ns):
    device = FakeDevice()
    assert escaped_work(device, device, Iteration(lagging(device, monkeypatch, lag_ns))) is None


def test_one_undisturbed_call_of_several_clears_a_call_of_suspicion(monkeypatch):
    device = FakeDevice()
    call = lagging(device, monkeypatch, 500_000)
    calls = []

    def disturbed_at_times():
        calls.append(1)
        if len(calls) != 4:
            call()

    assert escaped_work(device, device, Iteration(disturbed_at_times)) is None


def test_looking_uses_no_arguments_twice():
    device = FakeDevice()
    seen = []
    (iteration,) = with_fresh_arguments(seen.append, 1, list)
    assert escaped_work(device, device, iteration) is None
    assert len({id(fresh) for fresh in seen}) == len(seen) == 5
