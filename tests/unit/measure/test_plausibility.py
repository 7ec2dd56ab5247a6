"""Tests impossible times, patched and diverging clocks, and a note on threads left running."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_results import measured

from pytest_gpukern.gpu.theory import Floor
from pytest_gpukern.measure import measure
from pytest_gpukern.measure import plausibility as clocks
from pytest_gpukern.measure.observers import ObservedCall
from pytest_gpukern.measure.plausibility import ClockGuard, PlausibilityObservation, device_time_fault
from pytest_gpukern.timers.timer import Batch
from pytest_gpukern.values.note import Note

# clocks


def guarded(**patches):
    guard = ClockGuard()
    since = guard.read()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in patches.items():
            patch.setattr(time, name, value)
        return guard.fault(since)


@pytest.mark.parametrize("name", ["perf_counter_ns", "perf_counter", "monotonic", "time", "process_time"])
def test_a_patched_clock_is_named_with_what_stands_in_its_place(name):
    found = guarded(**{name: lambda: 0})
    assert f"the clock time.{name} was replaced by <function" in found
    assert "undo the patch" in found
    assert guarded() is None


def test_a_module_that_stands_in_for_time_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "time", SimpleNamespace(perf_counter_ns=lambda: 0))
    found = ClockGuard().fault(ClockGuard().read())
    assert "module time was replaced" in found


@pytest.mark.parametrize("fake", [SimpleNamespace(perf_counter_ns=lambda: 0), lambda: 0])
def test_a_clock_patched_inside_our_own_modules_is_named(monkeypatch, fake):
    monkeypatch.setattr(measure, "time", fake)
    found = ClockGuard().fault(ClockGuard().read())
    assert "the clock pytest_gpukern.measure.measure.time was replaced" in found


def test_a_package_whose_name_begins_like_ours_may_call_anything_time(monkeypatch):
    others = ModuleType("pytest_gpukern_of_others")
    others.time = object()
    monkeypatch.setitem(sys.modules, others.__name__, others)
    assert list(clocks.replaced_clocks()) == []


def test_a_clock_that_was_patched_before_we_were_loaded_is_found_all_the_same():
    script = """
        import time
        real = time.perf_counter_ns
        time.perf_counter_ns = lambda: real() // 2
        from pytest_gpukern.measure.plausibility import ClockGuard
        guard = ClockGuard()
        print(guard.fault(guard.read()))
        time.perf_counter_ns = time.monotonic_ns = time.process_time_ns
        import sys, importlib
        importlib.reload(sys.modules["pytest_gpukern.measure.plausibility"])
        guard = sys.modules["pytest_gpukern.measure.plausibility"].ClockGuard()
        print(guard.fault(guard.read()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "time.perf_counter_ns was replaced by <function <lambda>" in first
    assert "time.perf_counter_ns was replaced by <built-in function process_time_ns>" in second


def test_events_that_somebody_elses_code_makes_are_no_events(monkeypatch):
    core = pytest.importorskip("cuda.core")
    assert list(clocks.replaced_clocks()) == []
    monkeypatch.setattr(core.Device, "create_event", lambda self, options: None)
    found = ClockGuard().fault(ClockGuard().read())
    assert "the clock cuda.core.Device.create_event was replaced by <function" in found


def passing(perf_ns, raw_ns):
    """The verdict on clocks by which these nanoseconds passed."""
    perf, raw = iter([0, 0, round(perf_ns), round(perf_ns)]), iter([0, round(raw_ns or 0)])
    guard = ClockGuard()
    guard._perf_counter_ns, guard._raw_ns = perf.__next__, raw.__next__
    return guard.fault(guard.read())


def test_clocks_between_which_the_thread_had_to_wait_are_read_again():
    perf, raw = iter([0, 4_000_000, 5_000_000, 5_000_000]), iter([4_000_000, 5_000_000])
    guard = ClockGuard()
    guard._perf_counter_ns, guard._raw_ns = perf.__next__, raw.__next__
    assert guard.read() == clocks.ClockReading(5_000_000, 5_000_000)


def test_clocks_that_diverge_are_named_with_what_each_says():
    """By more than 1 % and a millisecond, which is 2 ms of 100."""
    found = passing(2e8, 4e8)
    assert "time.perf_counter_ns saw 200.0 ms pass, CLOCK_MONOTONIC_RAW 400.0 ms" in found
    for sign in (-1, 1):
        assert passing(1e8 + sign * 2e6, 1e8) is None
        assert passing(1e8 + sign * (2e6 + 1), 1e8) is not None


@given(st.floats(0, 1e11), st.floats(-5e-4, 5e-4))
def test_slewing_by_ntp_is_no_divergence(ns, rate):
    assert passing(ns * (1 + rate), ns) is None


def test_samples_cannot_take_longer_than_the_batch_they_are_of():
    assert device_time_fault(5.15e7, 5e7) is None
    assert device_time_fault(5.15e7 + 1, 5e7) is not None
    found = device_time_fault(8e7, 5e7)
    assert "add up to 80.0 ms, but the host saw it take 50.0 ms" in found
    assert device_time_fault(1e3, 5e7) is None, "flushes and launches take host time too"


# around a measurement

BATCH = Batch([1000.0] * 10)


def plausible(timer="host", *, floor=None, resolution_ns=1.0):
    timer = SimpleNamespace(name=timer, resolution_ns=resolution_ns)
    return PlausibilityObservation(ObservedCall(on_gpu=True, floor=floor), timer)


def finished(watch, median_ns=1000.0):
    return watch.finish(measured(median_ns))


def test_a_time_below_what_the_hardware_can_do_is_invalid():
    """By more than 2 %, since clocks vary, and by more than a tick of the timer, here 1 ns."""
    floor = Floor(2000.0, "1 GB at 4.8 TB/s")
    watch = plausible(floor=floor)
    found = finished(watch, 1000.0).invalid
    assert found.startswith("1 µs is impossible: 1 GB at 4.8 TB/s, take at least 2 µs. ")
    for cause in ("another stream", "declared bytes or flops", "in a cache"):
        assert cause in found
    assert [finished(watch, ns).invalid is None for ns in (1959.0, 1958.9)] == [True, False]
    coarse = plausible(floor=floor, resolution_ns=1000.0)
    assert finished(coarse, 1000.0).invalid is None, "the timer cannot tell"


@pytest.mark.parametrize(
    ("samples_ns", "iterations", "device_timed", "fault"),
    [
        ([9e12], 1, True, "the samples of a batch add up to 9000000.0 ms, but the host saw it take "),
        ([9e10] * 2, 100, True, "the samples of a batch add up to 18000000.0 ms, but the host saw it take "),
        ([100.0], 100, True, None),
        ([9e12], 1, False, None),
    ],
)
def test_device_times_that_add_up_to_more_than_the_host_saw_pass_are_invalid(
    samples_ns, iterations, device_timed, fault
):
    watch = plausible("event" if device_timed else "host")
    for batch in (Batch(samples_ns, iterations=iterations), BATCH):
        watch.before()
        watch.after(batch, last=batch is BATCH)
    found = finished(watch).invalid
    assert found is None if fault is None else found.startswith(fault)


def test_a_thread_that_the_calls_left_running_is_a_note_that_names_it():
    watch, end = plausible(), threading.Event()
    watch.before()
    thread = threading.Thread(target=end.wait, name="heartbeat")
    thread.start()
    try:
        found = finished(watch)
    finally:
        end.set()
        thread.join()
    assert found.invalid is None
    assert Note("a thread started by the timed calls is still running: heartbeat") in found.notes
    assert finished(watch).notes == ()


def test_a_patched_clock_is_invalid(monkeypatch):
    watch = plausible()
    watch.before()
    monkeypatch.setattr("time.perf_counter_ns", lambda: 0)
    assert "time.perf_counter_ns" in finished(watch).invalid
