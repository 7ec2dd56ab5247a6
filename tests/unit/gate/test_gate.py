"""Checks verdicts and their reasons: recorded sessions and a new measurement in, a verdict out."""

from __future__ import annotations

import dataclasses
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pytest_gpukern.gate.change import Change, Devices
from pytest_gpukern.gate.comparability import Conditions, SessionTime, of_one_choice
from pytest_gpukern.gate.judge import Basis, confirm, expected_false_alarms, fails, judge, unless_hopeless
from pytest_gpukern.gate.spread import CaseSpread, SharedSpread
from pytest_gpukern.values.failure_table import FAILURES
from pytest_gpukern.values.result import Choice, Measurement, Summary, Verdict
from pytest_gpukern.values.timer_table import TIMERS
from pytest_gpukern.values.verdict_table import VerdictKind

NEW, SAME, FASTER = VerdictKind.NEW, VerdictKind.SAME, VerdictKind.FASTER
SLOWER, UNDECIDED = VerdictKind.SLOWER, VerdictKind.UNDECIDED
UNCOMPARABLE, INVALID = VerdictKind.UNCOMPARABLE, VerdictKind.INVALID

HERE = Conditions(1, {"n": 1000}, "nvidia-h200")
BASE_NS = 50_000.0


def measured(median_ns=BASE_NS, half=0.0025, timer="event", **changes):
    low, high = median_ns * (1 - half), median_ns * (1 + half)
    summary = Summary(median_ns, low, high, 100)
    values = {"scope": "kernel", "timer": timer, "measures": "", "cache": "cold", "samples_ns": ()}
    return Measurement(**{**values, "iterations": 1, "summary": summary, "stopped": "", **changes})


def recorded(median_ns=BASE_NS, half=0.0025, timer="event", conditions=HERE):
    low, high = median_ns * (1 - half), median_ns * (1 + half)
    return SessionTime(100, median_ns, low, high, key=f"kernel/{timer}/cold", conditions=conditions)


def verdict(*fresh_and_sessions, conditions=HERE, threshold=0.02, jitter_ns=0.0, **more):
    """Judges the measurements among the arguments by the sessions among them."""
    fresh = [each for each in fresh_and_sessions if isinstance(each, Measurement)]
    sessions = [each for each in fresh_and_sessions if isinstance(each, SessionTime)]
    return judge(fresh, Basis(sessions, conditions, threshold, jitter_ns, **more))


def spreading(s0, d0=20.0, **devices):
    return SharedSpread(s0, d0, cases=30, **devices)


def around(*percents, centre_ns=BASE_NS, **changes):
    """Returns recorded sessions, each so many per cent above the centre."""
    return [recorded(centre_ns * (1 + percent / 100), **changes) for percent in percents]


CALM = around(0, 0.1, -0.1, 0.05, -0.05)


def test_nothing_recorded_is_new():
    assert verdict(measured()) == Verdict(NEW, "nothing recorded yet")


def test_invalid_measurement_is_invalid_for_its_own_reason_even_without_a_record():
    broken = measured(invalid="faster than memory allows")
    assert verdict(broken) == verdict(broken, recorded()) == Verdict(INVALID, "faster than memory allows")


def test_a_hosts_time_that_nobody_asked_to_fail_is_slower_and_no_suspicion():
    gated = verdict(measured(BASE_NS * 1.2), *CALM)
    assert (gated.kind, gated.suspected) == (SLOWER, True)
    found = verdict(measured(BASE_NS * 1.2), *CALM, fails_with="--fail-on")
    assert (found.kind, found.suspected, found.false_alarm) == (SLOWER, False, 0.0)
    assert found.reason.endswith("a host time fails no test by default (--fail-on=host)")


