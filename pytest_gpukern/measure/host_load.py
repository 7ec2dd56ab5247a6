"""Measures how much other programs used the host while its clock timed something.

Others are all but this process and those it started: other workers of a run disturb a time just the same.
"""

from __future__ import annotations

import itertools
import math
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_gpukern.gpu.processes import stat_of
from pytest_gpukern.measure.observers import Bench, Observation, ObservedCall, Observer, Seen
from pytest_gpukern.timers.timer import Timer
from pytest_gpukern.values.result import Measurement, Value
from pytest_gpukern.values.timer_table import timer_row

BUSY_HOST = 0.1
"""Others' share of the CPUs from which on the gate confirms no slowdown that they may explain.

Where others used 30 to 50 % of two CPUs, calls of one thread took 14 to 21 % longer, some 110 %.
"""
_LONG_ENOUGH_S = 0.3
"""Of one CPU, since Linux counts in steps of 10 ms. Of N up to eight, it is 1/√N: their steps cancel."""
_FEWEST_FREE = 8
"""CPUs. If we fill a larger machine ourselves, one other program slows all our threads that wait for one."""


LOAD, OTHERS_SHARE = "load", "others_share"
"""Which share of the host's CPUs other programs used while its clock timed a call; absent if not known."""
LEAST, MOST = "least_ns", "most_ns"
"""What a call would take on an idle host, at least and at most; only of a busy one, where it is known."""
LOOP = "loop_ns"
"""CPU time of a fixed loop: it grows if others share our core, or lower its clock."""

# Unchanged calls beside one to 26 busy programs on two CPUs (Xeon, 2026-11-28) against the same alone:
CPU_GROWTH = 1.15  # CPU time was 0.8 to 1.2 times as long below 2 ms where most calls were not preempted,
_MOST_GROWTH = 3.0  # else 0.9 to 2.9 times: caches were cold, and memory may be another CPU's
_SHORT_NS = 2e6
UNFAIR = 2.0  # times of several threads were up to 1.3 times what fair shares explain,
STALLED_NS = 150e6  # or 80 ms more where the threads of 20 loops of 16 µs waited for each other
_ONE_THREAD = 1.05  # CPU time of the process ÷ the calling thread's; clocks are read one after the other
_READING_NS = 500.0  # of a sample's CPU time are the clocks themselves


class HostLoadObserver(Observer):
    """Reads the host's counters also ahead of measurements, since many are shorter than the counters tell."""

    def __init__(self, name: str, bench: Bench) -> None:
        super().__init__(name, bench)
        self._earlier: list[CpuTimes] = []
        self.begin_test()

    def begin_test(self) -> None:
        """Reads, and forgets what is older than the last reading that is old enough, also of tests before."""
        if (now := read()) is not None:
            old = [earlier for earlier in self._earlier if earlier.is_long_before(now)]
            self._earlier = [*old[-1:], *self._earlier[len(old) :], now]

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        if timer_row(timer.name).device_timed:
            return None
        self.begin_test()
        return HostLoadObservation(tuple(self._earlier)) if self._earlier else None


@dataclass(frozen=True)
class HostLoadObservation(Observation):
    """Looks at a measurement, or if that is short, first at a longer time that ends with it.

    Who was busy in the longer time may rest now, as workers do while another one times on the host. So if
    others were, we look at the measurement and what follows.
    """

    readings: tuple[CpuTimes, ...]

    @property
    def began(self) -> CpuTimes:
        return self.readings[-1]

    def finish(self, measurement: Measurement) -> Seen:
        """Returns the share of others; waits for the rest of the time that tells it if only that does."""
        if (ended := read()) is None:
            return Seen()
        now, old = ended, [earlier for earlier in self.readings if earlier.is_long_before(ended)]
        share = share_of_others(old[-1], now) if old else None
        if share is None or (share >= BUSY_HOST and old[-1] is not self.began):
            time.sleep(max(0.0, self.began.at_s + _long_enough_s(now.cpus) - time.monotonic()))
            if (later := read()) is None:
                return Seen()
            now, share = later, share_of_others(self.began, later)
        seen: dict[str, Value] = {OTHERS_SHARE: share, LOOP: _loop_ns()}
        if share >= BUSY_HOST:
            seen |= self._on_an_idle_host(measurement, ended, 1 - used_by_others(self.began, now) / now.cpus)
        return Seen(seen)

    def _on_an_idle_host(self, timed: Measurement, ended: CpuTimes, left: float) -> dict[str, Value]:
        """Returns bounds of the time; `left` is the share of the CPUs that others did not use.

        A CPU that others leave free runs one of our threads, so we run at least this share of the time, and
        threads that fill the machine get it by fair shares. Threads that wait for each other may wait for a
        time slice of others at each barrier. One thread takes no less than its CPU time.
        """
        began, few = self.began, len(timed.samples_ns) / 2  # fewer than this leave the median call alone
        least, most = (timed.summary.median_ns * left - STALLED_NS) / UNFAIR, None
        process_s, thread_s = ended.process_s - began.process_s, ended.thread_s - began.thread_s
        if timed.cpu_ns is not None and process_s <= _ONE_THREAD * thread_s:
            calm = ended.preemptions - began.preemptions < few and timed.cpu_ns < _SHORT_NS
            own_ns = timed.cpu_ns - _READING_NS / timed.iterations
            least = max(least, own_ns / (CPU_GROWTH if calm else _MOST_GROWTH))
            most = timed.cpu_ns if ended.waits - began.waits < few else None
        return {LEAST: least if least > 0 else None, MOST: most}


