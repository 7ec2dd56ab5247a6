"""Is a measurement the same as the record, faster or slower? A pure function of stored and new numbers.

The rule compares log medians of sessions. The spread between sessions is taken from the record where it holds
three sessions, and assumed (`PRIOR_SPREAD`) where it does not; the reason says which.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpukern.result import CaseInfo, Measurement, Result, Verdict, VerdictKind
from pytest_gpukern.stats import student_t

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRIOR_SPREAD: Mapping[str, float] = MappingProxyType(
    {"event": 0.005, "host": 0.3, "graph": 0.006, "cupti": 0.007}
)
"""Standard deviation of a session's log median on one device, assumed until a record has three sessions.

Eight identical processes gave ranges of their medians (÷ 2.85 for a standard deviation, if they were
normal) of 0.09 … 10 % for events behind a flushed L2, 1.3 … 10.7 % for the host clock, 0.17 … 1.8 % for
graphs and 0.00 … 0.42 % for CUPTI, on an H200. For events the prior is that of a well-behaved kernel of tens
of microseconds or more, so that one recorded session can already say SAME at 2 %: 1.645·√2·0.5 % = 1.2 %.
What spreads the medians of shorter ones is a fixed jitter, which `jitter_ns` adds. For graphs it is the worst
observed. By CUPTI two whole runs of the suites on one H200 had 239 pairs with a root mean square of 0.4 %,
but extremes of 1.6 and, of a kernel of 6 µs, 3.6 %: of 478 verdicts either way the prior makes 345 SAME and
none SLOWER. For the host's clock two times 60 copies and end-to-end times, of two runs each on two hosts,
differed by up to 1.9 times (root mean square 22 and 31 %): what else those hosts did, so that the device
being the same changes little.
"""

PRIOR_SPREAD_OF_DEVICES: Mapping[str, float] = MappingProxyType(
    {"event": 0.06, "host": 0.5, "graph": 0.06, "cupti": 0.02}
)
"""The same where the record is of another device of the model, which is usually in another host too.

