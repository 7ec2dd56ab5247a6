"""Concludes from the readings of a self-test what the timers resolve, against what the plugin promises.

All of it is computed from the recording alone. What is compared with what:

- A spinning kernel knows its own time on the device's global timer, but not the time the device takes to
  start and to end it, which is real time of a kernel: on an H200 CUPTI's record was a constant 704 ns longer
  at every length. So the default timer is held to differences: its reading of a spin less its reading of the
  shortest spin, against the same difference of the kernels' own times.
- Events are held to the whole: their reading less the fixed cost that they state in the same session,
  against the kernel's own time, from 20 µs on.
- The slope of a graph's replay time over its number of nodes holds the kernel and the gap between two nodes
  that depend on each other. The gap cancels in the difference between two spins. Kernels of 20 µs and more
  are held to their whole slope, gap and all; shorter ones are shown and not judged.
- Each reading is a session's median, as the plugin reports it, and what is judged is the median over the
  sessions; the worst single session stands beside it.
- A/A is the range of the sessions' medians: max / min − 1. A reading that the plugin itself calls INVALID
  is left out of the range, and then the target is not reached.
- The wall time of a case is what `--gpu-benchmark` takes to measure it once it is verified: warm-up,
  samples by both timers and what is asked of NVML between them. Judged is the median over the sessions.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_gpukern.selftest.recording import Conclusions, missing_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpukern.selftest.recording import Spin, TimerRecording, TimerSession

DEFAULT_SHARE = 0.01
EVENT_SHARE = 0.05
EVENT_FROM_NS = 20_000.0
NODES_FROM_NS = 20_000.0
REPEAT_SHARE = 0.005
REPEAT_TICKS = 2
CASE_S = 0.3
SUITES_S = 180.0
_ROUNDING_NS = 0.05
"""Times are multiples of a nanosecond or of a tick; a comparison must not fail by a float's last digit."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class TruthRow:
    """A timer against what is known without it; times are medians over the sessions.

    Attributes:
        subject: what was timed, and what was subtracted.
        against: which truth: `own time` or `graph slope`.
        truth_ns: what is known.
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
        """Whether the target is reached; None where there is none."""
        if self.allowed_ns is None:
            return None
        return abs(self.error_ns) <= self.allowed_ns + _ROUNDING_NS


@dataclass(frozen=True)
class RepeatRow:
    """How far apart the sessions' medians of one and the same kernel are.

    Attributes:
        kernel: which, under which cache policy, by which timer.
        median_ns: of the sessions' medians; also the lowest and the highest.
        tick_ns: the timer's.
        sessions: how many count, of those asked for.
        invalid: why others do not count, in words, or None.
        judged: whether the target is about this timer.
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

    @property
    def range(self) -> float:
        """max / min − 1."""
        return self.high_ns / self.low_ns - 1 if self.low_ns > 0 else float("inf")

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if not self.judged:
            return None
        if self.sessions < max(2, self.asked_sessions):
            return False
        few_ticks = self.high_ns - self.low_ns <= REPEAT_TICKS * self.tick_ns + _ROUNDING_NS
        return few_ticks or self.range <= REPEAT_SHARE


@dataclass(frozen=True)
class WallRow:
    """How long it takes to measure a case: the median over the sessions, and the slowest of them."""

    kernel: str
    cache: str
    median_s: float
    worst_s: float
    sessions: int
    asked_sessions: int

    @property
    def reached(self) -> bool:
        """Whether the target is reached."""
        return self.median_s <= CASE_S and self.sessions >= self.asked_sessions


@dataclass(frozen=True)
class RivalRow:
    """What another tool reads for a kernel.

    Attributes:
        kernel: which; empty where `problem` is about the tool.
        cache: what the tool does about the cache.
        median_ns: of the sessions' medians, or None.
        range: max / min − 1 of them, or None.
        of_default: median ÷ the default timer's under the same cache policy, or None.
        of_slope: median ÷ slope of a graph, which is hot, or None.
        sessions: how many had a number.
        problem: why there is none, in words, or None.
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


@dataclass(frozen=True)
class SuitesRow:
    """The suites whole."""

    wall_s: float
    exit_status: int

    @property
    def reached(self) -> bool:
        """Whether they passed, and in time."""
        return self.exit_status == 0 and self.wall_s <= SUITES_S


@dataclass(frozen=True, kw_only=True)
class TimerConclusions(Conclusions):
    """Every row of the timers' table.

    Attributes:
        default_timer: which `auto` chose; of several, all.
        truth: timers against truth.
        repeats: A/A ranges.
        walls: wall times of a case.
        suites: None where they were left out.
        rivals: other tools.
    """

    default_timer: str
    truth: tuple[TruthRow, ...]
    repeats: tuple[RepeatRow, ...]
    walls: tuple[WallRow, ...]
    suites: SuitesRow | None
    rivals: tuple[RivalRow, ...]


def conclude(recording: TimerRecording) -> TimerConclusions:
    """Returns all rows of the timers' table."""
    sessions = [session for session in recording.sessions if session.problem is None]
    default = " and ".join(dict.fromkeys(session.default_timer for session in sessions))
    truth = (*_spin_rows(sessions, default), *_event_rows(sessions), *_node_rows(sessions, default))
    repeats = tuple(_repeat_rows(sessions, default, recording.asked_sessions))
    suites = recording.suites
    return TimerConclusions(
        default_timer=default,
        truth=truth,
        repeats=repeats,
        walls=tuple(_wall_rows(sessions, recording.asked_sessions)),
        suites=SuitesRow(suites.wall_s, suites.exit_status) if suites else None,
        rivals=tuple(_rival_rows(sessions, repeats)),
        missing=tuple(_missing(recording, sessions, truth, repeats)),
    )


