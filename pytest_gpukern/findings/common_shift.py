"""Finds what all cases of a run have in common: a shift of their times, and whether the canaries share it."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_gpukern.gate.change import percent
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.measure.statistics import interval_rank, student_t
from pytest_gpukern.values.difference import DEVICE, Difference
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.stored import Stored

FEWEST_CASES = 8
"""Fewer have no interval worth the name, and may share their change for reasons of their own."""
LEAST = 0.005
"""Smallest common shift that a report shows."""

_FEWEST_SESSIONS = 3
_WITH_IT = 0.5
"""Share of the shift from which a canary has moved with it."""

_SPOKEN = {"copy": "the copy", "fma": "FMA", "launch": "launch"}
_ORDER = {name: number for number, name in enumerate(_SPOKEN)}


class Compared(NamedTuple):
    """Holds a result that was compared, and the recorded sessions that it was compared with."""

    result: Result
    past: Sequence[SessionTime]


class MachineVerdict(enum.StrEnum):
    """Says how fast a machine, or a class of its kernels, is since the record."""

    AS_RECORDED = "as recorded"
    SLOWER = "slower"
    FASTER = "faster"
    NOT_KNOWN = "not known"


class CanaryChange(Stored, frozen=True):
    """Says how a canary moved since the record.

    Attributes:
        ratio: its time ÷ its recorded one.
        moved: whether it lies outside of what was recorded, and so far that a common shift may be its.
        usual: how far a session moves it without a cause, as `Shift.usual`; None if too few are recorded.
    """

    ratio: float
    moved: bool
    usual: float | None = None

    @property
    def limit(self) -> float:
        """The log ratio from which it is slower or faster, by the rule of a common shift."""
        return max(math.log1p(LEAST), self.usual or 0.0)

    @property
    def verdict(self) -> MachineVerdict:
        if self.usual is None:
            return MachineVerdict.NOT_KNOWN
        log = math.log(self.ratio)
        if abs(log) < self.limit:
            return MachineVerdict.AS_RECORDED
        return MachineVerdict.SLOWER if log > 0 else MachineVerdict.FASTER

    def __str__(self) -> str:
        """Returns `slower: beyond ±0.58 %`, with the limit; or `not known`, and whether it moved at all."""
        if self.verdict is MachineVerdict.NOT_KNOWN:
            few = f": beyond each recorded session, and fewer than {_FEWEST_SESSIONS} tell no limit"
            return f"{self.verdict}{few * self.moved}"
        side = "within" if self.verdict is MachineVerdict.AS_RECORDED else "beyond"
        return f"{self.verdict}: {side} ±{percent(self.limit)[1:]}"


class Shift(Stored, frozen=True):
    """Says how the times of all cases moved together.

    Attributes:
        cases: how many it is the median of.
        ratio: median of new time ÷ recorded time.
        low: lower end of its 95 % interval.
        high: upper end.
        canaries: name → how it moved; empty where none was recorded.
        usual: how far sessions shift without a cause, as a log ratio: 95 % of them stay within it, as far as
            the recorded sessions tell.
    """

    cases: int
    ratio: float
    low: float
    high: float
    canaries: Mapping[str, CanaryChange] = {}
    usual: float = 0.0

    @property
    def limit(self) -> float:
        """The log ratio from which a report shows it: large enough, and more than sessions shift anyway."""
        return max(math.log1p(LEAST), self.usual)

    @property
    def common(self) -> bool:
        """Whether there is one: significant, and as large as its limit."""
        return (self.low > 1 or self.high < 1) and abs(math.log(self.ratio)) >= self.limit

    @property
    def with_it(self) -> list[str]:
        """The canaries that moved with it: then it is the machine."""
        own = math.log(self.ratio)
        return [
            name
            for name, canary in self.canaries.items()
            if canary.moved and math.log(canary.ratio) / own >= _WITH_IT
        ]


def shift_among(compared: Sequence[Compared]) -> Shift | None:
    """Returns the common shift of compared results and of the canaries; None if there are too few."""
    recorded = [time.session.canaries for entry in compared for time in entry.past]
    now = [entry.result.canaries for entry in compared]
    canaries = canary_changes(now, recorded)
    usual = usual_shift(
        {time.session.session: time.median_ns for time in entry.past if time.key == _kernel(entry.result)}
        for entry in compared
    )
    return shift_of(kernel_ratios(entry.result for entry in compared), canaries, usual)


def _kernel(result: Result) -> str:
    """Returns the key of the time of the kernel that was compared on a GPU; empty without one."""
    measured = result.measurements if result.case.on_gpu and not result.simulated else ()
    compared = [key for key, verdict in result.verdicts.items() if verdict.ratio]
    return next((time.key for time in measured if time.scope == "kernel" and time.key in compared), "")


def shift_of(
    ratios: Sequence[float], canaries: Mapping[str, CanaryChange], usual: float = 0.0
) -> Shift | None:
    """Returns the common shift of the ratios of a run's cases; None where these are too few to tell.

    The 95 % interval of the median comes from the sign test: order statistics, whatever the distribution.
    """
    if len(ratios) < FEWEST_CASES:
        return None
    ordered = sorted(ratios)
    n, rank = len(ordered), interval_rank(len(ordered))
    median = math.exp(statistics.median(map(math.log, ordered)))
    return Shift(n, median, ordered[rank - 1], ordered[n - rank], canaries, usual)


def usual_shift(cases: Iterable[Mapping[str, float]]) -> float:
    """Returns the log ratio that a new session's common shift stays within 95 % of the time; 0 if not known.

    A case has the id of each recorded session and its time of the kernel, where that was compared on a GPU.

    A recorded session's shift is the median over its cases of the log time less its case's mean. The interval
    of one more session takes shifts for normal, with the spread of the recorded ones.
    """
    shifts: dict[str, list[float]] = {}
    for times in cases:
        logs = {session: math.log(ns) for session, ns in times.items() if session and ns > 0}
        for session, value in logs.items():
            shifts.setdefault(session, []).append(value - statistics.fmean(logs.values()))
    medians = [statistics.median(logs) for logs in shifts.values() if len(logs) >= FEWEST_CASES]
    return _of_one_more(medians) or 0.0


def _of_one_more(logs: Sequence[float]) -> float | None:
    """Returns half of the 95 % interval of one more session; None if the sessions are too few to tell."""
    count = len(logs)
    if count < _FEWEST_SESSIONS:
        return None
    # √(1 + 1/n): a new session varies about the mean, which n sessions estimate.
    return student_t(0.975, count - 1) * statistics.stdev(logs) * math.sqrt(1 + 1 / count)


def kernel_ratios(results: Iterable[Result]) -> list[float]:
    """Returns new ÷ recorded time of each case's kernel on a GPU, where both are known."""
    ratios = [result.verdicts[key].ratio for result in results if (key := _kernel(result))]
    return [ratio for ratio in ratios if ratio is not None and math.isfinite(ratio)]


