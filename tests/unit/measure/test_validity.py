"""Impossible times, patched and diverging clocks, threads left running, growing memory, energy."""

from __future__ import annotations

import _thread
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from fake_nvml import state
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.gpu.theory import Floor
from pytest_gpukern.measure import live_threads as threads_module
from pytest_gpukern.measure import measure
from pytest_gpukern.measure import validity as clocks
from pytest_gpukern.measure.device_memory import Leak, MemoryReading, kept_bytes, launch_leak
from pytest_gpukern.measure.energy import (
    COUNTER_STANDS,
    HOST_BOUND,
    NO_COUNTER,
    TOO_SHORT,
    Energy,
    energy_per_call,
)
from pytest_gpukern.measure.live_threads import (
    Threads,
    running_threads,
    thread_fault,
    thread_left_working,
    thread_note,
)
from pytest_gpukern.measure.validity import ClockGuard, below_floor, device_time_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# impossible times

FLOOR = Floor(43_900.0, "216 MB at 4.92 TB/s, the memory's theoretical bandwidth")


def test_a_time_below_the_floor_is_named_with_its_bound_and_the_likely_causes() -> None:
    found = below_floor(12_345, FLOOR)
    assert found is not None
    assert found.startswith(
        "12.3 µs is impossible: 216 MB at 4.92 TB/s, the memory's theoretical bandwidth, "
        "take 43.9 µs at least. "
    )
    for cause in ("another stream", "declared bytes or flops", "in a cache"):
        assert cause in found


def test_clocks_and_ticks_get_the_benefit_of_the_doubt() -> None:
    assert below_floor(0.985 * 43_900, FLOOR) is None
    assert below_floor(0.975 * 43_900, FLOOR) is not None
    assert below_floor(0.975 * 43_900, FLOOR, resolution_ns=500) is None


def test_without_a_floor_nothing_is_impossible() -> None:
    assert below_floor(0.0, None) is None
    assert below_floor(0.0, FLOOR) is not None


# clocks


def guarded(**patches: object) -> str | None:
    guard = ClockGuard()
    since = guard.read()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in patches.items():
            patch.setattr(time, name, value)
        return guard.fault(since)


def test_real_clocks_are_trusted() -> None:
    assert guarded() is None


@pytest.mark.parametrize("name", ["perf_counter_ns", "perf_counter", "monotonic", "time", "process_time"])
def test_a_patched_clock_is_named_with_what_stands_in_its_place(name: str) -> None:
    found = guarded(**{name: lambda: 0})
    assert found is not None
    assert f"the clock time.{name} was replaced by <function" in found
    assert __file__ in found
    assert "undo the patch" in found
    assert guarded() is None


def test_a_clock_that_is_another_builtin_is_not_the_clock_either() -> None:
    found = guarded(perf_counter_ns=time.process_time_ns)
    assert found is not None
    assert "time.perf_counter_ns was replaced by <built-in function process_time_ns>" in found


def test_a_module_that_stands_in_for_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "time", SimpleNamespace(perf_counter_ns=lambda: 0))
    found = ClockGuard().fault(ClockGuard().read())
    assert found is not None
    assert "module time was replaced" in found


@pytest.mark.parametrize("fake", [SimpleNamespace(perf_counter_ns=lambda: 0), lambda: 0])
def test_a_clock_patched_inside_our_own_modules_is_named(
    monkeypatch: pytest.MonkeyPatch, fake: object
) -> None:
    monkeypatch.setattr(measure, "time", fake)
    found = ClockGuard().fault(ClockGuard().read())
    assert found is not None
    assert "the clock pytest_gpukern.measure.measure.time was replaced" in found


def test_a_function_of_ours_that_has_a_clocks_name_is_no_patch() -> None:
    from pytest_gpukern.report import units

    assert units.time is not time
    assert list(clocks.replaced_clocks()) == []


