"""Replays what an idle and a busy host recorded: other programs explain much, but not everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from busy_host import IDLE, RUNS, replay

from pytest_gpukern.values.verdict_table import VerdictKind

SESSIONS = json.loads((Path(__file__).parents[2] / "data/busy-host.json").read_text(encoding="utf-8"))
CASES = list(SESSIONS[IDLE][0])
LONG_IN_THREADS = ["threads 25 ms", "threads matmul"]


@pytest.mark.parametrize("how", [IDLE, "busy", "pairs"])
@pytest.mark.parametrize("case", CASES)
def test_beside_other_programs_unchanged_code_is_never_slower_and_302_times_the_work_is(case, how):
    assert VerdictKind.SLOWER not in replay(SESSIONS, case, 1.0, how)
    if not case.startswith("threads"):
        assert replay(SESSIONS, case, 302.0, how)[VerdictKind.SLOWER] == RUNS
    elif case in LONG_IN_THREADS:
        assert replay(SESSIONS, case, 302.0, how)[VerdictKind.SLOWER] >= 0.9 * RUNS


@pytest.mark.parametrize(
    ("case", "how"),
    [("add 15 µs", IDLE), ("Numba 70 µs", IDLE), ("Python 3 ms", "pairs"), ("Python 60 ms", "pairs")],
)
def test_30_percent_more_work_in_one_thread_is_found(case, how):
    assert replay(SESSIONS, case, 1.3, how)[VerdictKind.SLOWER] >= 0.9 * RUNS
