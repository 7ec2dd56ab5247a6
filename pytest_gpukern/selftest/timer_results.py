"""Concludes from the readings of a self-test what the timers resolve, against what the plugin promises.

All of it is computed from the recording alone. We compare:

- The default timer with a spinning kernel, which knows its own time on the device's global timer. It does not
  know the time that the device takes to start and to end it, which is real time of a kernel: on an H200
  CUPTI's record was a constant 704 ns longer at every length. So we compare differences: a spin less the
  shortest spin, by the timer and by the kernels' own times.
- The timers with the slope of a graph's replay time over its number of nodes. It contains the kernel and the
  gap between two nodes that depend on each other. The gap cancels in the difference between two spins.
  Kernels of 20 µs and more are held to their whole slope, gap included; shorter ones are shown, not judged.
- Events by differences, too, from 20 µs on. The fixed cost that they state is what they read beyond a node of
  a graph, so their reading less that cost is held to the slope of the same spin.
- Medians over the sessions. Each reading is a session's median, as the plugin reports it. The worst session
  is shown beside them.
- A/A: the range of the sessions' medians, max / min − 1. A reading that the plugin itself calls INVALID is
  left out, and then the target is missed. Samples may have two modes of equal weight, 1.1 % apart for exp of
  10 M float32 on an H200, and then the median lies anywhere between them. So the range may be as large as
  the sessions' own intervals explain, up to the gate's default threshold of 2 %.
- The wall time that `--gpu-benchmark` takes to measure a verified case, with warm-up, samples by both timers
  and queries of NVML between them. The median over the sessions is judged.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_gpukern.selftest.recording import Conclusions, missing_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpukern.selftest.recording import Suites, TimerRecording, TimerSession

DEFAULT_SHARE = 0.01
EVENT_SHARE = 0.01
EVENT_FROM_NS = 15_000.0
NODES_FROM_NS = 20_000.0
REPEAT_SHARE = 0.005
REPEAT_TICKS = 2
REPEAT_WIDTHS = 1.27
"""Range of eight sessions' medians, in widths of their 95 % intervals, that chance exceeds in 1 of 100
self-tests: the studentized range, 4.99, over the 3.92 standard deviations of a width."""
MOST_RESOLVED = 0.02
CASE_S = 0.3
_ROUNDING_NS = 0.05
"""Times are multiples of a nanosecond or of a tick; a comparison must not fail by a float's last digit."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class TruthRow:
    """Compares a timer with a truth known without it; times are medians over the sessions.

    Attributes:
        subject: what was timed, and what was subtracted.
        against: which truth: `own time` or `graph slope`.
        error_ns: what the timer reads beyond the truth.
        worst_ns: the error of the session that is farthest off.
        allowed_ns: how far it may be off; None where it is only shown.
        sessions: how many had both.
    """

    subject: str
    against: str
    timer: str
    truth_ns: float
    error_ns: float
    worst_ns: float
    allowed_ns: float | None
    sessions: int

    @property
    def reached(self) -> bool | None:
        """Returns whether the target is reached; None without a target."""
        if self.allowed_ns is None:
            return None
        return abs(self.error_ns) <= self.allowed_ns + _ROUNDING_NS


@dataclass(frozen=True)
class RepeatRow:
    """Says how far apart the sessions' medians of the same kernel are.

    Attributes:
        sessions: how many count, of those asked for.
        invalid: why others do not count, in words, or None.
        judged: whether the target is about this timer.
        clock_range: max / min − 1 of the SM clocks around them, or None.
        width: median of the 95 % intervals' widths as shares of the sessions' medians; 0 if not known.
    """

    kernel: str
    cache: str
    timer: str
    median_ns: float
    low_ns: float
    high_ns: float
    tick_ns: float
    sessions: int
    asked_sessions: int
    invalid: str | None
    judged: bool
    clock_range: float | None = None
    width: float = 0.0

    @property
    def allowed(self) -> float:
        """Returns the largest range that reaches the target."""
        return max(REPEAT_SHARE, min(REPEAT_WIDTHS * self.width, MOST_RESOLVED))

    @property
    def range(self) -> float:
        """Returns max / min − 1."""
        return self.high_ns / self.low_ns - 1 if self.low_ns > 0 else float("inf")

    @property
    def reached(self) -> bool | None:
        """Returns whether the target is reached; None without a target."""
        if not self.judged:
            return None
        if self.sessions < max(2, self.asked_sessions):
            return False
        few_ticks = self.high_ns - self.low_ns <= REPEAT_TICKS * self.tick_ns + _ROUNDING_NS
        return few_ticks or self.range <= self.allowed


