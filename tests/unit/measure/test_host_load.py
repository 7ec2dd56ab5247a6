"""Checks how busy others made the host, from made-up counters of Linux."""

from __future__ import annotations

import os
from types import SimpleNamespace

import made_up_results as made_up
import pytest
from fakes import FakeTimer

from pytest_gpukern.baseline.record import trimmed_time
from pytest_gpukern.measure import host_load
from pytest_gpukern.measure.host_load import LEAST, LOAD, LOOP, MOST, OTHERS_SHARE, CpuTimes, share_of_others
from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for
from pytest_gpukern.measure.observers import OBSERVERS, ObservedCall, Observer, ObserverRow, Observers

READ = host_load.read


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Writes a /proc of two CPUs for us and one for others; processes as pid → (parent, ticks)."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "waitid", lambda *what: None)

    def written(first="100 0 0 900", second="0 0 0 1000 0 0 0 0 0 0", **processes):
        (tmp_path / "stat").write_text(
            f"cpu 9 9 9 9\ncpu0 {first} 5 0 0 0\ncpu1 {second}\ncpu2 8 8 8 8\nintr 7"
        )
        for pid, (parent, ticks) in processes.items():
            (tmp_path / pid[1:]).mkdir(exist_ok=True)
            stat = f"{pid[1:]} (a ) b) S {parent}{' 0' * 9} {ticks} 0 0 0 20"
            (tmp_path / pid[1:] / "stat").write_text(stat)
        return tmp_path

    return written


def test_our_cpus_count_less_ourselves_and_all_that_we_started(proc):
    family = {"p7": (os.getpid(), 300), "p8": (7, 200), "p9": (1, 100)}
    idle = READ(proc(first="0 0 0 1000", **family))
    family |= {"p8": (7, 210), "p9": (1, 900)}
    busy = READ(proc(first="10 20 30 1000", second="1 2 3 1000 9 4 5 6 1 1", **family))
    assert idle.cpus == busy.cpus == 2
    assert busy.busy_s - idle.busy_s == pytest.approx(0.81)
    assert busy.stolen_s == pytest.approx(0.06)
    assert busy.own_s - idle.own_s == pytest.approx(0.1, abs=0.05), "that of what we started started"


@pytest.mark.parametrize("stat", [None, "", "cpu 1 2 3 4", "cpu0 0 0 0 0 0 0 0 0", "cpu0 1 2 x 4 5 6 7 8"])
def test_what_the_system_does_not_tell_is_unknown(tmp_path, monkeypatch, stat):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    if stat is not None:
        (tmp_path / "stat").write_text(stat)
    assert READ(tmp_path) is None


@pytest.mark.parametrize(
    ("cpus", "own_s", "busy_s", "stolen_s", "share"),
    [
        (2, 1.0, 1.0, 0.0, 0.0),
        (2, 1.0, 2.0, 0.0, 0.5),
        (2, 1.0, 0.9, 0.0, 0.0),  # by the counters' steps
        (2, 1.0, 1.0, 0.3, 0.15),  # of a kernel that counts stolen time as ours
        (128, 1.0, 2.0, 0.0, 0.008),  # it has its own CPU,
        (128, 127.0, 128.0, 0.0, 0.125),  # and here one of ours
    ],
)
def test_it_is_the_share_of_what_we_leave_free(cpus, own_s, busy_s, stolen_s, share):
    now = CpuTimes(6.0, cpus, 50 + busy_s, stolen_s, 70 + own_s)
    assert share_of_others(CpuTimes(5.0, cpus, 50, 0.0, 70), now) == share


@pytest.fixture
def others(monkeypatch):
    """A clock that a look moves by 10 ms, and what share of two CPUs others use; None: unknown."""
    made = SimpleNamespace(now=5.0, used_s=0.0, uses=0.0, waits=0, cpus=2)

    def pass_s(seconds):
        made.now += seconds
        made.used_s += seconds * 2 * (made.uses or 0.0)

    def sleep(seconds):
        made.waits += seconds > 0
        pass_s(seconds)

    def read():
        pass_s(0.01)
        used_s = made.now + made.used_s
        return None if made.uses is None else CpuTimes(made.now, made.cpus, used_s, 0.0, made.now)

    made.pass_s = pass_s
    monkeypatch.setattr(host_load, "read", read)
    clock = SimpleNamespace(monotonic=lambda: made.now, sleep=sleep, thread_time_ns=lambda: 7)
    monkeypatch.setattr(host_load, "time", clock)
    return made


def observing(observers, timer="host"):
    return observers.observe(ObservedCall(on_gpu=False), FakeTimer(timer))