@pytest.mark.parametrize(("share", "kind"), [(None, SLOWER), (0.05, SLOWER), (0.4, UNDECIDED)])
def test_a_busy_host_raises_no_suspicion_and_confirms_none(share, kind):
    basis = Basis(around(0, 1, -1, timer="host"), HERE, 0.02, 0.0, shared=spreading(0.01))
    slow = measured(BASE_NS * 1.5, timer="host")
    load = {"load": {"others_share": share}}
    beside_others = measured(BASE_NS * 1.5, timer="host", observations=load)
    suspicion, screened = judge([slow], basis), judge([beside_others], basis)
    assert suspicion.suspected
    assert screened.suspected is (kind is SLOWER)
    for found in (screened, confirm(suspicion, [slow, beside_others], basis)):
        assert (found.kind, found.others_share) == (kind, share if kind is UNDECIDED else None)
        assert ("other programs used 40 % of the host's CPUs" in found.reason) is (kind is UNDECIDED)
        assert found.ratio == pytest.approx(1.5, rel=0.01)
    faster = judge([measured(BASE_NS / 1.5, timer="host", observations=load)], basis)
    assert faster.kind is FASTER


def test_one_recorded_session_of_a_calm_event_measurement_can_already_be_the_same():
    found = verdict(measured(BASE_NS * 1.003), recorded(), jitter_ns=30)
    assert found.kind is SAME
    assert found.ratio == pytest.approx(1.003)
    assert 1 / 1.02 < found.ratio_low < found.ratio < found.ratio_high < 1.02
    assert "inside ±2 %" in found.reason
    assert "spread assumed (under 5 cases recorded twice)" in found.reason


def test_twenty_percent_more_is_slower_and_says_by_how_much():
    found = verdict(measured(BASE_NS * 1.2), *CALM, shared=spreading(0.002))
    assert found.kind is SLOWER
    assert found.suspected
    assert found.reason.startswith("+20.0 % (90 %: +19.")
    assert found.reason.endswith("threshold 2 %")


def test_a_slowdown_needs_significance_as_well_as_the_threshold():
    sessions = around(-2, -1, 0, 1, 2)
    found = verdict(measured(BASE_NS * 1.025), *sessions, shared=spreading(0.016))
    assert found.kind is UNDECIDED
    assert "no significant change" in found.reason
    found = verdict(measured(BASE_NS * 1.0195), *CALM, shared=spreading(0.002))
    assert found.kind is UNDECIDED
    assert "slower, but perhaps by less than 2 %" in found.reason


def test_undecided_names_what_is_caught_and_how_many_sessions_would_settle_it():
    sessions = around(-1.2, -0.6, 0, 0.6, 1.2)
    found = verdict(measured(BASE_NS * 1.01), *sessions, shared=spreading(0.01))
    assert found.kind is UNDECIDED
    assert f"slowdowns from +{100 * (found.detectable - 1):.1f} % are caught (95 %)" in found.reason
    assert found.reason.endswith("6 recorded and 6 fresh sessions would settle it")
    assert verdict(*[measured(BASE_NS * 1.01)] * 6, *sessions, *sessions, shared=spreading(0.01)).kind is SAME
    near = verdict(measured(BASE_NS * 1.0199), *sessions, shared=spreading(0.01))
    assert near.reason.endswith("20 sessions would not settle it: too near the threshold for this noise")


@given(st.floats(-2, 2), st.integers(1, 6), st.floats(0, 0.05), st.floats(0, 0.2))
def test_faster_mirrors_slower(delta, count, half, threshold):
    """Takes equal relative errors on both sides: swapping old and new swaps the verdicts."""
    mirror = {SLOWER: FASTER, FASTER: SLOWER}
    sessions = [recorded(half=half, timer="graph")] * count
    up = verdict(measured(BASE_NS * math.exp(delta), half, "graph"), *sessions, threshold=threshold)
    down = verdict(measured(BASE_NS * math.exp(-delta), half, "graph"), *sessions, threshold=threshold)
    assert down.kind is mirror.get(up.kind, up.kind)
    assert up.ratio * down.ratio == pytest.approx(1)
    assert up.ratio_low * down.ratio_high == pytest.approx(
        1, rel=1e-3
    )  # the shorter time has the larger tick


@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=10),
    st.lists(st.floats(-0.05, 0.05), min_size=1, max_size=8),
    st.sampled_from(["event", "host", "unheard-of"]),
)
def test_a_longer_time_is_never_judged_faster(deltas, spread, timer):
    order = {FASTER: 0, SAME: 1, UNDECIDED: 1, SLOWER: 2}
    sessions = [recorded(BASE_NS * math.exp(each), timer=timer) for each in spread]
    ranks = [
        order[verdict(measured(BASE_NS * math.exp(d), timer=timer), *sessions, jitter_ns=100).kind]
        for d in sorted(deltas)
    ]
    assert ranks == sorted(ranks)


