"""Checks the spread between sessions: what cases share, estimated or assumed, and what each case has."""

from __future__ import annotations

import math
import random

import pytest
from made_up_times import recorded

from pytest_gpukern.gate.spread import (
    FEWEST_CASES,
    PRIOR_DOF,
    SharedSpread,
    case_spread,
    shared_spread,
    spread_of_ratios,
)
from pytest_gpukern.values.timer_table import TIMERS

CUPTI = "kernel/cupti"
EULER = 0.5772156649015329


def sessions(logs, *, key="kernel/cupti/cold", centre_ns=1e6, devices=None):
    devices = devices or "a" * len(logs)
    times = [centre_ns * math.exp(log) for log in logs]
    return [recorded(t, key=key, device=device) for t, device in zip(times, devices, strict=True)]


def normal_suite(sigmas, *, count=5, seed=3, **changes):
    rng = random.Random(seed)
    return [sessions([rng.gauss(0, sigma) for _ in range(count)], **changes) for sigma in sigmas]


def psi(n):
    """Returns ψ(n) of a whole number: the harmonic number of n − 1, less Euler's constant."""
    return math.fsum(1 / k for k in range(1, n)) - EULER


# what cases share


@pytest.mark.parametrize("sigma", [0.004, 0.04])
@pytest.mark.parametrize("cases", [FEWEST_CASES, 10])
def test_equal_variances_are_known_with_the_degrees_of_freedom_of_all(sigma, cases):
    """Of three sessions each, s² with 2 degrees of freedom: log s0² = log s² − ψ(1) + ψ(d0/2) − log(d0/2)."""
    shared = shared_spread([sessions([-sigma, 0, sigma])] * cases)[CUPTI]
    assert (shared.d0, shared.cases, shared.devices) == (2 * cases, cases, None)
    assert shared.s0 == pytest.approx(sigma * math.exp((psi(cases) - math.log(cases) + EULER) / 2), rel=1e-9)


