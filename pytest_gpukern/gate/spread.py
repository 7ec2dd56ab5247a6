"""Estimates how far log medians of sessions spread, from all cases of a suite together.

Three to five sessions say little about the spread of their own case: in one case out of eleven, five normal
ones show less than half the true standard deviation. So we shrink the variance of each case towards that of
the suite, as is done for the genes of a microarray: empirical Bayes by moments (Smyth 2004, *Linear models
and empirical Bayes methods*, Stat. Appl. Genet. Mol. Biol. 3(1), 3; `fitFDist` and `eBayes` of limma).

Cases are grouped by scope and timer. Copies and end-to-end times spread by what the host does, kernels by
clocks and memory layout, and each timer adds its own. We do not group by cache policy: nearly all cases of a
run have the same. Short kernels spread more, so the variances of a suite differ, d0 is small, and each case
stays nearer to its own variance. No variance is taken for less than the timer's jitter causes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.measure.statistics import fisher_cdf, sample_variance
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.timer_table import timer_row

PRIOR_DOF = 4.0
"""Weight of an assumed spread: as much as five sessions of the case itself."""

FEWEST_CASES = 5
"""Cases with at least two sessions that it takes to estimate the suite's spread; fewer, and it is assumed."""

ROUNDING = 1e-6
"""Relative: recorded times have six digits."""

KNOWS_NOTHING = 1e6  # relative errors are capped here, so that medians near zero cannot overflow
_DOES_NOT_BELONG = 0.95  # quantile of F above which a case is noisier than the cases of the suite
_TOO_QUIET = 0.01  # quantile of F below which it is quieter
_HALVINGS = 60  # more than the 53 bits of a float's significand, so that halving ends at its precision


@dataclass(frozen=True)
class SharedSpread:
    """Holds the spread between sessions that the cases of a suite have in common, of log medians.

    A case's true variance is thought of as drawn from s0²·d0/χ²(d0).

    Attributes:
        s0: typical standard deviation between sessions.
        d0: degrees of freedom: how many sessions' worth of evidence it is about a single case.
        cases: number of cases that it was estimated from; 0 where it is assumed.
        devices: standard deviation between devices of the model; None where the records do not show it.
        devices_dof: degrees of freedom of `devices`: their number less one, as one may be off in all cases.
        between_devices: the spread between devices that single cases share, since a few of them can make
            `devices` large; None where too few cases show it.
    """

    s0: float
    d0: float
    cases: int
    devices: float | None = None
    devices_dof: int = 0
    between_devices: SharedSpread | None = None


@dataclass(frozen=True)
class CaseSpread:
    """Holds the variance of one case between sessions, and its degrees of freedom.

    Attributes:
        variance: of a session's log median.
        dof: its degrees of freedom, the suite's share included.
        alone: the case does not fit the suite, so its variance rests on its own sessions alone.
    """

    variance: float
    dof: float
    alone: bool = False


def spread_key(key: str) -> str:
    """Returns the `scope/timer` that a measurement's `scope/timer/cache` shares its spread with."""
    return key.rpartition("/")[0]


def assumed_spread(timer: str) -> SharedSpread:
    """Returns the built-in spread of a timer; an unknown timer is taken for the worst."""
    return SharedSpread(timer_row(timer).prior_spread, PRIOR_DOF, cases=0)


def shared_spread(cases: Iterable[Sequence[SessionTime]]) -> dict[str, SharedSpread]:
    usable = ([time for time in sessions if 0 < time.median_ns < math.inf] for sessions in cases)
    groups = grouped((spread_key(times[0].key), times) for times in usable if len(times) > 1)
    return {key: _of_group(key.rpartition("/")[2], group) for key, group in groups.items()}


def spread_of_ratios(timer: str, cases: Iterable[Sequence[float]]) -> SharedSpread:
    """Returns the spread that log ratios of neighbouring sessions share over the cases of a run.

    Too few cases get the assumed spread of a session times √2, since a ratio is of two sessions.
    """
    assumed = assumed_spread(timer)
    fallback = SharedSpread(assumed.s0 * math.sqrt(2), assumed.d0, cases=0)
    variances = [  # their logs are averaged, and none may be log 0
        (max(sample_variance(ratios), 2 * ROUNDING**2), len(ratios) - 1)
        for ratios in cases
        if len(ratios) > 1
    ]
    return _fitted(variances, fallback)


def by_device(sessions: Sequence[SessionTime]) -> dict[str | None, list[float]]:
    """Returns each device → the log medians of its sessions."""
    return grouped((session.device, math.log(session.median_ns)) for session in sessions)


def within_devices(cards: Mapping[str | None, Sequence[float]]) -> tuple[float, int]:
    """Returns the variance of log medians about the mean of their device, and its degrees of freedom."""
    dof = sum(map(len, cards.values())) - len(cards)
    squares = sum((log - statistics.fmean(logs)) ** 2 for logs in cards.values() for log in logs)
    return (squares / dof if dof else 0.0), dof


def between_devices(cards: Mapping[str | None, Sequence[float]]) -> tuple[float, int]:
    """Returns the variance of the means of devices, and its degrees of freedom.

    It contains the spread within a device, which cannot be separated when each card has one session.
    """
    means = list(map(statistics.fmean, cards.values()))
    return (sample_variance(means) if len(means) > 1 else 0.0), len(means) - 1


