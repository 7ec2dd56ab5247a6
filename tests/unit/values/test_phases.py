"""Where the time of a process goes: each phase for itself, with a clock that is told."""

import re
import threading
from pathlib import Path
from typing import get_args

import pytest

from pytest_gpukern.values.phases import Phase, TimeAccount

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "report.md"


class Clock:
    """Tells what it is set to, in nanoseconds."""

    def __init__(self):
        self.s = 0

    def __call__(self):
        return self.s * 10**9


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def account(clock):
    return TimeAccount(clock)


def test_an_inner_phase_does_not_count_for_the_outer_one(account, clock):
    clock.s = 5  # in no phase
    with account.phase("checking"):
        clock.s = 6
        with account.phase("preparing"):
            clock.s = 10
        clock.s = 12
    assert account.lap() == {"checking": 3, "preparing": 4}


def test_a_phase_that_fails_ends(account, clock):
    def fails():
        with account.phase("checking"):
            clock.s = 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    clock.s = 3
    assert account.lap() == {"checking": 1}


def test_a_lap_begins_where_the_last_one_ended_also_within_a_phase(account, clock):
    with account.phase("reports"):
        clock.s = 1
        assert account.lap() == {"reports": 1}
        clock.s = 3
    assert account.lap() == {"reports": 2}
    assert account.lap() == {}


def test_a_phase_outside_of_all_others_lasts_until_another_begins(account, clock):
    account.begin("starting")
    clock.s = 2
    with account.phase("waiting"):
        clock.s = 3
    clock.s = 4
    assert account.begin(None) == {"starting": 3, "waiting": 1}
    clock.s = 9
    assert account.lap() == {}


def test_what_another_thread_enters_counts_for_the_phase_of_the_first(account, clock):
    def work():
        with account.phase("preparing"):
            clock.s = 4

    with account.phase("timing"):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    assert account.lap() == {"timing": 4}


def test_the_page_about_reports_says_what_each_phase_is():
    section = PAGE.read_text(encoding="utf-8").partition("## Where the time went")[2].partition("\n## ")[0]
    assert re.findall(r"^\| ([a-z ]+) \| [a-z]", section, re.MULTILINE)[1:] == list(get_args(Phase))
