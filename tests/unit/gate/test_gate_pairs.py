"""Checks verdicts on two revisions, measured in neighbouring sessions."""

from __future__ import annotations

import functools
import math
import random

import pytest
from made_up_times import KNOWN, S, beside, measured
from msgspec import structs

from pytest_gpukern.gate.judge import (
    FALSE_ALARMS_OF_PAIRS,
    Paired,
    confirm,
    judge,
    may_be_slower,
    shared_spread_of_pairs,
)
from pytest_gpukern.gate.spread import SharedSpread
from pytest_gpukern.values.timer_table import TIMERS
from pytest_gpukern.values.verdict_table import VerdictKind

SAME, FASTER, SLOWER = VerdictKind.SAME, VerdictKind.FASTER, VerdictKind.SLOWER
UNDECIDED = VerdictKind.UNDECIDED
SUITE = SharedSpread(0.002, 20.0, cases=30)
CUPTI, HOST = "kernel/cupti/cold", "end_to_end/host/cold"


def pairs(*percents, drift=0.3, key=CUPTI, **changes):
    """Returns pairs with heads so many per cent slower, on a machine that slows from pair to pair."""
    bases = [1e6 * (1 + drift * number) for number in range(len(percents))]
    sides = [(base, base * (1 + percent / 100)) for base, percent in zip(bases, percents, strict=True)]
    return [tuple(measured(ns, key=key, **changes) for ns in pair) for pair in sides]


def of_mean(percent, count=2):
    """Returns pairs whose log ratios have this mean and the standard deviation S."""
    step = S * math.sqrt((count - 1) / count)
    factors = [math.exp(step * (1 if number % 2 else -1)) for number in range(count)]
    return pairs(*(100 * ((1 + percent / 100) * factor - 1) for factor in factors))


def judged(fresh, shared=SUITE):
    return judge(fresh, Paired(0.02, shared))


def looked_at(fresh, suspicion=None, *, last=True, shared=SUITE):
    suspicion = suspicion or judged(pairs(5, 5.2))
    return confirm(suspicion, fresh, Paired(0.02, shared), last=last)


@pytest.mark.parametrize(
    ("percent", "kind", "reason"),
    [
        (5, SLOWER, "+5.0 % (90 %: +4.3 … +5.7 %), threshold 2 %"),
        (0, SAME, "+0.0 % (90 %: −0.70 … +0.70 %), inside ±2 %"),
        (-5, FASTER, "−5.0 % (90 %: −5.7 … −4.3 %), threshold 2 %"),
        (1.5, UNDECIDED, "+1.5 % (90 %: +0.79 … +2.2 %): slower, but perhaps by less than 2 %"),
    ],
)
def test_two_pairs_are_enough_whatever_the_machine_does_meanwhile(percent, kind, reason):
    """Log ratios vary by 0.6 %, and the mean of two by 0.6 %/√2."""
    found = judged(of_mean(percent), shared=KNOWN)
    settling = "; slowdowns from +2.9 % are caught (95 %); --gpukern-sessions=5 would settle it"
    assert (found.kind, found.reason) == (kind, reason + settling * (kind is UNDECIDED))
    assert (found.suspected, found.sessions, found.threshold) == (kind is SLOWER, 2, 0.02)
    assert found.ratio == pytest.approx(1 + percent / 100, rel=1e-4)


@pytest.mark.parametrize(("count", "most"), [(2, 8), (4, 8), (10, 10)])
def test_what_is_caught_by_pairs_is_screened_by_these_and_confirmed_by_eight_or_as_many(count, most):
    found = judged(of_mean(0, count), shared=KNOWN)
    screened, confirmed = S / math.sqrt(count), S / math.sqrt(most)
    caught = math.log(1.02) + max(1.960 * screened, 2 * 1.960 * confirmed)
    assert math.log(found.detectable) == pytest.approx(caught, rel=1e-3)


FOUR = SharedSpread(0.01, 4.0, cases=30)


@pytest.mark.parametrize(
    ("logs", "shared", "jitter_ns", "error", "t95"),
    [
        ((-0.01, 0, 0.01), FOUR, 0.0, 0.01 / math.sqrt(3), 1.943),  # on 4 + 2 degrees of freedom
        ((0, 0), FOUR, 5e3 * math.sqrt(2), 0.01 / math.sqrt(2), 2.015),  # 4 + 1; both sides have the jitter
        ((0, 0), FOUR, 5e4 * math.sqrt(2), 0.1 / math.sqrt(2), 2.015),  # the same where it is far above s0
        ((-0.007, 0.007), None, 0.0, 0.007, 2.015),  # assumed: that of CUPTI's sessions times √2
    ],
)
def test_the_interval_is_students_for_the_mean_of_ratios(logs, shared, jitter_ns, error, t95):
    found = judged(pairs(*(100 * math.expm1(log) for log in logs), jitter_ns=jitter_ns), shared=shared)
    assert math.log(found.ratio_high) == pytest.approx(t95 * error, rel=1e-3)


