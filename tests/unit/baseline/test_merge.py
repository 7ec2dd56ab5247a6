"""Checks which sessions of a test a record takes."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_results import measured, result, verdict

from pytest_gpukern.baseline.merge import unselected
from pytest_gpukern.values.result import SessionRole


def session(name, role):
    return dataclasses.replace(result("cupy.exp", measured()), session=name, role=role)


FURTHER = session("b", SessionRole.FURTHER)
CONFIRMING = [session("c", SessionRole.CONFIRMING), session("d", SessionRole.CONFIRMING)]
AFTERWARDS = session("e", SessionRole.FURTHER)


def recorded(kind, *sessions, **changes):
    """Ids of the sessions that are recorded of a test with this verdict."""
    told = dataclasses.replace(verdict(kind, 1.1), **changes)
    reported = dataclasses.replace(result("cupy.exp", measured(), verdicts=[told]), session="a")
    return "".join(each.session for each in unselected(reported, sessions))


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
