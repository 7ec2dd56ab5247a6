"""Checks what we conclude about the gate from recorded sessions, which are made up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from made_up_selftest import CASES, FAMILY, UNCHANGED, gate_recording, gate_session

from pytest_gpukern.selftest.gate_results import (
    Replay,
    Share,
    SimulationTarget,
    Trial,
    apart,
    conclude,
    drawn,
    in_order,
    median_failed,
    nvbench_slow,
)
from pytest_gpukern.selftest.gate_simulation import SimulationRow
from pytest_gpukern.selftest.recording import GateRecording, NvbenchReading, read_recording
from pytest_gpukern.selftest.tables import render_gate
from pytest_gpukern.values.verdict_table import VerdictKind

RECORDED = Path(__file__).parents[2] / "data" / "selftest-gate-h200.json"
DRAWS = 40
PLANTED = [case for case in CASES if case.base]


@pytest.fixture(scope="module")
def steady():
    return conclude(gate_recording(), draws=DRAWS)


def row_of(rows, **values):
    (found,) = (row for row in rows if all(getattr(row, name) == value for name, value in values.items()))
    return found


# which sessions take which part


def test_in_order_every_session_behind_the_record_is_judged_once_and_confirmed_by_the_next_two():
    trials = in_order(10)
    assert [trial.candidate for trial in trials] == [5, 6, 7, 8, 9]
    assert {trial.record for trial in trials} == {(0, 1, 2, 3, 4)}
    assert [trial.fresh for trial in trials] == [(6, 7), (7, 8), (8, 9), (9, 5), (5, 6)]
    assert all(trial.candidate not in trial.fresh for trial in trials)


def test_drawn_trials_use_a_session_once_each_and_are_the_same_every_time():
    trials = drawn(12, 50)
    for trial in trials:
        assert len({*trial.record, trial.candidate, *trial.fresh}) == 8
    assert len({trial.record for trial in trials}) > 20
    assert drawn(12, 50) == trials


def test_trials_apart_share_nothing_but_the_record():
    own = [number for trial in apart(in_order(40)) for number in (trial.candidate, *trial.fresh)]
    assert len(own) == len(set(own)) == 33
    assert min(own) == 5


@pytest.mark.parametrize("sessions", [0, 5, 7])
def test_too_few_sessions_give_no_trial(sessions):
    assert in_order(sessions) == drawn(sessions, 10) == []


# what the gate says


def test_unchanged_kernels_raise_no_alarm_and_are_enough_to_say_so_from_a_thousand_on(steady):
    row = row_of(steady.same, threshold=0.02)
    assert (row.judged, row.slower, row.same) == (35 * len(UNCHANGED), 0, 35 * len(UNCHANGED))
    assert row.reached is None, "210 comparisons are no thousand"
    enough = dataclasses.replace(row, judged=1000)
    assert enough.reached
    assert Share(0, 1000).interval[1] == pytest.approx(0.0037, abs=0.0001)
    case = row_of(steady.cases, case="gemm 256 f32, hot")
    assert (case.spread, case.detectable) == (pytest.approx(1e-4, rel=0.4), pytest.approx(0.02, rel=0.1))


def test_a_false_alarm_misses_the_target_however_little_was_judged_and_is_named():
    slow = {number: {"slower": {"copy 16 MiB, cold": 1.05}} for number in (20, 21, 22)}
    found = conclude(gate_recording(changed=slow), draws=0)
    row = row_of(found.same, threshold=0.02)
    assert (row.suspected, row.slower, row.reached) == (3, 1, False), "only 20 is followed by two slow ones"
    assert row.alarms == {"copy 16 MiB, cold": 1}
    assert not found.reached


def test_planted_work_is_caught_at_half_its_size_and_read_as_large_as_it_is(steady):
    for case in PLANTED:
        row = row_of(steady.planted, share=case.share)
        assert row.base == FAMILY
        assert row.threshold == pytest.approx(case.share / 2, rel=0.21)
        assert row.reads == pytest.approx(case.share, abs=1e-4)
        assert (row.ordered, row.apart, row.drawn) == (Share(35, 35), Share(11, 11), Share(DRAWS, DRAWS))
    assert [row.reached for row in steady.planted] == [True, True, None, True]


def test_a_kernel_too_noisy_for_a_target_is_not_held_to_it_and_says_what_it_could_see():
    found = conclude(gate_recording(spread=0.004), draws=DRAWS)
    half_a_percent = row_of(found.planted, share=0.005)
    assert half_a_percent.drawn.value < 0.95
    assert (half_a_percent.resolvable, half_a_percent.reached) == (False, None)
    assert half_a_percent.detectable > 0.005
    assert all(row.detectable > 0.02 for row in found.cases)


def test_planted_work_that_is_not_caught_though_it_should_be_misses_its_target():
    found = conclude(gate_recording(slower={"fma 9600 trips +1 %, cold": 1 / 1.01}), draws=DRAWS)
    row = row_of(found.planted, share=0.01)
    assert (row.drawn.count, row.resolvable, row.reached) == (0, True, False)


def test_a_lower_clock_moves_times_and_not_cycles(steady):
    (row,) = steady.clocks
    assert (row.case, row.lower, row.threshold) == (FAMILY, 0.01, 0.005)
    assert (row.times, row.cycles) == (Share(DRAWS, DRAWS), Share(0, DRAWS))
    assert row.reached


def test_the_gate_is_asked_about_a_planted_case_with_the_record_of_its_base():
    replay = Replay(gate_recording(10), 0)
    trial = Trial((0, 1, 2, 3, 4), 5, (6, 7))
    more = next(case for case in PLANTED if case.share == 0.05)
    judged = replay.judge(more, trial, 0.02)
    assert judged.screened.suspected
    assert judged.final.kind is VerdictKind.SLOWER
    assert judged.final.sessions == 2
    assert judged.final.ratio == pytest.approx(1.05, abs=1e-3)
    assert replay.judge(replay.cases[FAMILY], trial, 0.02).final.kind is VerdictKind.SAME


def test_a_suspicion_that_fresh_sessions_do_not_share_is_dropped():
    replay = Replay(gate_recording(10, changed={5: {"slower": {FAMILY: 1.05}}}), 0)
    judged = replay.judge(replay.cases[FAMILY], Trial((0, 1, 2, 3, 4), 5, (6, 7)), 0.02)
    assert judged.screened.suspected
    assert judged.final.kind is VerdictKind.SAME


# others


@pytest.mark.parametrize(("current", "failed"), [(102.0, False), (102.001, True), (90.0, False)])
def test_pytest_benchmark_fails_above_its_percentage(current, failed):
    from pytest_benchmark.utils import PercentageRegressionCheck

    assert median_failed(100.0, current, 0.02) is failed
    theirs = PercentageRegressionCheck("median", 2.0).fails({"median": current}, {"median": 100.0})
    assert bool(theirs) is failed


@pytest.mark.parametrize(
    ("current", "noise", "slow"),
    [(101.0, 0.02, False), (101.0, 0.009, True), (99.0, 0.009, False), (101.0, 0.5, False)],
)
def test_nvbench_says_slow_where_the_mean_grew_by_more_than_the_smaller_deviation(current, noise, slow):
    stored = NvbenchReading("x", 100.0, 0.1 if noise < 0.1 else 0.011)
    assert nvbench_slow(stored, NvbenchReading("x", current, noise)) is slow


def test_every_tool_is_asked_the_same_of_its_own_data(steady):
    caught = {row.tool: row.caught[FAMILY] for row in steady.rules if row.share == 0.05}
    assert caught.keys() == {"gpukern", "pytest-benchmark", "NVBench"}
    assert (caught["gpukern"], caught["NVBench"]) == (Share(35, 35), Share(45, 45))
    alarms = {(row.tool, row.threshold): row.alarms for row in steady.rules}
    assert alarms["gpukern", 0.0025].count == 0
    assert alarms["pytest-benchmark", 0.0025].value > 0.1, "wall times differ by 1 % from session to session"
    assert alarms["pytest-benchmark", 0.0025].trials == 35 * len(UNCHANGED)
    assert alarms["NVBench", None].trials == 45


# shares and targets


@pytest.mark.parametrize(
    ("count", "trials", "low", "high"),
    [  # SciPy's binomtest(…).proportion_ci(method="exact")
        (0, 10, 0.0, 0.3084971078187608),
        (11, 11, 0.7150867513, 1.0),
        (3, 40, 0.0157226, 0.2038637),
        (35, 1050, 0.0233302, 0.0460594),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_interval_of_a_share_is_clopper_and_pearson_s(count, trials, low, high):
    assert Share(count, trials).interval == pytest.approx((low, high), abs=2e-4)


@pytest.mark.parametrize(("false_runs", "reached"), [(10, True), (12, None), (30, False)])
def test_simulated_false_alarms_are_few_too_many_or_too_few_runs_to_tell(false_runs, reached):
    assert SimulationTarget(120, 5, Share(false_runs, 200)).reached is reached


def test_of_the_simulation_the_gate_at_its_default_with_five_recorded_sessions_has_the_target():
    counts = {"runs": 200, "judged": 24_000, "false": 300, "false_runs": 180, "slowed": 100, "caught": 80}
    rows = [
        SimulationRow("noisy", rule, sessions, threshold, change=0.05, **counts)
        for rule, sessions, threshold in (
            ("gpukern", 3, 0.02),
            ("gpukern", 5, 0.02),
            ("gpukern", 5, 0.005),
            ("Mann-Whitney, p < 0.05", 5, None),
        )
    ]
    found = conclude(dataclasses.replace(gate_recording(0), no_gpu="none"), rows, draws=1)
    assert [(row.sessions, row.runs, row.reached) for row in found.simulated] == [(5, Share(180, 200), False)]
    assert not found.reached


def test_what_is_missing_misses_a_target():
    made = gate_recording(8)
    ill = gate_session(8, faults={"gemm 256 f32, hot": "3 of 256 results are wrong"})
    lost = dataclasses.replace(gate_session(9), problem="it ended with status 1")
    made = dataclasses.replace(made, sessions=(*made.sessions, ill, lost), asked_sessions=11)
    assert conclude(made, draws=2).missing == (
        "session 10 failed: it ended with status 1",
        "10 of 11 sessions were run",
        "gemm 256 f32, hot: 3 of 256 results are wrong (1 of 9 sessions)",
    )
    few = conclude(gate_recording(7), draws=2)
    assert "too few for a trial" in few.missing[0]
    assert not few.reached


def test_a_session_that_lacks_a_case_is_passed_over_for_that_case():
    made = gate_recording(9)
    poorer = dataclasses.replace(made.sessions[7], readings=made.sessions[7].readings[1:])
    sessions = (*made.sessions[:7], poorer, made.sessions[8])
    found = conclude(dataclasses.replace(made, sessions=sessions), draws=0)
    row = row_of(found.same, threshold=0.02)
    assert row.judged == 4 * len(UNCHANGED) - 3, "it took part in three of the case's four trials"
    assert row_of(found.cases, case=made.sessions[7].readings[0].case).sessions == 8


# the table, and a run that was recorded on an H200


def test_the_table_shows_verdicts_shares_intervals_and_other_tools(steady):
    lines = render_gate(gate_recording(), steady, width=140)
    assert lines[0].startswith(
        "gpukern selftest --gate: NVIDIA H200 · driver 580.159, CUDA 13.0 · 2026-11-20"
    )
    same = next(line for line in lines if line.startswith("        2 %"))
    assert " ".join(same.split()[2:]) == "210 0 0 1.74 % 0 210 0 0 too few to tell"
    planted = next(line for line in lines if line.startswith("  fma 9600 trips  +0.5 %"))
    assert "35/35  11/11: 72 … 100 %  40/40" in planted
    assert planted.endswith("≥ 95 %  reached")
    clock = next(line for line in lines if line.startswith("  fma 9600 trips   −1 %"))
    assert clock.split()[-3:] == ["40/40", "0/40", "reached"]
    for tool in ("gpukern", "pytest-benchmark", "NVBench"):
        assert any(line.split()[:1] == [tool] and " of " in line for line in lines), tool
    assert lines[-1] == "4 of 4 targets reached"


def test_a_run_that_was_recorded_on_an_h200_reaches_every_target_that_its_noise_allows():
    concluded = conclude(read_recording(RECORDED, GateRecording), draws=200)
    assert concluded.missing == ()
    row = row_of(concluded.same, required=True)
    assert row.judged >= 1000
    assert row.reached
    assert [row for row in concluded.planted if row.reached is False] == []
    long = [row for row in concluded.planted if row.base.startswith(("fma 9600", "add 32 M")) and row.target]
    assert [row.reached for row in long] == [True] * 6
    resolved = {row.case: row.reached for row in concluded.clocks}
    assert resolved["fma 9600 trips, cold"] is True
    assert all(row.cycles.count == 0 for row in concluded.clocks)
    assert False not in resolved.values()
