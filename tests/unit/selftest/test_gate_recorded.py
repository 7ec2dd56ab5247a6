"""The gate on sessions that were recorded on an H200: logic only, no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpukern.selftest.gate_recording import read_gate_recording
from pytest_gpukern.selftest.gate_targets import conclude

RECORDED = Path(__file__).parents[1].parent / "data" / "selftest-gate-h200.json"


@pytest.fixture(scope="module")
def concluded():
    return conclude(read_gate_recording(RECORDED), draws=200)


def test_a_thousand_comparisons_of_unchanged_kernels_had_no_confirmed_alarm(concluded):
    (row,) = (row for row in concluded.same if row.required)
    assert row.judged >= 1000
    assert row.reached


def test_planted_work_was_caught_wherever_noise_allows_it(concluded):
    assert [row for row in concluded.planted if row.reached is False] == []
    long = [row for row in concluded.planted if row.base.startswith(("fma 9600", "add 32 M")) and row.target]
    assert len(long) == 6
    assert all(row.reached for row in long)


def test_a_lower_clock_moves_times_and_not_cycles(concluded):
    resolved = {row.case: row.reached for row in concluded.clocks}
    assert resolved["fma 9600 trips, cold"] is True
    assert all(row.cycles.count == 0 for row in concluded.clocks)
    assert False not in resolved.values()


def test_nothing_is_missing(concluded):
    assert concluded.missing == ()
