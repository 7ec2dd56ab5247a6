"""Checks the gate on a card that is not on record: each of eight H200s in turn, by their times."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs

from pytest_gpukern.gate.change import Change
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge, unless_hopeless
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.verdict_table import VerdictKind

RECORDED = json.loads((Path(__file__).parents[1].parent / "data" / "devices-h200.json").read_text())
HERE = Conditions(1, {}, "nvidia-h200")
TIMERS = ("kernel/cupti/cold", "kernel/event/cold")
WHOLE = sorted(
    card for card, count in Counter(itertools.chain(*RECORDED[TIMERS[0]].values())).items() if count > 200
)
"""Cards on which all cases were timed; on one, some."""


def session(key, median_ns, card):
    return SessionTime(100, median_ns, median_ns, median_ns, key=key, conditions=HERE, device=card)


def measured(key, median_ns):
    scope, timer, cache = key.split("/")
    summary = Summary(median_ns, median_ns, median_ns, 100)
    return Measurement(scope, timer, "", cache, (), iterations=1, summary=summary, stopped="")


def recorded_on(key, cards, opening=0):
    """Returns case → sessions on these cards; the first so many opened the epoch."""
    return {
        case: [
            structs.replace(session(key, each, card), opening=card in cards[:opening])
            for card in cards
            if card in times
            for each in times[card]
        ]
        for case, times in RECORDED[key].items()
    }


def judged(key, unknown, known, slower=1.0, opening=0):
    """Returns each verdict on the unknown card; its sessions, taken twice, decide suspicions.

    Args:
        slower: by what the times on the unknown card are multiplied.
    """
    record = recorded_on(key, known, opening)
    shared = shared_spread(record.values())[spread_key(key)]
    for case, times in RECORDED[key].items():
        if unknown in times:
            fresh = [measured(key, slower * each) for each in times[unknown]]
            basis = Basis(record[case], HERE, 0.02, 0.0, unknown, shared)
            found = judge(fresh[:1], basis)
            found = unless_hopeless(found, fresh[:1], basis) if found.suspected else found
            yield confirm(found, (fresh * 2)[:2], basis) if found.suspected else found


def each_unknown(count):
    """Yields each card and the `count` that come after it."""
    for place, unknown in enumerate(WHOLE):
        yield unknown, [WHOLE[(place + step) % len(WHOLE)] for step in range(1, count + 1)]


def shares(key, count, slower=1.0, opening=0):
    """Returns the shares of each verdict on every card, by the record of `count` others."""
    found = Counter(
        verdict.kind
        for unknown, known in each_unknown(count)
        for verdict in judged(key, unknown, known, slower, opening)
    )
    assert found.total() == len(WHOLE) * len(RECORDED[key]) > 1600
    return {kind: found[kind] / found.total() for kind in VerdictKind}


@pytest.mark.parametrize("key", TIMERS)
@pytest.mark.parametrize("count", [3, 6])
def test_on_an_unknown_card_half_the_times_are_the_same_and_next_to_none_is_slower(key, count):
    found = shares(key, count)
    assert found[VerdictKind.SAME] > (0.5 if "cupti" in key else 0.45)
    assert found[VerdictKind.SLOWER] < 0.001, "one of 1673; 0.0004 are aimed at"
    assert found[VerdictKind.FASTER] < 0.001


@pytest.mark.parametrize("key", TIMERS)
def test_an_epoch_that_was_opened_on_three_cards_blames_no_other_one(key):
    assert shares(key, 6, opening=3)[VerdictKind.SLOWER] < 0.001


def test_a_slowdown_by_a_tenth_is_caught_on_an_unknown_card_where_five_are_recorded():
    found = shares(TIMERS[0], 5, slower=1.1)
    assert found[VerdictKind.SLOWER] >= 0.95
    assert found[VerdictKind.SAME] == 0


def test_no_suspicion_that_is_not_measured_again_would_be_confirmed(monkeypatch):
    unknown, known = next(each_unknown(5))
    found = list(judged(TIMERS[0], unknown, known, slower=1.05))
    monkeypatch.setattr(Change, "is_confirmable", lambda *_: True)
    confirmed = list(judged(TIMERS[0], unknown, known, slower=1.05))
    assert [v.kind is VerdictKind.SLOWER for v in found] == [v.kind is VerdictKind.SLOWER for v in confirmed]
    assert sum("not measured again" in verdict.reason for verdict in found) > 50
