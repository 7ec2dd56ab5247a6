"""Holds what the sessions of a self-test measured against what the plugin promises.

All of it is computed from the values of the run. We compare:

- The default timer with a spinning kernel, which knows its own time on the device's global timer. It does not
  know the time that the device takes to start and to end it, which is real time of a kernel: on an H200
  CUPTI's record was a constant 704 ns longer at every length. So we compare differences: a spin less the
  shortest spin, by the timer and by the kernels' own times.
- The timers with graphs. The slope of a graph's replay time over its number of nodes contains the kernel and
  the gap between two nodes that depend on each other. The gap cancels in the difference between two spins.
  For the other kernels we take the plugin's timer by graphs, less the cost that it states. Kernels of 20 µs
  and more are held to all of that, gap included; shorter ones are shown, not judged.
- Events by differences, too, from 20 µs on. The fixed cost that they state is what they read beyond a node of
  a graph, so their reading less that cost is held to the slope of the same spin.
- Medians over the sessions. Each reading is a session's median, as the plugin reports it. The worst session
  is shown beside them.
- A/A: the range of the sessions' medians. Samples may have two modes of equal weight, 1.1 % apart for exp of
  10 M float32 on an H200, and then the median lies anywhere between them. So the range may be as large as
  the sessions' own intervals explain, up to the gate's default threshold of 2 %.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.selftest.kernels import GRAPH, name_of
from pytest_gpukern.selftest.known_times import KnownTimes, Spin, known_times_of
from pytest_gpukern.values.result import Measurement
from pytest_gpukern.values.timer_table import TIMERS

TRUTH_SHARE = 0.01
EVENT_FROM_NS = 15_000.0
NODES_FROM_NS = 20_000.0
REPEAT_SHARE = 0.005
REPEAT_TICKS = 2
REPEAT_WIDTHS = 1.27
"""Range of eight sessions' medians, in widths of their 95 % intervals, that chance exceeds in 1 of 100
self-tests: the studentized range, 4.99, over the 3.92 standard deviations of a width."""
MOST_RESOLVED = 0.02
_ROUNDING_NS = 0.05
"""Times are multiples of a nanosecond or of a tick; a comparison must not fail by a float's last digit."""


class Section(enum.StrEnum):
    """Names what a target is about."""

    TRUTH = "timers against a known truth: default within 1 % or one tick, event within 1 % from 20 µs on"
    REPEATS = (
        "A/A: range of the sessions' medians, default timer ≤ 0.5 %, 2 ticks or what their intervals explain"
    )


@dataclass(frozen=True)
class TargetRow:
    """Holds one quantity against its target, in nanoseconds.

    Attributes:
        what: what was timed, and what was subtracted.
        time_ns: the true time, or the median.
        found_ns: error or range.
        worst_ns: the error of the session that is farthest off, or None.
        allowed_ns: the largest `found_ns` that reaches the target, in size; None where it is only shown.
        sessions: how many had it, of those asked for.
    """

    section: Section
    what: str
    timer: str
    time_ns: float
    found_ns: float
    allowed_ns: float | None
    sessions: int
    asked_sessions: int
    against: str = ""
    worst_ns: float | None = None

    @property
    def reached(self) -> bool | None:
        """Returns whether the target is reached, in all sessions asked for; None without a target."""
        if self.allowed_ns is None:
            return None
        return self.sessions >= self.asked_sessions and abs(self.found_ns) <= self.allowed_ns + _ROUNDING_NS


@dataclass(frozen=True)
class Conclusions:
    """Holds all rows; `missing` says what should have been measured and was not."""

    rows: tuple[TargetRow, ...]
    missing: tuple[str, ...]

    @property
    def verdicts(self) -> list[bool]:
        judged = (row.reached for row in self.rows)
        return [*(reached for reached in judged if reached is not None), *(False for _ in self.missing)]

    @property
    def reached(self) -> bool:
        return bool(self.verdicts) and all(self.verdicts)


@dataclass
class Session:
    """Holds what one session found out.

    Attributes:
        known: about kernels of known time; None if that test did not come to its end.
        kernels: kernel and way of timing → its measurements that are valid, the main one first.
    """

    known: KnownTimes | None = None
    kernels: dict[tuple[str, str], list[Measurement]] = field(default_factory=dict)

    def median_ns(self, kernel: str, way: str) -> float | None:
        """Returns the main median of a kernel; by graphs less the cost that they state."""
        measured = self.kernels.get((kernel, way))
        return measured[0].summary.median_ns - (measured[0].fixed_cost_ns or 0.0) if measured else None


