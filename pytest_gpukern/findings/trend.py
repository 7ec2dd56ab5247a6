"""Says since when a case is as fast as it is: at which session the level of its times changed.

1. Times are divided by the session's canaries, so that what slows the machine is no step of a kernel.
2. Binary segmentation (Scott & Knott 1974, *Biometrics* 30, 507) takes the place where the ranks of both
   sides differ most, by the test of Mann & Whitney (1947). So no outlier is a step.
3. Ranks of few points cannot stand out among many cases: 8 against 8 have a probability of 1.6e-4 at best.
   The size of a step can. It passes a t test moderated by the spread of all cases (Smyth 2004).
4. Ranks place a quarter of the steps a session or more away. So a step that passes is put where both sides
   are nearest to their medians. A side has two sessions at least.

`ruptures` needs SciPy, and a penalty that somebody chooses. SciPy has the rank test, and is no dependency.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeGuard

from pytest_gpukern.baseline.record import Record
from pytest_gpukern.findings.cards import class_of
from pytest_gpukern.findings.common_shift import LEAST
from pytest_gpukern.gate.change import SESSIONS_TO_GATE, percent
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gate.spread import ROUNDING, SharedSpread, case_spread, spread_key, spread_of_ratios
from pytest_gpukern.measure.statistics import student_t
from pytest_gpukern.values.result import Correctness, Measurement, Result

FEWEST_SESSIONS = 8
"""Shorter series have no steps: nothing is known of their spread."""

_BY_RANK = 0.15
"""How probable the ranks of a step may be in an unchanged series: of 3 points after 20 it is 0.13."""
_FALSE_STEPS = 0.5
"""How many false steps may be expected by their size, in all series together."""
_CANARIES = {"memory": ("copy",), "compute": ("fma",), "power-limited": ("fma",)}
"""Class of kernel → canary that moves alike. The canary of launches has steps of 5 %, and divides nothing."""
_ANY_KERNEL = ("copy", "fma")
"""What divides a kernel that declares no bytes, or whose card's bandwidth is not known: the mean of both."""

BEGINNING = datetime.fromtimestamp(0, UTC)

SeriesKey = tuple[str, str]
"""Case id and `scope/timer/cache`."""


def is_time(ns: float | None) -> TypeGuard[float]:
    """Returns whether a file's number is a time: ratios of others may be too large for a float."""
    return ns is not None and 1e-30 < ns < 1e30


def date_of(time: SessionTime) -> datetime:
    return moment_of(time.session.recorded) or BEGINNING


def _words(time: SessionTime) -> str:
    """Returns `the session of 21 Nov, recorded on 093d14b`, as far as it is known.

    It was recorded *on* its commit, which is a parent of the one that holds the record.
    """
    day, state = days_of([time]), time.session.provenance.state
    return "the session" + (f" of {day}" if day else "") + (f", recorded on {state}" if state else "")


# --- a failing result -----------------------------------------------------------------------------


def since_when(result: Result, recorded: Record | None, trend: Trend | None = None) -> str:
    """Says since when a time, or without a series an INCORRECT result, is not what its record says.

    A step of the series counts if it led to where the time is now. Without one, it is new in this run if no
    recorded session is nearer to it than to what the verdict compares it with.

    `recorded` is the record of its case. Returns nothing if nothing is recorded, or compared.
    """
    key = trend.key if trend else ""
    once = {time.session.session: time for time in (recorded.past(key or None) if recorded else ())}
    points, verdict = sorted(once.values(), key=date_of), result.verdicts.get(key)
    count, days = len(points), days_of(points)
    of = f"recorded session{'s' * (count > 1)}" + (f" of {days}" if days else "")
    if points and trend is None and result.correctness is Correctness.INCORRECT:
        none = f"none of the {count} {of} was" if count > 1 else f"the {of} was not"
        return f"new in this run; {none} wrong"
    time, ratio = result.time(key), verdict.ratio if verdict else None
    if trend is None or time is None or not points or not is_time(ratio):
        return ""
    now_ns = time.summary.median_ns
    if not (is_time(now_ns) and is_time(before_ns := now_ns / ratio)):
        return ""
    if trend.steps and _is_nearer(trend.levels[-1].median_ns, now_ns, trend.levels[-2].median_ns):
        sessions = {point.session.session for point in trend.points[trend.steps[-1] :]}
        after = [point for point in points if point.session.session in sessions and is_time(point.median_ns)]
        # A level has two sessions at least, so its first may still be at the old one.
        since = [point for point in after if _is_nearer(point.median_ns, now_ns, before_ns)]
        if 0 < len(since) < count:
            return f"since {_words(since[0])}"
    known = (of.median_ns for of in points if is_time(of.median_ns))
    alike = sum(_is_nearer(ns, now_ns, before_ns) for ns in known)
    if alike:
        return f"{alike} of the {count} {of} {'was' if alike == 1 else 'were'} nearer to the new level"
    return f"new in this run; {f'all {count} {of} were' if count > 1 else f'the {of} was'} at the old level"