@given(st.floats(-0.3, 0.3), st.integers(1, 5), st.floats(0, 0.05), st.floats(0, 0.1))
def test_verdicts_follow_from_the_interval_alone(delta, count, half, threshold):
    found = verdict(measured(BASE_NS * math.exp(delta), half), *[recorded()] * count, threshold=threshold)
    if found.kind is SLOWER:
        assert found.ratio_low > 1
        assert found.ratio > 1 + threshold - 1e-9
    elif found.kind is FASTER:
        assert found.ratio_high < 1
        assert found.ratio < 1 / (1 + threshold) + 1e-9
    elif found.kind is SAME:
        assert 1 / (1 + threshold) - 1e-9 <= found.ratio_low <= found.ratio_high <= 1 + threshold + 1e-9
    else:
        assert found.kind is UNDECIDED


def simulate(kinds, *, sessions, sigma, change=0.0, timer="event", trials=1500, seed=7):
    rng = random.Random(seed)
    hits = 0
    for _ in range(trials):
        old = [recorded(BASE_NS * math.exp(rng.gauss(0, sigma)), timer=timer) for _ in range(sessions)]
        new = measured(BASE_NS * math.exp(rng.gauss(math.log1p(change), sigma)), timer=timer)
        hits += verdict(new, *old).kind in kinds
    return hits / trials


@pytest.mark.parametrize("sessions", [1, 2, 3, 5])
@pytest.mark.parametrize("timer", ["event", "host"])
def test_unchanged_code_with_the_assumed_noise_is_almost_never_slower(sessions, timer):
    sigma = TIMERS[timer].prior_spread
    bound = 0.005 if timer == "event" else 0.06  # 5 %: beside the host clock's noise the threshold is nothing
    assert simulate({SLOWER}, sessions=sessions, sigma=sigma, timer=timer) <= bound


def test_five_recorded_sessions_hold_suspicions_near_five_per_cent_whatever_the_noise():
    assert 0.02 <= simulate({SLOWER}, sessions=5, sigma=0.03) <= 0.09


def test_most_unchanged_code_with_the_assumed_noise_is_the_same():
    assert simulate({SAME}, sessions=1, sigma=TIMERS["event"].prior_spread) > 0.45
    assert simulate({SAME}, sessions=5, sigma=TIMERS["event"].prior_spread) > 0.8


@pytest.mark.parametrize("sessions", [1, 5])
def test_a_fifth_slower_is_always_seen_on_events(sessions):
    assert simulate({SLOWER}, sessions=sessions, sigma=0.006, change=0.2) == 1


def test_a_record_of_fewer_than_three_sessions_is_reported_and_fails_only_as_undecided():
    slower = measured(BASE_NS * 1.2)
    for count in (1, 2):
        found = verdict(slower, *CALM[:count], shared=spreading(0.002))
        assert found.kind is SLOWER
        assert found.reason.endswith(f"reported, not gated: {count} of 3 sessions recorded")
        assert not found.gates
        assert not found.suspected
        assert not fails(found, ("slower",), on_gpu=True)
        assert fails(found, ("undecided",), on_gpu=True)
        assert expected_false_alarms([found]) == 0
    gating = verdict(slower, *CALM[:3], shared=spreading(0.002))
    assert gating.gates
    assert gating.suspected
    assert fails(gating, ("slower",), on_gpu=True)
    assert "not gated" not in gating.reason


def test_a_wild_record_is_left_to_its_own_spread():
    wild = around(0, 10, -10)
    assert verdict(measured(BASE_NS * 1.1), *wild, shared=spreading(0.002)).kind is UNDECIDED
    assert verdict(measured(BASE_NS * 1.1), *CALM[:3], shared=spreading(0.002)).kind is SLOWER


