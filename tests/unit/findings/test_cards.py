"""Tests what blames a card: on the times of eight H200s, on made-up hosts, and rule by rule."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import math
import statistics
from pathlib import Path

import made_up_results as made_up
import numpy as np
import pytest

from pytest_gpukern.baseline.record import RecordedCase
from pytest_gpukern.findings.cards import (
    COPIES,
    FRESH_ROUNDS,
    LIMITS,
    ROUNDS,
    CardFacts,
    CardVerdict,
    causes,
    class_of,
    combined,
    confirmed,
    findings,
    neighbours,
    shifts_in,
    since_own_record,
    suspected,
)
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gpu.nvml import PcieLink
from pytest_gpukern.values.result import Result

DATA = Path(__file__).parents[2] / "data"
KERNELS = 16
CLASSES = {f"{name} {number}": name for name in ("memory", "compute", "short") for number in range(KERNELS)}
CAPPED = {"clocks": {"clock_events": ("sw_power_cap",)}}


# --- eight real cards -----------------------------------------------------------------------------


def h200s():
    """Returns the times of eight H200s, one session each, and the class of each kernel that is known."""
    run = json.loads(gzip.decompress((DATA / "run-h200.json.gz").read_bytes()))
    on_one = [Result.from_json(each) for each in run["results"]]
    classes = {
        result.case.id: class_of([(result, each)])
        for result in on_one
        for each in result.measurements
        if each.key == "kernel/cupti/cold"
    }
    times = {}
    for case, cards in json.loads((DATA / "devices-h200.json").read_text())["kernel/cupti/cold"].items():
        for card, sessions in cards.items():
            times.setdefault(card, {})[case] = statistics.median(sessions)
    return times, classes


def test_no_host_of_recorded_h200s_has_a_card_that_is_suspected_in_two_classes():
    times, classes = h200s()
    assert set(classes.values()) == {"memory", "compute", "short"}
    hosts = [host for count in range(2, 9) for host in itertools.combinations(times, count)]
    assert len(hosts) == 247
    found = [suspected(shifts_in({card: times[card] for card in host}, classes)) for host in hosts]
    assert sum(map(bool, found)) <= 7, "one card is 1.3 % slower than some in kernels under 10 µs"
    assert not any(len(names) > 1 for suspects in found for names in suspects.values())


@pytest.mark.parametrize("percent", [2, 5])
def test_a_recorded_h200_with_slower_times_is_suspected_in_every_host_of_four(percent):
    times, classes = h200s()
    for host in itertools.combinations(times, 4):
        slower = {case: ns * (1 + percent / 100) for case, ns in times[host[0]].items()}
        shifts = shifts_in({**{card: times[card] for card in host}, host[0]: slower}, classes)
        assert {card for card, names in suspected(shifts).items() if len(names) > 1} == {host[0]}


# --- made-up hosts --------------------------------------------------------------------------------


def healthy(rng, count):
    """Returns log deviations of cards, twice as far apart as the recorded ones, by card, class and kernel."""
    by_class = np.repeat(0.002 * rng.standard_t(4, (count, 3)), KERNELS, axis=1)
    by_kernel = 0.004 * rng.standard_t(3, (count, len(CLASSES)))
    return 0.0012 * rng.standard_t(4, (count, 1)) + by_class + by_kernel


def session(rng, cards):
    """Returns the times of a session of each card; one in fifty is disturbed, by 1 to 8 %."""
    count = len(cards)
    by_class = np.repeat(0.001 * rng.standard_t(4, (count, 3)), KERNELS, axis=1)
    logs = cards + 0.001 * rng.standard_t(4, (count, 1)) + by_class
    logs += 0.003 * rng.standard_t(3, (count, len(CLASSES)))
    logs += np.where(rng.random((count, 1)) < 0.02, rng.uniform(0.01, 0.08, (count, 1)), 0.0)
    return {str(card): dict(zip(CLASSES, np.exp(10 + logs[card]), strict=True)) for card in range(count)}


def named(rng, cards):
    """Returns the cards that are named without a physical cause, as `gpukern validate --all-gpus` does."""
    shifts = combined((shifts_in(session(rng, cards), CLASSES) for _ in range(ROUNDS)), statistics.median_low)
    suspects = suspected(shifts)
    fresh = [session(rng, cards) for _ in range(FRESH_ROUNDS if suspects else 0)]
    held = confirmed(suspects, fresh, CLASSES, neighbours(shifts, suspects))
    facts = dict.fromkeys(shifts, CardFacts())
    return {card for card, each in findings(shifts, suspects, held, facts, {}).items() if each.bad}


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_healthy_host_is_blamed_in_less_than_one_of_a_hundred(count):
    rng = np.random.default_rng(20261123)
    assert sum(bool(named(rng, healthy(rng, count))) for _ in range(300)) <= 2


@pytest.mark.parametrize(("percent", "least"), [(2, 85), (5, 99)])
def test_a_slow_card_is_named_and_no_other(percent, least):
    rng = np.random.default_rng(20261123)
    found = []
    for _ in range(100):
        cards = healthy(rng, 4)
        cards[2] += math.log1p(percent / 100)
        found.append(named(rng, cards))
    assert found.count({"2"}) >= least
    assert found.count({"2"}) + found.count(set()) == 100


def test_one_card_that_is_faster_blames_none_of_the_others():
    times = {card: dict.fromkeys(CLASSES, 100.0) for card in "ABC"}
    times["B"] = dict.fromkeys(CLASSES, 90.0)
    shifts = shifts_in(times, CLASSES)
    assert suspected(shifts) == {}
    assert shifts["B"]["memory"] == pytest.approx(math.log(0.9))


def decided(times):
    """Returns which suspicions hold if fresh sessions repeat these times."""
    shifts = shifts_in(times, CLASSES)
    suspects = suspected(shifts)
    return confirmed(suspects, [times] * FRESH_ROUNDS, CLASSES, neighbours(shifts, suspects))


def slower(name, ratio):
    return {kernel: 100.0 * (ratio if class_ == name else 1.0) for kernel, class_ in CLASSES.items()}


def test_two_cards_that_are_slow_in_different_classes_are_both_found():
    assert decided({"A": slower("memory", 1.05), "B": slower("compute", 1.03)}) == {
        "A": ["memory"],
        "B": ["compute"],
    }


def test_a_card_without_times_in_a_class_is_no_neighbour_there():
    few = {kernel: 100.0 for kernel, name in CLASSES.items() if name == "short"}
    near = dict.fromkeys(CLASSES, 100.4)
    found = decided({"A": near, "B": dict.fromkeys(CLASSES, 105.0), "C": few})
    assert found == {"B": ["memory", "compute", "short"]}


def test_few_kernels_of_a_class_say_nothing():
    few = {f"k{number}": "memory" for number in range(4)}
    assert shifts_in({"A": dict.fromkeys(few, 1.0), "B": dict.fromkeys(few, 2.0)}, few) == {"A": {}, "B": {}}


# --- classes, causes, names -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"median_ns": 9_000}, "short"),
        ({"median_ns": 50_000, "traffic_bytes": 0.6 * 4e12 * 50e-6}, "memory"),
        ({"median_ns": 50_000, "traffic_bytes": 0.4 * 4e12 * 50e-6}, "compute"),
        ({"median_ns": 50_000}, "compute"),
        ({"median_ns": 50_000, "observations": CAPPED}, "power-limited"),
        ({"median_ns": 50_000, "scope": "transfer", "timer": "host"}, COPIES),
        ({"median_ns": 50_000, "scope": "end_to_end", "timer": "host"}, None),
    ],
)
def test_what_limits_a_kernel(measured, expected):
    measurement = made_up.measured(**measured)
    result = made_up.result("cupy.exp", measurement, ceilings=made_up.CEILINGS)
    assert class_of([(result, measurement)] * 2) == expected


def test_one_capped_card_does_not_make_a_kernel_power_limited():
    held, free = (made_up.measured(50_000, observations=seen) for seen in (CAPPED, {}))
    result = made_up.result("cupy.exp", held)
    assert class_of([(result, held), (result, free)]) == "compute"


@pytest.mark.parametrize(
    ("changes", "text", "slows"),
    [
        ({"sm_mhz": 1800.0}, "SM clock in MHz: 1800, of the others 1980", "short"),
        ({"memory_mhz": 2600.0}, "memory clock in MHz: 2600, of the others 3201", "memory"),
        ({"power_limit_w": 600.0}, "power limit in W: 600, of the others 700", "power-limited"),
        ({"limited_s": {"hw_thermal_slowdown": 9.0}}, "was too hot (hw_thermal_slowdown) for 9 s", "short"),
        ({"limited_s": {"sw_power_cap": 9.0}}, "the power limit (sw_power_cap) for 9 s", "compute"),
        ({"uncorrected_errors": 1}, "1 uncorrected memory errors, on the others 0", "memory"),
        ({"corrected_errors": 100}, "100 corrected memory errors, on the others 0", "memory"),
        ({"remapped_rows": 1}, "1 replaced memory rows, on the others 0", "memory"),
        ({"remap_waits": True}, "broken memory rows wait to be replaced, or could not be", "memory"),
        ({"pcie": PcieLink(5, 8, 5, 16)}, "PCIe lanes: 8, of the others 16", COPIES),
        ({"pcie": PcieLink(4, 16, 5, 16)}, "PCIe generation: 4, of the others 5", COPIES),
    ],
)
def test_a_physical_difference_is_told_with_values(changes, text, slows):
    (cause,) = causes(facts(**changes), [facts(), facts()])
    assert text in cause.text
    assert slows in cause.slows
    assert causes(facts(), [facts(**changes), facts(), facts()]) == [], "the others have it, or one of them"


def test_a_card_that_reaches_the_power_limit_more_often_has_no_fault():
    (capped,) = causes(facts(limited_s={"sw_power_cap": 9.0}), [facts(), facts()])
    (hot,) = causes(
        facts(limited_s={"sw_thermal_slowdown": 9.0}), [facts(limited_s={"sw_thermal_slowdown": 0.0})]
    )
    assert (capped.fault, hot.fault) == (False, True)


def facts(**changes):
    usual = {
        "sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "power_limit_w": 700.0,
        "limited_s": {"hw_thermal_slowdown": 0.0, "sw_power_cap": 0.5},
        "ecc": True,
        "corrected_errors": 0,
        "uncorrected_errors": 0,
        "remapped_rows": 0,
        "remap_waits": False,
        "pcie": PcieLink(5, 16, 5, 16),
    }
    return CardFacts(**{**usual, **changes})


def test_what_is_unknown_is_no_cause():
    assert causes(CardFacts(), [facts(), facts()]) == []
    assert causes(facts(sm_mhz=1000.0, remapped_rows=3), [CardFacts(), CardFacts()]) == []


def test_ecc_that_only_some_cards_have_is_a_cause():
    (cause,) = causes(facts(), [facts(ecc=False), facts()])
    assert cause.text == "ECC is on, and off on another card"


def verdicts(held, count=3, since_record=(), suspects=("0",), **changes):
    cards = [str(card) for card in range(count)]
    shifts = {card: dict.fromkeys(LIMITS, 0.3 if card == "0" else 0.0) for card in cards}
    known = {card: facts(**(changes if card == "0" else {})) for card in cards}
    found = findings(shifts, suspects, {"0": held} if held else {}, known, dict(since_record))
    assert {found[card].verdict for card in cards[1:]} == {CardVerdict.ALIKE}
    return found["0"].verdict


def test_two_classes_or_a_cause_of_one_name_a_card():
    assert verdicts(["memory", "short"]) is CardVerdict.SLOW
    assert verdicts(["memory"], remapped_rows=1) is CardVerdict.SLOW
    assert verdicts(["short"], remapped_rows=1) is CardVerdict.ONE_CLASS
    assert verdicts(["memory"]) is CardVerdict.ONE_CLASS
    assert verdicts(["memory", COPIES]) is CardVerdict.ONE_CLASS, "copies are no class of kernels"
    assert verdicts([COPIES], pcie=PcieLink(5, 4, 5, 16)) is CardVerdict.SLOW
    assert verdicts([]) is CardVerdict.NOT_CONFIRMED


def test_of_two_cards_one_is_named_by_its_record_or_a_cause_only():
    both = ["memory", "compute"]
    assert verdicts(both, count=2) is CardVerdict.ONE_OF_TWO
    assert verdicts(both, count=2, sm_mhz=1800.0) is CardVerdict.SLOW
    assert verdicts(both, count=2, since_record={"0": 0.05, "1": 0.0}) is CardVerdict.SLOW
    assert verdicts(both, count=2, since_record={"0": 0.0, "1": -0.05}) is CardVerdict.ONE_OF_TWO
    assert verdicts(both, count=2, since_record={"0": 0.05}) is CardVerdict.ONE_OF_TWO


def test_a_card_without_valid_times_is_not_compared():
    found = findings({"A": {"memory": 0.0}, "B": {}}, (), {}, {"A": facts(), "B": facts()}, {})
    assert found["B"].verdict is CardVerdict.NOT_COMPARED


def test_times_since_the_record_are_by_the_cards_own_sessions_of_the_newest_epoch():
    def recorded(epoch, device, ns):
        return SessionTime(10, ns, ns, ns, recorded="2026", epoch=epoch, device=device)

    measurement = made_up.measured(110.0)
    fingerprint = dataclasses.replace(made_up.FINGERPRINT, device_uuid="A")
    results = [
        made_up.result("cupy.exp", measurement, point={"n": n}, fingerprint=fingerprint) for n in range(5)
    ]
    times = (recorded(0, "A", 50.0), recorded(1, "A", 100.0), recorded(1, "B", 500.0))
    history = {result.nodeid: RecordedCase((), {measurement.key: times}) for result in results}
    assert since_own_record(results, history) == pytest.approx({"A": math.log(1.1)})
    assert since_own_record(results[:4], history) == {}
