"""Recorded sessions and a run → since when a case is as it is."""

from __future__ import annotations

import pytest
from made_up_results import measured, result
from made_up_times import recorded

from pytest_gpukern.baseline.record import RecordedCase, RecordedEpoch, SessionEntry
from pytest_gpukern.findings.trend import since_when
from pytest_gpukern.values.fingerprint import Provenance
from pytest_gpukern.values.result import Correctness

KEY = "kernel/event/cold"
COMMITS = [f"{number:x}" * 40 for number in range(10)]
NEW_RUN = COMMITS[9]
DAYS = ("2026-11-20", "2026-11-20", "2026-11-20", "2026-11-22", "2026-11-22", "2026-11-23", "2026-11-24")


def history(*times_us, days=DAYS, cards="AABBCCC", commits=COMMITS, dirty=False):
    """A record of one epoch, and what its sessions share."""
    times, sessions = [], {}
    for number, (us, day, card) in enumerate(zip(times_us, days, cards, strict=False)):
        session, moment = f"s{number}", f"{day}T0{number}:00:00Z"
        times.append(recorded(us * 1000, session=session, recorded=moment, device=card))
        provenance = Provenance(commits[number], dirty) if commits[number] else None
        sessions[session] = SessionEntry(moment, "f", provenance=provenance)
    return RecordedCase((RecordedEpoch(days[0], None),), {KEY: tuple(times)}), sessions


def since(now_us, *times_us, **changes):
    run = result("cupy.exp", measured(now_us * 1000), provenance=Provenance(NEW_RUN))
    return since_when(run, KEY, *history(*times_us, **changes))


def test_what_no_recorded_session_shows_is_new_in_this_run():
    new = since(46.8, 37.1, 37.4, 37.3, 38.1, 37.4, 37.2, 37.6)
    assert str(new) == "new in this run; all 7 recorded sessions of 20 to 24 Nov were at the old level"
    assert (new.cards, new.since, new.span) == (3, (), (COMMITS[6], NEW_RUN))
    assert str(since(46.8, 37.1)) == "new in this run; the recorded session of 20 Nov was at the old level"


@pytest.mark.parametrize(
    ("now", "times", "first"),
    [
        (46.8, (37.1, 37.4, 37.3, 38.1, 37.4, 46.9, 46.5), 5),
        (30.0, (37.1, 37.4, 37.3, 38.1, 30.4, 30.2, 30.3), 4),
        (46.8, (37.1, 37.4, 37.3, 46.9, 37.4, 37.2, 37.6), None),  # an outlier
        (39.0, (37.1, 37.4, 37.3, 38.3, 37.4, 37.2, 38.2), None),  # nearer, but was as slow before
        (46.8, (37.1, 46.9, 46.5, 46.7), None),  # one session before is no level
    ],
)
def test_the_newest_recorded_sessions_are_at_the_new_level_if_they_are_like_the_run_and_like_none_before(
    now, times, first
):
    found = since(now, *times)
    assert [point.median_ns / 1000 for point in found.since] == pytest.approx(times[first:] if first else ())
    if first:
        day = DAYS[first][-2:]
        assert str(found) == f"since the session of {day} Nov, recorded on {COMMITS[first][:7]}"
        assert found.span == (COMMITS[first - 1], COMMITS[first])


def test_it_says_no_more_than_is_known_of_sessions():
    times = (37.1, 37.4, 37.3, 46.7)
    assert str(since(46.8, *times, commits=[None] * 7)) == "since the session of 22 Nov"
    assert str(since(46.8, *times, dirty=True)).endswith(f"recorded on {COMMITS[3][:7]} with changes")
    assert since(46.8, *times, commits=[None] * 7).span is None
    without_days = since(46.8, *times[:3], days=["2026-13-41"] * 7)
    assert str(without_days) == "new in this run; all 3 recorded sessions were at the old level"
    assert since(46.8) is None
    assert since(float("inf"), *times) is None


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (("2026-11-20",) * 3, "of 20 Nov "),
        (("2026-10-30", "2026-11-01", "2026-11-02"), "of 30 Oct to 2 Nov "),
        (("2025-12-30", "2026-01-01", "2026-01-02"), "of 30 Dec 2025 to 2 Jan 2026 "),
    ],
)
def test_days_have_their_month_once_and_their_year_where_these_differ(days, words):
    assert words in str(since(46.8, 37.1, 37.4, 37.3, days=days))


def test_wrong_results_were_never_recorded_whatever_their_times():
    wrong = result("cupy.exp", correctness=Correctness.INCORRECT)
    found = since_when(wrong, "", *history(37.1, 37.4, 37.3, 46.9))
    assert str(found) == "new in this run; none of the 4 recorded sessions of 20 to 22 Nov was wrong"


def test_the_count_of_commits_names_what_they_lie_between_and_touch():
    new = since(46.8, 37.1, 37.4, 37.3)
    assert new.touching == new.with_commits(None, "exp").touching == ""
    assert new.with_commits(5, "exp").touching == f"5 commits since {COMMITS[2][:7]} touch exp"
    assert new.with_commits(0, "exp").touching == f"no commit since {COMMITS[2][:7]} touches exp"
    old = since(46.8, 37.1, 37.4, 37.3, 46.7).with_commits(1, "exp")
    assert old.touching == f"1 commit between {COMMITS[2][:7]} and {COMMITS[3][:7]} touches exp"
