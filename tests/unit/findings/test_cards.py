"""Tests what blames a card: on the times of eight H200s, on made-up hosts, and rule by rule."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import math
import statistics
from datetime import UTC, datetime, timedelta
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
    Card,
    CardFacts,
    CardVerdict,
    Kernel,
    Session,
    causes,
    class_of,
    is_valid,
    since_own_record,
)
from pytest_gpukern.findings.fleet import judged, sides, to_confirm
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gpu.nvml import Configuration, PcieLink
from pytest_gpukern.values.result import Result

DATA = Path(__file__).parents[2] / "data"
KERNELS = 16
CLASSES = {f"{name} {number}": name for name in ("memory", "compute", "short") for number in range(KERNELS)}


KERNEL_OF = {
    "memory": (1e6, Kernel("kernel", on_gpu=True, share=0.9)),
    "compute": (5e4, Kernel("kernel", on_gpu=True)),
    "short": (5e3, Kernel("kernel", on_gpu=True)),
    "power-limited": (5e4, Kernel("kernel", on_gpu=True, capped=True)),
    COPIES: (5e4, Kernel("transfer", on_gpu=True)),
}
BEGAN = datetime(2026, 11, 26, tzinfo=UTC)


def session_of(card, ratios, number=0, classes=CLASSES, facts=None, **of_card):
    """Returns a session with times that are these multiples of what is usual: kernel → ratio."""
    usual = {kernel: KERNEL_OF[classes[kernel]] for kernel in ratios}
    return Session(
        Card(card, "", card, "H200", **of_card),
        f"{number}",
        BEGAN + timedelta(hours=number),
        {kernel: ns * ratios[kernel] for kernel, (ns, _) in usual.items()},
        {kernel: known for kernel, (_, known) in usual.items()},
        facts=facts or CardFacts(),
    )


def verdicts(raising, confirming=(), **given):
    """Returns what was found of each card, by its UUID."""
    return {
        card.uuid: finding
        for model in judged(raising, confirming, **given).models
        for card, finding in model.cards.items()
    }


# --- eight real cards -----------------------------------------------------------------------------


def h200s():
    """Returns the sessions of eight H200s, one each, of kernels whose class is known."""
    run = json.loads(gzip.decompress((DATA / "run-h200.json.gz").read_bytes()))
    on_one = [Result.from_json({**each, "fingerprint": {}}) for each in run["results"]]
    kernels = {
        result.case.id: Kernel.of(result, each)
        for result in on_one
        for each in result.measurements
        if each.key == "kernel/cupti/cold"
    }
    times = {}
    for case, cards in json.loads((DATA / "devices-h200.json").read_text())["kernel/cupti/cold"].items():
        for card, sessions in cards.items() if case in kernels else ():
            times.setdefault(card, {})[case] = statistics.median(sessions)
    return {
        card: Session(Card(card, model="H200"), "1", BEGAN, of_card, kernels)
        for card, of_card in times.items()
    }


def test_no_host_of_recorded_h200s_has_a_card_that_is_suspected_in_two_classes():
    sessions = h200s()
    hosts = [host for count in (2, 3, 7, 8) for host in itertools.combinations(sessions.values(), count)]
    found = [[each.suspected for each in verdicts(host).values() if each.suspected] for host in hosts]
    assert sum(map(bool, found)) <= 7, "one card is 1.3 % slower than some in kernels under 10 µs"
    assert not any(len(names) > 1 for suspects in found for names in suspects)


@pytest.mark.parametrize("percent", [2, 5])
def test_a_recorded_h200_with_slower_times_is_suspected_in_hosts_of_four(percent):
    sessions = h200s()
    for host in itertools.islice(itertools.combinations(sessions, 4), 0, None, 4):
        slow = sessions[host[0]]
        times = {case: ns * (1 + percent / 100) for case, ns in slow.times_ns.items()}
        found = verdicts([dataclasses.replace(slow, times_ns=times), *(sessions[card] for card in host[1:])])
        assert [card for card, each in found.items() if len(each.suspected) > 1] == [host[0]]


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
    return [
        session_of(str(card), dict(zip(CLASSES, np.exp(logs[card]), strict=True)), number)
        for card in range(count)
    ]


def named(rng, cards):
    """Returns the cards that are named without a physical cause, as `gpukern validate --all-gpus` does."""
    raising = [each for number in range(ROUNDS) for each in measured(rng, cards, number)]
    again = to_confirm(judged(raising))
    who = {card.uuid for suspect, check in again.items() for card in (suspect, check.beside)}
    fresh = (
        [each for number in range(FRESH_ROUNDS) for each in measured(rng, cards, ROUNDS + number)]
        if again
        else []
    )
    fresh = [each for each in fresh if each.card.uuid in who]
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
    raising, confirming = sides(session_of("A", {}, number) for number in reversed(range(sessions)))
    assert [each.id for each in (*raising, *confirming)] == [f"{number}" for number in range(sessions)]
    assert len(raising) == raise_it


@pytest.mark.parametrize(("kernels", "known"), [(4, {}), (5, {"memory"})])
def test_few_kernels_of_a_class_say_nothing(kernels, known):
    few = [f"memory {number}" for number in range(kernels)]
    found = verdicts([session_of("A", dict.fromkeys(few, 1.0)), session_of("B", dict.fromkeys(few, 2.0))])
    assert {*found["B"].shifts} == {*found["B"].suspected} == {*known}
    assert {each.verdict for each in found.values()} & {CardVerdict.NOT_COMPARED} == (
        set() if known else {CardVerdict.NOT_COMPARED}
    )


@pytest.mark.parametrize(("count", "slow"), [(19, []), (20, ["4"])])
def test_twenty_cards_are_judged_by_their_spread(count, slow):
    """One card is 1 % slower, which no fixed limit tells, and the others differ by 0.02 %."""
    rng, sessions = np.random.default_rng(1), []
    for number in range(3):
        for card in range(count):
            ratio = (1.01 if card == 4 else 1) * math.exp(2e-4 * rng.standard_normal())
            sessions.append(session_of(str(card), every(ratio), number))
    found = verdicts(*sides(sessions))
    assert [card for card, each in found.items() if each.bad] == slow


# --- classes, causes, names -----------------------------------------------------------------------

CAPPED, FREE = {"clocks": {"clock_events": ("sw_power_cap",)}}, {}
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
        ("cupy.exp", {"scope": "transfer", "timer": "host"}, COPIES),
        ("cupy.exp", {"scope": "end_to_end", "timer": "host"}, None),
        ("host.exp", {"timer": "host"}, None),
    ],
)
def test_what_limits_a_kernel(name, measured, expected):
    measurement = made_up.measured(**{"median_ns": 50_000, **measured})
    result = made_up.result(name, measurement, ceilings=made_up.CEILINGS)
    assert class_of([(result, measurement)] * 2) == expected


@pytest.mark.parametrize(
    ("states", "name"), [([CAPPED, FREE], "compute"), ([CAPPED, FREE, CAPPED], "power-limited")]
)
def test_the_power_limit_is_that_of_most_cards(states, name):
    times = [made_up.measured(50_000, observations=seen) for seen in states]
    assert class_of([(made_up.result("cupy.exp", time), time) for time in times]) == name


def facts(**changes):
    usual = {
        "sm_mhz": 1980.0,
        "memory_mhz": 3200.0,
        "power_limit_w": 700.0,
        "limited_s": {"hw_thermal_slowdown": 0.0, "sw_power_cap": 0.5, "hw_slowdown": 4.0},
        "pcie": PcieLink(5, 16, 5, 16),
    }
    memory = {"ecc": True, **dict.fromkeys(("corrected_errors", "uncorrected_errors", "remapped_rows"), 0)}
    memory |= {"row_remap_pending": False, "row_remap_failed": False}
    setup = Configuration(**{name: changes.pop(name, value) for name, value in memory.items()})
    return CardFacts(**{**usual, **changes}, setup=setup)


KERNELS_BY = {"short", "compute", "memory", "power-limited"}
LOOK = "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE -i {index}"
REMEDIES = {
    "power_limit_w": "nvidia-smi -pl sets it, as root",
    "sm_mhz": f"see what lowers it: {LOOK}",
    "memory_mhz": f"see what lowers it: {LOOK}",
    "hw_thermal_slowdown": f"improve the cooling: {LOOK}",
    "hw_slowdown": f"check power and cooling: {LOOK}",
    "sw_power_cap": f"check power and cooling: {LOOK}",
    "pcie": "reseat the card, or look at its slot in the BIOS: nvidia-smi -q -i {index} shows the link",
}
RESET = "reset the GPU: nvidia-smi -r -i {index}; if that does not help, have it replaced"


@pytest.mark.parametrize(
    ("field", "value", "nearly", "text", "slows"),
    [
        ("sm_mhz", 1960.0, 1960.3, "SM clock in MHz: 1960, of the others 1980", KERNELS_BY),
        ("memory_mhz", 3167.0, 3168.0, "memory clock in MHz: 3167, of the others 3200", {"memory"}),
        ("power_limit_w", 600.0, 693.1, "power limit in W: 600, of the others 700", KERNELS_BY - {"short"}),
        ("hw_thermal_slowdown", 1.0, 0.9, "was too hot ({}) for 1 s, on the others 0 s", KERNELS_BY),
        ("hw_slowdown", 8.0, 7.9, " ({}) for 8 s, on the others 4 s", KERNELS_BY),
        ("sw_power_cap", 9.0, 1.4, "the power limit ({}) for 9 s, on the others 0 s", KERNELS_BY - {"short"}),
        ("uncorrected_errors", 1, 0, "1 uncorrected memory errors, on the others 0", {"memory"}),
        ("corrected_errors", 100, 99, "100 corrected memory errors, on the others 0", {"memory"}),
        ("remapped_rows", 1, 0, "1 replaced memory rows, on the others 0", {"memory"}),
        ("row_remap_pending", True, False, "broken memory rows wait to be replaced, or could", {"memory"}),
        ("row_remap_failed", True, False, "broken memory rows wait to be replaced, or could", {"memory"}),
        ("pcie", PcieLink(5, 8, 5, 16), PcieLink(5, 16), "PCIe lanes: 8, of the others 16", {COPIES}),
        ("pcie", PcieLink(4, 16, 5, 16), PcieLink(5, 16), "PCIe generation: 4, of the others 5", {COPIES}),
    ],
)
def test_a_physical_difference_is_told_with_values_and_what_to_do(field, value, nearly, text, slows):
    differs, alike = (
        facts(limited_s={field: each}) if "{}" in text else facts(**{field: each}) for each in (value, nearly)
    )
    (cause,) = causes(differs, [facts(), facts()])
    assert text.format(field) in cause.text
    assert (cause.remedy, cause.slows) == (REMEDIES.get(field, RESET), slows)
    assert cause.fault is (field != "sw_power_cap"), "reaching the power limit more often is no fault"
    assert [*causes(alike, [facts(), facts()])] == []
    assert [*causes(facts(), [differs, facts(), facts()])] == [], "the others have it, or one of them"


def test_what_is_unknown_is_no_cause_and_ecc_that_only_some_cards_have_is_one():
    assert [*causes(CardFacts(), [facts(), facts()])] == []
    assert [*causes(facts(sm_mhz=1000.0, remapped_rows=3), [CardFacts(), CardFacts()])] == []
    (cause,) = causes(facts(), [facts(ecc=False), facts()])
    assert (cause.text, cause.slows) == ("ECC is on, and off on another card", {"memory"})


BOTH = ["memory", "compute"]
SLOW, ONE_CLASS, ONE_OF_TWO = CardVerdict.SLOW, CardVerdict.ONE_CLASS, CardVerdict.ONE_OF_TWO
LIMIT = LIMITS["compute"]


@pytest.mark.parametrize(
    ("held", "count", "since_record", "changes", "verdict"),
    [
        (["memory", "short"], 3, {}, {}, SLOW),
        (["memory"], 3, {}, {"remapped_rows": 1}, SLOW),
        (["short"], 3, {}, {"remapped_rows": 1}, ONE_CLASS),
        (["memory"], 3, {}, {}, ONE_CLASS),
        (["memory", COPIES], 3, {}, {}, ONE_CLASS),  # copies are no class of kernels
        ([COPIES], 3, {}, {"pcie": PcieLink(5, 4, 5, 16)}, SLOW),
        # of two cards, one is named by a cause or by its own record only
        (BOTH, 2, {}, {}, ONE_OF_TWO),
        (["memory"], 2, {}, {}, ONE_CLASS),
        (BOTH, 2, {}, {"sm_mhz": 1800.0}, SLOW),
        (BOTH, 2, {"0": LIMIT, "1": 0.49 * LIMIT}, {}, SLOW),
        (BOTH, 2, {"0": 0.99 * LIMIT, "1": 0.0}, {}, ONE_OF_TWO),
        (BOTH, 2, {"0": LIMIT, "1": 0.5 * LIMIT}, {}, ONE_OF_TWO),
        (BOTH, 2, {"0": 0.0, "1": -0.05}, {}, ONE_OF_TWO),
        (BOTH, 2, {"0": 0.05}, {}, ONE_OF_TWO),
        (BOTH, 2, {"1": 0.0}, {}, ONE_OF_TWO),
    ],
)
def test_two_classes_or_a_cause_of_one_name_a_card(held, count, since_record, changes, verdict):
    classes = {f"{name} {number}": name for name in LIMITS for number in range(KERNELS)}
    sessions = []
    for number in range(2):
        for card in map(str, range(count)):
            ratios = {
                kernel: 1.35 if card == "0" and name in held else 1.0 for kernel, name in classes.items()
            }
            known = facts(**(changes if card == "0" else {}))
            sessions.append(session_of(card, ratios, number, classes, known))
    found = verdicts(sessions[:count], sessions[count:], since_record=since_record)
    assert {found[str(card)].verdict for card in range(1, count)} == {CardVerdict.ALIKE}
    assert (found["0"].verdict, found["0"].bad) == (verdict, verdict in (SLOW, ONE_OF_TWO))
    assert {*found["0"].slower} == {*held}
    assert found["0"].since_record == since_record.get("0")


def test_an_invalid_time_is_no_time():
    for valid, changes in ((True, {}), (False, {"median_ns": 0.0}), (False, {"invalid": "throttled"})):
        assert is_valid(made_up.measured(**changes)) is valid


def test_times_since_the_record_are_by_the_cards_own_sessions_of_the_newest_epoch():
    def recorded(epoch, device, ns):
        return SessionTime(10, ns, ns, ns, recorded="2026", epoch=epoch, device=device)

    def result(n, *measurements, device="A"):
        fingerprint = dataclasses.replace(made_up.FINGERPRINT, device_uuid=device)
        return made_up.result("cupy.exp", *measurements, point={"n": n}, fingerprint=fingerprint)

    kernel = made_up.measured(110.0)
    others = [
        made_up.measured(500.0, scope="transfer"),
        made_up.measured(500.0, beside=True),
        made_up.measured(0.0),
    ]
    results = [result(n, kernel) for n in range(5)]
    ignored = [result(n, *others) for n in range(5)] + [result(0, kernel, device=None), result(9, kernel)]
    for newest in ((100.0,), (80.0, 125.0)):
        own = [recorded(0, "A", 50.0), *(recorded(1, "A", ns) for ns in newest), recorded(1, "B", 500.0)]
        times = {kernel.key: tuple(own), others[0].key: tuple(own)}
        history = {each.nodeid: RecordedCase((), times) for each in results}
        assert since_own_record(results + ignored, history) == pytest.approx({"A": math.log(1.1)})
        assert since_own_record(results[:4], history) == {}
