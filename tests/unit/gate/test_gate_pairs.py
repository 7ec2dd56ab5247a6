"""Checks verdicts on two revisions, measured in neighbouring sessions."""

from __future__ import annotations

import functools
import json
import math
import random
import re
from pathlib import Path

import pytest

from pytest_gpukern.gate.change import MOST_FRESH_PAIRS
from pytest_gpukern.gate.judge import confirm_paired, judge_paired, shared_spread_of_pairs
from pytest_gpukern.gate.spread import SharedSpread
from pytest_gpukern.selftest.gate_simulation import verdict_of_pairs
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.verdict_table import VerdictKind

SAME, FASTER, SLOWER = VerdictKind.SAME, VerdictKind.FASTER, VerdictKind.SLOWER
UNDECIDED, INVALID, UNCOMPARABLE = VerdictKind.UNDECIDED, VerdictKind.INVALID, VerdictKind.UNCOMPARABLE
SUITE = SharedSpread(0.002, 20.0, cases=30)


def measured(median_ns, **changes):
    summary = Summary(median_ns, median_ns, median_ns, 100)
    values = {"scope": "kernel", "timer": "cupti", "measures": "", "cache": "cold", "samples_ns": ()}
    return Measurement(**{**values, "iterations": 1, "summary": summary, "stopped": "", **changes})


def pairs(*percents, drift=0.3, **changes):
    """Returns pairs with heads so many per cent slower, on a machine that slows from pair to pair."""
    bases = [1e6 * (1 + drift * number) for number in range(len(percents))]
    return [
        (measured(base, **changes), measured(base * (1 + percent / 100), **changes))
        for base, percent in zip(bases, percents, strict=True)
    ]


def judged(*percents, threshold=0.02, shared=SUITE):
    return judge_paired(pairs(*percents), threshold=threshold, jitter_ns=0.0, shared=shared)


@pytest.mark.parametrize(
    ("percents", "kind"),
    [((0.1, -0.1), SAME), ((5, 5.2), SLOWER), ((-5, -5.2), FASTER), ((1.8, 1.9), UNDECIDED)],
)
def test_two_pairs_are_enough_whatever_the_machine_does_meanwhile(percents, kind):
    found = judged(*percents)
    assert found.kind is kind
    assert found.suspected is (kind is SLOWER)
    assert found.ratio == pytest.approx(1 + sum(percents) / 200, rel=1e-3)
    assert found.sessions == 2


def test_the_interval_is_students_for_the_mean_of_ratios():
    """Ratios with s = 1 % and a suite with s0 = 1 % on 4 degrees of freedom: t.95 on 6 is 1.943."""
    s = 0.01
    ratios = [100 * (math.exp(x) - 1) for x in (-s, 0, s)]
    found = judged(*ratios, shared=SharedSpread(s, 4.0, cases=30))
    assert math.log(found.ratio_high) == pytest.approx(1.943 * s / math.sqrt(3), rel=1e-3)


def test_undecided_names_the_option_that_would_settle_it():
    found = judged(1.0, 1.4, shared=SharedSpread(0.01, 20.0, cases=30))
    assert found.kind is UNDECIDED
    assert found.reason.endswith("; --gpukern-sessions=5 would settle it")


def confirmed(*percents, shared=SUITE):
    suspicion = judged(5, 5.2)
    return confirm_paired(suspicion, pairs(*percents), threshold=0.02, jitter_ns=0.0, shared=shared)


@pytest.mark.parametrize(("share", "kind"), [(0.05, SLOWER), (0.4, UNDECIDED)])
def test_pairs_of_a_busy_host_raise_no_suspicion_and_confirm_none(share, kind):
    suspicion, slower = judged(5, 5.2), pairs(5, 5.2, observations={"load": {"others_share": share}})
    limits = {"threshold": 0.02, "jitter_ns": 0.0, "shared": SUITE}
    for found in (judge_paired(slower, **limits), confirm_paired(suspicion, slower, **limits)):
        assert found.kind is kind
        assert found.others_share == (share if kind is UNDECIDED else None)


def test_fresh_pairs_decide_about_a_suspicion():
    assert confirmed(4, 4.2).kind is SLOWER
    assert "; 2 fresh pairs confirmed at least +" in confirmed(4, 4.2).reason
    assert not confirmed(4, 4.2).suspected
    again = confirmed(0, 0.1)
    assert again.kind is SAME
    assert again.reason.startswith("suspected +5.1 %, not confirmed by 2 fresh pairs: ")


def test_a_pair_that_was_not_slower_confirms_nothing():
    quiet = SharedSpread(0.05, 200.0, cases=300)
    suspicion = judged(5, 5.2)
    fresh = pairs(*[30] * 20, -0.1)
    found = confirm_paired(suspicion, fresh, threshold=0.02, jitter_ns=0.0, shared=quiet)
    assert found.kind is UNDECIDED
    assert "not every fresh session was slower than its base" in found.reason


host_pairs = functools.partial(pairs, scope="end_to_end", timer="host")


def looked_at(fresh, suspicion, *, last, shared=None):
    return confirm_paired(suspicion, fresh, threshold=0.02, jitter_ns=0.0, shared=shared, last=last)