@dataclass(frozen=True)
class WallRow:
    """Says how long it takes to measure a case: the median over the sessions, and the slowest of them."""

    kernel: str
    cache: str
    median_s: float
    worst_s: float
    sessions: int
    asked_sessions: int

    @property
    def reached(self) -> bool:
        """Returns whether the target is reached."""
        return self.median_s <= CASE_S and self.sessions >= self.asked_sessions


@dataclass(frozen=True)
class RivalRow:
    """Holds another tool's time of a kernel; `kernel` is empty if `problem` is about the tool.

    Attributes:
        cache: what the tool does about the cache.
        range: max / min − 1 of the sessions' medians, or None.
        of_default: median ÷ the default timer's under the same cache policy, or None.
        of_slope: median ÷ slope of a graph, which is hot, or None.
        sessions: how many had a number.
    """

    tool: str
    kernel: str
    cache: str
    median_ns: float | None = None
    range: float | None = None
    of_default: float | None = None
    of_slope: float | None = None
    sessions: int = 0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimerConclusions(Conclusions):
    """Holds every row of the timers' table; `default_timer` names all that `auto` chose."""

    default_timer: str
    truth: tuple[TruthRow, ...]
    repeats: tuple[RepeatRow, ...]
    walls: tuple[WallRow, ...]
    suites: Suites | None
    rivals: tuple[RivalRow, ...]


def conclude(recording: TimerRecording) -> TimerConclusions:
    """Returns all rows of the timers' table."""
    sessions = [session for session in recording.sessions if session.problem is None]
    default = " and ".join(dict.fromkeys(session.default_timer for session in sessions))
    truth = tuple(_truth_rows(sessions, default))
    repeats = tuple(_repeat_rows(sessions, default, recording.asked_sessions))
    return TimerConclusions(
        default_timer=default,
        truth=truth,
        repeats=repeats,
        walls=tuple(_wall_rows(sessions, recording.asked_sessions)),
        suites=recording.suites,
        rivals=tuple(_rival_rows(sessions, repeats)),
        missing=tuple(_missing(recording, sessions, truth, repeats)),
    )


# truth

_Known = dict[str, tuple[float, float]]
"""One session's readings: what was timed → its known time, and what the timer reads beyond that."""


def _truth_rows(sessions: Sequence[TimerSession], default: str) -> Iterator[TruthRow]:
    tick_ns = max((session.ticks_ns.get(default, 0.0) for session in sessions), default=0.0)
    spins = [_spins(session, default) for session in sessions]
    for longer, shortest in _longer(spins):
        pairs = _differences(spins, longer, shortest)
        subject = f"{longer} − {shortest}"
        yield from _truth(subject, "own time", default, pairs, DEFAULT_SHARE, tick_ns)
    events = [_spins(session, "event") for session in sessions]
    for longer, shortest in _longer(events) if default != "event" else ():
        pairs = _differences(events, longer, shortest)
        share = EVENT_SHARE if _median_truth(pairs) >= EVENT_FROM_NS else None
        yield from _truth(f"{longer} − {shortest}", "own time", "event", pairs, share, 0.0)
    less_cost = [_less_cost(session) for session in sessions]
    for name in _names(less_cost):
        pairs = [session[name] for session in less_cost if name in session]
        share = EVENT_SHARE if _median_truth(pairs) >= EVENT_FROM_NS else None
        yield from _truth(f"{name}, less the stated cost", "graph slope", "event", pairs, share, 0.0)
    nodes = [_nodes(session) for session in sessions]
    spinning = [{name: known for name, known in each.items() if name.startswith("spin ")} for each in nodes]
    for longer, shortest in _longer(spinning):
        pairs = _differences(spinning, longer, shortest)
        subject = f"{longer} − {shortest}, per node"
        yield from _truth(subject, "graph slope", default, pairs, DEFAULT_SHARE, tick_ns)
    for name in _names(nodes):
        if not name.startswith("spin "):
            pairs = [session[name] for session in nodes if name in session]
            share = DEFAULT_SHARE if _median_truth(pairs) >= NODES_FROM_NS else None
            yield from _truth(f"{name}, hot, per node", "graph slope", default, pairs, share, tick_ns)


