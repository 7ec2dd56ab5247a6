"""Ratios of all cases and canaries → what they have in common."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_past import now, past, session
from msgspec import structs

from pytest_gpukern.findings.common_shift import (
    CanaryChange,
    Compared,
    Shift,
    canary_changes,
    phrase,
    shift_among,
    shift_of,
    usual_shift,
)
from pytest_gpukern.values.difference import Difference

STILL = {"copy": CanaryChange(1.001, moved=False), "fma": CanaryChange(0.999, moved=False)}
SLOWER = {
    "copy": CanaryChange(1.029, moved=True),
    "fma": CanaryChange(1.031, moved=True),
    "launch": CanaryChange(1.002, moved=False),
}
DRIVER, NUMBA = Difference("driver", "580.65", "580.95"), Difference("numba", "0.67", "0.68")
CARD = Difference("device", "GPU-1", "GPU-2")


def shift(ratio, low, high, canaries=STILL, **more):
    return Shift(118, ratio, low, high, canaries, **more)


STAYED = "; the canaries were not (the copy +0.10 %, FMA −0.10 %)"
SHARED = f"{STAYED}: something that all cases share - compiler, libraries, code - changed"
MOVED = "so is the copy (+2.9 %), FMA +3.1 %, launch +0.20 %"


@pytest.mark.parametrize(
    ("canaries", "changed", "words"),
    [
        (SLOWER, [DRIVER], f", {MOVED}: the machine, not your change"),
        (STILL, [NUMBA, DRIVER], f"{SHARED} (numba 0.67 → 0.68, driver 580.65 → 580.95)"),
        (STILL, [], f"{SHARED}; no recorded version differs, so look at the code"),
        (STILL, [NUMBA, CARD], f"{STAYED}, but this is another card, and cards of a model differ a little"),
        ({}, [], "; the record has no canaries by this timer, which could tell whether it is the machine"),
    ],
)
def test_a_common_shift_is_told_with_what_may_have_caused_it(canaries, changed, words):
    slower = "all kernels 3.0 % slower (median of 118, 95 %: 2.9 … 3.1 %)"
    assert phrase(shift(1.03, 1.029, 1.031, canaries), changed) == slower + words
    half = "all kernels 50.0 % slower (median of 118, 95 %: 40.0 … 60.0 %)"
    assert phrase(shift(1.5, 1.4, 1.6, canaries), changed).startswith(half)
    if canaries is not SLOWER:
        faster = "all kernels 3.0 % faster (median of 118, 95 %: 2.9 … 3.1 %)"
        assert phrase(shift(0.97, 0.969, 0.971, canaries), changed) == faster + words


@pytest.mark.parametrize(
    ("ratio", "moved", "with_it"),
    [(1.1, True, True), (1.101, True, True), (1.099, True, False), (1.2, False, False), (0.8, True, False)],
)
def test_a_canary_moves_with_the_kernels_from_half_of_their_shift_on(ratio, moved, with_it):
    common = shift(1.1**2, 1.2, 1.22, {"copy": CanaryChange(ratio, moved=moved)})
    assert common.with_it == ["copy"] * with_it
    assert ("so is the copy" in phrase(common, [])) is with_it


@pytest.mark.parametrize(
    ("ratio", "low", "high", "usual", "common"),
    [
        (1.00501, 1.001, 1.01, None, True),
        (1.00499, 1.001, 1.01, None, False),  # significant, but tiny
        (1 / 1.00501, 0.99, 0.999, None, True),
        (1.02, 1.0, 1.04, None, False),
        (0.98, 0.96, 1.0, None, False),
        (1.03, 1.02, 1.04, math.log(1.03), True),
        (1.03, 1.02, 1.04, 0.031, False),  # as sessions shift anyway
    ],
)
def test_a_shift_is_common_if_it_is_significant_and_large_enough(ratio, low, high, usual, common):
    more = {} if usual is None else {"usual": usual}
    assert shift(ratio, low, high, **more).common is common


@pytest.mark.parametrize(("count", "rank"), [(8, 1), (9, 2), (12, 3), (20, 6)])
def test_the_interval_of_the_median_is_that_of_the_sign_test(count, rank):
    """Its ranks are those of printed tables for 95 %; fewer than eight cases have nothing in common."""
    cases = [1 + number / 100 for number in range(1, count + 1)]
    common = shift_of(random.Random(1).sample(cases, count), STILL)
    assert (common.cases, common.low, common.high) == (count, cases[rank - 1], cases[-rank])
    middle = math.sqrt(cases[(count - 1) // 2] * cases[count // 2])
    assert (common.ratio, common.usual) == (pytest.approx(middle), 0.0)
    assert shift_of(cases[:7], STILL) is None


@pytest.mark.parametrize(
    ("new", "old", "ratio", "moved"),
    [
        ([105], [99, 100, 101], 1.05, True),
        ([100.5], [99, 100, 101], 1.005, False),
        ([101], [99, 100, 101], 1.01, False),  # as long as one of the recorded
        ([99, 97], [99, 100, 101], 0.98, False),
        ([95, 97], [99, 100, 101], 0.96, True),
        ([100.3], [100], 1.003, True),
        ([100.24], [100], 1.0024, False),  # beyond all, but by less than half of what is told
        ([110, *[100] * 50], [100], 1.05, False),  # a session counts once however many cases it measured
        ([105, None, 0], [100], 1.05, True),
    ],
)
def test_canaries_are_compared_by_their_medians_over_sessions(new, old, ratio, moved):
    changes = canary_changes([{"copy": ns} for ns in new], [{"copy": ns} for ns in old])
    assert (changes["copy"].ratio, changes["copy"].moved) == (pytest.approx(ratio), moved)


QUIET = (99.99, 100, 100.01)


@pytest.mark.parametrize(
    ("now", "recorded", "words"),
    [
        (100.05, [100, 100.1], "not known"),
        (100.6, [100, 100.1], "not known: beyond each recorded session, and fewer than 3 tell no limit"),
        (100.6, QUIET, "slower: beyond ±0.50 %"),
        (99.4, QUIET, "faster: beyond ±0.50 %"),
        (100.4, QUIET, "as recorded: within ±0.50 %"),
        (103.0, [99, 100, 101], "as recorded: within ±5.1 %"),
        (106.0, [99, 100, 101], "slower: beyond ±5.1 %"),
    ],
)
def test_a_canary_is_slower_from_the_limit_of_a_common_shift_on(now, recorded, words):
    canary = canary_changes([{"copy": now}], [{"copy": ns} for ns in recorded])["copy"]
    assert str(canary) == words
    assert Shift(9, canary.ratio, 1.0, 1.0, usual=canary.usual or 0.0).limit == canary.limit


def test_canaries_that_both_sides_have_are_told_copy_first_and_by_their_own_timer():
    names = ("mystery", "launch", "fma/event", "copy", "new")
    changes = canary_changes([dict.fromkeys(names, 1.1)], [dict.fromkeys(names[:-1], 1.0)])
    assert list(changes) == ["copy", "fma/event", "launch", "mystery"]
    text = phrase(shift(1.1, 1.09, 1.11, changes), [])
    assert ", so is the copy (+10.0 %), FMA +10.0 %, launch +10.0 %, mystery +10.0 %: the machine" in text


@given(st.floats(0.001, 0.1), st.integers(8, 20))
def test_a_usual_shift_is_students_interval_of_one_more_session(sigma, cases):
    """t.975 on 2 degrees of freedom is 4.303, and √(1 + 1/3) is for one and the mean of three."""
    times = {"a": math.exp(-sigma), "b": 1.0, "c": math.exp(sigma)}
    assert usual_shift([times] * cases) == pytest.approx(4.303 * sigma * math.sqrt(4 / 3), rel=1e-3)
    two = dict(list(times.items())[:2])
    assert (
        usual_shift([two] * cases) == usual_shift([times] * 7) == usual_shift([{"": 1.0, **two}] * cases) == 0
    )
    assert usual_shift([{**times, "d": 0.0}] * cases) == usual_shift([times] * cases)


def test_a_run_is_compared_with_the_sessions_of_its_kernels_on_a_real_gpu():
    logs = {"a": -0.01, "b": 0.0, "c": 0.01}
    recorded = past(
        *(session(scale=math.exp(log), session=name, canaries={"copy": 100.0}) for name, log in logs.items())
    )
    compared = [Compared(now(1.03, canaries={"copy": 103.0}), recorded)] * 8
    copy = {"copy": CanaryChange(1.03, moved=True)}
    usual = pytest.approx(4.303 * 0.01 * math.sqrt(4 / 3), rel=1e-3)
    others = [now(1.5, scope="transfer"), now(1.5, label="host.saxpy"), now(1.5, simulated=True)]
    others += [structs.replace(now(1.5), verdicts={}), now(math.inf)]
    for mixed in (compared, compared + [Compared(other, recorded) for other in others]):
        common = shift_among(mixed)
        assert (common.cases, common.ratio, common.canaries) == (8, pytest.approx(1.03), copy)
        assert common.usual == usual
