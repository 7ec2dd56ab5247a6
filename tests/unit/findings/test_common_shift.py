"""Ratios of all cases and canaries → what they have in common."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from made_up_past import now

from pytest_gpukern.findings.common_shift import (
    CanaryChange,
    canary_changes,
    kernel_ratios,
    shift_of,
    told,
    usual_shift,
)
from pytest_gpukern.values.difference import Difference

STILL = {"copy": CanaryChange(1.001, moved=False), "fma": CanaryChange(0.999, moved=False)}
SLOWER = {
    "copy": CanaryChange(1.029, moved=True),
    "fma": CanaryChange(1.031, moved=True),
    "launch": CanaryChange(1.002, moved=False),
}


def ratios(shift=1.0, count=118, spread=0.004, seed=1):
    rng = random.Random(seed)
    return [shift * math.exp(rng.gauss(0, spread)) for _ in range(count)]


def test_all_kernels_slower_with_the_canaries_is_the_machine():
    shift = shift_of(ratios(1.03), SLOWER)
    assert shift.common
    assert shift.low < shift.ratio < shift.high
    assert told(shift, [Difference("driver", "580.65", "580.95")]) == (
        "all kernels 3.0 % slower (median of 118, 95 %: 2.9 … 3.1 %), so is the copy (+2.9 %), FMA +3.1 %, "
        "launch +0.20 %: the machine, not your change"
    )


def test_all_kernels_slower_without_the_canaries_is_what_they_share():
    text = told(shift_of(ratios(1.03), STILL), [Difference("numba", "0.67", "0.68")])
    assert text.endswith(
        "; the canaries were not (the copy +0.10 %, FMA −0.10 %): something that all cases share - compiler, "
        "libraries, code - changed (numba 0.67 → 0.68)"
    )
    assert "no recorded version differs" in told(shift_of(ratios(1.03), STILL), [])


def test_another_card_is_no_reason_to_look_at_the_compiler():
    text = told(shift_of(ratios(1.01), STILL), [Difference("device", "GPU-1", "GPU-2")])
    assert text.endswith("FMA −0.10 %), but this is another card, and cards of a model differ a little")


@pytest.mark.parametrize("ratio", [1.01, 0.95])
def test_a_canary_that_moved_little_or_the_other_way_did_not_move_with_it(ratio):
    moved = {"copy": CanaryChange(ratio, moved=True)}
    assert "the canaries were not" in told(shift_of(ratios(1.05), moved), [])


def test_unchanged_kernels_have_no_common_shift():
    found = [shift_of(ratios(1.0, seed=seed), STILL).common for seed in range(200)]
    assert not any(found)


def test_a_shift_that_is_significant_but_tiny_is_not_told():
    shift = shift_of(ratios(1.004, spread=0.0005), STILL)
    assert shift.low > 1
    assert not shift.common


def test_a_few_kernels_that_changed_do_not_shift_the_others():
    assert not shift_of([*ratios(count=110), *[1.5] * 8], STILL).common


def test_fewer_than_eight_cases_have_nothing_in_common():
    assert shift_of([1.03] * 7, SLOWER) is None
    assert shift_of([1.03] * 8, SLOWER).common


def test_only_kernels_of_a_real_gpu_count():
    results = [
        now(1.03),
        now(1.5, label="host.saxpy"),
        now(1.5, scope="end_to_end"),
        now(1.5, simulated=True),
        dataclasses.replace(now(1.5), verdicts={}),
    ]
    assert kernel_ratios(results) == [1.03]


def test_canaries_are_compared_by_their_medians_over_sessions():
    recorded = [{"copy": 100.0, "fma": 200.0}, {"copy": 101.0, "fma": 202.0}, {"copy": 99.0, "fma": 198.0}]
    changes = canary_changes([{"fma": 210.0, "copy": 100.5, "launch": 3.0}], recorded)
    assert list(changes) == ["copy", "fma"]
    assert changes["copy"] == CanaryChange(1.005, moved=False)
    assert changes["fma"] == CanaryChange(1.05, moved=True)


def test_a_session_counts_once_however_many_cases_it_measured():
    changes = canary_changes([{"copy": 110.0}, *[{"copy": 100.0}] * 50], [{"copy": 100.0}])
    assert changes["copy"].ratio == pytest.approx(1.05)


def recorded_times(sigma, sessions=5, cases=60, seed=3):
    """Times of cases in sessions that each shift all of them, by `sigma` as a standard deviation."""
    rng = random.Random(seed)
    shifts = {f"s{number}": rng.gauss(0, sigma) for number in range(sessions)}
    return [
        {name: 1000 * case * math.exp(shift + rng.gauss(0, 0.002)) for name, shift in shifts.items()}
        for case in range(1, cases + 1)
    ]


def test_sessions_that_shift_anyway_keep_such_a_shift_from_being_told():
    rng = random.Random(1)
    told_of_nothing = 0
    for seed in range(200):
        cases = recorded_times(0.004, seed=seed)
        now = rng.gauss(0, 0.004)
        means = [sum(map(math.log, times.values())) / len(times) for times in cases]
        new = [math.exp(math.log(1000 * case) + now - mean) for case, mean in enumerate(means, 1)]
        told_of_nothing += shift_of(new, STILL, usual_shift(cases)).common
    assert told_of_nothing <= 20, "one in twenty, where one in four is larger than 0.5 %"


def test_a_shift_beyond_what_sessions_do_anyway_is_told():
    usual = usual_shift(recorded_times(0.0005))
    assert 0 < usual < 0.003
    assert shift_of(ratios(1.03), STILL, usual).common


@pytest.mark.parametrize(
    "cases",
    [
        recorded_times(0.004, sessions=2),
        recorded_times(0.004, cases=7),
        [{"": ns} for times in recorded_times(0.004) for ns in times.values()],
    ],
    ids=["two-sessions", "seven-cases", "without-ids"],
)
def test_too_few_recorded_sessions_or_cases_tell_no_usual_shift(cases):
    assert usual_shift(cases) == 0.0