def timed(observers, timer="host"):
    looking = observing(observers, timer)
    call, timer = Repeated(lambda: None), FakeTimer(timer)
    measured = Sampler(call, timer, "end_to_end", "hot", 1e3, rule_for(1e3), looking).measure()
    assert trimmed_time(measured).seen(LOAD, OTHERS_SHARE) == measured.seen(LOAD, OTHERS_SHARE)
    return measured.seen(LOAD, OTHERS_SHARE)


def test_a_short_measurement_by_the_hosts_clock_waits_only_where_what_was_before_does_not_tell(others):
    observers = Observers(None, {"load": OBSERVERS["load"]})
    assert (timed(observers), others.waits) == (0.0, 1), "nothing was read before"
    assert (timed(observers), others.waits) == (0.0, 1), "that time tells of the next one, too"
    others.pass_s(1.0)
    assert (timed(observers), others.waits) == (0.0, 1), "all that time the host was idle"
    others.uses = 0.4
    others.pass_s(1.0)
    assert (timed(observers), others.waits) == (0.4, 2)
    others.pass_s(1.0)
    others.uses = 0.0
    assert (timed(observers), others.waits) == (0.0, 3), "they rest meanwhile"


@pytest.mark.parametrize(
    ("cpus", "before_s", "waits"), [(1, 0.29, 1), (1, 0.31, 0), (4, 0.16, 0), (128, 0.1, 1)]
)
def test_what_is_looked_at_before_is_as_long_as_the_steps_of_the_counters_need(others, cpus, before_s, waits):
    """Since the process began to observe: tests may be shorter. Looking takes 10 ms each time."""
    others.cpus = cpus
    observers = Observers(None, {"load": OBSERVERS["load"]})
    others.pass_s(before_s - 0.03)
    observers.begin_test()
    assert (timed(observers), others.waits) == (0.0, waits)


ALONE = {"process_s": 1.0, "thread_s": 0.99}
MS = 1e6


@pytest.mark.parametrize(
    ("cpu_ms", "own", "busy_s", "least_ms", "most_ms"),
    [
        (1.5, ALONE, 1.9, 1.4995 / 1.15, 1.5),
        (1.5, {**ALONE, "preemptions": 1}, 1.9, 1.4995 / 3, 1.5),  # half of the samples
        (2.0, ALONE, 1.9, 1.9995 / 3, 2.0),  # so long a call may touch much memory
        (1.5, {**ALONE, "waits": 1}, 1.9, 1.4995 / 1.15, None),  # it may wait less on an idle host
        (None, ALONE, 1.9, None, None),
        (1.5, {"process_s": 1.9, "thread_s": 1.0}, 1.9, None, None),
        (1.5, {"process_s": 1.9, "thread_s": 1.0}, 1.0, (900 / 2 - 150) / 2, None),
        (300.0, ALONE, 1.0, (900 / 2 - 150) / 2, 300.0),
    ],
)
def test_of_a_busy_host_bounds_say_what_a_call_would_take_without_others(
    monkeypatch, cpu_ms, own, busy_s, least_ms, most_ms
):
    """Two samples of 900 ms, within a second on two CPUs."""
    began = CpuTimes(5.0, 2, 0.0, 0.0, 0.0)
    monkeypatch.setattr(host_load, "read", lambda: CpuTimes(6.0, 2, busy_s, 0.0, 0.0, **own))
    call = made_up.measured(900 * MS, samples_ns=(900 * MS,) * 2, cpu_ns=cpu_ms and cpu_ms * MS)
    seen = host_load.HostLoadObservation((began,)).finish(call).values
    assert seen[LEAST] == (least_ms and pytest.approx(least_ms * MS))
    assert seen[MOST] == (most_ms and most_ms * MS)
    assert seen[LOOP] > 0


class Noting(Observer):
    """Notes in which order observers look."""

    looked = []

    def begin_test(self):
        self.looked.append(self.name)


def test_it_waits_when_all_others_have_looked_wherever_its_row_stands():
    assert [name for name, row in OBSERVERS.items() if row.waits] == ["load"]
    noting = f"{__name__}:Noting"
    Observers(None, {"waits": ObserverRow(noting, waits=True), "other": ObserverRow(noting)}).begin_test()
    assert Noting.looked[-2:] == ["other", "waits"]


@pytest.mark.parametrize(("timer", "uses"), [("event", 0.4), ("host", None)])
def test_nothing_is_said_of_a_devices_time_or_where_it_is_unknown(others, timer, uses):
    others.uses = uses
    assert timed(Observers(None, {"load": OBSERVERS["load"]}), timer) is None
    assert others.waits == 0
