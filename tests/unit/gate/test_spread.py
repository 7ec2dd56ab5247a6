"""Checks the spread between sessions: what cases share, estimated or assumed, and what each case has."""

from __future__ import annotations

import math
import random

import pytest

from pytest_gpukern.gate import spread
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.spread import (
    PRIOR_DOF,
    SharedSpread,
    between_devices,
    case_spread,
    shared_spread,
    spread_of_ratios,
    within_devices,
)
from pytest_gpukern.values.timer_table import TIMERS

HERE = Conditions(1, {}, "nvidia-h200")
CUPTI = "kernel/cupti"


def sessions(logs, *, key="kernel/cupti/cold", centre_ns=1e6, devices=None):
    times = [centre_ns * math.exp(log) for log in logs]
    devices = devices or ["GPU-a"] * len(times)
    return [
        SessionTime(100, t, t, t, key=key, conditions=HERE, device=d)
        for t, d in zip(times, devices, strict=True)
    ]


def normal_suite(sigmas, *, count=5, seed=3, **changes):
    rng = random.Random(seed)
    return [sessions([rng.gauss(0, sigma) for _ in range(count)], **changes) for sigma in sigmas]


def test_equal_spreads_are_found_and_known_well():
    found = shared_spread(normal_suite([0.004] * 200))[CUPTI]
    assert found.s0 == pytest.approx(0.004, rel=0.05)
    assert found.d0 > 50
    assert found.cases == 200


def test_degrees_of_freedom_of_the_suite_are_recovered():
    """Variances drawn as the model has them: s0²·d0/χ²(d0)."""
    rng = random.Random(7)
    sigmas = [0.004 * math.sqrt(6 / rng.gammavariate(3, 2)) for _ in range(2000)]
    found = shared_spread(normal_suite(sigmas))[CUPTI]
    assert found.s0 == pytest.approx(0.004, rel=0.05)
    assert found.d0 == pytest.approx(6, rel=0.25)


def test_spreads_that_differ_by_orders_of_magnitude_leave_each_case_to_itself():
    found = shared_spread(normal_suite([0.0001, 0.001, 0.01, 0.1] * 20))[CUPTI]
    assert found.d0 < 1


def test_scopes_and_timers_spread_apart_and_cache_policies_together():
    cases = [
        *normal_suite([0.002] * 6),
        *normal_suite([0.002] * 6, key="kernel/cupti/hot"),
        *normal_suite([0.02] * 6, key="transfer/cupti/cold"),
    ]
    found = shared_spread(cases)
    assert found.keys() == {CUPTI, "transfer/cupti"}
    assert found[CUPTI].cases == 12
    assert found["transfer/cupti"].s0 > 3 * found[CUPTI].s0


def test_fewer_than_five_cases_or_sessions_by_themselves_say_nothing():
    few = shared_spread(normal_suite([0.1] * 4))[CUPTI]
    assert (few.s0, few.d0, few.cases) == (TIMERS["cupti"].prior_spread, PRIOR_DOF, 0)
    assert shared_spread([sessions([0.0])] * 10) == {}


def test_medians_that_agree_to_the_tick_spread_by_no_less_than_the_tick():
    found = shared_spread([sessions([0.0] * 5, centre_ns=1632.0)] * 10)[CUPTI]
    assert found.s0 == pytest.approx(32 / 1632 / math.sqrt(12), rel=0.3)
    unmeasurable = shared_spread([*normal_suite([0.004] * 10), sessions([0, -math.inf])])[CUPTI]
    assert unmeasurable.cases == 10


def test_what_devices_differ_by_is_no_spread_between_sessions():
    rng = random.Random(5)
    names = ["GPU-a", "GPU-b", "GPU-c"]
    cases = []
    for _ in range(40):
        offsets = {name: rng.gauss(0, 0.02) for name in names}
        cases.append(sessions([offsets[n] + rng.gauss(0, 0.002) for n in names * 3], devices=names * 3))
    found = shared_spread(cases)[CUPTI]
    assert found.s0 == pytest.approx(0.002, rel=0.1)
    assert found.devices == pytest.approx(0.02, rel=0.2)
    assert found.devices_dof == 2


def test_what_devices_differ_by_in_most_cases_is_not_hidden_by_a_few():
    rng = random.Random(6)
    names = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    sigmas = [0.001] * 90 + [0.05] * 10
    cases = [sessions([rng.gauss(0, sigma) for _ in names], devices=names) for sigma in sigmas]
    found = shared_spread(cases)[CUPTI]
    assert found.devices == pytest.approx(0.05 * math.sqrt(0.1), rel=0.3)
    assert found.between_devices.cases == 100
    assert 0.0004 < found.between_devices.s0 < 0.002
    calm, wild = (
        case_spread(*between_devices([s * 0.7, -s, s, -s * 0.7], names), found.between_devices)
        for s in (0.001, 0.05)
    )
    assert calm.variance < 0.0025**2
    assert (wild.alone, wild.dof) == (True, 3)


