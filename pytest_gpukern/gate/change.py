"""Estimates how much a time changed, with its standard error, and what this much measuring would catch.

Changes are differences of log medians: symmetric, and additive where times are multiplied.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gate.spread import (
    KNOWS_NOTHING,
    ROUNDING,
    CaseSpread,
    SharedSpread,
    assumed_spread,
    between_devices,
    by_device,
    case_spread,
    spread_of_ratios,
    within_devices,
)
from pytest_gpukern.measure.statistics import sample_variance, student_t
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.timer_table import timer_row

SCREENING = 0.95  # lenient: 9 of 1015 unchanged kernels were suspected on an H200, and none confirmed
"""One-sided confidence from which a slowdown is suspected; both bounds together are the 90 % interval."""

CONFIRMING = 0.975  # with five recorded sessions, 3.6 % of simulated runs of 120 cases had a false alarm
"""One-sided confidence with which fresh sessions have to lie above the threshold."""

FRESH_SESSIONS = 2  # repeated in its own session, a suspicion confirmed itself: 1.0 % false, not 0.14 %
"""Fresh sessions that confirm a suspicion, unless more are measured."""

FRESH_PAIRS = 2
"""Pairs of fresh sessions that are measured between two looks at a suspicion: one A-B-B-A."""

MOST_FRESH_PAIRS = 8
"""Pairs after which a suspicion is not looked at again; more if the suspicion rests on more itself.