def test_the_interval_is_students_for_one_new_session_against_the_records_mean():
    """Medians e⁻ˢ, 1, eˢ have standard deviation s; t.95 on 2 degrees of freedom is 2.920."""
    s = 0.01
    sessions = [recorded(BASE_NS * math.exp(x), half=0) for x in (-s, 0, s)]
    found = verdict(measured(BASE_NS, half=0), *sessions, shared=spreading(0.001))
    assert math.log(found.ratio_high) == pytest.approx(2.920 * s * math.sqrt(1 + 1 / 3), rel=1e-3)


def test_a_spread_that_belongs_to_the_suite_is_shrunk_towards_it_with_the_degrees_of_both():
    """s² of 1 % on 2 and s0² of 0.7 % on 4 degrees of freedom: t.95 on 6 is 1.943."""
    sessions = [recorded(BASE_NS * math.exp(x), half=0) for x in (-0.01, 0, 0.01)]
    found = verdict(measured(BASE_NS, half=0), *sessions, shared=spreading(0.007, d0=4.0))
    shrunk = math.sqrt((4 * 0.007**2 + 2 * 0.01**2) / 6)
    assert math.log(found.ratio_high) == pytest.approx(1.943 * shrunk * math.sqrt(4 / 3), rel=1e-3)


def test_a_coarse_timer_makes_a_short_time_undecided():
    assert verdict(measured(5000), recorded(5000), jitter_ns=500).kind is UNDECIDED
    assert verdict(measured(5000), recorded(5000), jitter_ns=5).kind is SAME


@pytest.mark.parametrize("median", [0.0, 1e-300, 1e-3])
@pytest.mark.parametrize("resolution", [0.0, 1000.0, 1e300])
def test_times_near_zero_on_either_side_give_a_verdict_and_no_error(median, resolution):
    for new, old in ((median, BASE_NS), (BASE_NS, median), (median, median)):
        found = verdict(measured(new), recorded(old), jitter_ns=resolution)
        assert found.kind is not NEW
        if resolution:
            assert found.kind is UNDECIDED


def test_a_measurement_wider_than_its_time_is_undecided():
    found = verdict(measured(half=5.0), recorded())
    assert found.kind is UNDECIDED
    assert "too short or too noisy" in found.reason


OTHER = [
    (dataclasses.replace(HERE, problem_version=2), "recorded with problem version 1, now 2"),
    (dataclasses.replace(HERE, measured_point={"n": 500}), "recorded at n=1000, now n=500"),
    (dataclasses.replace(HERE, device_model="nvidia-a100"), "recorded on nvidia-h200, now nvidia-a100"),
    (dataclasses.replace(HERE, simulated=True), "recorded on real hardware, now in the simulator"),
]


@pytest.mark.parametrize(("now", "reason"), OTHER)
def test_what_differs_is_uncomparable_and_named_with_both_values(now, reason):
    assert verdict(measured(), recorded(), conditions=now) == Verdict(UNCOMPARABLE, reason)


def test_one_differing_session_among_several_is_enough_to_refuse():
    odd = recorded(conditions=dataclasses.replace(HERE, device_model="nvidia-a100"))
    assert verdict(measured(), recorded(), odd).kind is UNCOMPARABLE


def test_a_simulated_time_is_uncomparable_even_when_nothing_is_recorded():
    found = verdict(measured(), conditions=dataclasses.replace(HERE, simulated=True))
    assert found.kind is UNCOMPARABLE


def test_a_point_is_the_same_before_and_after_json():
    before = dataclasses.replace(HERE, measured_point={"shape": (3, 4), "n": 1000})
    after = dataclasses.replace(HERE, measured_point={"n": 1000, "shape": [3, 4]})
    assert verdict(measured(), recorded(conditions=after), conditions=before).kind is SAME


@pytest.mark.parametrize("argument", ["threshold", "jitter_ns"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_impossible_threshold_or_resolution_is_refused(argument, value):
    with pytest.raises(ValueError, match=argument):
        verdict(measured(), recorded(), **{argument: value})


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (NEW, "new"),
        (SAME, None),
        (FASTER, None),
        (SLOWER, "slower"),
        (UNDECIDED, "undecided"),
        (UNCOMPARABLE, "uncomparable"),
    ],
)
def test_which_verdicts_fail_a_test(kind, asked):
    verdict, others = Verdict(kind, ""), set(FAILURES) - {asked}
    assert not fails(verdict, others, on_gpu=True)
    assert not fails(verdict, FAILURES.keys() - {"host"}, on_gpu=False)
    for on_gpu in (True, False):
        assert fails(verdict, FAILURES, on_gpu=on_gpu) is (asked is not None)
        assert fails(Verdict(INVALID, ""), (), on_gpu=on_gpu)


