"""Checks that times which creep while sessions are appended are caught amid the simulation's noise."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_times import HERE, measured, recorded

np = pytest.importorskip("numpy")

from gate_simulation import NOISY, QUIET, draw  # noqa: E402

from pytest_gpukern.gate.change import FRESH_SESSIONS  # noqa: E402
from pytest_gpukern.gate.judge import FALSE_ALARMS, Basis, confirm, judge  # noqa: E402
from pytest_gpukern.gate.spread import shared_spread, spread_key  # noqa: E402
from pytest_gpukern.values.verdict_table import VerdictKind  # noqa: E402

KEY = "kernel/cupti/cold"
CASES, COMMITS, THRESHOLD = 25, 20, 0.02
FIRST, APPENDED, KEPT = 5, 5, 20
TAKEN = 1 + FRESH_SESSIONS + APPENDED


def history(noise, step, *, seed=7):
    """Returns, commit by commit, which cases became SLOWER; those that did not get their sessions appended.

    Args:
        step: by how much each commit is slower than the one before.
    """
    samples = draw(
        dataclasses.replace(noise, cases=CASES), FIRST + COMMITS * TAKEN, np.random.default_rng(seed)
    )
    low, median, high = np.quantile(samples, (0.4, 0.5, 0.6), axis=2)
    half = (high - low) / median / 2

    def taken(make, case, first, count, factor=1.0, **changes):
        sessions = [(factor * median[n, case], half[n, case]) for n in range(first, first + count)]
        return [make(*map(float, each), key=KEY, **changes) for each in sessions]

    records = [taken(recorded, case, 0, FIRST, opening=True) for case in range(CASES)]
    slower = []
    for commit in range(COMMITS):
        shared, slower_now = shared_spread(records)[spread_key(KEY)], []
        for case, record in enumerate(records):
            place = case, FIRST + commit * TAKEN
            first, *fresh = taken(measured, *place, 1 + FRESH_SESSIONS, (1 + step) ** (commit + 1))
            basis = Basis(record, HERE, THRESHOLD, shared=shared)
            verdict = judge([first], basis)
            if verdict.suspected and confirm(verdict, fresh, basis).kind is VerdictKind.SLOWER:
                slower_now.append(case)
                continue
            appended = taken(recorded, *place, TAKEN, (1 + step) ** (commit + 1))[-APPENDED:]
            record[FIRST:] = [*record[FIRST:], *appended][FIRST - KEPT :]
        slower.append(slower_now)
    return slower


def caught_at(noise, step):
    """Returns the commit at which each case was called SLOWER first, of those that were."""
    commits = history(noise, step)
    cases = {case for slower in commits for case in slower}
    return [next(number for number, slower in enumerate(commits, 1) if case in slower) for case in cases]


@pytest.mark.parametrize("noise", [QUIET, NOISY], ids=["quiet", "noisy"])
def test_one_per_cent_a_commit_is_caught_though_each_commit_is_appended(noise):
    commits = caught_at(noise, 0.01)
    assert len(commits) >= 0.95 * CASES
    assert np.median(commits) <= 6


def test_unchanged_code_that_is_appended_for_twenty_commits_is_blamed_as_seldom_as_aimed_at():
    blamed = [case for seed in range(2) for slower in history(NOISY, 0.0, seed=seed) for case in slower]
    assert len(blamed) <= 1 + 2 * 2 * CASES * COMMITS * FALSE_ALARMS[THRESHOLD][FIRST]
    assert not any(history(QUIET, 0.0))