def test_a_clock_that_was_patched_before_we_were_loaded_is_found_all_the_same() -> None:
    script = """
        import time
        real = time.perf_counter_ns
        time.perf_counter_ns = lambda: real() // 2
        from pytest_gpukern.measure.validity import ClockGuard
        guard = ClockGuard()
        print(guard.fault(guard.read()))
        time.perf_counter_ns = time.monotonic_ns = time.process_time_ns
        import sys, importlib
        importlib.reload(sys.modules["pytest_gpukern.measure.validity"])
        guard = sys.modules["pytest_gpukern.measure.validity"].ClockGuard()
        print(guard.fault(guard.read()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "time.perf_counter_ns was replaced by <function <lambda>" in first
    assert "time.perf_counter_ns was replaced by <built-in function process_time_ns>" in second


def test_events_that_somebody_elses_code_makes_are_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("cuda.core")
    assert list(clocks.replaced_clocks()) == []
    monkeypatch.setattr(core.Device, "create_event", lambda self, options: None)
    found = ClockGuard().fault(ClockGuard().read())
    assert found is not None
    assert "the clock cuda.core.Device.create_event was replaced by <function" in found


def test_the_events_themselves_cannot_be_patched() -> None:
    core = pytest.importorskip("cuda.core")
    for owner, name in ((core.Event, "__sub__"), (core.Stream, "record")):
        with pytest.raises(TypeError, match="immutable type"):
            setattr(owner, name, lambda *args: 0)


def passing(perf_ns: float, raw_ns: float | None) -> str | None:
    """The verdict on clocks by which these nanoseconds passed."""
    perf, raw = iter([0, 0, round(perf_ns), round(perf_ns)]), iter([0, round(raw_ns or 0)])
    guard = ClockGuard(lambda: next(perf), lambda: next(raw))
    return guard.fault(guard.read())


def test_clocks_between_which_the_thread_had_to_wait_are_read_again() -> None:
    perf, raw = iter([0, 4_000_000, 5_000_000, 5_000_000]), iter([4_000_000, 5_000_000])
    guard = ClockGuard(lambda: next(perf), lambda: next(raw))
    assert guard.read() == clocks.ClockReading(5_000_000, 5_000_000)


def test_clocks_that_diverge_are_named_with_what_each_says() -> None:
    found = passing(2e8, 4e8)
    assert found is not None
    assert "by time.perf_counter_ns 200.0 ms passed, by CLOCK_MONOTONIC_RAW 400.0 ms" in found


@given(st.floats(0, 1e11), st.floats(-5e-4, 5e-4))
def test_slewing_by_ntp_is_no_divergence(ns: float, rate: float) -> None:
    assert passing(ns * (1 + rate), ns) is None


def test_a_host_with_one_clock_has_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "_raw_clock", lambda: None)
    guard = ClockGuard()
    assert guard.read().raw_ns is None
    assert guard.fault(guard.read()) is None


def test_samples_cannot_take_longer_than_the_batch_they_are_of() -> None:
    assert device_time_fault(5.04e7, 5e7) is None
    found = device_time_fault(8e7, 5e7)
    assert found is not None
    assert "add up to 80.0 ms, but the host saw it take 50.0 ms" in found
    assert device_time_fault(1e3, 5e7) is None, "flushes and launches take host time too"


# threads


def test_a_thread_that_outlives_the_calls_is_named_until_it_ends() -> None:
    before = running_threads()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="does the work")
    thread.start()
    try:
        after = running_threads()
        found = thread_fault(before, after)
    finally:
        stop.set()
        thread.join()
    assert found is not None
    assert "a thread started by the timed calls is still running: does the work" in found
    assert thread_fault(before, after) is None, "it has ended"
    assert thread_fault(before, running_threads()) is None


def test_a_thread_of_a_library_that_only_called_into_python_is_not_counted() -> None:
    stop, known = threading.Event(), threading.Event()
    native: list[threading.Thread] = []

    def call_into_python() -> None:
        native.append(threading.current_thread())
        known.set()
        stop.wait()

    _thread.start_new_thread(call_into_python, ())  # which threading does not know of
    try:
        assert known.wait(10)
        found = running_threads()
    finally:
        stop.set()
    assert native[0].name.startswith("Dummy")
    assert native[0] not in found.python


def left_by(launch: Callable[[], object], *, first: bool = False) -> str | None:
    """What is said of the threads that a launch leaves."""
    before = running_threads()
    launch()
    return thread_left_working(before, running_threads(), first=first)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        if thread.name.startswith("left"):
            thread.join()


def waiting(stop: threading.Event, daemon: bool) -> Callable[[], None]:
    """A launch that leaves a thread behind."""
    return lambda: threading.Thread(target=stop.wait, name="left behind", daemon=daemon).start()


@pytest.mark.parametrize(("first", "daemon"), [(True, False), (False, False), (False, True)])
def test_a_thread_that_a_launch_leaves_working_is_named(
    stop: threading.Event, first: bool, daemon: bool
) -> None:
    found = left_by(waiting(stop, daemon), first=first)
    assert found is not None
    assert "a thread started by the launch is still running: left behind; " in found


def test_a_service_that_a_library_starts_at_the_first_launch_is_fine(stop: threading.Event) -> None:
    assert left_by(waiting(stop, True), first=True) is None


def test_a_thread_that_ran_before_and_one_that_has_ended_are_fine(stop: threading.Event) -> None:
    waiting(stop, False)()
    assert left_by(lambda: None) is None

    def joins() -> None:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

    assert left_by(joins) is None


def test_a_thread_that_is_about_to_end_is_waited_for(stop: threading.Event) -> None:
    told = threading.Event()

    def ends_soon() -> None:
        thread = threading.Thread(target=told.wait, name="left for a moment")
        thread.start()
        threading.Timer(0, told.set).start()

    with mock.patch.object(threads_module, "_GRACE_S", 60.0):
        assert left_by(ends_soon) is None


POOLS = [lambda: ThreadPoolExecutor(2, "left"), lambda: ThreadPool(2)]


def closed(pool: ThreadPoolExecutor | ThreadPool) -> None:
    if isinstance(pool, ThreadPoolExecutor):
        pool.shutdown()
    else:
        pool.terminate()
        pool.join()


@pytest.mark.parametrize("make", POOLS)
def test_workers_that_wait_for_their_pools_next_task_are_fine(
    make: Callable[[], ThreadPoolExecutor | ThreadPool],
) -> None:
    pools = []

    def launch() -> None:
        pools.append(make())
        list(pools[0].map(str, range(8)))

    try:
        assert left_by(launch) is None
    finally:
        closed(pools[0])


@pytest.mark.parametrize("in_python", [True, False])
def test_a_worker_that_has_a_task_is_not(stop: threading.Event, in_python: bool) -> None:
    lock = threading.Lock()
    lock.acquire()
    pool, reached = ThreadPoolExecutor(1, "left"), threading.Event()

    def task() -> None:
        reached.set()
        stop.wait()

    def launch() -> None:
        if in_python:
            pool.submit(task)
            reached.wait()
        else:
            pool.submit(lock.acquire)
            (worker,) = pool._threads
            while sys._current_frames()[worker.ident or 0].f_code.co_name != "run":
                pass

    try:
        found = left_by(launch)
        assert found is not None
        assert "left_0" in found
    finally:
        stop.set()
        lock.release()
        pool.shutdown()


def test_native_threads_are_a_note_and_no_fault() -> None:
    before, after = Threads(frozenset(), 12), Threads(frozenset(), 40)
    assert thread_fault(before, after) is None
    assert thread_note(before, after) == "28 native threads were started during the measurement"
    assert thread_note(after, before) is None
    assert thread_note(before, Threads(frozenset(), None)) is None
    ours = threading.current_thread()
    assert thread_note(before, Threads(frozenset({ours}), 13)) is None, "Python's are not counted twice"


def test_the_number_of_native_threads_is_known_on_linux() -> None:
    found = running_threads()
    assert threading.current_thread() in found.python
    if sys.platform == "linux":
        assert found.native is not None
        assert found.native >= len(found.python)


# memory


def readings(*mib: float, live: bool = False) -> list[MemoryReading]:
    """Behind batches of ten launches each: use in MiB, or what is alive."""
    sizes = [round(each * 2**20) for each in mib]
    return [
        MemoryReading(10 * number, 2**30 if live else size, size if live else 0)
        for number, size in enumerate(sizes)
    ]


def text(leak: Leak | None) -> str:
    assert leak is not None
    return leak.text


def test_use_that_grows_with_every_batch_is_a_leak() -> None:
    leak = launch_leak(readings(*range(1000, 1400, 40)))
    assert text(leak).startswith("70 launches left 280 MiB behind (about 4 MiB each), of the device's memory")
    assert leak is not None
    assert not leak.exact


def test_arrays_that_stay_alive_are_an_exact_leak_however_small_each_is() -> None:
    leak = launch_leak(readings(*(0.5 * number for number in range(4)), live=True))
    assert leak == Leak(
        "30 launches left 1.5 MiB behind (about 51 KiB each), and all of it is still alive", True
    )


def test_a_leak_that_a_pool_turns_into_steps_is_one_too() -> None:
    assert launch_leak(readings(*(20 * (batch // 4) for batch in range(24)))) is not None


NO_LEAKS = {
    "nothing": [],
    "one": [1000],
    "constant": [1000] * 12,
    "a pool that fills": [0, 500, 800, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000],
    "a garbage collector": [1000, 1020, 1040, 1060, 1000, 1020, 1040, 1060],
    "settles": [0, 10, 20, 30, 40, 50, 60, 70, 80, 80, 80, 80, 80, 80, 80, 80],
    "one granule": [1000, 1000, 1000.5, 1001, 1001.5, 1002],
}


@pytest.mark.parametrize("used", NO_LEAKS.values(), ids=NO_LEAKS)
def test_use_that_settles_or_falls_is_no_leak(used: list[float]) -> None:
    assert launch_leak(readings(*used)) is None


@pytest.mark.parametrize("alive", [[5, 5, 5, 5, 5], [0, 8, 8, 8, 8, 8], [0, 1, 2, 3, 1], [0, 0.1, 0.2, 0.3]])
def test_arrays_that_are_made_once_or_given_back_or_tiny_are_no_leak(alive: list[float]) -> None:
    assert launch_leak(readings(*alive, live=True)) is None


def test_what_a_garbage_collector_takes_in_the_end_was_no_leak() -> None:
    grown = readings(*range(0, 40, 4), live=True)
    assert launch_leak(grown) is not None
    assert launch_leak(grown, MemoryReading(90, 2**30, 0)) is None


@given(st.lists(st.integers(0, 2**20), min_size=4, max_size=40))
def test_use_that_ever_falls_after_the_warm_up_is_no_leak(used: list[int]) -> None:
    warm = used[len(used) // 4 :]
    if launch_leak(readings(*used)) is not None:
        assert warm == sorted(warm)
        assert warm[-1] > warm[0]


ARRAYS = {("cupy", 1): 8 * 2**20, ("cupy", 2): 4 * 2**20, ("torch", 1): 2**20}


def test_a_test_keeps_the_arrays_that_are_new() -> None:
    before = {("cupy", 1): 8 * 2**20}
    assert kept_bytes(before, ARRAYS, {"cupy": 4 * 2**20, "torch": 2**20}) == 5 * 2**20


def test_what_is_gone_since_hides_nothing() -> None:
    """The last test of a module is torn down with the module's arrays."""
    before = {("cupy", 9): 100 * 2**20}
    after = {("cupy", 1): 8 * 2**20}
    assert kept_bytes(before, after, {"cupy": -92 * 2**20}) == 8 * 2**20
    assert kept_bytes(before, {}, {"cupy": -100 * 2**20}) == 0