def sessions_of(run: RunResults) -> list[Session]:
    sessions: dict[str, Session] = {}
    for reported in run.results:
        for result in (reported, *run.sessions_of(reported)):
            session = sessions.setdefault(result.session, Session())
            known = known_times_of(result)
            if known is not None:
                session.known = known
            elif "way" in result.case.parameters:
                valid = [measured for measured in result.measurements if measured.invalid is None]
                session.kernels[name_of(result.case), result.case.parameters["way"]] = valid
    return list(sessions.values())


def conclusions_of(run: RunResults, asked_sessions: int) -> Conclusions:
    sessions = sessions_of(run)
    truth = tuple(_truth_rows(sessions, asked_sessions))
    kernels = tuple(_kernel_rows(sessions, asked_sessions))
    return Conclusions((*truth, *kernels), tuple(_missing(run, sessions, truth)))


_Readings = dict[str, tuple[float, float]]
"""One session's readings: what was timed → its known time, and what the timer reads beyond that."""


def _truth_rows(sessions: Sequence[Session], asked: int) -> Iterator[TargetRow]:
    known = [session.known for session in sessions if session.known is not None]
    if not known:
        return
    default = known[0].default_timer
    errors = [
        *_spin_errors(known, default),
        *_node_errors(known, default),
        *_kernel_errors(sessions, default),
    ]
    for error in (error for error in errors if error.pairs):
        truth_ns = statistics.median(truth_ns for truth_ns, _ in error.pairs)
        tick_ns = TIMERS[default].step_ns if error.timer == default else 0.0
        beyond = [round(beyond_ns, 2) for _, beyond_ns in error.pairs]  # of floats in ms
        yield TargetRow(
            Section.TRUTH,
            error.what,
            against=error.against,
            timer=error.timer,
            time_ns=truth_ns,
            found_ns=statistics.median(beyond),
            worst_ns=max(beyond, key=abs),
            allowed_ns=max(TRUTH_SHARE * truth_ns, tick_ns) if truth_ns >= error.judged_from_ns else None,
            sessions=len(error.pairs),
            asked_sessions=asked,
        )


class _Error(NamedTuple):
    """Holds how far a timer is off in each session: pairs of the truth and what it reads beyond that."""

    what: str
    against: str
    timer: str
    pairs: list[tuple[float, float]]
    judged_from_ns: float = 0.0


def _spin_errors(known: Sequence[KnownTimes], default: str) -> Iterator[_Error]:
    for timer in dict.fromkeys((default, "event")):
        spins = [
            {_spin(spin.asked_ns): (spin.own_ns, spin.beyond_ns) for spin in _by(session, timer)}
            for session in known
        ]
        judged_from_ns = 0.0 if timer == default else EVENT_FROM_NS
        for longer, shortest in _longer(spins):
            pairs = _differences(spins, longer, shortest)
            yield _Error(f"{longer} − {shortest}", "own time", timer, pairs, judged_from_ns)


def _node_errors(known: Sequence[KnownTimes], default: str) -> Iterator[_Error]:
    less_cost = [_less_cost(session) for session in known]
    for name in _names(less_cost):
        pairs = [readings[name] for readings in less_cost if name in readings]
        yield _Error(f"{name}, less the stated cost", "graph slope", "event", pairs, EVENT_FROM_NS)
    nodes = [
        {_spin(node.asked_ns): _beyond(node.node_ns, node.reading_ns) for node in session.nodes}
        for session in known
    ]
    for longer, shortest in _longer(nodes):
        pairs = _differences(nodes, longer, shortest)
        yield _Error(f"{longer} − {shortest}, per node", "graph slope", default, pairs)


def _kernel_errors(sessions: Sequence[Session], default: str) -> Iterator[_Error]:
    for kernel in dict.fromkeys(
        name for session in sessions for name, way in session.kernels if way == GRAPH
    ):
        both = [(session.median_ns(kernel, GRAPH), session.median_ns(kernel, "hot")) for session in sessions]
        pairs = [_beyond(graph, hot) for graph, hot in both if graph is not None and hot is not None]
        yield _Error(f"{kernel}, hot", "graph", default, pairs, NODES_FROM_NS)


