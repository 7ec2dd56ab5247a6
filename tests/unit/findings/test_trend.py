"""Recorded sessions and runs → since when a case is as it is."""

from __future__ import annotations

import functools
import math
import random
import statistics
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from made_up_results import CEILINGS, measured, result, verdict
from made_up_times import record_of, recorded
from msgspec import structs

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.findings.trend import Trend, since_when, with_steps
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.report.recorded import trends
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.fingerprint import NO_PROVENANCE, Fingerprint, Provenance
from pytest_gpukern.values.result import Correctness

KEY = "kernel/event/cold"
COMMITS = [f"{number:x}" * 40 for number in range(10)]
NEW_RUN = COMMITS[9]
CREATED = datetime(2026, 11, 25, tzinfo=UTC)
H200 = Fingerprint(device_uuid="C", device_model_key="nvidia-h200")
DAYS = ("2026-11-20", "2026-11-20", "2026-11-20", "2026-11-22", "2026-11-22", "2026-11-23", "2026-11-24")


def history(*times_us, days=DAYS, cards="AABBCCC", commits=COMMITS, dirty=False):
    """A record of one epoch."""
    times = []
    for number, (us, day, card) in enumerate(zip(times_us, days, cards, strict=False)):
        session, moment = f"s{number}", f"{day}T0{number}:00:00Z"
        provenance = Provenance(commits[number], dirty) if commits[number] else NO_PROVENANCE
        known = {"session": session, "recorded": moment, "device": card, "provenance": provenance}
        times.append(recorded(us * 1000, **known))
    return record_of({KEY: times})


def since(now_us, *times_us, **changes):
    """Since when a time is slower than the median of the first three sessions of its record."""
    told = [verdict("SLOWER", now_us / statistics.median(times_us[:3]))] if times_us else []
    run = result(
        "cupy.exp", measured(now_us * 1000), provenance=Provenance(NEW_RUN), verdicts=told, fingerprint=H200
    )
    record = history(*times_us, **changes)
    series = trends([RunResults([run], history={run.nodeid: record}, created=CREATED)])
    return since_when(run, record, series.get((run.case.id, KEY)))


def test_what_no_recorded_session_shows_is_new_in_this_run():
    new = since(46.8, 37.1, 37.4, 37.3, 38.1, 37.4, 37.2, 37.6)
    assert new == "new in this run; all 7 recorded sessions of 20 to 24 Nov were at the old level"


@pytest.mark.parametrize(
    ("now", "times", "first"),
    [
        (46.8, (37.1, 37.4, 37.3, 38.1, 37.4, 46.9, 46.5), 5),
        (30.0, (37.1, 37.4, 37.3, 38.1, 30.4, 30.2, 30.3), 4),
    ],
)
def test_it_is_so_since_the_newest_step_of_the_series_if_that_led_to_it(now, times, first):
    day = DAYS[first][-2:]
    assert since(now, *times) == f"since the session of {day} Nov, recorded on {COMMITS[first][:7]}"
    higher = since(1.5 * now, *times)
    assert higher.startswith("new in this run; all 7 "), "that step led elsewhere"


@pytest.mark.parametrize(
    ("now", "times", "words"),
    [
        (46.8, (37.1, 37.4, 37.3, 46.9, 37.4, 37.2, 37.6), "1 of the 7 … 24 Nov was"),
        (39.0, (37.1, 37.4, 37.3, 38.3, 37.4, 37.2, 38.4), "2 of the 7 … 24 Nov were"),
        (46.8, (37.1, 37.4, 37.3, 46.7), "1 of the 4 … 22 Nov was"),  # a short series
    ],
)
def test_without_a_step_sessions_that_were_as_slow_are_counted(now, times, words):
    told = words.replace("…", "recorded sessions of 20 to")
    assert since(now, *times) == f"{told} nearer to the new level"