@pytest.mark.parametrize(
    ("least", "kinds"), [(1.1, [SLOWER] * 2), (1.02, [SLOWER, UNDECIDED]), (1, [UNDECIDED] * 2)]
)
@pytest.mark.parametrize("base_is_busy", [True, False])
def test_pairs_of_a_busy_host_are_slower_by_what_others_cannot_explain(least, kinds, base_is_busy):
    """If the base was timed beside others, too, CPU times are compared."""
    load = beside(0.5, most_ns=5e5) if base_is_busy else beside(0.0, loop_ns=1.0)
    now = beside(0.5, least_ns=least * 1e6, most_ns=least * 5e5, loop_ns=1.0)
    slower = [
        (structs.replace(base, observations=load), structs.replace(head, observations=now))
        for base, head in pairs(200, 202, drift=0)
    ]
    assert [judged(slower).kind, looked_at(slower).kind] == kinds
    assert judged(slower).others_share == (0.5 if least == 1 else None)


def test_a_base_that_others_slowed_makes_nothing_faster():
    faster = [(structs.replace(base, observations=beside(0.5)), head) for base, head in pairs(-40, -40)]
    assert (judged(faster).kind, judged(faster).others_share) == (UNDECIDED, 0.5)
    assert judged(pairs(-40, -40)).kind is FASTER


@pytest.mark.parametrize("percent", [-0.1, 0])
def test_a_pair_that_was_not_slower_confirms_nothing(percent):
    found = looked_at(pairs(*[30] * 20, percent), shared=SharedSpread(0.05, 200.0, cases=300))
    assert found.kind is UNDECIDED
    assert "not every fresh session was slower than its base" in found.reason


@pytest.mark.parametrize(
    ("percents", "changes", "may"),
    [
        ((1, 9), {}, True),
        ((-0.1, 9), {}, False),  # not each was slower
        ((0.5, 3), {}, False),  # less than the threshold on average
        ((5, 5.2), {}, False),  # suspected already
        ((1, 9), {"false_alarm": 0.0}, False),  # a time that can fail nothing
        ((1, 9), {"others_share": 0.5}, False),  # more pairs beside other programs would say no more
    ],
)
def test_what_two_pairs_leave_open_may_be_slower_if_each_was(percents, changes, may):
    found = structs.replace(judged(pairs(*percents)), **changes)
    assert may_be_slower(found) is may


host_pairs = functools.partial(pairs, key=HOST)
SUSPECTED = judged(host_pairs(98, 102, 100, 99), shared=None)
looked_at_host = functools.partial(looked_at, suspicion=SUSPECTED, shared=None)


def test_twice_the_work_on_a_host_is_slower_as_soon_as_the_pairs_are_enough():
    fresh = host_pairs(96, 104, 100, 103)
    assert SUSPECTED.suspected
    assert looked_at_host(fresh[:2], last=False) is SUSPECTED, "a host varies by too much for two pairs"
    found = looked_at_host(fresh, last=False)
    assert (found.kind, found.suspected) == (SLOWER, False)
    assert "; 4 fresh pairs confirmed at least +" in found.reason
    assert found.false_alarm == SUSPECTED.false_alarm


@pytest.mark.parametrize("percents", [(-1, 220), (0, 220), (1, 1.5)])
def test_a_pair_or_a_change_that_is_not_slower_ends_a_suspicion_at_once(percents):
    found = looked_at_host(host_pairs(*percents), last=False)
    assert (found.kind, found.suspected, found.unconfirmed) == (UNDECIDED, False, True)
    assert "not confirmed by 2 fresh pairs: " in found.reason


@pytest.mark.parametrize("timer", TIMERS)
def test_more_pairs_raise_fewer_false_alarms_and_the_hosts_clock_raises_more(timer):
    """From four pairs on, and no earlier."""
    alike = [pairs(*[0.1] * count, key=f"kernel/{timer}/cold") for count in (2, 3, 4, 9)]
    chances = [judged(each).false_alarm for each in alike]
    on_device = TIMERS[timer].device_timed
    table = FALSE_ALARMS_OF_PAIRS[on_device]
    assert chances == [table[2], table[2], table[4], table[4]]
    assert 0 < table[4] < table[2] < (FALSE_ALARMS_OF_PAIRS[False][4] if on_device else 0.01)


def test_a_pair_with_a_time_of_nothing_cannot_be_compared():
    fresh = [*pairs(0), (measured(1e6, key=CUPTI), measured(0.0, key=CUPTI))]
    found, after = judged(fresh), looked_at(fresh)
    assert (found.kind, found.ratio, after.kind, after.unconfirmed) == (UNDECIDED, None, UNDECIDED, True)


def test_the_runs_cases_share_the_spread_of_their_ratios():
    rng = random.Random(2)
    cases = [pairs(*(rng.gauss(0, 0.3) for _ in range(3))) for _ in range(60)]
    shared = shared_spread_of_pairs(
        [*cases, [], [*pairs(0), (measured(0.0, key=CUPTI), measured(key=CUPTI))]]
    )
    assert shared.keys() == {"kernel/cupti"}
    assert shared["kernel/cupti"].s0 == pytest.approx(0.003, rel=0.15)
    assert shared["kernel/cupti"].cases == 60
