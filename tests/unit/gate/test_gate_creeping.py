"""Checks that times which creep while sessions are appended are caught amid the simulation's noise."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec import structs

np = pytest.importorskip("numpy")

from gate_simulation import NOISY, QUIET, draw  # noqa: E402

from pytest_gpukern.gate.change import FRESH_SESSIONS  # noqa: E402
from pytest_gpukern.gate.comparability import Conditions, SessionTime  # noqa: E402
from pytest_gpukern.gate.judge import FALSE_ALARMS, Basis, confirm, judge  # noqa: E402
from pytest_gpukern.gate.spread import SharedSpread, shared_spread, spread_key  # noqa: E402
from pytest_gpukern.values.result import Measurement, Summary  # noqa: E402
from pytest_gpukern.values.verdict_table import VerdictKind  # noqa: E402

KEY = "kernel/cupti/cold"
HERE = Conditions(1, {}, "made-up")
COMMITS = 20
FIRST = 5
KEPT = 20
THRESHOLD = 0.02


def session(samples):
    low, median, high = np.quantile(samples, (0.4, 0.5, 0.6)).tolist()
    return SessionTime(len(samples), median, low, high, key=KEY, conditions=HERE)


def measurement(time):
    summary = Summary(time.median_ns, time.low_ns, time.high_ns, time.n)
    return Measurement("kernel", "cupti", "", "cold", (), 1, summary, "")


def scaled(time, factor):
    times = {name: factor * getattr(time, name) for name in ("median_ns", "low_ns", "high_ns")}
    return structs.replace(time, **times)


def history(noise, step, *, anchored=True, seed=7):
    """Yields, commit by commit, which cases became SLOWER; those that did not get their sessions appended.

    Args:
        step: by how much each commit is slower than the one before.
    """
    rng = np.random.default_rng(seed)
    cases = dataclasses.replace(noise, cases=40)
    drawn = [[session(s) for s in each] for each in draw(cases, FIRST + COMMITS * 8, rng)]
    first = [[structs.replace(time, opening=anchored) for time in each] for each in drawn[:FIRST]]
    records = [[each[case] for each in first] for case in range(cases.cases)]
    for commit in range(1, COMMITS + 1):
        fresh = drawn[FIRST + 8 * (commit - 1) : FIRST + 8 * commit]
        shared = shared_spread(records)[spread_key(KEY)]
        slower = []
        for case, record in enumerate(records):
            new = [scaled(each[case], (1 + step) ** commit) for each in fresh]
            basis = Basis(record, HERE, THRESHOLD, 0.0, shared=shared)
            verdict = judge([measurement(new[0])], basis)
            if verdict.suspected:
                verdict = confirm(verdict, [measurement(each) for each in new[1 : 1 + FRESH_SESSIONS]], basis)
            if verdict.kind is VerdictKind.SLOWER:
                slower.append(case)
                continue
            record += new[1 + FRESH_SESSIONS :]
            del record[FIRST : max(FIRST, FIRST + len(record) - KEPT)]
        yield slower


def caught_at(noise, step, **changes):
    """Returns case → the commit at which it was called SLOWER first."""
    first = {}
    for commit, slower in enumerate(history(noise, step, **changes), 1):
        for case in slower:
            first.setdefault(case, commit)
    return first


@pytest.mark.parametrize("noise", [QUIET, NOISY], ids=["quiet", "noisy"])
def test_one_per_cent_a_commit_is_caught_though_each_commit_is_appended(noise):
    first = caught_at(noise, 0.01)
    assert len(first) >= 0.95 * 40
    assert np.median(list(first.values())) <= 6


def test_without_the_first_sessions_it_creeps_on():
    assert len(caught_at(QUIET, 0.01, anchored=False)) <= 0.1 * 40


def test_unchanged_code_that_is_appended_for_twenty_commits_is_blamed_as_seldom_as_aimed_at():
    blamed = sum(len(slower) for seed in range(2) for slower in history(NOISY, 0.0, seed=seed))
    judged = 2 * 40 * COMMITS
    assert blamed <= 1 + 2 * judged * FALSE_ALARMS[THRESHOLD][5]
    assert not any(history(QUIET, 0.0))


def of(*percents):
    return [
        scaled(SessionTime(100, 1e6, 1e6, 1e6, key=KEY, conditions=HERE), 1 + percent / 100)
        for percent in percents
    ]


CREPT = [structs.replace(time, opening=True) for time in of(0, 0.1, -0.1, 0.05, -0.05)]
CREPT += of(*[1.5, 1.6, 1.4] * 5)
SUITE = SharedSpread(0.002, 20.0, cases=30)


def test_what_is_slower_than_the_first_sessions_says_so_and_is_decided_by_fresh_ones():
    basis = Basis(CREPT, HERE, THRESHOLD, 0.0, shared=SUITE)
    suspicion = judge([measurement(each) for each in of(3)], basis)
    assert (suspicion.kind, suspicion.suspected) == (VerdictKind.SLOWER, True)
    assert suspicion.ratio == pytest.approx(1.03, rel=1e-3)
    assert " since the epoch's first 5 sessions, threshold 2 %; +1.9 % (90 %: " in suspicion.reason
    found = confirm(suspicion, [measurement(each) for each in of(3, 3.1)], basis)
    assert (found.kind, found.suspected) == (VerdictKind.SLOWER, False)
    assert found.ratio == pytest.approx(1.0305, rel=1e-3)
    again = confirm(suspicion, [measurement(each) for each in of(1.5, 1.5)], basis)
    assert again.kind is VerdictKind.SAME