def _less_cost(known: KnownTimes) -> _Readings:
    """Returns slopes of spins, and what events read beyond them less the fixed cost that they state."""
    cost_ns, readings = known.event_cost_ns, {spin.asked_ns: spin.reading_ns for spin in _by(known, "event")}
    if cost_ns is None:
        return {}
    return {
        _spin(node.asked_ns): _beyond(node.node_ns, readings[node.asked_ns] - cost_ns)
        for node in known.nodes
        if node.asked_ns in readings
    }


def _by(known: KnownTimes, timer: str) -> list[Spin]:
    return sorted((spin for spin in known.spins if spin.timer == timer), key=lambda spin: spin.asked_ns)


def _beyond(truth_ns: float, reading_ns: float) -> tuple[float, float]:
    return truth_ns, reading_ns - truth_ns


def _names(sessions: Iterable[_Readings]) -> list[str]:
    return list(dict.fromkeys(name for session in sessions for name in session))


def _longer(sessions: Sequence[_Readings]) -> list[tuple[str, str]]:
    names = _names(sessions)
    return [(name, names[0]) for name in names[1:]]


def _differences(sessions: Sequence[_Readings], longer: str, shortest: str) -> list[tuple[float, float]]:
    both = [(read[longer], read[shortest]) for read in sessions if longer in read and shortest in read]
    return [(long[0] - short[0], long[1] - short[1]) for long, short in both]


def _spin(ns: float) -> str:
    for unit, scale in (("ms", 1e6), ("µs", 1e3)):
        if ns >= scale:
            return f"spin {ns / scale:g} {unit}"
    return f"spin {ns:g} ns"


def _kernel_rows(sessions: Sequence[Session], asked: int) -> Iterator[TargetRow]:
    """Yields how far the sessions' medians are apart."""
    ways = dict.fromkeys(key for session in sessions for key in session.kernels if key[1] != GRAPH)
    for kernel, way in ways:
        measured = [timed for session in sessions for timed in session.kernels.get((kernel, way), [])]
        for timer in dict.fromkeys(measurement.timer for measurement in measured):
            group = [measurement for measurement in measured if measurement.timer == timer]
            yield _repeat_row(f"{kernel}, {way}", timer, group, asked)


def _repeat_row(what: str, timer: str, group: Sequence[Measurement], asked: int) -> TargetRow:
    summaries = [measurement.summary for measurement in group]
    medians = [summary.median_ns for summary in summaries]
    width = statistics.median(
        round(summary.high_ns - summary.low_ns, 2) / summary.median_ns if summary.median_ns else 0.0
        for summary in summaries
    )
    share = max(REPEAT_SHARE, min(REPEAT_WIDTHS * width, MOST_RESOLVED))
    allowed_ns = max(share * min(medians), REPEAT_TICKS * TIMERS[timer].step_ns)
    return TargetRow(
        Section.REPEATS,
        what,
        timer=timer,
        time_ns=statistics.median(medians),
        found_ns=max(medians) - min(medians),
        allowed_ns=allowed_ns,
        sessions=len(group),
        asked_sessions=max(2, asked),
    )


def _missing(run: RunResults, sessions: Sequence[Session], truth: Sequence[TargetRow]) -> Iterator[str]:
    yield from (f"{skip.id}: {skip.reason}" for skip in run.skips)
    yield from (f"{test.rpartition('::')[2]}: {failure.text}" for test, failure in run.failures.items())
    timers = dict.fromkeys(session.known.default_timer for session in sessions if session.known is not None)
    if len(timers) > 1:
        yield f"sessions chose different timers: {', '.join(timers)}"
    judged = [row for row in truth if row.allowed_ns is not None]
    if not any(row.against == "own time" for row in judged):
        yield "no kernel of known time was read by the default timer"
    if not any(row.against == "graph slope" and row.timer == "event" for row in judged):
        yield "the event timer states no fixed cost"
    if not any(row.against == "graph slope" for row in judged):
        yield "no slope of a graph was measured"
    if not any(session.kernels for session in sessions):
        yield "no kernel was measured"