def test_it_says_no_more_than_is_known_of_sessions():
    times = (37.1, 37.4, 37.3, 37.2, 46.7, 46.9, 46.5)
    assert since(46.8, *times, commits=[None] * 7) == "since the session of 22 Nov"
    assert since(46.8, *times, dirty=True).endswith(f"recorded on {COMMITS[4][:7]} with uncommitted changes")
    without_days = since(46.8, *times[:3], days=["2026-13-41"] * 7)
    assert without_days == "new in this run; all 3 recorded sessions were at the old level"
    alone = since(46.8, 37.1)
    assert alone == "new in this run; the recorded session of 20 Nov was at the old level"
    assert since(46.8) == ""
    assert since(float("inf"), *times) == ""


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (("2026-11-20",) * 3, "of 20 Nov "),
        (("2026-10-30", "2026-11-01", "2026-11-02"), "of 30 Oct to 2 Nov "),
        (("2025-12-30", "2026-01-01", "2026-01-02"), "of 30 Dec 2025 to 2 Jan 2026 "),
    ],
)
def test_days_have_their_month_once_and_their_year_where_these_differ(days, words):
    assert words in since(46.8, 37.1, 37.4, 37.3, days=days)


def test_wrong_results_were_never_recorded_whatever_their_times():
    wrong = result("cupy.exp", correctness=Correctness.INCORRECT)
    found = since_when(wrong, history(37.1, 37.4, 37.3, 46.9))
    assert found == "new in this run; none of the 4 recorded sessions of 20 to 22 Nov was wrong"


SUITES = Path(__file__).parents[3] / "suites"
BYTES = 160_000_000
"""What a kernel of 50 µs moves that is bound by memory, so that it is divided by the copy."""


@functools.cache
def recorded_canaries():
    """The canaries of all sessions that the suites' baselines hold: on six cards, on three days."""
    files = sorted(SUITES.glob("*/baselines/*.*-*.json"))
    records = (record for file in files for record in load(file).cases.values())
    sessions = {session.session: session for record in records for session in record.sessions}
    return [session.canaries for session in sessions.values()]


def series(times_ns, canaries, *, cards="A", traffic_bytes=BYTES, label="cupy.exp", scope="kernel"):
    timed = measured(times_ns[-1], scope, traffic_bytes=traffic_bytes)
    day = datetime(2026, 11, 1, tzinfo=UTC)
    newest = result(label, timed, ceilings=CEILINGS)
    times = []
    for n, (of, ns) in enumerate(zip(canaries, times_ns, strict=True)):
        known = {"recorded": str(day + timedelta(n)), "provenance": Provenance(f"{n:040x}"), "canaries": of}
        session = structs.replace(newest, session=f"s{n}", **known)
        time = structs.replace(timed, summary=structs.replace(timed.summary, median_ns=ns))
        times.append(SessionTime(time, device=cards[n % len(cards)], session=session))
    return Trend.of(newest, timed, times)


def drifting(draw, sessions, spread, step=1.0, at=0):
    """A kernel of 50 µs that moves with the canaries of its sessions, and is slower from one on."""
    usual = recorded_canaries()[0]["copy"]
    times = [5e4 * of["copy"] / usual * math.exp(draw.gauss(0, spread)) for of in sessions]
    return series([ns * step if n >= at else ns for n, ns in enumerate(times)], sessions)


def unchanged(draw, count, spreads):
    sessions = draw.choices(recorded_canaries(), k=count)
    return {number: drifting(draw, sessions, draw.choice(spreads)) for number in range(200)}


@pytest.mark.parametrize("count", [8, 10, 16, 20, 40])
@pytest.mark.parametrize("spreads", [(0.002,), (0.01,), (0.002, 0.004, 0.01, 0.03)])
def test_of_200_unchanged_series_with_the_drift_of_recorded_canaries_two_are_blamed_at_most(count, spreads):
    draw = random.Random(f"{count} {spreads}")
    trends = with_steps(unchanged(draw, count, spreads))
    assert trends[0].canaries == ("copy",)
    assert sum(bool(trend.steps) for trend in trends.values()) <= 2


