"""Recorded sessions and a new measurement → verdict with a reason."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.gate import PRIOR_SPREAD, Conditions, SessionTime, fails, judge
from pytest_gpukern.result import CaseInfo, Measurement, Summary, Verdict, VerdictKind

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
    return SessionTime(f"kernel/{timer}/cold", median_ns, low, high, 100, conditions)


def verdict(measurement, *sessions, conditions=HERE, threshold=0.02, jitter_ns=0.0):
    return judge(measurement, sessions, conditions=conditions, threshold=threshold, jitter_ns=jitter_ns)


def test_nothing_recorded_is_new():
    assert verdict(measured()) == Verdict(NEW, "nothing recorded yet")


def test_invalid_measurement_is_invalid_for_its_own_reason_even_without_a_record():
    broken = measured(invalid="faster than memory allows")
    assert verdict(broken) == verdict(broken, recorded()) == Verdict(INVALID, "faster than memory allows")


def test_one_recorded_session_of_a_calm_event_measurement_can_already_be_the_same():
    found = verdict(measured(BASE_NS * 1.003), recorded(), jitter_ns=30)
    assert found.kind is SAME
    assert found.ratio == pytest.approx(1.003)
    assert 1 / 1.02 < found.ratio_low < found.ratio < found.ratio_high < 1.02
    assert "inside ±2 %" in found.reason
    assert "spread between sessions assumed (1 of 3 recorded)" in found.reason


def test_twenty_percent_more_is_slower_and_says_by_how_much():
    found = verdict(measured(BASE_NS * 1.2), recorded())
    assert found.kind is SLOWER
    assert found.reason.startswith("+20.0 % (90 %: +18.")
    assert "threshold 2 %" in found.reason


def test_a_change_that_may_be_below_the_threshold_is_undecided_and_names_what_would_be_seen():
    found = verdict(measured(BASE_NS * 1.025), recorded())
    assert found.kind is UNDECIDED
    assert "slower, but perhaps by less than 2 %" in found.reason
    assert "a slowdown would be seen from +3.9 %" in found.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (0.985, "faster, but perhaps by less than 2 %"),
        (0.99, "not slower by 2 %, but −2.2 % is possible"),
        (1.01, "no significant change, but +2.2 % is possible"),
    ],
)
def test_undecided_says_what_is_known_all_the_same(change, words):
    found = verdict(measured(BASE_NS * change), recorded())
    assert found.kind is UNDECIDED
    assert words in found.reason


def test_the_smallest_change_seen_is_found_four_times_in_five():
    rng = random.Random(11)
    sigma, found = PRIOR_SPREAD["event"], 0
    for _ in range(1000):
        old, new = (math.exp(rng.gauss(shift, sigma)) for shift in (0, math.log(1.039)))
        found += verdict(measured(BASE_NS * new), recorded(BASE_NS * old)).kind is SLOWER
    assert 760 < found < 870


@given(st.floats(-2, 2), st.integers(1, 6), st.floats(0, 0.05), st.floats(0, 0.2))
def test_faster_mirrors_slower(delta, count, half, threshold):
    """Equal relative errors on both sides: swapping old and new swaps the verdicts."""
    mirror = {SLOWER: FASTER, FASTER: SLOWER}
    sessions = [recorded(half=half)] * count
    up = verdict(measured(BASE_NS * math.exp(delta), half), *sessions, threshold=threshold)
    down = verdict(measured(BASE_NS * math.exp(-delta), half), *sessions, threshold=threshold)
    assert down.kind is mirror.get(up.kind, up.kind)
    assert up.ratio * down.ratio == pytest.approx(1)
    assert up.ratio_low * down.ratio_high == pytest.approx(1)


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
        assert found.ratio_low > 1 + threshold - 1e-9
    elif found.kind is FASTER:
        assert found.ratio_high < 1 / (1 + threshold) + 1e-9
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
    sigma = PRIOR_SPREAD[timer]
    bound = 0.005 if timer == "event" else 0.06  # 5 %: beside the host clock's noise the threshold is nothing
    assert simulate({SLOWER}, sessions=sessions, sigma=sigma, timer=timer) <= bound


def test_three_recorded_sessions_hold_the_false_alarms_down_whatever_the_noise():
    assert simulate({SLOWER}, sessions=5, sigma=0.03) <= 0.05


def test_most_unchanged_code_with_the_assumed_noise_is_the_same():
    assert simulate({SAME}, sessions=1, sigma=PRIOR_SPREAD["event"]) > 0.6
    assert simulate({SAME}, sessions=5, sigma=PRIOR_SPREAD["event"]) > 0.6


@pytest.mark.parametrize("sessions", [1, 5])
def test_a_fifth_slower_is_always_seen_on_events(sessions):
    assert simulate({SLOWER}, sessions=sessions, sigma=0.006, change=0.2) == 1


def test_the_records_own_spread_replaces_the_assumption_from_three_sessions_on():
    calm = [recorded(BASE_NS * x) for x in (1, 1.0001, 0.9999)]
    wild = [recorded(BASE_NS * x) for x in (1, 1.1, 0.9)]
    assert verdict(measured(BASE_NS * 1.027), *calm).kind is SLOWER
    assert verdict(measured(BASE_NS * 1.027), *calm[:2]).kind is UNDECIDED
    assert verdict(measured(BASE_NS * 1.1), *wild).kind is UNDECIDED
    assert "assumed" not in verdict(measured(), *calm).reason


def test_the_interval_is_students_for_one_new_session_against_the_records_mean():
    """Medians e⁻ˢ, 1, eˢ have standard deviation s; t.95 on 2 degrees of freedom is 2.920."""
    s = 0.01
    sessions = [recorded(BASE_NS * math.exp(x), half=0) for x in (-s, 0, s)]
    found = verdict(measured(BASE_NS, half=0), *sessions)
    assert math.log(found.ratio_high) == pytest.approx(2.920 * s * math.sqrt(1 + 1 / 3), rel=1e-3)


def test_two_recorded_sessions_far_apart_are_not_trusted_to_the_assumption():
    assert verdict(measured(), recorded(), recorded(BASE_NS * 1.001)).kind is SAME
    assert verdict(measured(BASE_NS * 1.18), recorded(), recorded(BASE_NS * 1.1)).kind is UNDECIDED


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


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        ({"scope": "end_to_end"}, "end_to_end/event/cold"),
        ({"timer": "host"}, "kernel/host/cold"),
        ({"cache": "hot"}, "kernel/event/hot"),
    ],
)
def test_another_scope_timer_or_cache_policy_is_uncomparable(changes, now):
    found = verdict(measured(**changes), recorded())
    assert found == Verdict(UNCOMPARABLE, f"recorded as kernel/event/cold, now {now}")


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


def test_conditions_are_taken_from_the_case_as_it_ran():
    case = CaseInfo("id", "exp", 3, "v", "numba", {"n": 10}, {"n": 5}, {}, "", "exp")
    assert Conditions.of(case, device_model="m") == Conditions(3, {"n": 5}, "m", simulated=False)


@pytest.mark.parametrize("argument", ["threshold", "jitter_ns"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_impossible_threshold_or_resolution_is_refused(argument, value):
    with pytest.raises(ValueError, match=argument):
        verdict(measured(), recorded(), **{argument: value})


def test_a_tenfold_time_is_given_as_a_factor():
    assert verdict(measured(BASE_NS * 21), recorded()).reason.startswith("×21 (90 %: ×20.7 … ×21.3)")


@pytest.mark.parametrize(
    ("kind", "plain", "strict"),
    [
        (NEW, False, True),
        (SAME, False, False),
        (FASTER, False, False),
        (SLOWER, True, True),
        (UNDECIDED, False, True),
        (UNCOMPARABLE, False, True),
        (INVALID, True, True),
    ],
)
def test_which_verdicts_fail_a_test(kind, plain, strict):
    assert fails(Verdict(kind, ""), strict=False) is plain
    assert fails(Verdict(kind, ""), strict=True) is strict


# devices


def on(device, *sessions):
    return [dataclasses.replace(session, device=device) for session in sessions]


def test_a_record_of_another_device_of_the_model_is_compared_with_more_doubt_and_says_so():
    new, old = measured(BASE_NS * 1.04), on("GPU-a", recorded())
    here, there = (
        judge(new, old, conditions=HERE, threshold=0.02, jitter_ns=0, device=uuid)
        for uuid in ("GPU-a", "GPU-b")
    )
    assert (here.kind, there.kind) == (SLOWER, UNDECIDED)
    assert there.ratio_high - there.ratio_low > 3 * (here.ratio_high - here.ratio_low)
    assert there.reason.endswith("; recorded on another device of this model")
    assert "another device" not in here.reason


def test_many_sessions_of_one_device_do_not_tell_how_another_differs():
    sessions = on("GPU-a", *(recorded(BASE_NS * (1 + i / 1000)) for i in range(5)))
    kinds = [
        judge(
            measured(BASE_NS * 1.04), sessions, conditions=HERE, threshold=0.02, jitter_ns=0, device=uuid
        ).kind
        for uuid in ("GPU-a", "GPU-b")
    ]
    assert kinds == [SLOWER, UNDECIDED]


def test_sessions_of_three_devices_show_the_spread_themselves_and_of_two_do_not():
    def judged(*names):
        several = [
            dataclasses.replace(recorded(BASE_NS * (1 + i / 1000)), device=name)
            for i, name in enumerate(names)
        ]
        new = measured(BASE_NS * 1.06)
        return judge(new, several, conditions=HERE, threshold=0.02, jitter_ns=0, device="GPU-d").kind

    assert judged("GPU-a", "GPU-b", "GPU-c") is SLOWER
    assert judged("GPU-a", "GPU-b", "GPU-a") is UNDECIDED
    assert judged("GPU-a", "GPU-b", "GPU-d") is SLOWER, "the device itself is in the record"


def test_only_an_undecided_verdict_says_what_would_have_been_seen():
    found = verdict(measured(BASE_NS * 1.025), recorded())
    assert found.detectable == pytest.approx(1.039, abs=0.002)
    assert "would be seen from +3.9 %" in found.reason
    assert verdict(measured(BASE_NS * 1.2), recorded()).detectable is None