def test_a_workspace_of_a_library_is_no_array_and_an_array_in_the_place_of_another_is_no_growth() -> None:
    assert kept_bytes(ARRAYS, ARRAYS, {"cupy": 32 * 2**20}) == 0
    assert kept_bytes({}, ARRAYS, {"cupy": 0, "torch": -5}) == 0
    assert kept_bytes({}, {("cupy", 1): 2**19}, {"cupy": 2**19}) == 0, "too little to be worth a line"


# energy


def energy(
    seconds: float = 1.2,
    calls: int = 1000,
    starved_s: float = 0.0,
    busy_ms: float | None = None,
    **changes: object,
) -> Energy:
    after = state(1e3 * seconds, **({"energy_mj": 1_000_000 + 840_000} | changes))
    busy_ns = None if busy_ms is None else 1e6 * busy_ms
    return energy_per_call(state(0), after, calls, starved_ns=1e9 * starved_s, busy_ns=busy_ns)


def test_energy_is_what_the_board_drew_per_call_and_power_what_it_drew_a_second() -> None:
    assert energy() == Energy(pytest.approx(840.0), pytest.approx(700.0))


def test_a_device_that_may_have_waited_for_a_tenth_of_the_time_is_still_told() -> None:
    assert energy(starved_s=0.11).call_mj == pytest.approx(840.0)
    assert energy(starved_s=0.13) == Energy(untold=HOST_BOUND)


def test_kernels_that_fill_the_time_need_no_queue_if_they_are_too_long_for_the_cache_to_matter() -> None:
    waits = {"seconds": 1.2, "starved_s": 1.2}
    assert energy(calls=1000, busy_ms=1.19, **waits).call_mj == pytest.approx(840.0)
    assert energy(calls=1000, busy_ms=1.0, **waits) == Energy(untold=HOST_BOUND)
    assert energy(calls=2000, busy_ms=0.59, **waits) == Energy(untold=HOST_BOUND)
    assert energy(calls=1000, busy_ms=None, **waits) == Energy(untold=HOST_BOUND)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seconds": 0.9, "calls": 750}, TOO_SHORT),
        ({"calls": 0}, TOO_SHORT),
        ({"energy_mj": None}, NO_COUNTER),
        ({"energy_mj": 1_000_000}, COUNTER_STANDS),
    ],
    ids=["too short for the counter", "no calls", "no counter", "a counter that stands"],
)
def test_energy_that_cannot_be_told_has_a_reason(changes: dict[str, object], reason: str) -> None:
    assert energy(**changes) == Energy(untold=reason)