# devices


def on(device, *sessions):
    return [structs.replace(session, device=device) for session in sessions]


def judged_on(device, new, sessions, **more):
    return judge([new], Basis(sessions, HERE, 0.02, 0, device, **more))


def test_a_record_of_another_device_of_the_model_is_compared_with_more_doubt_and_says_so():
    new, old = measured(BASE_NS * 1.04), on("GPU-a", *CALM)
    here, there = (judged_on(uuid, new, old, shared=spreading(0.002)) for uuid in ("GPU-a", "GPU-b"))
    assert (here.kind, there.kind) == (SLOWER, UNDECIDED)
    assert there.ratio_high - there.ratio_low > 3 * (here.ratio_high - here.ratio_low)
    assert "recorded on another device of this model" in there.reason
    assert "another device" not in here.reason


def test_three_sessions_of_its_own_device_are_all_that_a_device_is_compared_with():
    own, others = on("GPU-a", *CALM[:3]), on("GPU-b", *around(*[30] * 5))
    assert judged_on("GPU-a", measured(), [*others, *own], shared=spreading(0.002)).kind is SAME
    found = judged_on("GPU-a", measured(), [*others, *own[:2]], shared=spreading(0.002))
    assert found.ratio == pytest.approx(0.8, abs=0.03), "two of its own are too few: all are taken"
    assert "recorded partly on other devices of this model" in found.reason


def test_what_the_suites_records_show_of_devices_replaces_the_assumption():
    old = [*on("GPU-a", *CALM), *on("GPU-b", *CALM), *on("GPU-c", *CALM)]
    alike = spreading(0.002, devices=0.003, devices_dof=2)
    apart = spreading(0.002, devices=0.03, devices_dof=2)
    new = measured(BASE_NS * 1.05)
    kinds = [judged_on("GPU-d", new, old, shared=each).kind for each in (alike, apart, spreading(0.002))]
    assert kinds == [SLOWER, UNDECIDED, UNDECIDED]


def test_the_interval_between_devices_is_that_of_a_new_one_and_the_mean_of_those_recorded():
    """τ²·(1 + 1/3), and where next to nothing else varies t.95 on 2 degrees of freedom, 2.920."""
    old = [*on("GPU-a", *around(0, 0)), *on("GPU-b", *around(0, 0)), *on("GPU-c", *around(0, 0))]
    found = judged_on("GPU-d", measured(), old, shared=spreading(1e-5, devices=0.01, devices_dof=2))
    assert math.log(found.ratio_high) == pytest.approx(2.920 * 0.01 * math.sqrt(4 / 3), rel=5e-3)


ALIKE = SharedSpread(0.001, 4.0, cases=30)
"""What devices differ by in most cases."""


@pytest.fixture
def on_three():
    """Judges a case that is alike on three cards on a fourth, while in other cases they differ by 2 %."""
    old = [*on("GPU-a", *around(0, 0)), *on("GPU-b", *around(0.1, 0.1)), *on("GPU-c", *around(-0.1, -0.1))]
    shared = spreading(1e-4, devices=0.02, devices_dof=2, between_devices=ALIKE)
    return lambda change, device="GPU-d": judged_on(device, measured(BASE_NS * change), old, shared=shared)


def test_a_case_in_which_devices_are_alike_is_the_same_on_another_one(on_three):
    """Its variance of 1e-6 on 2 and the suite's on 4 degrees of freedom: t.95 on 2, devices less one."""
    found = on_three(1.003)
    assert found.kind is SAME
    assert math.log(found.ratio_high) == pytest.approx(0.003 + 2.920 * 0.001 * math.sqrt(4 / 3), rel=5e-3)


