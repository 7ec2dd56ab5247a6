"""Checks what each mode of baselines reads and writes, and the file of a run."""

import re

import pytest

from pytest_gpukern.baseline.codec import load

from .conftest import FIRST, SECOND, results_in


def baseline_file(pytester):
    (path,) = (pytester.path / "baselines").iterdir()
    return path


def record_of(path, case_id=FIRST):
    return load(path).cases[case_id]


def median_of(epoch):
    return epoch.sessions[0].time("kernel/event/cold").summary.median_ns


def test_create_writes_a_file_a_problem_and_device_model_and_later_adds_what_is_missing(
    gpu, pytester, monkeypatch
):
    result = gpu("--gpukern-baseline=create", "-k", "first")
    path = baseline_file(pytester)
    assert path.name == "doubling.fake-gpu.json"
    result.stdout.fnmatch_lines([f"gpukern: wrote {path}"])
    before = record_of(path)
    assert [median_of(epoch) for epoch in before.epochs] == pytest.approx([1000])
    monkeypatch.setenv("FIRST_TAKES_NS", "990")
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    assert len(load(path).cases) == 2
    assert record_of(path) == before


def test_update_opens_a_new_epoch_and_later_runs_are_told_against_the_first(recorded, pytester, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1060")
    update = ("--gpukern-baseline=update", "--gpukern-reason=new tiles", "--gpukern-sessions=3")
    recorded(*update, "-k", "first").assert_outcomes(passed=1, deselected=1)
    epochs = record_of(baseline_file(pytester)).epochs
    assert [median_of(epoch) for epoch in epochs] == pytest.approx([1000, 1060])
    assert [epoch.reason for epoch in epochs] == [None, "new tiles"]
    assert len(record_of(baseline_file(pytester), SECOND).epochs) == 1
    recorded("--gpukern-report=run.json").assert_outcomes(passed=2)
    (verdict,) = results_in(pytester.path / "run.json")[FIRST]["verdicts"].values()
    assert (verdict["kind"], verdict["anchor"]) == ("SAME", pytest.approx(1.06, rel=1e-3))
    assert "since the first epoch +6.0 %" in verdict["reason"]


def test_a_time_that_creeps_while_sessions_are_appended_fails_against_the_epochs_first_ones(
    recorded, pytester, monkeypatch
):
    path = baseline_file(pytester)
    path.write_text(re.sub(r"20\d\d-\d\d-\d\dT[\d:]+Z", "2026-01-01T00:00:00Z", path.read_text()))
    for takes_ns in (1010, 1020, 1030):
        monkeypatch.setenv("FIRST_TAKES_NS", str(takes_ns))
        result = recorded("--gpukern-baseline=append", "-k", "first")
        result.assert_outcomes(passed=int(takes_ns < 1030), failed=int(takes_ns == 1030), deselected=1)
    result.stdout.fnmatch_lines(
        ["SLOWER (kernel/event/cold): *since the epoch's first 3 sessions, threshold*"]
    )
    (epoch,) = load(path).cases[FIRST].epochs
    medians = [session.time("kernel/event/cold").summary.median_ns for session in epoch.sessions]
    assert max(medians) == pytest.approx(1020), "what failed is not appended"


def test_comparing_writes_nothing_and_makes_no_folder(gpu, pytester):
    gpu().assert_outcomes(passed=2)
    assert not (pytester.path / "baselines").exists()
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    path = baseline_file(pytester)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    gpu().assert_outcomes(passed=2)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_off_neither_judges_nor_even_reads(recorded, pytester, monkeypatch):
    baseline_file(pytester).write_text("damaged")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=off", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    assert results_in(pytester.path / "run.json")[FIRST]["verdicts"] == {}


FAILS_BY_ITSELF = """
    assert "first" not in case.id

@pytest.fixture(autouse=True)
def _left(case):
    yield
    assert "third" not in case.id

@doubling.variant("numba")
def third(x, y):
    return launch_of("THIRD", x, y)

@doubling.variant("numba")
def wrong(x, y):
    return lambda: None
"""


def test_what_is_wrong_or_failed_by_itself_or_at_its_teardown_is_not_recorded(gpu, pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + FAILS_BY_ITSELF)
    result = gpu("--gpukern-baseline=create")
    result.assert_outcomes(passed=2, failed=2, errors=1)
    assert load(baseline_file(pytester)).cases.keys() == {SECOND}
    result.stdout.fnmatch_lines(
        [
            "gpukern: 1 passed, 1 incorrect, 2 failed otherwise *",
            f"gpukern: not recorded: its test failed ({FIRST}, {FIRST.replace('first', 'third')})",
        ]
    )


def test_what_failed_by_itself_is_not_recorded_though_the_gate_would_have_failed_it_too(
    recorded, pytester, monkeypatch
):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + "\n    assert 'first' not in case.id\n")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=update", "--gpukern-reason=x", "-k", "first")
    assert len(record_of(baseline_file(pytester)).epochs) == 1
    result.stdout.fnmatch_lines(
        ["gpukern: 0 passed, 1 failed otherwise*", f"gpukern: not recorded: its test failed ({FIRST})"]
    )


def test_a_folder_of_baselines_that_is_not_there_is_named(gpu):
    result = gpu("--gpukern-baseline-dir=nowhere", "--gpukern-fail-on=new")
    new = "NEW (kernel/event/cold): nothing recorded yet: there is no folder *nowhere"
    result.stdout.fnmatch_lines([new, "gpukern: nothing is on record yet; to record: *-dir=nowhere"])


def test_a_run_that_is_refused_leaves_the_file_of_an_earlier_run_alone(recorded, pytester):
    recorded("--gpukern-report=run.json")
    before = (pytester.path / "run.json").read_bytes()
    assert recorded("--gpukern-report=run.json", "--gpukern-axis=m=1").ret == pytest.ExitCode.USAGE_ERROR
    assert (pytester.path / "run.json").read_bytes() == before