def _spins(session: TimerSession, timer: str) -> _Known:
    """Returns the own times of spins by length, and what a timer reads beyond them."""
    spins = sorted((each for each in session.spins if each.timer == timer), key=lambda spin: spin.asked_ns)
    return {f"spin {_short(spin.asked_ns)}": (spin.own_ns, spin.beyond_ns) for spin in spins}


def _less_cost(session: TimerSession) -> _Known:
    """Returns slopes of spins, and what events read beyond them less the fixed cost that they state."""
    cost_ns, nodes = session.fixed_costs_ns.get("event"), _nodes(session)
    if cost_ns is None:
        return {}
    readings = {f"spin {_short(each.asked_ns)}": each for each in session.spins if each.timer == "event"}
    both = [(name, nodes[name][0], spin.reading_ns) for name, spin in readings.items() if name in nodes]
    return {name: (node_ns, reading_ns - cost_ns - node_ns) for name, node_ns, reading_ns in both}


def _nodes(session: TimerSession) -> _Known:
    """Returns slopes of graphs, and what the default timer reads beyond them."""
    found = {}
    for node in session.nodes:
        if node.node_ns is not None and node.reading_ns is not None:
            spin, _, asked_ns = node.name.partition("spin ")
            name = node.name if spin else f"spin {_short(float(asked_ns))}"
            found[name] = node.node_ns, node.reading_ns - node.node_ns
    return found


def _names(sessions: Sequence[_Known]) -> list[str]:
    return list(dict.fromkeys(name for session in sessions for name in session))


def _longer(sessions: Sequence[_Known]) -> list[tuple[str, str]]:
    """Pairs every spin with the shortest."""
    names = _names(sessions)
    return [(name, names[0]) for name in names[1:]]


def _differences(sessions: Sequence[_Known], longer: str, shortest: str) -> list[tuple[float, float]]:
    both = [(each[longer], each[shortest]) for each in sessions if longer in each and shortest in each]
    return [(long[0] - short[0], long[1] - short[1]) for long, short in both]