@pytest.mark.parametrize(("change", "word"), [(1.05, "slower"), (0.95, "faster")])
def test_what_devices_differ_by_in_other_cases_is_no_change_for_sure(on_three, change, word):
    found = on_three(change)
    assert found.kind is UNDECIDED
    assert (found.ratio_low > 1.02) or (found.ratio_high < 0.98)
    assert f": {word}, but recorded on other devices, and these differ by as much; " in found.reason
    assert "3 sessions recorded on this device may settle it" in found.reason


def test_more_than_devices_differ_by_anywhere_is_a_change(on_three):
    assert [on_three(change).kind for change in (1.25, 0.75)] == [SLOWER, FASTER]


def test_what_is_caught_on_another_device_is_what_exceeds_all_cases_differences(on_three):
    """t.95 and t.975 on 2 degrees of freedom, 2.920 and 4.303, in errors of 2 %·√(4/3)."""
    error = 0.02 * math.sqrt(4 / 3)
    caught = max((2.920 + 4.303) * error, math.log(1.02) + 2 * 4.303 * error)
    assert math.log(on_three(1.003).detectable) == pytest.approx(caught, rel=5e-3)


def test_a_suspicion_on_another_device_is_confirmed_beyond_what_devices_differ_by(on_three):
    old = [*on("GPU-a", *around(0, 0)), *on("GPU-b", *around(0.1, 0.1)), *on("GPU-c", *around(-0.1, -0.1))]
    shared = spreading(1e-4, devices=0.02, devices_dof=2, between_devices=ALIKE)
    basis = Basis(old, HERE, 0.02, 0, "GPU-d", shared)
    suspicion = on_three(1.25)
    for change, kind in ((1.25, SLOWER), (1.1, UNDECIDED)):
        assert confirm(suspicion, [measured(BASE_NS * change)] * 2, basis).kind is kind


def test_a_suspicion_on_another_device_that_would_hardly_be_confirmed_is_not_measured_again():
    """The bound is 2 % and 4.303 errors of 2 %·√(4/3): +12.6 %."""
    old = [*on("GPU-a", *around(0, 0)), *on("GPU-b", *around(0.1, 0.1)), *on("GPU-c", *around(-0.1, -0.1))]
    shared = spreading(1e-4, devices=0.02, devices_dof=2, between_devices=ALIKE)
    basis = Basis(old, HERE, 0.02, 0, "GPU-d", shared)
    small, large = ([measured(BASE_NS * change)] for change in (1.10, 1.13))
    assert judge(small, basis).suspected
    found = unless_hopeless(judge(small, basis), small, basis)
    assert (found.kind, found.suspected) == (UNDECIDED, False)
    assert found.reason.startswith(
        "suspected +10.0 %, not measured again, since fresh sessions would hardly confirm it: +10.0 % (90 %: "
    )
    assert unless_hopeless(judge(large, basis), large, basis) == judge(large, basis)


def test_a_noisy_session_is_measured_again_though_quiet_ones_would_have_fewer_degrees_of_freedom():
    """Two cards alone tell what cards differ by: 1 degree of freedom makes the bound of quiet ones wide."""
    cards = Devices(1.5 * 0.005**2, 1)
    change = Change(0.035, CaseSpread(0.003**2, 24), 1, 6, noisier=0.01**2, devices=cards, all_devices=cards)
    quiet = dataclasses.replace(change, fresh=2, noisier=0.0)
    noisy = dataclasses.replace(change, fresh=2)
    assert noisy.reach(0.975) < quiet.reach(0.975)
    assert change.is_confirmable(math.log(1.02))
    assert not dataclasses.replace(change, delta=0.01).is_confirmable(math.log(1.02))


def test_every_suspicion_on_a_device_that_is_on_record_is_measured_again():
    basis = Basis(on("GPU-a", *CALM), HERE, 0.02, 0, "GPU-a", spreading(0.002))
    slower = [measured(BASE_NS * 1.0201)]
    assert judge(slower, basis).suspected
    assert unless_hopeless(judge(slower, basis), slower, basis).suspected


