"""Checks a short run of the gate's simulation; docs/explanation/evidence.md has the figures of a full one."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from pytest_gpukern.selftest.gate_simulation import NOISY, QUIET, RULES, draw, simulate  # noqa: E402


@pytest.fixture(scope="module")
def rows():
    return simulate(15, seed=5, sessions=(5,))


def row_of(rows, **wanted):
    (found,) = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    return found


def test_unchanged_code_is_hardly_ever_confirmed_slower(rows):
    """0.03 % of 1800 cases is half a one; five or more would come less than once in a thousand times."""
    row = row_of(rows, noise="noisy", rule="gpukern", threshold=0.02)
    assert (row.runs, row.judged) == (15, 1800)
    assert row.false <= 4
    assert row.false_runs <= row.false


def test_a_smaller_threshold_blames_more_amid_that_noise(rows):
    at = {row.threshold: row for row in rows if (row.noise, row.rule) == ("noisy", "gpukern")}
    assert at.keys() == {0.02, 0.01, 0.005, 0.0025, 0.0}
    assert at[0.0].false >= at[0.005].false
    assert at[0.0].caught > at[0.01].caught


def test_a_slowdown_of_five_per_cent_is_caught_in_most_cases_amid_that_noise(rows):
    row = row_of(rows, noise="noisy", rule="gpukern", threshold=0.02)
    assert 0.78 < row.caught / row.slowed < 0.9


@pytest.mark.parametrize(("change", "threshold", "share"), [(0.005, 0.0025, 0.95), (0.01, 0.005, 0.99)])
def test_small_slowdowns_of_quiet_kernels_are_caught_and_no_neighbour_is_blamed(
    rows, change, threshold, share
):
    row = row_of(rows, noise="quiet", change=change, threshold=threshold)
    assert row.caught >= share * row.slowed
    assert row.false == 0


@pytest.mark.parametrize("rule", RULES)
def test_other_rules_blame_a_case_in_nearly_every_run(rows, rule):
    row = row_of(rows, rule=rule)
    assert row.false_runs >= row.runs / 2
    assert row.false > 0.005 * row.judged


@pytest.mark.parametrize("noise", ["noisy", "host"])
@pytest.mark.parametrize("pairs", [2, 4])
def test_pairs_of_two_revisions_hold_the_same_line(rows, noise, pairs):
    """Planted are +5 % in kernels, and twice the time on a host."""
    row = row_of(rows, noise=noise, rule="gpukern, two revisions in pairs", sessions=pairs)
    assert row.false <= 3
    assert row.caught > 0.8 * row.slowed


def test_the_same_seed_gives_the_same_table():
    assert simulate(1, seed=9, sessions=(3,)) == simulate(1, seed=9, sessions=(3,))


def test_the_noise_is_as_it_says():
    rng = np.random.default_rng(1)
    medians = np.log(np.median(draw(QUIET, 400, rng), axis=2))
    spread = medians.std(axis=0)
    assert 0.00008 < spread.min() < spread.max() < 0.002
    spread = np.log(np.median(draw(NOISY, 400, rng), axis=2)).std(axis=0)
    assert 0.005 < np.median(spread) < 0.009
