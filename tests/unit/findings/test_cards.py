"""Tests what blames a card: on made-up hosts, and rule by rule."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import made_up_results as made_up
import numpy as np
import pytest

from pytest_gpukern.findings.cards import (
    COPIES,
    FRESH_ROUNDS,
    LIMITS,
    ROUNDS,
    Card,
    CardFigures,
    CardVerdict,
    Kernel,
    causes,
    class_of,
    facts_of,
    is_valid,
)
from pytest_gpukern.findings.fleet import judged, kernel_classes, split_sessions, to_confirm
from pytest_gpukern.measure.card_state import CARD

KERNELS = 16
CLASSES = {f"{name} {number}": name for name in ("memory", "compute", "short") for number in range(KERNELS)}


USUAL_NS = {"memory": 1e6, "compute": 5e4, "short": 5e3, "power-limited": 5e4, COPIES: 5e4}
BEGAN = datetime(2026, 11, 26, tzinfo=UTC)


def session_of(card, ratios, number=0, classes=CLASSES, facts=None, **of_card):
    """Returns a session with times that are these multiples of what is usual: kernel → ratio."""
    return CardFigures(
        Card(card, "", card, "H200", **of_card),
        f"{number}",
        BEGAN + timedelta(hours=number),
        {kernel: USUAL_NS[classes[kernel]] * ratio for kernel, ratio in ratios.items()},
        {kernel: Kernel(classes[kernel]) for kernel in ratios},
        facts=facts or {},
    )


def verdicts(raising, confirming=()):
    """Returns what was found of each card, by its UUID."""
    models = judged(raising, confirming).models
    return {card.uuid: finding for model in models for card, finding in model.cards.items()}


# --- made-up hosts --------------------------------------------------------------------------------


def healthy(rng, count):
    """Returns log deviations of cards, twice as far apart as the recorded ones, by card, class and kernel."""
    by_class = np.repeat(0.002 * rng.standard_t(4, (count, 3)), KERNELS, axis=1)
    by_kernel = 0.004 * rng.standard_t(3, (count, len(CLASSES)))
    return 0.0012 * rng.standard_t(4, (count, 1)) + by_class + by_kernel


def measured(rng, cards, number):
    """Returns a session of each card; one in fifty is disturbed, by 1 to 8 %."""
    count = len(cards)
    by_class = np.repeat(0.001 * rng.standard_t(4, (count, 3)), KERNELS, axis=1)
    logs = cards + 0.001 * rng.standard_t(4, (count, 1)) + by_class
    logs += 0.003 * rng.standard_t(3, (count, len(CLASSES)))
    logs += np.where(rng.random((count, 1)) < 0.02, rng.uniform(0.01, 0.08, (count, 1)), 0.0)
    ratios = (dict(zip(CLASSES, of_card, strict=True)) for of_card in np.exp(logs))
    return [session_of(str(card), of_card, number) for card, of_card in enumerate(ratios)]


def named(rng, cards):
    """Returns the cards that are named without a physical cause, as `gpukern validate --all-gpus` does."""
    raising = [each for number in range(ROUNDS) for each in measured(rng, cards, number)]
    again = to_confirm(judged(raising))
    who = {card.uuid for suspect, check in again.items() for card in (suspect, check.neighbour)}
    rounds = range(ROUNDS, ROUNDS + FRESH_ROUNDS) if again else ()
    fresh = [each for number in rounds for each in measured(rng, cards, number) if each.card.uuid in who]
    return {card for card, each in verdicts(raising, fresh).items() if each.bad}


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_healthy_host_is_blamed_in_less_than_one_of_a_hundred(count):
    rng = np.random.default_rng(20261123)
    assert sum(bool(named(rng, healthy(rng, count))) for _ in range(100)) <= 1


@pytest.mark.parametrize(("percent", "least"), [(2, 42), (5, 49)])
def test_a_slow_card_is_named_and_no_other(percent, least):
    rng = np.random.default_rng(20261123)
    found = []
    for _ in range(50):
        cards = healthy(rng, 4)
        cards[2] += math.log1p(percent / 100)
        found.append(named(rng, cards))
    assert found.count({"2"}) >= least
    assert found.count({"2"}) + found.count(set()) == 50


def decided(times, fresh=None):
    """Returns card → classes that hold if other sessions repeat these ratios, or find `fresh` ones."""
    raising = [session_of(card, ratios) for card, ratios in times.items()]
    confirming = [session_of(card, ratios, 1) for card, ratios in (times if fresh is None else fresh).items()]
    return {card: [*each.slower] for card, each in verdicts(raising, confirming).items() if each.slower}


def every(ratio, *names):
    """Returns one ratio of all kernels, or of those of some classes."""
    return {kernel: ratio for kernel, name in CLASSES.items() if name in names or not names}


def slower(name, ratio):
    return {**every(1.0), **every(ratio, name)}


ALL = ["memory", "compute", "short"]


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        ([every(1), every(0.9), every(1)], {}),  # one card that is faster
        ([slower("memory", 1.05), slower("compute", 1.03)], {"A": ["memory"], "B": ["compute"]}),
        ([slower("memory", 1.01249), every(1)], {}),
        ([slower("memory", 1.01251), every(1)], {"A": ["memory"]}),
        # a card without times in a class says nothing there
        ([every(1.004), every(1.05), every(1, "short"), every(1, "short")], {"B": ALL}),
        ([every(1.04), {**every(1), **every(0.97, "short")}, every(1.005)], {"A": ALL}),
        ([every(1.015), every(0.98), every(1.002), every(1)], {"A": ALL}),
    ],
)
def test_a_card_is_slow_where_others_are_not(times, slow):
    assert decided(dict(zip("ABCD", times, strict=False))) == slow


def test_what_raised_a_suspicion_does_not_confirm_it():
    usual, slow = every(1), every(1.05)
    assert decided({"A": slow, "B": usual, "C": usual}, {"A": usual, "B": usual}) == {}
    assert decided({"A": slow, "B": usual, "C": usual}, {}) == {}
    assert decided({"A": slow, "B": usual, "C": usual}, {"A": slow, "B": usual}) == {"A": ALL}
    assert decided({"A": slow, "B": usual, "C": usual}, {"A": slow, "B": slow}) == {}, "all are slower now"


@pytest.mark.parametrize(("sessions", "raise_it"), [(1, 1), (2, 2), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_the_first_third_of_three_sessions_or_more_raises(sessions, raise_it):
    raising, confirming = split_sessions(session_of("A", {}, number) for number in reversed(range(sessions)))
    assert [each.id for each in (*raising, *confirming)] == [f"{number}" for number in range(sessions)]
    assert len(raising) == raise_it


@pytest.mark.parametrize(("kernels", "known"), [(4, {}), (5, {"memory"})])
def test_few_kernels_of_a_class_say_nothing(kernels, known):
    few = [f"memory {number}" for number in range(kernels)]
    found = verdicts([session_of("A", dict.fromkeys(few, 1.0)), session_of("B", dict.fromkeys(few, 2.0))])
    assert {*found["B"].shifts} == {*found["B"].suspected} == {*known}
    assert (CardVerdict.NOT_COMPARED in {each.verdict for each in found.values()}) is not bool(known)


@pytest.mark.parametrize(("count", "slow"), [(19, []), (20, ["4"])])
def test_twenty_cards_are_judged_by_their_spread(count, slow):
    """One card is 1 % slower, which no fixed limit tells, and the others differ by 0.02 %."""
    rng, sessions = np.random.default_rng(1), []
    for number in range(3):
        for card in range(count):
            ratio = (1.01 if card == 4 else 1) * math.exp(2e-4 * rng.standard_normal())
            sessions.append(session_of(str(card), every(ratio), number))
    found = verdicts(*split_sessions(sessions))
    assert [card for card, each in found.items() if each.bad] == slow


# --- classes, causes, names -----------------------------------------------------------------------

HALF_OF_A_COPY = 0.5 * made_up.CEILINGS["device_copy_bytes_per_s"] * 50e-6


@pytest.mark.parametrize(
    ("name", "measured", "expected"),
    [
        ("cupy.exp", {"median_ns": 9_999}, "short"),
        ("cupy.exp", {"median_ns": 10_000}, "compute"),
        ("cupy.exp", {"traffic_bytes": 1.01 * HALF_OF_A_COPY}, "memory"),
        ("cupy.exp", {"traffic_bytes": HALF_OF_A_COPY}, "memory"),
        ("cupy.exp", {"traffic_bytes": 0.99 * HALF_OF_A_COPY}, "compute"),
        ("cupy.exp", {}, "compute"),
        ("cupy.exp", {"observations": {"clocks": {"clock_events": ("sw_power_cap",)}}}, "power-limited"),
        ("cupy.exp", {"observations": {"clocks": {"clock_events": "sw_power_cap"}}}, "compute"),
        ("cupy.exp", {"scope": "transfer", "timer": "host"}, COPIES),
        ("cupy.exp", {"scope": "end_to_end", "timer": "host"}, None),
        ("host.exp", {"timer": "host"}, None),
    ],
)
def test_what_limits_a_kernel(name, measured, expected):
    measurement = made_up.measured(**{"median_ns": 50_000, **measured})
    result = made_up.result(name, measurement, ceilings=made_up.CEILINGS)
    assert class_of(result, measurement) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["power-limited", "compute"], "compute"),
        (["power-limited", "compute", "power-limited"], "power-limited"),
        ([None, None], None),
        (["short"], None),
    ],
)
def test_a_class_is_that_on_most_cards_of_several(names, expected):
    sessions = [
        CardFigures(Card(f"{card}"), "", BEGAN, {"k": 1}, {"k": Kernel(x)}) for card, x in enumerate(names)
    ]
    assert kernel_classes({session.card: [session] for session in sessions}).get("k") == expected


def facts(**changes):
    usual = {"sm_mhz": 1980.0, "memory_mhz": 3200.0, "power_limit_w": 700.0, "ecc": True}
    usual |= dict.fromkeys(("corrected_errors", "uncorrected_errors", "remapped_rows"), 0)
    usual |= {"row_remap_pending": False, "row_remap_failed": False, "pcie.generation": 5, "pcie.width": 16}
    limited_s = {"hw_thermal_slowdown": 0.0, "sw_power_cap": 0.5, "hw_power_brake_slowdown": 4.0}
    return {**usual, **{f"limited_s.{event}": seconds for event, seconds in limited_s.items()}, **changes}


KERNELS_BY = {"short", "compute", "memory", "power-limited"}


@pytest.mark.parametrize(
    ("name", "value", "nearly", "told", "slows"),
    [
        ("sm_mhz", 1960.0, 1960.3, "1960, of the others 1980", KERNELS_BY),
        ("memory_mhz", 3167.0, 3168.0, "3167, of the others 3200", {"memory"}),
        ("power_limit_w", 600.0, 693.1, "600, of the others 700", KERNELS_BY - {"short"}),
        ("limited_s.hw_thermal_slowdown", 1.0, 0.9, "1 s, on the others 0 s", KERNELS_BY),
        ("limited_s.hw_power_brake_slowdown", 8.0, 7.9, "8 s, on the others 4 s", KERNELS_BY),
        ("limited_s.sw_power_cap", 9.0, 1.4, "9 s, on the others 0 s", KERNELS_BY - {"short"}),
        ("uncorrected_errors", 1, 0, "1 uncorrected", {"memory"}),
        ("corrected_errors", 100, 99, "100 corrected", {"memory"}),
        ("remapped_rows", 1, 0, "1 replaced", {"memory"}),
        ("row_remap_pending", True, False, "wait to be replaced", {"memory"}),
        ("row_remap_failed", True, False, "could not be", {"memory"}),
        ("pcie.width", 8, 16, "8, of the others 16", {COPIES}),
        ("pcie.generation", 4, 5, "4, of the others 5", {COPIES}),
    ],
)
def test_a_physical_difference_is_told_with_values(name, value, nearly, told, slows):
    differs = facts(**{name: value})
    (cause,) = causes(differs, [facts(), facts()])
    assert told in cause.text
    assert (bool(cause.remedy), cause.slows) == (True, slows)
    assert cause.fault is ("sw_power_cap" not in name), "reaching the power limit more often is no fault"
    assert [*causes(facts(**{name: nearly}), [facts(), facts()])] == []
    assert [*causes(facts(), [differs, facts(), facts()])] == [], "the others have it, or one of them"


def test_what_is_unknown_is_no_cause_and_ecc_that_only_some_cards_have_is_one():
    assert [*causes({}, [facts(), facts()])] == []
    assert [*causes(facts(sm_mhz=1000.0, remapped_rows=3), [{}, {}])] == []
    (cause,) = causes(facts(), [facts(ecc=False), facts()])
    assert ("ECC" in cause.text, cause.slows) == (True, {"memory"})


def test_what_tests_saw_of_a_card_adds_up_with_the_link_at_its_best():
    first = {"remapped_rows": 1, "pcie.generation": 1, "pcie.width": 8, "limited_s.sw_power_cap": 0.5}
    second = {"remapped_rows": 2, "pcie.generation": 5, "pcie.width": 8, "limited_s.sw_power_cap": 0.25}
    odd = {"pcie.generation": 1, "power_limit_w": 650.0, "corrected_errors": "many", "ecc": math.nan}
    results = [
        made_up.result(
            "cupy.exp",
            made_up.measured(observations={"clocks": {"sm_mhz": mhz, "power_w": mhz / 10, "other": 1}}),
            observations={CARD: seen},
        )
        for seen, mhz in ((first, 1000), (second, 1500), (odd, 1600))
    ]
    clocks = {"sm_mhz": 1500, "power_w": 160, "power_limit_w": 650.0}
    link = {"pcie.generation": 5, "pcie.width": 8}
    assert facts_of(results) == {**clocks, **link, "remapped_rows": 2, "limited_s.sw_power_cap": 0.75}
    assert facts_of([]) == {}


BOTH = ["memory", "compute"]
SLOW, ONE_CLASS, ONE_OF_TWO = CardVerdict.SLOW, CardVerdict.ONE_CLASS, CardVerdict.ONE_OF_TWO


@pytest.mark.parametrize(
    ("held", "count", "changes", "verdict"),
    [
        (["memory", "short"], 3, {}, SLOW),
        (["memory"], 3, {"remapped_rows": 1}, SLOW),
        (["short"], 3, {"remapped_rows": 1}, ONE_CLASS),
        (["memory"], 3, {}, ONE_CLASS),
        (["memory", COPIES], 3, {}, ONE_CLASS),  # copies are no class of kernels
        ([COPIES], 3, {"pcie.width": 4}, SLOW),
        # of two cards, one is named by a cause only
        (BOTH, 2, {}, ONE_OF_TWO),
        (["memory"], 2, {}, ONE_CLASS),
        (BOTH, 2, {"sm_mhz": 1800.0}, SLOW),
    ],
)
def test_two_classes_or_a_cause_of_one_name_a_card(held, count, changes, verdict):
    classes = {f"{name} {number}": name for name in LIMITS for number in range(KERNELS)}
    sessions = []
    for number in range(2):
        for card in map(str, range(count)):
            slow, differs = (held, changes) if card == "0" else ((), {})
            ratios = {kernel: 1.35 if name in slow else 1.0 for kernel, name in classes.items()}
            known = facts(**differs)
            sessions.append(session_of(card, ratios, number, classes, known))
    found = verdicts(sessions[:count], sessions[count:])
    assert {found[str(card)].verdict for card in range(1, count)} == {CardVerdict.ALIKE}
    assert (found["0"].verdict, found["0"].bad) == (verdict, verdict in (SLOW, ONE_OF_TWO))
    assert {*found["0"].slower} == {*held}


def test_an_invalid_time_is_no_time():
    for valid, changes in ((True, {}), (False, {"median_ns": 0.0}), (False, {"invalid": "throttled"})):
        assert is_valid(made_up.measured(**changes)) is valid
