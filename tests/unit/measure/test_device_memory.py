"""The device's memory through a test: figures and findings; what is asked is made up."""

from __future__ import annotations

import pytest

from pytest_gpukern.measure.device_memory import MemoryWatch
from pytest_gpukern.values.result import DeviceMemory

MIB = 2**20
BASE = 512 * MIB


class Gauge:
    """One library, `cupy`, whose arrays are `alive`: address → bytes; beside it what nobody accounts for."""

    def __init__(self):
        self.alive = {}
        self.cached = self.unaccounted = self.high = 0
        self.counts = True
        self.looked_up = 0

    def used_bytes(self):
        return BASE + sum(self.alive.values()) + self.cached + self.unaccounted

    def live_bytes(self):
        return {"cupy": sum(self.alive.values()) if self.counts else None}

    def high_bytes(self):
        return self.high

    def reset_high(self):
        self.high = 0

    def release(self):
        self.cached = 0

    def synchronize(self):
        pass

    def arrays(self):
        self.looked_up += 1
        return {("cupy", address): size for address, size in self.alive.items()}


@pytest.fixture
def gauge():
    return Gauge()


def finished(watch, *, passed=True, let_go=lambda: None):
    found = watch.finish(passed=passed, let_go=let_go)
    assert found is not None
    return found.figures, found.finding and found.finding.text


def test_a_test_that_gives_all_back_has_figures_and_nothing_to_say(gauge):
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.alive[1] = 64 * MIB
    watch.look()
    gauge.alive.clear()
    gauge.cached = 64 * MIB  # which goes when caches are given back
    assert finished(watch) == (DeviceMemory(BASE, BASE + 64 * MIB, BASE), None)
    assert gauge.looked_up == 0, "nothing was alive"


def test_what_a_librarys_own_mark_tells_counts_for_the_most(gauge):
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.high = 100 * MIB
    assert finished(watch)[0].peak_bytes == BASE + 100 * MIB


def test_what_is_allocated_once_and_is_no_array_is_a_figure_only(gauge):
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.unaccounted = 96 * MIB
    assert finished(watch) == (DeviceMemory(BASE, BASE + 96 * MIB, BASE + 96 * MIB), None)


def test_an_array_that_stays_alive_is_said_of_the_test_that_made_it_and_of_no_other(gauge):
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.alive[1] = 8 * MIB
    memory, text = finished(watch)
    assert (memory.after_bytes, memory.kept_bytes) == (BASE + 8 * MIB, 8 * MIB)
    assert text.startswith("the test leaves 8 MiB of arrays alive behind its teardown")
    looked_up = gauge.looked_up
    for _ in range(2):
        watch.begin()
        gauge.alive[2] = 16 * MIB
        del gauge.alive[2]
        assert finished(watch) == (DeviceMemory(*3 * [BASE + 8 * MIB]), None)
    assert gauge.looked_up == looked_up, "what did not change is not looked up again"


def test_what_was_there_before_is_nobodys_leak(gauge):
    gauge.alive[1] = 100 * MIB  # a fixture of the module
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.unaccounted = 32 * MIB
    gauge.alive[2] = 4 * MIB
    assert finished(watch)[0].kept_bytes == 4 * MIB


def test_what_pytest_refers_to_or_a_cycle_is_no_leak(gauge):
    watch = MemoryWatch(gauge, collect=lambda: gauge.alive.pop(2))
    watch.begin()
    gauge.alive.update({1: 8 * MIB, 2: 8 * MIB})
    assert finished(watch, let_go=lambda: gauge.alive.pop(1)) == (
        DeviceMemory(BASE, BASE + 16 * MIB, BASE),
        None,
    )


def test_garbage_is_collected_only_where_arrays_are_left(gauge):
    collected = []
    watch = MemoryWatch(gauge, collect=lambda: collected.append(1))
    watch.begin()
    gauge.alive[1] = 8 * MIB
    assert finished(watch, let_go=gauge.alive.clear)[0].kept_bytes == 0
    assert not collected, "references dropped are enough"
    watch.begin()
    gauge.alive[2] = 8 * MIB
    assert finished(watch)[0].kept_bytes == 8 * MIB
    assert collected


def test_what_a_failure_refers_to_is_not_kept_by_the_test_nor_by_the_next(gauge):
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.alive[1] = 8 * MIB
    assert finished(watch, passed=False)[1] is None
    watch.begin()
    assert finished(watch) == (DeviceMemory(*3 * [BASE + 8 * MIB]), None)


@pytest.mark.parametrize(("grown", "kept"), [(8 * MIB, 8 * MIB), (2 * MIB, 0), (-MIB, 0)])
def test_arrays_that_nobody_counts_are_bounded_by_the_devices_use(gauge, grown, kept):
    gauge.counts = False
    watch = MemoryWatch(gauge)
    watch.begin()
    gauge.alive[1] = 64 * MIB
    gauge.unaccounted = grown - 64 * MIB
    assert finished(watch)[0].kept_bytes == kept


def test_arrays_that_nobody_counts_are_looked_up_again_only_where_the_devices_use_moved(gauge):
    gauge.counts = False
    watch = MemoryWatch(gauge)
    for _ in range(3):
        watch.begin()
        finished(watch)
    assert gauge.looked_up == 1
    gauge.alive[1] = 64 * MIB  # a fixture of the module
    watch.begin()
    gauge.unaccounted = 32 * MIB  # a library's first use
    assert finished(watch)[0].kept_bytes == 0


def test_nothing_is_told_where_nothing_was_noted_before(gauge):
    watch = MemoryWatch(gauge)
    assert watch.finish(passed=True, let_go=lambda: None) is None


def leaking(gauge, watch, mib, batches=8):
    series = watch.series()
    for number in range(batches):
        gauge.alive[100 + number] = mib * MIB
        series.note(5)
    series.end()


def test_launches_that_leave_arrays_behind_are_told_once_though_two_timers_saw_it(gauge):
    watch = MemoryWatch(gauge, collect=lambda: None)
    watch.begin()
    leaking(gauge, watch, 5)
    leaking(gauge, watch, 7)
    (finding,) = watch.leaks()
    assert finding.kind == "memory"
    assert finding.text == "40 launches left 40 MiB behind (about 1 MiB each), and all of it is still alive"
    watch.begin()
    assert watch.leaks() == ()


def test_garbage_of_launches_is_no_leak(gauge):
    watch = MemoryWatch(gauge, collect=gauge.alive.clear)
    watch.begin()
    leaking(gauge, watch, 5)
    assert watch.leaks() == ()
    assert finished(watch)[0].peak_bytes == BASE + 40 * MIB


@pytest.mark.parametrize("others", [True, False])
def test_use_that_nobody_accounts_for_may_be_of_others_where_there_are_some(gauge, others):
    watch = MemoryWatch(gauge, others=lambda: others, collect=lambda: None)
    watch.begin()
    series = watch.series()
    for _ in range(8):
        gauge.unaccounted += 4 * MIB
        series.note(2)
    series.end()
    (finding,) = watch.leaks()
    text = "12 launches left 24 MiB behind (about 2 MiB each), of the device's memory"
    assert finding.text.startswith(text), "the first quarter is left to pools"
    assert finding.text.endswith("; others run on the device, and may have too") is others