Three sessions on three H200s of different hosts gave 327 pairs of kernels timed by events: their log ratios
had a root mean square of 1.7 % (÷ √2 for one session), but heavy tails, with an extreme of 13.5 %. The prior
is such that no pair is called SLOWER, whichever came first. By CUPTI, 1149 pairs of calls of one kernel, of
four sessions on four H200s, had 1.0 to 1.3 % and an extreme of 8 %, where the call allocates; of 2852
verdicts either way 5 were SLOWER, all of that one. Copies and end-to-end times took up to 2.3 times as long
on one host as on another.
"""

FEWEST_FOR_OWN_SPREAD = 3
"""Recorded sessions from which their own spread replaces the prior."""

_CONFIDENCE = 0.95  # one-sided; the two bounds together are the 90 % interval
_POWER = 0.80
_MANY = 10_000  # degrees of freedom of a spread that is assumed to be known
_SIGMAS_IN_95 = 1.96  # half a 95 % interval in standard errors
_KNOWS_NOTHING = 1e6  # relative errors are capped here, so that medians near zero cannot overflow


@dataclass(frozen=True)
class Conditions:
    """What must agree, besides scope, timer and cache, before two times may be compared.

    Attributes:
        problem_version: the version that the problem's author declared.
        measured_point: values of the axes as run.
        device_model: key of the device model, or of the CPU model for a host variant.
        simulated: whether the CUDA simulator ran it.
    """

    problem_version: int
    measured_point: Mapping[str, Any]
    device_model: str
    simulated: bool = False

    @classmethod
    def of(cls, case: CaseInfo, *, device_model: str, simulated: bool = False) -> Conditions:
        """The conditions under which a case runs here and now."""
        return cls(case.problem_version, case.measured_point, device_model, simulated)


@dataclass(frozen=True)
class SessionTime:
    """One recorded session's time of a case, with what it was measured under.

    Attributes:
        key: `scope/timer/cache` of the measurement.
        median_ns: median of the session's samples.
        low_ns: lower bound of the median's 95 % interval within the session.
        high_ns: upper bound.
        n: number of samples.
        conditions: what must agree with the new measurement's conditions.
        device: UUID of the device, or None for the host's processor.
    """

    key: str
    median_ns: float
    low_ns: float
    high_ns: float
    n: int
    conditions: Conditions
    device: str | None = None


def judge(
    fresh: Measurement | Sequence[Measurement],
    sessions: Sequence[SessionTime],
    *,
    conditions: Conditions,
    threshold: float,
    jitter_ns: float,
    device: str | None = None,
) -> Verdict:
    """Compares one measurement with the recorded sessions of its case.

    Δ is the log median minus the mean of the record's log medians. SLOWER: the 90 % interval of Δ lies above
    +threshold (so the change is significant at 5 %, one-sided, and large enough). FASTER: it lies below
    −threshold. SAME: it lies inside (two one-sided tests, Schuirmann 1987). Else UNDECIDED, with the smallest
    slowdown that this much measuring would find SLOWER four times in five.

    Args:
        fresh: the new session's measurement, or those of several.
        sessions: the record's current sessions, none if nothing is recorded.
        conditions: what the new measurement was taken under.
        threshold: smallest change that counts, 0.02 for 2 %; thresholds are log(1 + threshold) both ways.
        jitter_ns: what the timer itself adds to the spread of a session's median, as a standard deviation.

        device: UUID of the device that the new measurement was taken on.

    Raises:
        ValueError: threshold or jitter is negative or not finite.
    """
    for name, value in (("threshold", threshold), ("jitter_ns", jitter_ns)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    measurement = fresh if isinstance(fresh, Measurement) else _middle(fresh)
    if measurement.invalid is not None:
        return Verdict(VerdictKind.INVALID, measurement.invalid)
    if not sessions:
        if conditions.simulated:
            return Verdict(VerdictKind.UNCOMPARABLE, "the simulator's times say nothing about speed")
        return Verdict(VerdictKind.NEW, "nothing recorded yet")
    difference = _difference(measurement.key, conditions, sessions)
    if difference is not None:
        return Verdict(VerdictKind.UNCOMPARABLE, difference)
    times = [measurement.summary.median_ns, *(session.median_ns for session in sessions)]
    if not all(math.isfinite(time) and time > 0 for time in times):
        return Verdict(
            VerdictKind.UNDECIDED,
            f"a median of {min(times):g} ns has no ratio: below what the timer resolves",
        )
    elsewhere = all(session.device != device for session in sessions)
    change = _change(measurement, sessions, jitter_ns, elsewhere=elsewhere)
    if change.error >= 1:
        reason = f"too short or too noisy for this timer: the standard error is {100 * change.error:.3g} %"
        return Verdict(VerdictKind.UNDECIDED, reason, _exp(change.delta))
    verdict = _verdict(change, threshold)
    return dataclasses.replace(verdict, suspected=verdict.kind is VerdictKind.SLOWER)


def confirm(
    suspicion: Verdict, fresh: Sequence[Measurement], sessions: Sequence[SessionTime], **how: Any
) -> Verdict:
    """The verdict by fresh sessions alone; what raised the suspicion has no part in it."""
    verdict = judge(fresh, sessions, **how)
    return dataclasses.replace(verdict, suspected=False, sessions=len(fresh), anchor=suspicion.anchor)


def _middle(fresh: Sequence[Measurement]) -> Measurement:
    invalid = [measurement for measurement in fresh if measurement.invalid is not None]
    ordered = sorted(fresh, key=lambda measurement: measurement.summary.median_ns)
    return invalid[0] if invalid else ordered[(len(fresh) - 1) // 2]


def fails(verdict: Verdict, *, strict: bool) -> bool:
    """Whether a verdict fails its test: SLOWER and INVALID always do; under `strict` so does not knowing."""
    if verdict.kind in (VerdictKind.SLOWER, VerdictKind.INVALID):
        return True
    unknown = (VerdictKind.NEW, VerdictKind.UNDECIDED, VerdictKind.UNCOMPARABLE)
    return strict and verdict.kind in unknown


def failing(result: Result, *, strict: bool) -> dict[str, Verdict]:
    """The verdicts that fail a result's test, by `scope/timer/cache`.

    A host variant's times are reported and never fail: they depend on too much that no kernel changes.
    """
    if not result.case.on_gpu:
        return {}
    return {key: verdict for key, verdict in result.verdicts.items() if fails(verdict, strict=strict)}


@dataclass(frozen=True)
class _Change:
    """log(new ÷ recorded), its standard error, and what the error rests on."""

    delta: float
    error: float
    dof: int
    recorded: int
    elsewhere: bool

    @property
    def assumed(self) -> bool:
        return self.recorded < FEWEST_FOR_OWN_SPREAD

    @property
    def reach(self) -> float:
        """Half the 90 % interval."""
        return student_t(_CONFIDENCE, self.dof) * self.error


def _change(
    measurement: Measurement, sessions: Sequence[SessionTime], jitter_ns: float, *, elsewhere: bool
) -> _Change:
    """A session's variance is the prior's plus its own interval's until the record shows its spread, which
    contains the interval's share already: then it is the larger of the two."""
    summary = measurement.summary
    logs = [math.log(session.median_ns) for session in sessions]
    recorded = len(sessions)
    new = _within(summary.median_ns, summary.low_ns, summary.high_ns) ** 2
    old = statistics.fmean(_within(s.median_ns, s.low_ns, s.high_ns) ** 2 for s in sessions)
    between = statistics.variance(logs) if recorded > 1 else 0.0
    priors = PRIOR_SPREAD_OF_DEVICES if elsewhere else PRIOR_SPREAD
    prior = priors.get(measurement.timer, priors["host"]) ** 2
    if recorded >= FEWEST_FOR_OWN_SPREAD:
        variance = max(between, new) + max(between, old) / recorded
        if elsewhere and len({session.device for session in sessions}) < FEWEST_FOR_OWN_SPREAD:
            variance += prior  # the record does not know the spread between devices
    else:
        variance = max(prior + new, between) + max(prior + old, between) / recorded
    tick = jitter_ns / min(summary.median_ns, *(session.median_ns for session in sessions))
    return _Change(
        delta=math.log(summary.median_ns) - statistics.fmean(logs),
        error=math.hypot(math.sqrt(variance), min(tick, _KNOWS_NOTHING)),
        dof=recorded - 1 if recorded >= FEWEST_FOR_OWN_SPREAD else _MANY,
        recorded=recorded,
        elsewhere=elsewhere,
    )