@pytest.mark.parametrize("count", [20, 2000])
def test_variances_that_differ_have_the_degrees_of_freedom_that_their_logarithms_vary_by(count):
    """Var log s² = ψ′(1) + ψ′(d0/2) = π²/3 at d0 = 2, where s0² is the mean of the logarithms."""
    apart = math.sqrt(math.pi**2 / 3 * (count - 1) / count) / 2
    cases = [sessions([-s, 0, s]) for s in (0.004 * math.exp(apart), 0.004 * math.exp(-apart))] * (count // 2)
    shared = shared_spread(cases)[CUPTI]
    assert (shared.s0, shared.d0) == pytest.approx((0.004, 2.0), rel=1e-9)


def test_scopes_and_timers_spread_apart_and_cache_policies_together():
    cases = [
        *normal_suite([0.002] * 6),
        *normal_suite([0.002] * 6, key="kernel/cupti/hot"),
        *normal_suite([0.02] * 6, key="transfer/cupti/cold"),
    ]
    shared = shared_spread(cases)
    assert {key: each.cases for key, each in shared.items()} == {CUPTI: 12, "transfer/cupti": 6}
    assert shared["transfer/cupti"].s0 > 3 * shared[CUPTI].s0


def test_fewer_than_five_cases_or_sessions_by_themselves_say_nothing():
    few = shared_spread(normal_suite([0.1] * (FEWEST_CASES - 1)))[CUPTI]
    assert few == SharedSpread(TIMERS["cupti"].prior_spread, PRIOR_DOF, cases=0)
    assert shared_spread([sessions([0.0])] * 10) == {}
    unmeasurable = [sessions([0, -math.inf, math.inf]), sessions([0, 0.01], centre_ns=1e-3)]
    assert shared_spread([*normal_suite([0.004] * 10), *unmeasurable])[CUPTI].cases == 11


@pytest.mark.parametrize(("centre_ns", "floor"), [(1632.0, 32 / 1632 / math.sqrt(12)), (1e9, 1e-6)])
def test_medians_that_agree_spread_by_no_less_than_the_timers_step_and_six_digits(centre_ns, floor):
    """A step, here CUPTI's 32 ns, has the standard deviation step/√12."""
    shared = shared_spread([sessions([0.0] * 3, centre_ns=centre_ns)] * 10)[CUPTI]
    assert shared.s0 == pytest.approx(floor * math.exp((psi(10) - math.log(10) + EULER) / 2), rel=1e-6)


# devices


@pytest.mark.parametrize(
    ("logs", "cards", "variance"),
    [
        # means of 0 and 0.1 vary by 0.005, of which 0.007²·(1/2 + 1/1)/2 is the spread within devices
        ([-0.001, 0.001, 0.1], "aab", 0.005 - 0.007**2 * 0.75),
        ([0.0, 0.1, 0.2], "abc", 0.01 - 0.007**2),
        ([0.0, 0.001], "ab", 0.0),
    ],
)
def test_what_devices_differ_by_is_an_analysis_of_variance_by_moments(logs, cards, variance):
    several = [sessions(logs, devices=cards)] * (FEWEST_CASES - 2)
    shared = shared_spread([*several, sessions([0.0, 0.01])])[CUPTI]
    assert (shared.s0, shared.devices_dof, shared.between_devices) == (0.007, len(set(cards)) - 1, None)
    assert shared.devices == pytest.approx(math.sqrt(variance), rel=1e-9)


@pytest.mark.parametrize("count", [FEWEST_CASES - 1, FEWEST_CASES, 40])
def test_what_devices_differ_by_in_most_cases_is_not_hidden_by_a_few(count):
    """Means of three devices have the variance s² with 2 degrees of freedom, as those of three sessions."""
    wild = sessions([-0.05, 0, 0.05], devices="abc")
    alike = sessions([-0.001, 0, 0.001] * 2, devices="abcabc")
    shared = shared_spread([alike] * (count - count // 10) + [wild] * (count // 10))[CUPTI]
    if count < FEWEST_CASES:
        assert shared.between_devices is None
    elif count == FEWEST_CASES:
        expected = 0.001 * math.exp((psi(count) - math.log(count) + EULER) / 2)
        assert shared.between_devices.s0 == pytest.approx(expected, rel=1e-9)
    else:
        assert shared.devices > 10 * shared.between_devices.s0
        assert case_spread(0.001**2, 2, shared.between_devices).variance < 0.003**2
    few = shared.between_devices and shared.between_devices.cases
    assert few in (None, count)


# what a case has

SUITE = SharedSpread(0.01, 6.0, cases=50)


def test_a_case_is_shrunk_towards_the_suite_by_degrees_of_freedom():
    shrunk = case_spread(0.02**2, 4, SUITE)
    assert shrunk.variance == pytest.approx((6 * 0.01**2 + 4 * 0.02**2) / 10)
    assert (shrunk.dof, shrunk.alone) == (10, False)


@pytest.mark.parametrize(
    ("ratio", "alone"), [(4.54, True), (4.52, False), (1 / 15.19, False), (1 / 15.23, True), (0, True)]
)
def test_a_case_far_from_the_suite_is_left_to_itself(ratio, alone):
    """F.95 of 4 and 6 is 4.53, and F.01 is 1/15.21."""
    case = case_spread(ratio * 0.01**2, 4, SUITE)
    assert case.alone is alone
    assert (case.variance, case.dof) == (ratio * 0.01**2, 4) or not alone


def test_one_session_has_the_suites_spread_and_nothing_is_below_the_timers_own():
    assert case_spread(0.0, 0, SUITE).variance == pytest.approx(0.01**2)
    assert case_spread(0.0, 0, SUITE, floor=0.03**2).variance == pytest.approx(0.03**2)
    assert case_spread(0.0, 4, SUITE, floor=0.01**2).variance == pytest.approx(0.01**2)


def test_ratios_are_assumed_to_spread_as_two_sessions_do_and_measured_where_there_are_cases():
    assumed = SharedSpread(math.sqrt(2) * TIMERS["cupti"].prior_spread, PRIOR_DOF, cases=0)
    assert spread_of_ratios("cupti", []) == assumed
    for sigma, s in ((0.01, 0.01), (0.0, math.sqrt(2) * 1e-6)):
        shared = spread_of_ratios("cupti", [[-sigma, 0, sigma]] * 10 + [[5.0]])
        assert shared.s0 == pytest.approx(s * math.exp((psi(10) - math.log(10) + EULER) / 2), rel=1e-9)
        assert (shared.d0, shared.cases) == (20, 10)
    assert spread_of_ratios("cupti", [[-0.01, 0.01]] * FEWEST_CASES).cases == FEWEST_CASES