def canary_changes(
    now: Iterable[Mapping[str, float | None]], recorded: Iterable[Mapping[str, float | None]]
) -> dict[str, CanaryChange]:
    """Says how each canary moved between recorded sessions and sessions of a run, copy first."""
    new, old = _by_canary(now), _by_canary(recorded)
    changes = {}
    for name in sorted(new.keys() & old.keys(), key=lambda name: (_ORDER.get(name.split("/")[0], 9), name)):
        ratio = statistics.median(new[name]) / statistics.median(old[name])
        outside = max(new[name]) < min(old[name]) or min(new[name]) > max(old[name])
        usual = _of_one_more([*map(math.log, old[name])])
        changes[name] = CanaryChange(ratio, outside and abs(math.log(ratio)) >= math.log1p(LEAST) / 2, usual)
    return changes


def phrase(shift: Shift, changed: Sequence[Difference]) -> str:
    median, *ends = (100 * abs(value - 1) for value in (shift.ratio, shift.low, shift.high))
    (low, high), way = sorted(ends), "slower" if shift.ratio > 1 else "faster"
    text = f"all kernels {median:.1f} % {way} (median of {shift.cases}, 95 %: {low:.1f} … {high:.1f} %)"
    if not shift.canaries:
        return f"{text}; the record has no canaries by this timer, which could tell whether it is the machine"
    readings = {
        name: (_SPOKEN.get(name.split("/")[0], name), percent(math.log(canary.ratio)))
        for name, canary in shift.canaries.items()
    }
    moved = shift.with_it
    if moved:
        first, *others = moved + [name for name in readings if name not in moved]
        rest = "".join(f", {' '.join(readings[name])}" for name in others)
        return f"{text}, so is {' ('.join(readings[first])}){rest}: the machine, not your change"
    differs = f" ({', '.join(map(str, changed))})"
    what = differs if changed else "; no recorded version differs, so look at the code"
    still = f"{text}; the canaries were not ({', '.join(map(' '.join, readings.values()))})"
    if any(change.what == DEVICE for change in changed):
        return f"{still}, but this is another card, and cards of a model differ a little"
    return f"{still}: something that all cases share - compiler, libraries, code - changed{what}"


def _by_canary(sessions: Iterable[Mapping[str, float | None]]) -> dict[str, list[float]]:
    once = {tuple(sorted(canaries.items())): canaries for canaries in sessions}
    return grouped((name, ns) for session in once.values() for name, ns in session.items() if ns)