def _within(median_ns: float, low_ns: float, high_ns: float) -> float:
    """Relative standard error of a session's median, from its 95 % interval."""
    return min((high_ns - low_ns) / 2 / _SIGMAS_IN_95 / median_ns, _KNOWS_NOTHING)


def _verdict(change: _Change, threshold: float) -> Verdict:
    limit = math.log1p(threshold)
    low, high = change.delta - change.reach, change.delta + change.reach
    numbers = f"{_percent(change.delta)} ({_interval(low, high)})"
    bound = f"{100 * threshold:g} %"
    if low > limit:
        kind, reason = VerdictKind.SLOWER, f"{numbers}, threshold {bound}"
    elif high < -limit:
        kind, reason = VerdictKind.FASTER, f"{numbers}, threshold {bound}"
    elif -limit <= low and high <= limit:
        kind, reason = VerdictKind.SAME, f"{numbers}, inside ±{bound}"
    else:
        kind, reason = VerdictKind.UNDECIDED, f"{numbers}: {_undecided(change, low, high, limit, bound)}"
    if change.assumed:
        recorded = f"{change.recorded} of {FEWEST_FOR_OWN_SPREAD} recorded"
        reason += f"; spread between sessions assumed ({recorded})"
    if change.elsewhere:
        reason += "; recorded on another device of this model"
    seen = _exp(_detectable(change, limit)) if kind is VerdictKind.UNDECIDED else None
    return Verdict(kind, reason, _exp(change.delta), _exp(low), _exp(high), seen)


def _undecided(change: _Change, low: float, high: float, limit: float, bound: str) -> str:
    """What is known all the same, and how large a slowdown this much measuring would find."""
    if low > 0:
        known = f"slower, but perhaps by less than {bound}"
    elif high < 0:
        known = f"faster, but perhaps by less than {bound}"
    elif high <= limit:
        known = f"not slower by {bound}, but {_percent(low)} is possible"
    else:
        known = f"no significant change, but {_percent(high)} is possible"
    return f"{known}; a slowdown would be seen from {_percent(_detectable(change, limit))}"


def _detectable(change: _Change, limit: float) -> float:
    """The smallest log ratio that would be SLOWER with a probability of 80 %."""
    return limit + change.reach + student_t(_POWER, change.dof) * change.error


def _difference(key: str, now: Conditions, sessions: Sequence[SessionTime]) -> str | None:
    """The first condition in which a recorded session differs from now, with both values, or None."""
    rows: list[tuple[str, list[object], object]] = [
        ("", [_where(s.conditions) for s in sessions], _where(now)),
        ("on ", [s.conditions.device_model for s in sessions], now.device_model),
        ("with problem version ", [s.conditions.problem_version for s in sessions], now.problem_version),
        ("at ", [_point(s.conditions.measured_point) for s in sessions], _point(now.measured_point)),
        ("as ", [s.key for s in sessions], key),
    ]
    for label, recorded, current in rows:
        others = [str(value) for value in dict.fromkeys(recorded) if value != current]
        if others:
            return f"recorded {label}{' and '.join(others)}, now {current}"
    return None


def _where(conditions: Conditions) -> str:
    return "in the simulator" if conditions.simulated else "on real hardware"


def _point(point: Mapping[str, Any]) -> str:
    """A point in words, equal for values that JSON makes equal, such as a tuple and a list."""
    plain = json.loads(json.dumps(dict(point), default=_item, sort_keys=True))
    return " ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in plain.items()) or "no axes"


def _item(value: object) -> object:
    return value.item() if hasattr(value, "item") else str(value)  # a NumPy scalar


def _exp(log_ratio: float) -> float:
    try:
        return math.exp(log_ratio)
    except OverflowError:
        return math.inf


def _interval(low: float, high: float) -> str:
    """Two log ratios as an interval: `90 %: +3.9 … +6.7 %`."""
    first, last = _percent(low), _percent(high)
    if first.endswith(" %") and last.endswith(" %"):
        first = first.removesuffix(" %")
    return f"90 %: {first} … {last}"


def _percent(log_ratio: float) -> str:
    """A log ratio as a signed change: 0.0517 → `+5.3 %`; from a tenfold time on as a factor."""
    ratio = _exp(log_ratio)
    if ratio >= 10:
        return f"×{ratio:.3g}"
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")