def case_spread(variance: float, dof: int, shared: SharedSpread, *, floor: float = 0.0) -> CaseSpread:
    """Returns a case's own variance, shrunk: (d0·s0² + ν·s²) / (d0 + ν) with d0 + ν degrees of freedom.

    A case does not fit the suite, and keeps its own variance, if s²/s0² lies above the 95 % quantile of F
    with ν and d0 degrees of freedom, as in most cases with two modes, or below the 1 % quantile. Here s²
    is `variance`, and ν is `dof`. Neither s² nor s0² is less than `floor`, the variance that the timer alone
    causes: it is known, so it makes no case unlike the others.
    """
    variance, usual = max(variance, floor), max(shared.s0**2, floor)
    if dof:
        place = fisher_cdf(variance / usual, dof, shared.d0)
        if place > _DOES_NOT_BELONG or place < _TOO_QUIET:
            return CaseSpread(variance, dof, alone=True)
    shrunk = (shared.d0 * usual + dof * variance) / (shared.d0 + dof)
    return CaseSpread(shrunk, shared.d0 + dof)


def _of_group(timer: str, group: Sequence[Sequence[SessionTime]]) -> SharedSpread:
    variances, apart, several = [], [], []
    for sessions in group:
        cards = by_device(sessions)
        floor = _resolved(timer, min(session.median_ns for session in sessions))
        variance, dof = within_devices(cards)
        if dof:
            variances.append((max(variance, floor), dof))
        if len(cards) > 1:
            variance, dof = between_devices(cards)
            apart.append((max(variance, floor), dof))
            several.append(cards)
    spread = _fitted(variances, assumed_spread(timer))
    tau, tau_dof = _of_devices(several, spread.s0**2)
    by_case = _fitted(apart, spread) if len(apart) >= FEWEST_CASES else None
    return SharedSpread(spread.s0, spread.d0, spread.cases, tau, tau_dof, by_case)


def _resolved(timer: str, median_ns: float) -> float:
    """Returns the variance of a log median that the timer's step and rounding cause."""
    step = min(timer_row(timer).step_ns / median_ns, KNOWS_NOTHING)
    return max(step**2 / 12, ROUNDING**2)  # a uniform error of ± half a step has the variance step²/12


def _fitted(variances: Sequence[tuple[float, int]], fallback: SharedSpread) -> SharedSpread:
    """Returns s0 and d0 from mean and variance of log s²: Smyth (2004), section 6.2; as `fitFDist` of limma.

    For a variance with ν degrees of freedom, log s² − ψ(ν/2) + log(ν/2) has the mean
    log s0² − ψ(d0/2) + log(d0/2) and the variance ψ′(ν/2) + ψ′(d0/2). As in `eBayes`, d0 is no more than all
    cases' degrees of freedom together.
    """
    if len(variances) < FEWEST_CASES:
        return fallback
    logs = [math.log(s2) - _digamma(dof / 2) + math.log(dof / 2) for s2, dof in variances]
    mean = statistics.fmean(logs)
    excess = sample_variance(logs) - statistics.fmean(_trigamma(dof / 2) for _, dof in variances)
    pooled = float(sum(dof for _, dof in variances))
    # Without excess the cases' variances differ by chance alone, and d0 would be infinite.
    d0 = min(2 * _inverse_trigamma(excess), pooled) if excess > 0 else pooled
    s0 = math.exp((mean + _digamma(d0 / 2) - math.log(d0 / 2)) / 2)
    return SharedSpread(s0, d0, len(variances))


def _of_devices(
    cases: Sequence[Mapping[str | None, Sequence[float]]], within: float
) -> tuple[float | None, int]:
    """Returns the standard deviation between devices, None without several, and its degrees of freedom.

    One-way analysis of variance by moments (Searle, Casella & McCulloch, *Variance Components*, 1992, §3.6):
    the spread of the devices' means, less the part that the spread within devices causes.
    """
    if not cases:
        return None, 0
    squares = expected = weight = 0.0
    for cards in cases:
        variance, dof = between_devices(cards)
        squares += dof * variance
        expected += dof * within * statistics.fmean(1 / len(logs) for logs in cards.values())
        weight += dof
    between = max(squares - expected, 0.0)  # a difference of moments, which chance may make negative
    return math.sqrt(between / weight), len(set().union(*cases)) - 1


def _digamma(x: float) -> float:
    """Returns ψ(x) for x > 0: recurrence and asymptotic series (Abramowitz & Stegun, 6.3.5 and 6.3.18)."""
    below = 0.0
    while x < 8:  # from there on, the first term that the series leaves out is below 1e-12; in ψ′ as well
        below += 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return math.log(x) - 1 / (2 * x) - series - below


def _trigamma(x: float) -> float:
    """Returns ψ′(x) for x > 0: recurrence and asymptotic series (Abramowitz & Stegun, 6.4.6 and 6.4.12)."""
    below = 0.0
    while x < 8:
        below += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    series = 1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66)))
    return 1 / x + y / 2 + series * y / x + below


def _inverse_trigamma(y: float) -> float:
    """Returns the x > 0 with ψ′(x) = y > 0, halved out of 1/x < ψ′(x) < 1/x + 1/x²; ψ′ falls all the way."""
    low, high = 1 / y, (1 + math.sqrt(1 + 4 * y)) / (2 * y)
    for _ in range(_HALVINGS):
        x = (low + high) / 2
        low, high = (x, high) if _trigamma(x) > y else (low, x)
    return low