def test_a_step_of_3_percent_in_noise_of_1_percent_is_found_among_200_unchanged_series():
    draw, found = random.Random(7), 0
    others = unchanged(draw, 16, (0.01,))
    for _ in range(100):
        before, after = draw.randint(8, 12), draw.randint(8, 12)
        sessions = draw.choices(recorded_canaries(), k=before + after)
        trend = with_steps({**others, "new": drifting(draw, sessions, 0.01, 1.03, before)})["new"]
        found += len(trend.steps) == 1 and abs(trend.steps[0] - before) <= 3
    assert found >= 95


@pytest.mark.parametrize(("before", "after"), [(14, 3), (8, 8), (3, 14), (6, 2)])
def test_a_step_far_above_the_noise_is_found_where_it_is(before, after):
    """By ranks alone, a quarter is found some sessions too early or too late."""
    draw, found = random.Random(0), []
    for _ in range(60):
        times = [5e4 * (1 + 0.004 * draw.gauss(0, 1)) for _ in range(before + after)]
        times[before:] = [ns * 1.05 for ns in times[before:]]
        steps = with_steps({"it": series(times, [CANARIES] * len(times))})["it"].steps
        found += [before in steps] if steps else []
    assert sum(found) >= 0.95 * len(found) > 0


CANARIES = {"copy": 1e5, "fma": 2e5, "launch": 640.0}
QUIET = [1.0, 1.001, 0.999, 1.0005, 0.9995]
"""What a time is multiplied by in session after session."""


def quiet(*levels, canaries=(), **changes):
    """A series of five sessions at each level; each level has canaries that took so much longer."""
    slower = canaries or [1.0] * len(levels)
    known = [{name: ns * by for name, ns in CANARIES.items()} for by in slower for _ in QUIET]
    times = [5e4 * level * noise for level in levels for noise in QUIET]
    return with_steps({"it": series(times, known, **changes)})["it"]


def test_a_machine_that_became_slower_is_no_step_of_a_kernel_unless_it_has_no_canary():
    assert not quiet(1.0, 1.03, canaries=(1.0, 1.03)).steps
    alone = quiet(1.0, 1.03, canaries=(1.0, 1.03), label="host.exp", scope="end_to_end")
    told = "+3.0 % since the session of 6 Nov, recorded on 0000000; not divided by canaries"
    assert (alone.change, alone.times_ns[0]) == (told, 5e4)


@pytest.mark.parametrize(
    ("changes", "canaries"),
    [
        ({}, ("copy",)),
        ({"traffic_bytes": 1000}, ("fma",)),
        ({"traffic_bytes": None}, ("copy", "fma")),
        ({"scope": "transfer"}, ()),
        ({"label": "host.exp"}, ()),
    ],
)
def test_a_kernel_is_divided_by_the_canaries_of_its_class(changes, canaries):
    assert quiet(1.0, **changes).canaries == canaries


def test_a_series_may_have_several_steps_and_the_newest_level_is_what_is_said():
    trend = quiet(1.0, 1.1, 1.05, 1.05)
    assert trend.steps == (5, 10)
    assert [level.median_ns for level in trend.levels] == pytest.approx([50_000, 55_000, 52_500])
    assert trend.change.startswith("−4.5 % since the session of 11 Nov, recorded on 0000000")


def test_outliers_tiny_steps_and_short_series_are_no_steps():
    known, usual = [CANARIES] * 12, [5e4 * noise for noise in (*QUIET, *QUIET)]
    for times in ([*usual, 8e4, 9e4], [5e4, *usual, 9e4], [8e4, *usual, 9e4]):
        assert not with_steps({"it": series(times, known)})["it"].steps
    assert not quiet(1.0, 1.004).steps
    assert not with_steps({"it": series([*usual[:4], *[6e4] * 3], known[:7])})["it"].steps


def test_it_is_said_if_it_may_be_the_card():
    assert "; no card was measured on both sides" in quiet(1.0, 1.1, cards="AAAAABBBBB").change
    assert "card" not in quiet(1.0, 1.1, cards="AAAABBBBBB").change