def test_twice_the_work_on_a_host_is_slower_as_soon_as_the_pairs_are_enough():
    suspicion = judge_paired(host_pairs(98, 102, 100, 99), threshold=0.02, jitter_ns=0.0)
    fresh = host_pairs(96, 104, 100, 103)
    assert suspicion.suspected
    assert looked_at(fresh[:2], suspicion, last=False) is suspicion, "a host varies by too much for two pairs"
    found = looked_at(fresh, suspicion, last=False)
    assert (found.kind, found.suspected) == (SLOWER, False)
    assert "; 4 fresh pairs confirmed at least +" in found.reason
    assert found.false_alarm == suspicion.false_alarm


@pytest.mark.parametrize("percents", [(-1, 220), (1, 1.5)])
def test_a_pair_or_a_change_that_is_not_slower_ends_a_suspicion_at_once(percents):
    suspicion = judge_paired(host_pairs(98, 102, 100, 99), threshold=0.02, jitter_ns=0.0)
    found = looked_at(host_pairs(*percents), suspicion, last=False)
    assert (found.kind, found.suspected) == (UNDECIDED, False)
    assert "not confirmed by 2 fresh pairs: " in found.reason
    assert "would settle it" not in found.reason, "fresh pairs decide alone, so there is nothing to ask for"


def test_the_last_look_asks_for_more_sessions_than_it_had():
    suspicion = judge_paired(host_pairs(98, 102, 100, 99), threshold=0.02, jitter_ns=0.0)
    found = looked_at(host_pairs(*[5, 60] * 4), suspicion, last=True)
    assert found.kind is UNDECIDED
    assert int(re.search(r"--gpukern-sessions=(\d+) would settle it$", found.reason)[1]) > MOST_FRESH_PAIRS


@pytest.mark.parametrize(
    ("timer", "number", "share"),
    [("cupti", 2, 0.0005), ("event", 4, 0.0004), ("host", 2, 0.005), ("host", 7, 0.003)],
)
def test_the_false_alarms_to_expect_depend_on_the_timer_and_on_the_pairs(timer, number, share):
    found = judge_paired(pairs(*[0.1] * number, timer=timer), threshold=0.02, jitter_ns=0.0)
    assert found.false_alarm == share


RECORDED = Path(__file__).parents[2] / "data" / "selftest-gate-h200.json"


def drawn_from_a_host(rng, sessions, number, factor):
    """Returns call → pairs of sessions of a real host in any order, the heads so many times as slow."""
    found = {call: [] for call in sessions[0]}
    for _ in range(number):
        base, head = rng.choice(sessions), rng.choice(sessions)
        for call, times in found.items():
            sides = (base[call], factor * head[call])
            times.append(tuple(measured(ns, scope="end_to_end", timer="host") for ns in sides))
    return list(found.values())


@pytest.mark.parametrize("alone", [True, False])
def test_on_a_recorded_host_twice_the_work_is_slower_and_unchanged_work_is_not(alone):
    """41 calls in 40 processes on the host of an H200; alone, each has the assumed spread.

    0.1 % of the unchanged are a false alarm. Calls of a session vary together, so these come several at once.
    """
    sessions = [each["walls_ns"] for each in json.loads(RECORDED.read_text())["sessions"]]
    rng, first = random.Random(3), 4
    kinds = {1: [], 2: []}
    for factor in [1] * 30 + [2] * 5:
        cases = drawn_from_a_host(rng, sessions, first + MOST_FRESH_PAIRS, factor)
        firsts = [case[:first] for case in cases]
        shared = None if alone else shared_spread_of_pairs(firsts)["end_to_end/host"]
        kinds[factor] += [verdict_of_pairs(case, first, 0.02, shared).kind for case in cases]
    assert kinds[1].count(SLOWER) <= 6
    assert kinds[2].count(SLOWER) >= 0.99 * len(kinds[2])


def test_an_invalid_side_is_named():
    broken = [*pairs(0), (measured(1e6), measured(1e6, invalid="throttled"))]
    found = judge_paired(broken, threshold=0.02, jitter_ns=0.0)
    assert (found.kind, found.reason) == (INVALID, "the working tree: throttled")
    after = confirm_paired(judged(5, 5.2), broken, threshold=0.02, jitter_ns=0.0)
    assert after.reason == "suspected +5.1 %, not confirmed by fresh sessions: the working tree: throttled"


def test_sides_timed_otherwise_are_not_compared():
    mixed = [*pairs(0), (measured(1e6), measured(1e6, timer="event"))]
    found = judge_paired(mixed, threshold=0.02, jitter_ns=0.0)
    assert found.kind is UNCOMPARABLE
    assert "kernel/cupti/cold and kernel/event/cold" in found.reason


def test_one_pair_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        judged(0)


def test_the_runs_cases_share_the_spread_of_their_ratios():
    rng = random.Random(2)
    cases = [pairs(*(rng.gauss(0, 0.3) for _ in range(3))) for _ in range(60)]
    shared = shared_spread_of_pairs([*cases, [], [(measured(0.0), measured(1.0))] * 3])
    assert shared.keys() == {"kernel/cupti"}
    assert shared["kernel/cupti"].s0 == pytest.approx(0.003, rel=0.15)
    assert shared["kernel/cupti"].cases == 60