def _is_nearer(ns: float, one_ns: float, other_ns: float) -> bool:
    return abs(math.log(ns / one_ns)) < abs(math.log(ns / other_ns))


# --- series ---------------------------------------------------------------------------------------


class Level(NamedTuple):
    """Holds the first and the last point of a part of a series without a step, and its median."""

    first: int
    last: int
    median_ns: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Holds the series of a measurement over sessions, and its levels.

    Attributes:
        points: the time of each session, oldest first.
        times_ns: a median for each point, divided by the time of the canaries ÷ their median over the series.
        canaries: names of the canaries that divide times; empty if the sessions share none that moves alike.
        levels: oldest first; none without a step, as in a series of fewer than `FEWEST_SESSIONS`.
    """

    key: str
    points: tuple[SessionTime, ...]
    times_ns: tuple[float, ...]
    canaries: tuple[str, ...]
    levels: tuple[Level, ...] = ()

    @classmethod
    def of(cls, result: Result, measurement: Measurement, times: Iterable[SessionTime]) -> Trend:
        """Returns a series; the newest result and its measurement say which canaries move as the kernel."""
        points = tuple(sorted(times, key=date_of))
        kind, rate = class_of(result, measurement), result.ceilings.get("device_copy_bytes_per_s")
        unknown = kind == "compute" and not (rate and measurement.traffic_bytes)
        canaries = _shared(points, _ANY_KERNEL if unknown else _CANARIES.get(kind or "", ()))
        logs = [sum(math.log(point.session.canaries[name] or 1) for name in canaries) for point in points]
        usual, count = statistics.median(logs), max(1, len(canaries))
        scales = [math.exp((log - usual) / count) for log in logs]
        times_ns = tuple(point.median_ns / scale for point, scale in zip(points, scales, strict=True))
        return cls(measurement.key, points, times_ns, canaries)

    @property
    def steps(self) -> tuple[int, ...]:
        """The points from which on there is another level."""
        return tuple(level.first for level in self.levels[1:])

    @property
    def ratio(self) -> float:
        """The newest level ÷ the one before; 1 without a step."""
        return self.levels[-1].median_ns / self.levels[-2].median_ns if self.levels else 1.0

    @property
    def change(self) -> str:
        """Returns `+3.1 % since the session of 21 Nov, recorded on 093d14b`; empty without a step."""
        if not self.steps:
            return ""
        place, cards = self.steps[-1], [point.device for point in self.points]
        text = f"{percent(math.log(self.ratio))} since {_words(self.points[place])}"
        text += "" if set(cards[:place]) & set(cards[place:]) else "; no card was measured on both sides"
        return text + ("" if self.canaries else "; not divided by canaries")


def _shared(points: Sequence[SessionTime], wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted canaries, each by the timer that all sessions have it by; none if one is missing."""
    known = ({name for name, ns in point.session.canaries.items() if is_time(ns)} for point in points)
    names = [name for name in sorted(set.intersection(*known)) if name.partition("/")[0] in wanted]
    return tuple(names) if len(names) == len(wanted) else ()