In simulations 12 pairs caught hardly more than 8: in suites on a host 26.5 % instead of 26.3 % of +20 %.
"""

SESSIONS_TO_GATE = 3  # false alarms in 12 % of simulated runs; with 5 sessions in 3.6 %, with 8 in 1.5 %
"""Recorded sessions from which a verdict may fail a test."""

MOST_SESSIONS = 20  # an epoch of a record keeps no more
"""The largest number of sessions that a reason names as enough to settle a question."""

Pair = tuple["Measurement", "Measurement"]
"""Measurements of one case in neighbouring sessions: of the base and of the working tree."""

_EACH_STEP = 0.975
"""Probability of passing screening, and again confirmation, so that both are passed with at least 95 %."""

_NOTHING = 1e-12  # shares are floats, so what should cancel to 0 may miss it by rounding

SAME_DEVICE = CaseSpread(0.0, math.inf)


@dataclass(frozen=True)
class Change:
    """Holds the log ratio of new and recorded times and what its error is made of.

    Attributes:
        delta: mean of the fresh log medians less the recorded sessions' mean; or mean of paired log ratios.
        spread: variance of one session's log median (of one pair's log ratio) and its degrees of freedom.
        fresh: new sessions, or pairs.
        recorded: recorded sessions that it was compared with; 0 for pairs.
        noisier: additional variance of fresh sessions whose samples are noisier than the recorded ones'.
        devices: what devices that differ in this case add to the change's variance; nothing on one device.
        all_devices: what they add by all cases of the suite. A card may be slower in a case where
            the recorded cards agree, so a smaller change is called neither slower nor faster.
    """

    delta: float
    spread: CaseSpread
    fresh: int
    recorded: int
    noisier: float = 0.0
    devices: CaseSpread = SAME_DEVICE
    all_devices: CaseSpread = SAME_DEVICE

    def error(self, fresh: int | None = None, recorded: int | None = None) -> float:
        """Returns the standard error of the change, also for other numbers of sessions."""
        fresh, recorded = fresh or self.fresh, recorded or self.recorded
        variance = (self.spread.variance + self.noisier) / fresh
        if recorded:
            variance += self.spread.variance / recorded
        return math.sqrt(variance + self.devices.variance)

    @property
    def dof(self) -> float:
        """Degrees of freedom of the error; of two variances together, after Satterthwaite (1946)."""
        between = self.devices.variance
        if not between:
            return self.spread.dof
        within = self.error() ** 2 - between
        parts = within**2 / self.spread.dof + between**2 / self.devices.dof
        return max((within + between) ** 2 / parts, 1.0)  # Student's t needs one degree of freedom

    def reach(self, confidence: float = SCREENING) -> float:
        """Returns how far a one-sided bound with this confidence lies from the change."""
        return student_t(confidence, self.dof) * self.error()

    def least(self, confidence: float = SCREENING) -> float:
        """Returns how large the change is at least, in either direction, with this one-sided confidence.

        It allows for the differences between devices, in this case and over all cases.
        """
        return abs(self.delta) - max(change.reach(confidence) for change in self._between_any)

    @property
    def _between_any(self) -> tuple[Change, ...]:
        """Returns the change twice: with what devices add by this case, and with what they add by all."""
        if self.devices == self.all_devices:
            return (self,)
        return self, dataclasses.replace(self, devices=self.all_devices)

    @property
    def low(self) -> float:
        """Returns the lower end of the 90 % interval."""
        return self.delta - self.reach()

    @property
    def high(self) -> float:
        """Returns the upper end of the 90 % interval."""
        return self.delta + self.reach()

    def detectable(self, limit: float, *, screening: int | None = None) -> float:
        """Returns the smallest slowdown, as log ratio, that screening and confirmation catch with 95 %.

        A minimum detectable effect (Bloom 1995, *Evaluation Review* 19, 547): the bound that a step has to
        pass, plus Student's t of the power times the standard error. Each step is passed with 97.5 %, so both
        are passed with at least 95 %. We take the estimated spread for the true one.
        """
        return max(change._caught(limit, screening) for change in self._between_any)

    def _caught(self, limit: float, screening: int | None) -> float:
        power = student_t(_EACH_STEP, self.dof)
        confirming = FRESH_SESSIONS if self.recorded else max(MOST_FRESH_PAIRS, self.fresh)
        first, second = self.error(screening), self.error(confirming)
        suspected = max(limit, student_t(SCREENING, self.dof) * first) + power * first
        confirmed = limit + (student_t(CONFIRMING, self.dof) + power) * second
        return max(suspected, confirmed)

    def settling(self, limit: float) -> tuple[int, int] | None:
        """Returns how many recorded and fresh sessions would tell on which side of the threshold it lies.

        Without recorded sessions it counts fresh pairs. Returns None if `MOST_SESSIONS` of both are too few.
        """
        distance, large = abs(limit - abs(self.delta)), abs(self.delta) >= limit
        errors, confidence = (self._between_any, CONFIRMING) if large else ((self,), SCREENING)
        for count in range(1, MOST_SESSIONS + 1):
            recorded = max(self.recorded, count) if self.recorded else 0
            fresh = max(self.fresh, count)
            reaches = (student_t(confidence, of.dof) * of.error(fresh, recorded) for of in errors)
            if max(reaches) <= distance:
                return recorded, fresh
        return None


def change_since(
    sessions: Sequence[SessionTime],
    fresh: Sequence[Measurement],
    *,
    device: str | None,
    shared: SharedSpread | None,
) -> Change:
    """Returns the change of a case since its recorded sessions, by new ones on `device`.

    The variance of the case is the variance between sessions of one device, shrunk towards the suite's. It is
    pooled with the variance among the fresh sessions. Sessions of one device share its deviation from other
    devices, τ. If device d has the share w_d of the recorded sessions, the difference of the means varies by
    τ²·(1 − 2·w_own + Σ w_d²). This is 0 if all sessions are of one device. It is τ²·(1 + 1/D) if D others
    have as many each. We use two values of τ²: of the case, shrunk like its variance, and of all cases.
    """
    timer = fresh[0].timer
    shared = shared or assumed_spread(timer)
    cards = by_device(sessions)
    logs = [log for card in cards.values() for log in card]
    new = [math.log(measurement.summary.median_ns) for measurement in fresh]
    floor = _floor(fresh, math.exp(min(logs)))
    spread = case_spread(*within_devices(cards), shared, floor=floor)
    if own := len(new) - 1:
        pooled = (spread.dof * spread.variance + own * sample_variance(new)) / (spread.dof + own)
        spread = dataclasses.replace(spread, variance=pooled, dof=spread.dof + own)
    noise = statistics.fmean(_within(timed.summary) for timed in fresh)
    recorded_noise = statistics.fmean(_within(session.measurement.summary) for session in sessions)
    of_case, of_all = _of_devices(cards, device, timer, shared, floor)
    return Change(
        delta=statistics.fmean(new) - statistics.fmean(logs),
        spread=spread,
        fresh=len(new),
        recorded=len(logs),
        noisier=max(0.0, noise - recorded_noise),  # the recorded spread holds the recorded noise already
        devices=of_case,
        all_devices=of_all,
    )


def change_of_pairs(pairs: Sequence[Pair], *, shared: SharedSpread | None) -> Change:
    """Returns the change between two revisions, by the mean of the log ratios of neighbouring sessions."""
    timer, ratios = pairs[0][0].timer, log_ratios(pairs)
    shared = shared or spread_of_ratios(timer, ())
    floor = 2 * _floor([timed for pair in pairs for timed in pair])  # a ratio has the jitter of two sessions
    spread = case_spread(sample_variance(ratios), len(ratios) - 1, shared, floor=floor)
    return Change(statistics.fmean(ratios), spread, fresh=len(ratios), recorded=0)


def log_ratios(pairs: Sequence[Pair]) -> list[float]:
    """Returns log(working tree ÷ base) of each pair."""
    return [math.log(head.summary.median_ns / base.summary.median_ns) for base, head in pairs]


def undecided_words(change: Change, limit: float, detectable: float) -> str:
    """Says what is known, how large a slowdown is caught, and how many recorded sessions would settle it."""
    bound = percent(limit, signed=False)
    if change.low > 0 or change.high < 0:
        doubt = f"perhaps by less than {bound}"
        if change.least() <= 0:
            doubt = "recorded on other devices, and these differ by as much"
        known = f"{'slower' if change.low > 0 else 'faster'}, but {doubt}"
    elif change.high <= limit:
        known = f"not slower by {bound}, but {percent(change.low)} is possible"
    else:
        known = f"no significant change, but {percent(change.high)} is possible"
    seen = f"slowdowns from {percent(detectable)} are caught (95 %)"
    return f"{known}; {seen}; {settling_words(change, limit)}"


def numbers(change: Change) -> str:
    """Returns `+5.3 % (90 %: +3.9 … +6.7 %)`."""
    first, last = percent(change.low), percent(change.high)
    if first.endswith(" %") and last.endswith(" %"):
        first = first.removesuffix(" %")
    return f"{percent(change.delta)} (90 %: {first} … {last})"


def percent(log_ratio: float, *, signed: bool = True) -> str:
    """Writes a log ratio as a change: 0.0517 → `+5.3 %`; two decimals below 1 %; from tenfold a factor."""
    ratio = ratio_of(log_ratio)
    if ratio >= 10:
        return f"×{ratio:.3g}"
    value = 100 * (ratio - 1)
    if not signed:
        return f"{value:.6g} %"
    return f"{value:+.{1 if abs(value) >= 1 or abs(value) < 0.005 else 2}f} %".replace("-", "−")


def ratio_of(log_ratio: float) -> float:
    """Returns e to the power of a log ratio, infinite where that is too large for a float."""
    try:
        return math.exp(log_ratio)
    except OverflowError:
        return math.inf


def settling_words(change: Change, limit: float) -> str:
    """Says how many sessions would settle the question, and for pairs the option that asks for them."""
    needed = change.settling(limit)
    if needed is None and change.devices.variance:
        return f"{SESSIONS_TO_GATE} sessions recorded on this device may settle it"
    if needed is None:
        never = f"{MOST_SESSIONS} sessions would not settle it: too near the threshold for this noise"
        for higher in (0.03, 0.05, 0.1, 0.2, 0.5):  # the first by which these sessions decide
            if change.settling(math.log1p(higher)) == (change.recorded, change.fresh):
                return f'{never}; raise it: threshold="{higher:.0%}"'
        return never
    recorded, fresh = needed
    if not change.recorded:
        return f"--gpukern-sessions={fresh} would settle it"
    return f"{recorded} recorded and {fresh} fresh sessions would settle it"


_SIGMAS_IN_95 = 1.96  # half a 95 % interval in standard errors


def _floor(fresh: Sequence[Measurement], shortest_ns: float = math.inf) -> float:
    """Returns the variance of a log median that the timer alone causes, its step included."""
    shortest_ns = min(shortest_ns, *(timed.summary.median_ns for timed in fresh))
    # Jitter is nanoseconds, so it weighs most in the shortest time: 165 ns of events in 4.7 µs are 3.5 %.
    jitter = min(max(timed.jitter_ns for timed in fresh) / shortest_ns, KNOWS_NOTHING)
    return max(jitter, ROUNDING) ** 2


def _within(summary: Summary) -> float:
    """Returns the relative variance of a session's median, from its 95 % interval."""
    half = (summary.high_ns - summary.low_ns) / 2
    return min(half / _SIGMAS_IN_95 / summary.median_ns, KNOWS_NOTHING) ** 2


def _of_devices(
    cards: Mapping[str | None, Sequence[float]],
    device: str | None,
    timer: str,
    shared: SharedSpread,
    floor: float,
) -> tuple[CaseSpread, CaseSpread]:
    """Returns what devices add to the variance of a change: by this case, and by all cases.

    A case's degrees of freedom are at most the number of devices less one, since one device may be off in all
    cases that the spread was estimated from.
    """
    count = sum(map(len, cards.values()))
    shares = {card: len(logs) / count for card, logs in cards.items()}
    weight = 1 - 2 * shares.get(device, 0.0) + sum(share**2 for share in shares.values())
    if weight < _NOTHING:
        return SAME_DEVICE, SAME_DEVICE
    of_all = CaseSpread(weight * timer_row(timer).prior_spread_of_devices ** 2, math.inf)
    if shared.devices is not None:
        of_all = CaseSpread(weight * shared.devices**2, shared.devices_dof)
    if shared.between_devices is None:
        return of_all, of_all
    spread = case_spread(*between_devices(cards), shared.between_devices, floor=floor)
    return CaseSpread(weight * spread.variance, min(spread.dof, shared.devices_dof)), of_all