def test_every_verdict_on_a_ratio_says_what_would_be_caught():
    """The threshold and twice t.975 on 4 degrees of freedom, 2.776, in errors of two fresh sessions."""
    caught = math.log(1.02) + 2 * 2.776 * 7.9e-4 * math.sqrt(1 / 2 + 1 / 5)
    for change in (1.0, 1.01, 1.2):
        found = verdict(measured(BASE_NS * change), *CALM, shared=spreading(0.004))
        assert math.log(found.detectable) == pytest.approx(caught, rel=1e-3)


# several new sessions, the first epoch, and what is confirmed


def test_new_sessions_that_disagree_widen_the_interval():
    pair = [measured(BASE_NS * 0.95), measured(BASE_NS * 1.05)]
    same = verdict(measured(), measured(), *CALM, shared=spreading(0.002))
    apart = verdict(*pair, *CALM, shared=spreading(0.002))
    assert (same.kind, apart.kind) == (SAME, UNDECIDED)


def test_one_invalid_session_among_several_is_invalid():
    assert verdict(measured(), measured(invalid="throttled"), *CALM) == Verdict(INVALID, "throttled")


def test_no_new_session_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        verdict(*CALM)


def test_many_small_steps_are_told_against_the_first_epoch():
    first, new = around(-6, -6.1, -5.9), measured(BASE_NS * 1.003)
    found = verdict(new, *CALM, shared=spreading(0.002), anchor=first)
    assert found.kind is SAME
    assert found.anchor == pytest.approx(1.003 / 0.94, rel=1e-3)
    assert "; since the first epoch +6.7 %" in found.reason
    near = verdict(new, *CALM, shared=spreading(0.002), anchor=around(-1, -1.1, -0.9))
    assert "first epoch" not in near.reason


def test_a_first_epoch_of_other_conditions_is_no_anchor():
    other = around(-6, conditions=dataclasses.replace(HERE, problem_version=2))
    assert verdict(measured(), *CALM, shared=spreading(0.002), anchor=other).anchor is None


def confirmed(*percents, sessions=tuple(CALM), threshold=0.02, shared=None, **changes):
    """Returns the verdict on a suspicion of +5 %, by fresh sessions so many per cent above the record."""
    suspicion = judge([measured(BASE_NS * 1.05)], Basis(CALM, HERE, threshold, 0.0, shared=spreading(0.002)))
    assert suspicion.suspected
    fresh = [measured(BASE_NS * (1 + percent / 100), **changes) for percent in percents]
    return confirm(suspicion, fresh, Basis(sessions, HERE, threshold, 0.0, shared=shared or spreading(0.002)))


def test_a_suspicion_that_fresh_sessions_confirm_is_slower_by_what_they_measured():
    found = confirmed(4.0, 4.2)
    assert found.kind is SLOWER
    assert not found.suspected
    assert fails(found, ("slower",), on_gpu=True)
    assert found.ratio == pytest.approx(1.041)
    assert found.sessions == 2
    assert found.reason.startswith("+4.1 % (90 %: ")
    assert re.search(r"; 2 fresh sessions confirmed at least \+\S+ % \(97.5 %\)$", found.reason)


@pytest.mark.parametrize(
    ("fresh", "kind"), [((0.1, -0.1), SAME), ((2.1, 2.2), UNDECIDED), ((-4, -4.1), FASTER)]
)
def test_a_suspicion_that_is_not_confirmed_is_what_the_fresh_sessions_say_and_never_slower(fresh, kind):
    found = confirmed(*fresh)
    assert found.kind is kind
    assert found.reason.startswith("suspected +5.0 %, not confirmed by 2 fresh sessions: ")
    assert not found.suspected
    assert not fails(found, ("slower",), on_gpu=True)


def test_fresh_sessions_confirm_only_if_each_is_slower_than_the_recorded_ones():
    outlier = [*around(*[0] * 8), *around(3.5)]
    wide = spreading(0.0005)
    assert confirmed(4.0, 4.2, sessions=outlier, threshold=0, shared=wide).kind is SLOWER
    found = confirmed(3.0, 5.0, sessions=outlier, threshold=0, shared=wide)
    assert found.kind is UNDECIDED
    assert "not every fresh session was slower than the recorded ones" in found.reason
    assert confirmed(3.0, 5.0, sessions=[*outlier, *around(0)], threshold=0, shared=wide).kind is SLOWER