def with_steps(trends: Mapping[SeriesKey, Trend]) -> dict[SeriesKey, Trend]:
    """Returns the series with their steps, tested together: the more series, the clearer a step has to be."""
    groups: dict[str, dict[SeriesKey, list[float]]] = {}
    for key, trend in trends.items():
        if len(trend.points) >= FEWEST_SESSIONS:
            groups.setdefault(spread_key(trend.key), {})[key] = [math.log(ns) for ns in trend.times_ns]
    level = _FALSE_STEPS / max(1, sum(map(len, groups.values())))
    stepped = dict(trends)
    for name, series in groups.items():
        # Neighbours differ by the spread of two sessions, and a step is in one of the differences only.
        pairs = ([b - a for a, b in itertools.pairwise(logs)] for logs in series.values())
        spread = spread_of_ratios(name.rpartition("/")[2], pairs)
        spread = dataclasses.replace(spread, s0=spread.s0 / math.sqrt(2))
        for key, logs in series.items():
            if places := _places(logs, spread, level):
                trend, parts = trends[key], itertools.pairwise([0, *places, len(logs)])
                levels = (Level(a, b - 1, statistics.median(trend.times_ns[a:b])) for a, b in parts)
                stepped[key] = dataclasses.replace(trend, levels=tuple(levels))
    return stepped


def _places(logs: Sequence[float], shared: SharedSpread, level: float) -> list[int]:
    """Returns where a series has steps; `level` is how probable a false one may be by its size."""
    count, place = len(logs), _place_by_ranks(logs)
    if place is None:
        return []
    sides = logs[:place], logs[place:]
    before, since = map(statistics.fmean, sides)
    squares = sum((log - before) ** 2 for log in sides[0]) + sum((log - since) ** 2 for log in sides[1])
    spread = case_spread(squares / (count - 2), count - 2, shared, floor=ROUNDING**2)
    error = math.sqrt(spread.variance * (1 / place + 1 / (count - place)))
    reach = student_t(1 - level / len(_candidates(count)) / 2, spread.dof) * error
    if abs(since - before) < max(reach, math.log1p(LEAST)):
        return []
    place = min(range(2, count - 1), key=lambda at: _apart(logs[:at]) + _apart(logs[at:]))
    earlier, later = (_places(side, shared, level) for side in (logs[:place], logs[place:]))
    return [*earlier, place, *(place + further for further in later)]


def _apart(logs: Sequence[float]) -> float:
    """Returns how far points are from their median, all together, so that one outlier counts little."""
    usual = statistics.median(logs)
    return math.fsum(abs(log - usual) for log in logs)


def _candidates(count: int) -> range:
    return range(SESSIONS_TO_GATE, count - SESSIONS_TO_GATE + 1)


def _place_by_ranks(logs: Sequence[float]) -> int | None:
    """Returns where the ranks of both sides differ most, or None if they may differ so by chance."""
    count, ordered = len(logs), sorted(logs)
    ranks = ((bisect.bisect_left(ordered, log) + bisect.bisect_right(ordered, log) + 1) / 2 for log in logs)
    sums = [0.0, *itertools.accumulate(ranks)]
    # By how many standard deviations the first side's sum is off, less ½ for continuity.
    distances = {
        place: (abs(sums[place] - place * (count + 1) / 2) - 0.5)
        / math.sqrt(place * (count - place) * (count + 1) / 12)
        for place in _candidates(count)
    }
    place = max(distances, key=distances.__getitem__, default=None)
    if place is None:
        return None
    by_chance = 2 * len(distances) * statistics.NormalDist().cdf(-distances[place])
    return place if by_chance <= _BY_RANK else None


def moment_of(text: str) -> datetime | None:
    """Returns an ISO 8601 time in UTC, or None for one that does not exist, which a file may name."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # a month 13, or the year 10000 in UTC
        return None


def days_of(times: Iterable[SessionTime]) -> str:
    """Returns `20 to 22 Nov`: the days of UTC from the first to the last; with years if these differ."""
    moments = sorted(filter(None, (moment_of(time.session.recorded) for time in times)))
    if not moments:
        return ""
    first, last = moments[0], moments[-1]
    begin, end = (
        f"{day.day} {day:%b}" + (f" {day.year}" if first.year < last.year else "") for day in (first, last)
    )
    in_one_month = (first.year, first.month) == (last.year, last.month)
    return end if begin == end else f"{first.day if in_one_month else begin} to {end}"
