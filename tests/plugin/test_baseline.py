"""Checks what each mode of baselines reads and writes, and the file of a run."""

import json
import re

import pytest

from pytest_gpukern.baseline.codec import COLUMNS, load

from .conftest import FIRST, results_in

HOST_IDS = {f"doubling/host.{variant}/n={n}" for n in (8, 9) for variant in ("multiply", "add")}


def baseline_file(pytester, folder="baselines"):
    (path,) = (pytester.path / folder).iterdir()
    return path


def record_of(path, case_id=FIRST):
    return json.loads(path.read_text())["records"][case_id]


def median_of(epoch):
    content = epoch["sessions"][0]["times"]["kernel/event/cold"]
    return content[COLUMNS.index("median_ns")]


def test_create_writes_one_file_a_problem_and_device_model_and_says_so(gpu, pytester):
    result = gpu("--gpukern-baseline=create")
    path = baseline_file(pytester)
    assert path.name == "doubling.fake-gpu.json"
    result.stdout.fnmatch_lines([f"gpukern: wrote {path}"])
    (epoch,) = record_of(path)["epochs"]
    assert len(epoch["sessions"]) == 1
    assert median_of(epoch) == pytest.approx(1000)


def test_host_variants_are_recorded_under_the_processors_model(host, pytester):
    host("--gpu-benchmark", "--gpukern-baseline=create").assert_outcomes(passed=4)
    content = json.loads(baseline_file(pytester).read_text())
    assert content["records"].keys() == HOST_IDS
    assert content["device_model"] in baseline_file(pytester).name


def test_create_adds_what_is_missing_and_leaves_what_is_there(gpu, pytester, monkeypatch):
    gpu("--gpukern-baseline=create", "-k", "first")
    before = record_of(baseline_file(pytester))
    monkeypatch.setenv("FIRST_TAKES_NS", "990")
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    content = json.loads(baseline_file(pytester).read_text())
    assert len(content["records"]) == 2
    assert content["records"][FIRST] == before


def test_update_opens_a_new_epoch_and_keeps_the_old_one(recorded, pytester, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "900")
    recorded("--gpukern-baseline=update", "--gpukern-reason=x", "-k", "first").assert_outcomes(
        passed=1, deselected=1
    )
    path = baseline_file(pytester)
    medians = [median_of(epoch) for epoch in record_of(path)["epochs"]]
    assert medians == pytest.approx([1000, 900])
    assert len(record_of(path, "doubling/numba.second/n=8")["epochs"]) == 1
    recorded().assert_outcomes(passed=2)


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
    medians = [session.measurements["kernel/event/cold"].median_ns for session in epoch.sessions]
    assert max(medians) == pytest.approx(1020), "what failed is not appended"


def test_compare_writes_nothing(recorded, pytester):
    path = baseline_file(pytester)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    recorded().assert_outcomes(passed=2)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_comparing_without_a_baseline_makes_no_folder(gpu, pytester):
    gpu().assert_outcomes(passed=2)
    assert not (pytester.path / "baselines").exists()


def test_off_neither_judges_nor_even_reads(recorded, pytester, monkeypatch):
    baseline_file(pytester).write_text("damaged")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=off", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    assert results_in(pytester.path / "run.json")[FIRST]["verdicts"] == {}


def test_a_folder_of_baselines_is_relative_to_where_pytest_was_started(gpu, pytester):
    gpu("--gpukern-baseline=create", "--gpukern-baseline-dir=elsewhere/deep").assert_outcomes(passed=2)
    assert baseline_file(pytester, "elsewhere/deep").name == "doubling.fake-gpu.json"
    assert not (pytester.path / "baselines").exists()
    result = gpu("--gpukern-baseline-dir=elsewhere/deep")
    result.stdout.fnmatch_lines(["gpukern: 2 passed · baseline: 2 same"])


def test_what_is_wrong_is_not_recorded(gpu, pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(
        path.read_text() + '\n@doubling.variant("numba")\ndef idle(x, y):\n    return lambda: None\n'
    )
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2, failed=1)
    assert "idle" not in baseline_file(pytester).read_text()


def test_what_a_test_measured_that_failed_by_itself_is_not_recorded(gpu, pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + "\n    assert 'first' not in case.id\n")
    result = gpu("--gpukern-baseline=create")
    result.assert_outcomes(passed=1, failed=1)
    assert json.loads(baseline_file(pytester).read_text())["records"].keys() == {"doubling/numba.second/n=8"}
    result.stdout.fnmatch_lines([f"gpukern: not recorded: its test failed ({FIRST})"])


def test_what_failed_by_itself_is_not_recorded_though_the_gate_would_have_failed_it_too(
    recorded, pytester, monkeypatch
):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + "\n    assert 'first' not in case.id\n")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=update", "--gpukern-reason=x", "-k", "first")
    assert len(record_of(baseline_file(pytester))["epochs"]) == 1
    result.stdout.fnmatch_lines(
        ["gpukern: 0 passed, 1 failed otherwise*", f"gpukern: not recorded: its test failed ({FIRST})"]
    )


def test_what_a_test_measured_whose_teardown_failed_is_not_recorded(gpu, pytester):
    path = pytester.path / "test_doubling.py"
    fixture = (
        "@pytest.fixture(autouse=True)\ndef _left(case):\n    yield\n    assert 'first' not in case.id\n"
    )
    path.write_text(f"{path.read_text()}\n{fixture}")
    result = gpu("--gpukern-baseline=create")
    result.assert_outcomes(passed=2, errors=1)
    assert json.loads(baseline_file(pytester).read_text())["records"].keys() == {"doubling/numba.second/n=8"}
    result.stdout.fnmatch_lines(
        ["gpukern: 1 passed, 1 failed otherwise *", f"gpukern: not recorded: its test failed ({FIRST})"]
    )


def test_a_folder_of_baselines_that_is_not_there_is_named(gpu):
    told = "gpukern: nothing to compare with: there is no folder *{}; 2 cases are new; to record: pytest *"
    result = gpu("--gpukern-baseline-dir=nowhere", "--gpukern-fail-on=new")
    new = "NEW (kernel/event/cold): nothing recorded yet: there is no folder *nowhere"
    result.stdout.fnmatch_lines([new, told.format("nowhere")])
    gpu("--gpukern-baseline=compare").stdout.fnmatch_lines([told.format("baselines")])


def test_the_file_of_a_run_holds_every_result_with_its_verdict(recorded, pytester):
    run = recorded("--gpukern-report=some/folder/run.json")
    run.stdout.fnmatch_lines(["gpukern: wrote *some/folder/run.json"])
    content = json.loads((pytester.path / "some/folder/run.json").read_text())
    assert content["schema"] == 5
    for result in content["results"]:
        assert result["verdicts"]["kernel/event/cold"]["kind"] == "SAME"
        assert content["fingerprints"][result["fingerprint"]]["device_name"] == "Fake GPU"


def test_a_run_that_is_refused_leaves_the_file_of_an_earlier_run_alone(recorded, pytester):
    recorded("--gpukern-report=run.json")
    before = (pytester.path / "run.json").read_bytes()
    assert recorded("--gpukern-report=run.json", "--gpukern-axis=m=1").ret == pytest.ExitCode.USAGE_ERROR
    assert (pytester.path / "run.json").read_bytes() == before
