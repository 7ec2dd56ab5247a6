"""Measures how much other programs used the host while its clock timed something.

Others are all but this process and those it started: other workers of a run disturb a time just the same.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_gpukern.gpu.processes import stat_of
from pytest_gpukern.measure.observers import Observation, ObservedCall, Observer, Seen
from pytest_gpukern.timers.timer import Timer
from pytest_gpukern.values.result import Measurement
from pytest_gpukern.values.timer_table import timer_row

BUSY_HOST = 0.1
"""Others' share of the CPUs from which on the gate confirms no slowdown by the host's clock.

Where others used 30 to 50 % of two CPUs, calls of one thread took 14 to 21 % longer, some 110 %.
"""
_LONG_ENOUGH_S = 0.3
"""Linux counts in steps of 10 ms: within this time they add up to less than a tenth of one CPU."""
_FEWEST_FREE = 8
"""If we fill a larger machine ourselves, one other program slows all our threads that wait for one."""


LOAD, OTHERS_SHARE = "load", "others_share"
"""Which share of the host's CPUs other programs used while its clock timed a call; absent if not known."""


class HostLoadObserver(Observer):
    """Reads the host's counters also ahead of measurements, since many are shorter than the counters tell."""

    _readings: tuple[CpuTimes, ...] = ()

    def begin_test(self) -> None:
        self._earlier_than(read())

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        began = None if timer_row(timer.name).device_timed else read()
        earlier = self._earlier_than(began)
        return None if began is None or earlier is None else HostLoadObservation(earlier, began)

    def _earlier_than(self, now: CpuTimes | None) -> CpuTimes | None:
        """Keeps a reading; returns the last one that is long enough before it, or the first.

        That may be of an earlier test. If each began anew, each short one would wait for most of 0.3 s.
        """
        if now is None:
            return None
        self._readings += (now,)
        while len(self._readings) > 1 and now.at_s - self._readings[1].at_s >= _LONG_ENOUGH_S:
            self._readings = self._readings[1:]
        return self._readings[0]


@dataclass(frozen=True)
class HostLoadObservation(Observation):
    """Looks at a measurement, or if that is short, first at a longer time that ends with it.

    Who was busy in the longer time may rest now, as workers do while another one times on the host. So if
    others were, we look at the measurement and what follows.
    """

    earlier: CpuTimes
    began: CpuTimes

    def finish(self, measurement: Measurement) -> Seen:  # noqa: ARG002
        """Returns the share of others; waits for the rest of 0.3 s if only that tells it."""
        now, share = read(), None
        if now is not None and now.at_s - self.began.at_s < _LONG_ENOUGH_S <= now.at_s - self.earlier.at_s:
            share = share_of_others(self.earlier, now)
        if share is None or share >= BUSY_HOST:
            time.sleep(max(0.0, self.began.at_s + _LONG_ENOUGH_S - time.monotonic()))
            now = read()
            share = None if now is None else share_of_others(self.began, now)
        return Seen({OTHERS_SHARE: share})


class CpuTimes(NamedTuple):
    """Holds the CPU time until a moment, of the CPUs that we may use: all that they worked, and our own."""

    at_s: float
    cpus: int
    busy_s: float
    stolen_s: float
    own_s: float


def share_of_others(since: CpuTimes, now: CpuTimes) -> float:
    """Returns which share others used of the CPUs that we left free, or of eight if we left fewer.

    A kernel may count stolen time as our own, so the share is no less than what was stolen.
    """
    passed_s, _, busy_s, stolen_s, own_s = (after - before for before, after in zip(since, now, strict=True))
    others = max(busy_s - own_s, stolen_s, 0.0) / passed_s
    return round(min(1.0, others / min(now.cpus, max(now.cpus - own_s / passed_s, _FEWEST_FREE))), 3)


def read(proc: Path = Path("/proc")) -> CpuTimes | None:
    """Reads the counters now; returns None where the system does not tell them."""
    try:
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = map(str.split, (proc / "stat").read_text(encoding="utf-8").splitlines())
        cpus = [[int(field) for field in row[1:9]] for row in rows if row[0] in usable]
        user, nice, system, idle, _, irq, softirq, steal = map(sum, zip(*cpus, strict=True))
    except (OSError, AttributeError, ValueError):
        return None
    if not idle:  # some sandboxes count nothing
        return None
    tick_s, waited_for = 1 / os.sysconf("SC_CLK_TCK"), os.times()
    own_s = time.process_time() + waited_for.children_user + waited_for.children_system
    return CpuTimes(
        time.monotonic(),
        len(cpus),
        tick_s * (user + nice + system + irq + softirq + steal),
        tick_s * steal,
        own_s + tick_s * _ticks_of_started(proc),
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