class CpuTimes(NamedTuple):
    """Holds the CPU time until a moment, of the CPUs that we may use: all that they worked, and our own.

    Of these, `process_s` is this process's, and `thread_s` this thread's. The latter left its CPU so often to
    wait for something (`waits`), or for others (`preemptions`).
    """

    at_s: float
    cpus: int
    busy_s: float
    stolen_s: float
    own_s: float
    process_s: float = 0.0
    thread_s: float = 0.0
    waits: int = 0
    preemptions: int = 0

    def is_long_before(self, now: CpuTimes) -> bool:
        return now.at_s - self.at_s >= _long_enough_s(now.cpus)


def _long_enough_s(cpus: int) -> float:
    return _LONG_ENOUGH_S / math.sqrt(min(cpus, _FEWEST_FREE))


def share_of_others(since: CpuTimes, now: CpuTimes) -> float:
    """Returns which share others used of the CPUs that we left free, or of eight if we left fewer."""
    free = max(now.cpus - (now.own_s - since.own_s) / (now.at_s - since.at_s), _FEWEST_FREE)
    return round(min(1.0, used_by_others(since, now) / min(now.cpus, free)), 3)


def used_by_others(since: CpuTimes, now: CpuTimes) -> float:
    """Returns how many CPUs others used on average.

    A kernel may count stolen time as our own, so it is no less than what was stolen.
    """
    passed_s, _, busy_s, stolen_s, own_s, *_ = (
        after - before for before, after in zip(since, now, strict=True)
    )
    return min(max(busy_s - own_s, stolen_s, 0.0) / passed_s, now.cpus)


def _loop_ns() -> float:
    times = [time.thread_time_ns()]
    for _ in range(20):
        sum(range(10_000))
        times.append(time.thread_time_ns())
    return float(min(after - before for before, after in itertools.pairwise(times)))


def read(proc: Path = Path("/proc")) -> CpuTimes | None:
    """Reads the counters now; returns None where the system does not tell them."""
    try:
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = map(str.split, (proc / "stat").read_text(encoding="utf-8").splitlines())
        cpus = [[int(field) for field in row[1:9]] for row in rows if row[0] in usable]
        user, nice, system, idle, _, irq, softirq, steal = map(sum, zip(*cpus, strict=True))
        thread = resource.getrusage(resource.RUSAGE_THREAD)
    except (OSError, AttributeError, ValueError):
        return None
    if not idle:  # some sandboxes count nothing
        return None
    tick_s, waited_for, process_s = 1 / os.sysconf("SC_CLK_TCK"), os.times(), time.process_time()
    own_s = process_s + waited_for.children_user + waited_for.children_system
    return CpuTimes(
        time.monotonic(),
        len(cpus),
        tick_s * (user + nice + system + irq + softirq + steal),
        tick_s * steal,
        own_s + tick_s * _ticks_of_started(proc),
        process_s,
        time.thread_time(),
        thread.ru_nvcsw,
        thread.ru_nivcsw,
    )


def _ticks_of_started(proc: Path) -> int:
    """Returns the CPU time of running processes that this one started, and of what these waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # takes nothing from who waits for it
    except ChildProcessError:
        return 0  # as mostly; a look at all processes takes milliseconds
    parents, ticks, ours = {}, {}, {os.getpid()}
    for process in proc.glob("[0-9]*"):
        if fields := stat_of(process):  # else it has just ended
            pid = int(process.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours - {os.getpid()})