def test_an_invalid_fresh_session_leaves_a_suspicion_invalid():
    found = confirmed(4.0, 4.2, invalid="the clock fell to 1200 MHz")
    assert found.kind is INVALID
    assert found.reason == "suspected +5.0 %, not confirmed by fresh sessions: the clock fell to 1200 MHz"


def test_more_recorded_sessions_and_a_larger_threshold_raise_fewer_false_alarms():
    def expected(sessions, threshold):
        return expected_false_alarms([verdict(measured(), *sessions, threshold=threshold)] * 120)

    assert expected(CALM[:3], 0.02) > expected(CALM, 0.02) > expected([*CALM, *CALM], 0.02) > 0
    assert expected(CALM, 0) > expected(CALM, 0.005) > expected(CALM, 0.02)
    assert expected_false_alarms([verdict(measured()), verdict(measured(invalid="shared"), *CALM)]) == 0


def test_a_median_that_was_not_finite_in_another_process_has_no_ratio():
    gone = dataclasses.replace(measured(), summary=dataclasses.replace(measured().summary, median_ns=None))
    found = verdict(measured(), gone, *CALM)
    assert (found.kind, found.reason) == (
        VerdictKind.UNDECIDED,
        "a median is not finite, so there is nothing to compare",
    )


# what an autotuner chose


def tuned(warps):
    return Choice.of({"softmax": {"num_warps": str(warps)}}, ())


def chose(choice, *percents, centre_ns=BASE_NS):
    return [structs.replace(each, choice=choice) for each in around(*percents, centre_ns=centre_ns)]


def test_sessions_are_compared_with_those_that_chose_the_same():
    """Or their spread would hide what the code itself lost."""
    slow = 3 * BASE_NS
    both = [*chose(tuned(1), 0, 0.1, 0, 0.1), *chose(tuned(32), 0, 0.1, 0, 0.1, centre_ns=slow)]
    for warps, usual in ((1, BASE_NS), (32, slow)):
        here = {"choice": tuned(warps), "shared": spreading(0.002)}
        assert verdict(measured(usual), *both, **here).kind is SAME
        assert verdict(measured(1.2 * usual), *both, **here).kind is SLOWER


def test_a_choice_that_nobody_recorded_is_compared_with_the_usual_one_and_may_be_slower():
    mixed = [*chose(tuned(1), 0, 0.1, -0.1, 0), *chose(tuned(2), 50, 50)]
    found = verdict(measured(3 * BASE_NS), *mixed, choice=tuned(32), shared=spreading(0.002))
    assert (found.kind, found.gates) == (SLOWER, True)


CHOICES = st.sampled_from(
    [tuned(1), tuned(2), Choice(), *(Choice(launches=(("k", (n,), (256,), 32),)) for n in range(5))]
)


@given(st.lists(CHOICES, min_size=1, max_size=9), CHOICES)
def test_no_session_of_an_autotuned_choice_is_pooled_with_another_choice(chosen, now):
    sessions = [structs.replace(recorded(BASE_NS + n), choice=each) for n, each in enumerate(chosen)]
    found = of_one_choice(sessions, now, 3)
    choices = {each.choice for each in found}
    assert found
    assert len(choices) == 1 or not any(each.configurations for each in chosen)
    if chosen.count(now) >= 3:
        assert choices == {now}
    if max(map(chosen.count, chosen)) >= 3:
        assert len(choices) == 1 <= 3 <= len(found)


def test_small_losses_add_up_although_the_code_had_other_launches_each_time():
    """Who changes a kernel changes its registers: that is no choice of an autotuner."""
    launches = [Choice(launches=(("k", (9,), (256,), registers),)) for registers in (32, 40)]
    opened = [structs.replace(each, opening=True) for each in chose(launches[0], 0, 0.1, -0.1, 0)]
    appended = chose(launches[1], 1.8, 1.9, 1.8, 1.9)
    found = verdict(measured(1.03 * BASE_NS), *opened, *appended, choice=launches[1], shared=spreading(0.001))
    assert found.kind is SLOWER
    assert "since the epoch's first 4 sessions" in found.reason