def _median_truth(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(truth_ns for truth_ns, _ in pairs)


def _truth(
    subject: str,
    against: str,
    timer: str,
    pairs: Sequence[tuple[float, float]],
    share: float | None,
    tick_ns: float,
) -> Iterator[TruthRow]:
    """Makes a row from truth and error of each session; none without any."""
    if not pairs:
        return
    truth_ns, errors = _median_truth(pairs), [round(error, 2) for _, error in pairs]  # of floats in ms
    allowed_ns = None if share is None else max(share * truth_ns, tick_ns)
    worst_ns = max(errors, key=abs)
    error_ns = statistics.median(errors)
    yield TruthRow(subject, against, timer, truth_ns, error_ns, worst_ns, allowed_ns, len(pairs))


def _short(ns: float) -> str:
    """Writes a time like `1.5 µs`, `20 µs`, `10 ms`."""
    for unit, scale in (("ms", 1e6), ("µs", 1e3)):
        if ns >= scale:
            return f"{ns / scale:g} {unit}"
    return f"{ns:g} ns"


# repeatability, wall times, other tools


def _repeat_rows(sessions: Sequence[TimerSession], default: str, asked_sessions: int) -> Iterator[RepeatRow]:
    readings = [reading for session in sessions for reading in session.readings]
    for (kernel, cache, timer), group in _grouped(readings, lambda r: (r.kernel, r.cache, r.timer)):
        valid = [reading.median_ns for reading in group if reading.invalid is None]
        invalid = list(dict.fromkeys(reading.invalid for reading in group if reading.invalid is not None))
        clocks = [each.sm_mhz for each in group if each.sm_mhz and each.invalid is None]
        shown = valid or [reading.median_ns for reading in group]
        yield RepeatRow(
            kernel=kernel,
            cache=cache,
            timer=timer,
            median_ns=statistics.median(shown),
            low_ns=min(shown),
            high_ns=max(shown),
            tick_ns=max(session.ticks_ns.get(timer, 0.0) for session in sessions),
            sessions=len(valid),
            asked_sessions=asked_sessions,
            invalid="; ".join(invalid) or None,
            judged=timer == default,
            clock_range=max(clocks) / min(clocks) - 1 if clocks else None,
            width=statistics.median(
                each.width_ns / each.median_ns if each.median_ns else 0.0 for each in group
            ),
        )


def _wall_rows(sessions: Sequence[TimerSession], asked_sessions: int) -> Iterator[WallRow]:
    walls = [wall for session in sessions for wall in session.walls]
    for (kernel, cache), group in _grouped(walls, lambda wall: (wall.kernel, wall.cache)):
        times = [wall.seconds for wall in group]
        yield WallRow(kernel, cache, statistics.median(times), max(times), len(times), asked_sessions)


def _rival_rows(sessions: Sequence[TimerSession], repeats: Sequence[RepeatRow]) -> Iterator[RivalRow]:
    readings = [reading for session in sessions for reading in session.rivals]
    ours = {(row.kernel, row.cache): row.median_ns for row in repeats if row.judged}
    for (tool, kernel, cache), group in _grouped(readings, lambda r: (r.tool, r.kernel, r.cache)):
        times = [reading.median_ns for reading in group if reading.median_ns is not None]
        problems = list(dict.fromkeys(reading.problem for reading in group if reading.problem is not None))
        problem = "; ".join(problems) or None
        if not times:
            yield RivalRow(tool, kernel, cache, problem=problem)
            continue
        median_ns = statistics.median(times)
        slopes = [nodes[kernel][0] for each in sessions if kernel in (nodes := _nodes(each))]
        yield RivalRow(
            tool,
            kernel,
            cache,
            median_ns,
            range=max(times) / min(times) - 1 if len(times) > 1 and min(times) > 0 else None,
            of_default=_ratio(median_ns, ours.get((kernel, cache))),
            of_slope=_ratio(median_ns, statistics.median(slopes) if slopes else None),
            sessions=len(times),
            problem=problem,
        )


def _ratio(value: float, of: float | None) -> float | None:
    return value / of if of else None


def _grouped(
    items: Iterable[Item], key: Callable[[Item], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[Item]]]:
    """Groups items by key, in the order in which keys first appear."""
    groups: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.items()


def _missing(
    recording: TimerRecording,
    sessions: Sequence[TimerSession],
    truth: Sequence[TruthRow],
    repeats: Sequence[RepeatRow],
) -> Iterator[str]:
    """Says what should have been measured and was not."""
    yield from missing_sessions(recording)
    if not sessions:
        return
    preparations = [each for session in sessions for each in session.preparations]
    yield from dict.fromkeys(f"{each.kernel}: {each.problem}" for each in preparations if each.problem)
    defaults = {session.default_timer for session in sessions}
    if not any(row.against == "own time" and row.timer in defaults for row in truth):
        yield "no kernel of known time was read by the default timer"
    if all(session.fixed_costs_ns.get("event") is None for session in sessions):
        yield "the event timer states no fixed cost"
    if not any(row.against == "graph slope" and row.reached is not None for row in truth):
        reasons = dict.fromkeys(node.problem for each in sessions for node in each.nodes if node.problem)
        yield f"no slope of a graph: {'; '.join(reasons) or 'none was measured'}"
    if not any(row.judged for row in repeats):
        yield "no kernel was measured by the default timer"
