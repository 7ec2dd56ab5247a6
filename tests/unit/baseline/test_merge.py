"""Checks which sessions of a test a record takes, and what each mode makes of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_up_records import case_of, measurement_of, result_of
from made_up_results import measured, result, verdict
from msgspec import structs

from pytest_gpukern.baseline.codec import parse, render
from pytest_gpukern.baseline.merge import Merge, WriteReport, sessions_to_record
from pytest_gpukern.baseline.record import Baseline, trimmed
from pytest_gpukern.values.result import SessionRole


def session(name, role):
    return structs.replace(result("cupy.exp", measured()), session=name, role=role)


FURTHER = session("b", SessionRole.FURTHER)
CONFIRMING = [session("c", SessionRole.CONFIRMING), session("d", SessionRole.CONFIRMING)]
AFTERWARDS = session("e", SessionRole.FURTHER)


def recorded(kind, *sessions, **changes):
    """Ids of the sessions that are recorded of a test with this verdict."""
    told = structs.replace(verdict(kind, 1.1), **changes)
    reported = structs.replace(result("cupy.exp", measured(), verdicts=[told]), session="a")
    return "".join(each.session for each in sessions_to_record(reported, sessions))


def test_without_a_suspicion_all_sessions_count():
    assert recorded("SAME") == "a"
    assert recorded("SAME", FURTHER) == "ab"


def test_of_a_confirmed_slowdown_those_that_raised_the_suspicion_do_not():
    assert recorded("SLOWER", FURTHER, *CONFIRMING, AFTERWARDS) == "cde"
    assert recorded("SLOWER", *CONFIRMING) == "cd"


@pytest.mark.parametrize("kind", ["SAME", "UNDECIDED", "FASTER"])
def test_of_a_refuted_suspicion_all_do_or_the_record_would_lose_its_upper_tail(kind):
    assert recorded(kind, FURTHER, *CONFIRMING) == "abcd"


def test_a_slowdown_that_nobody_confirmed_is_recorded_as_it_was_measured():
    assert recorded("SLOWER", FURTHER, suspected=True) == "ab"
    assert recorded("SLOWER", FURTHER, gates=False) == "ab"


SCOPES = ("kernel", "transfer", "end_to_end", "launch")
MOMENT = "2026-11-20T10:00:00Z"


def merged(baseline, mode, *results):
    """What merging makes of a baseline, and what it did."""
    did = WriteReport()
    merge = Merge(baseline, MOMENT, None, did)
    merge.join(mode, [trimmed(each, recorded=MOMENT) for each in results])
    return merge.baseline, did


def by_the_book(epochs, mode, number, scopes):
    """The epochs of a case, each of sessions of (number, scopes), after one more session."""
    held = set().union(*(own for epoch in epochs for _, own in epoch))
    if not epochs or mode == "update":
        epochs = [*epochs, [(number, scopes)]]
        holders = [[n for n, epoch in enumerate(epochs) if any(s in own for _, own in epoch)] for s in SCOPES]
        kept = {n for those in holders if those for n in (those[0], those[-1])} | {*range(len(epochs))[-3:]}
        return [epochs[n] for n in sorted(kept)], "updated" if held else "added"
    taken = scopes - held if mode == "create" else scopes
    places = {scope: len(epochs) - 1 for scope in taken}  # what no epoch holds joins the newest
    places |= {s: n for n, epoch in enumerate(epochs) for _, own in epoch for s in own if s in taken}
    parts = [{scope for scope in taken if places[scope] == n} for n in range(len(epochs))]
    longer = [[*epoch, (number, part)] if part else epoch for epoch, part in zip(epochs, parts, strict=True)]
    return longer, {"create": "added" if taken else "", "append": "appended"}[mode]


steps = st.tuples(
    st.sampled_from(["create", "append", "update"]), st.sets(st.sampled_from(SCOPES), min_size=1, max_size=2)
)


@given(st.lists(steps, min_size=1, max_size=9))
@example([("create", {"kernel"}), ("update", {"kernel"}), ("create", {"transfer"})])
def test_create_adds_what_is_missing_append_joins_what_is_current_and_update_opens_an_epoch(history):
    case, baseline, expected = case_of("somewhere"), Baseline("vector_exp", "gpu"), []
    for number, (mode, scopes) in enumerate(history):
        measurements = tuple(measurement_of(100.0, scope) for scope in sorted(scopes))
        baseline, did = merged(
            baseline, mode, result_of(case, session=f"s{number}", measurements=measurements)
        )
        expected, outcome = by_the_book(expected, mode, number, scopes)
        assert {name: ids for name, ids in vars(did).items() if ids} == (
            {outcome: [case.id]} if outcome else {}
        )
    epochs = baseline.cases[case.id].epochs
    assert [
        [(int(each.session[1:]), {timed.scope for timed in each.measurements}) for each in epoch.sessions]
        for epoch in epochs
    ] == expected
    assert parse(render(baseline), None) == baseline