def test_few_cases_do_not_tell_what_devices_differ_by_in_most():
    several = [sessions([0, 0.01 * case], devices=["a", "b"]) for case in range(spread.FEWEST_CASES - 1)]
    found = shared_spread(several)[CUPTI]
    assert found.devices > 0
    assert found.between_devices is None


def test_between_devices_counts_their_means():
    assert between_devices([0.0, 0.02, 1.0, 1.02], ["a", "a", "b", "b"]) == pytest.approx((0.5, 1))
    assert between_devices([0.0, 1.0], ["a", "a"]) == (0.0, 0)


def test_devices_that_do_not_differ_have_no_spread_and_one_device_tells_nothing():
    several = [
        sessions([case * 1e-6, 0.01, -0.01, 0.01, -0.01], devices=["a", "a", "a", "b", "b"])
        for case in range(10)
    ]
    assert shared_spread(several)[CUPTI].devices < 0.003
    assert shared_spread(normal_suite([0.004] * 10))[CUPTI].devices is None


def test_the_variance_is_about_the_mean_of_each_device():
    assert within_devices([0.0, 0.02, 1.0, 1.02], ["a", "a", "b", "b"]) == pytest.approx((0.0002, 2))
    assert within_devices([0.0, 1.0], ["a", "b"]) == (0.0, 0)


SUITE = SharedSpread(0.01, 6.0, cases=50)


def test_a_case_is_shrunk_towards_the_suite_by_degrees_of_freedom():
    found = case_spread(0.02**2, 4, SUITE)
    assert found.variance == pytest.approx((6 * 0.01**2 + 4 * 0.02**2) / 10)
    assert found.dof == 10
    assert not found.alone


@pytest.mark.parametrize("sigma", [0.022, 0.0015])
def test_a_case_far_from_the_suite_is_left_to_itself(sigma):
    """F.95 of 4 and 6 is 4.53, a ratio of 2.1 of standard deviations; F.01 is 1/15.2, one of 1/3.9."""
    found = case_spread(sigma**2, 4, SUITE)
    assert (found.variance, found.dof, found.alone) == (sigma**2, 4, True)
    nearer = case_spread((0.021 if sigma > 0.01 else 0.0029) ** 2, 4, SUITE)
    assert not nearer.alone


def test_one_session_has_the_suites_spread_and_nothing_is_below_the_timers_own():
    assert case_spread(0.0, 0, SUITE).variance == pytest.approx(0.01**2)
    assert case_spread(0.0, 0, SUITE, floor=0.03**2).variance == 0.03**2
    assert case_spread(0.0, 4, SUITE, floor=0.01**2).variance == pytest.approx(0.01**2)


def test_ratios_are_assumed_to_spread_as_two_sessions_do_and_measured_where_there_are_cases():
    assert spread_of_ratios("cupti", []).s0 == pytest.approx(math.sqrt(2) * TIMERS["cupti"].prior_spread)
    rng = random.Random(1)
    ratios = [[rng.gauss(0, 0.001) for _ in range(4)] for _ in range(100)]
    assert spread_of_ratios("cupti", ratios).s0 == pytest.approx(0.001, rel=0.1)


def test_the_functions_of_the_fit_have_their_known_values():
    """Abramowitz & Stegun, 6.3.2, 6.3.3, 6.4.2, 6.4.4; ζ(3) = 1.2020569…"""
    euler = 0.5772156649015329
    assert spread._digamma(1.0) == pytest.approx(-euler, abs=1e-10)
    assert spread._digamma(0.5) == pytest.approx(-euler - 2 * math.log(2), abs=1e-10)
    assert spread._trigamma(1.0) == pytest.approx(math.pi**2 / 6, abs=1e-10)
    assert spread._trigamma(0.5) == pytest.approx(math.pi**2 / 2, abs=1e-10)
    assert spread._tetragamma(1.0) == pytest.approx(-2 * 1.2020569031595942, abs=1e-9)


@pytest.mark.parametrize("x", [1e-6, 0.01, 0.3, 1.0, 7.0, 300.0, 1e8])
def test_trigamma_is_inverted(x):
    assert spread._inverse_trigamma(spread._trigamma(x)) == pytest.approx(x, rel=1e-6)