# truth


def _spin_rows(sessions: Sequence[TimerSession], default: str) -> Iterator[TruthRow]:
    """Holds the default timer's differences to the shortest spin against the kernels' own."""
    lengths = sorted({spin.asked_ns for session in sessions for spin in session.spins})
    for asked_ns in lengths[1:]:
        pairs = [
            (long.own_ns - short.own_ns, long.beyond_ns - short.beyond_ns)
            for session in sessions
            if (long := _spin(session, asked_ns, default)) and (short := _spin(session, lengths[0], default))
        ]
        subject = f"spin {_short(asked_ns)} − spin {_short(lengths[0])}"
        yield from _truth(subject, "own time", default, pairs, DEFAULT_SHARE, _tick(sessions, default))


def _event_rows(sessions: Sequence[TimerSession]) -> Iterator[TruthRow]:
    """Holds events less their stated fixed cost against the kernels' own time."""
    lengths = sorted({spin.asked_ns for session in sessions for spin in session.spins})
    for asked_ns in lengths:
        pairs = []
        for session in sessions:
            spin, cost = _spin(session, asked_ns, "event"), session.fixed_costs_ns.get("event")
            if spin is not None and cost is not None:
                pairs.append((spin.own_ns, spin.beyond_ns - cost))
        share = EVENT_SHARE if asked_ns >= EVENT_FROM_NS else None
        subject = f"spin {_short(asked_ns)}, less the stated cost"
        yield from _truth(subject, "own time", "event", pairs, share, 0.0)


def _node_rows(sessions: Sequence[TimerSession], default: str) -> Iterator[TruthRow]:
    """Holds the default timer against slopes of graphs: differences between spins, and whole kernels."""
    names = list(dict.fromkeys(node.name for session in sessions for node in session.nodes))
    spins = [name for name in names if name.startswith("spin ")]
    tick_ns = _tick(sessions, default)
    for name in spins[1:]:
        pairs = [
            (long[0] - short[0], (long[1] - short[1]) - (long[0] - short[0]))
            for session in sessions
            if (long := _node(session, name)) and (short := _node(session, spins[0]))
        ]
        subject = f"{_spin_name(name)} − {_spin_name(spins[0])}, per node"
        yield from _truth(subject, "graph slope", default, pairs, DEFAULT_SHARE, tick_ns)
    for name in names:
        if name in spins:
            continue
        whole = [_node(session, name) for session in sessions]
        pairs = [(node[0], node[1] - node[0]) for node in whole if node]
        long_enough = pairs and statistics.median(truth for truth, _ in pairs) >= NODES_FROM_NS
        share = DEFAULT_SHARE if long_enough else None
        yield from _truth(f"{name}, hot, per node", "graph slope", default, pairs, share, tick_ns)


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
    truth_ns = statistics.median(truth for truth, _ in pairs)
    errors = [error for _, error in pairs]
    yield TruthRow(
        subject=subject,
        against=against,
        timer=timer,
        truth_ns=truth_ns,
        error_ns=statistics.median(errors),
        worst_ns=max(errors, key=abs),
        allowed_ns=None if share is None else max(share * truth_ns, tick_ns),
        sessions=len(pairs),
    )


def _spin(session: TimerSession, asked_ns: float, timer: str) -> Spin | None:
    found = (spin for spin in session.spins if (spin.asked_ns, spin.timer) == (asked_ns, timer))
    return next(found, None)


def _node(session: TimerSession, name: str) -> tuple[float, float] | None:
    """Returns slope and reading of a node, where there are both."""
    for node in session.nodes:
        if node.name == name and node.node_ns is not None and node.reading_ns is not None:
            return node.node_ns, node.reading_ns
    return None


def _tick(sessions: Sequence[TimerSession], timer: str) -> float:
    """Returns the coarsest tick that any session saw of a timer."""
    return max((session.ticks_ns.get(timer, 0.0) for session in sessions), default=0.0)


def _spin_name(name: str) -> str:
    """Turns `spin 20000` into `spin 20 µs`."""
    _, _, ns = name.partition(" ")
    return f"spin {_short(float(ns))}"


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
        shown = valid or [reading.median_ns for reading in group]
        yield RepeatRow(
            kernel=kernel,
            cache=cache,
            timer=timer,
            median_ns=statistics.median(shown),
            low_ns=min(shown),
            high_ns=max(shown),
            tick_ns=_tick(sessions, timer),
            sessions=len(valid),
            asked_sessions=asked_sessions,
            invalid="; ".join(invalid) or None,
            judged=timer == default,
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
        slopes = [node[0] for session in sessions if (node := _node(session, kernel))]
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
    """Groups items of one key, in the order in which keys first came."""
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
    problems = dict.fromkeys(
        f"{preparation.kernel}: {preparation.problem}"
        for session in sessions
        for preparation in session.preparations
        if preparation.problem is not None
    )
    yield from problems
    defaults = {session.default_timer for session in sessions}
    if not any(row.against == "own time" and row.timer in defaults for row in truth):
        yield "no kernel of known time was read by the default timer"
    if not any(row.timer == "event" and row.reached is not None for row in truth):
        yield "the event timer states no fixed cost"
    if not any(row.against == "graph slope" and row.reached is not None for row in truth):
        reasons = dict.fromkeys(
            node.problem for session in sessions for node in session.nodes if node.problem is not None
        )
        yield f"no slope of a graph: {'; '.join(reasons) or 'none was measured'}"
    if not any(row.judged for row in repeats):
        yield "no kernel was measured by the default timer"
