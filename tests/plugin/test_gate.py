"""Checks what fails a test, by name, and what does not. The GPU is fake, and so are its times."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from pytest_gpukern.values.failure_table import FAILURES

from .conftest import (
    FIRST,
    GPU_PROBLEM,
    SECOND,
    properties_in,
    recorded_by_workers,
    repeat_sessions,
    results_in,
)


@pytest.fixture
def slower(monkeypatch):
    """Makes the first variant ten per cent slower than recorded."""
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")


def verdict_of(path, case_id):
    (verdict,) = results_in(path)[case_id]["verdicts"].values()
    return verdict["kind"]


def test_an_unchanged_time_is_the_same_and_passes(recorded, pytester):
    result = recorded("--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    assert verdict_of(pytester.path / "run.json", FIRST) == "SAME"
    result.stdout.fnmatch_lines(["gpukern: 2 passed · baseline: 2 same"])


def test_a_regression_fails_its_own_test_by_name(recorded, slower):
    result = recorded("-rf")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "SLOWER (kernel/event/cold): +10.0 % *, threshold 2 %*",
            "gpukern: 1 passed, 1 failed by the gate · baseline: 1 same, 1 slower",
            f"FAILED test_doubling.py::test_doubling[[]{FIRST}[]] - *",
        ]
    )
    result.stdout.no_fnmatch_line(f"FAILED *{SECOND}*")


def test_a_suspicion_on_a_card_that_is_not_on_record_is_measured_again_if_that_may_confirm_it(
    recorded, pytester, monkeypatch
):
    (record,) = pytester.path.glob("baselines/*.json")
    record.write_text(record.read_text().replace("GPU-fa4e", "GPU-0ddd"))
    for takes_ns, sessions, verdict in (("1050", 0, "UNDECIDED"), ("3000", 3, "SLOWER")):
        monkeypatch.setenv("FIRST_TAKES_NS", takes_ns)
        recorded("--gpukern-report=run.json")
        assert verdict_of(pytester.path / "run.json", FIRST) == verdict
        assert len(json.loads((pytester.path / "run.json").read_text())["sessions"]) == sessions


def test_a_record_of_one_session_is_reported_and_fails_only_as_undecided(gpu, slower, monkeypatch):
    monkeypatch.delenv("FIRST_TAKES_NS")
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = gpu()
    result.assert_outcomes(passed=2)
    told = " ".join(result.stdout.str().split())
    assert f"SLOWER {FIRST} (kernel/event/cold): +10.0 % (90 %: +8.4 … +11.7 %), threshold 2 %;" in told
    assert "reported, not gated: 1 of 3 sessions recorded" in told
    gpu("--gpukern-fail-on=undecided").assert_outcomes(passed=1, failed=1)


def test_small_steps_that_the_record_was_updated_for_are_told_against_the_first_epoch(
    recorded, pytester, monkeypatch
):
    monkeypatch.setenv("FIRST_TAKES_NS", "1060")
    recorded(
        "--gpukern-baseline=update", "--gpukern-reason=x", "--gpukern-sessions=3", "-k", "first"
    ).assert_outcomes(passed=1, deselected=1)
    recorded("--gpukern-report=run.json").assert_outcomes(passed=2)
    (verdict,) = results_in(pytester.path / "run.json")[FIRST]["verdicts"].values()
    assert verdict["kind"] == "SAME"
    assert verdict["anchor"] == pytest.approx(1.06, rel=1e-3)
    assert "since the first epoch +6.0 %" in verdict["reason"]


def test_a_slowdown_comes_with_the_command_that_accepts_it(recorded, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    test = "'test_doubling.py::test_doubling[[]doubling/numba.first/n=8]'"
    update = "--gpukern-baseline=update --gpukern-reason=TEXT"
    meant = "gpukern: 1 case is slower; if that is meant:"
    recorded().stdout.fnmatch_lines([f"{meant} pytest {test} --gpu-benchmark {update}"])
    accept = "gpukern baseline merge run.json --accept doubling/numba.first/n=8 --reason TEXT"
    recorded("--gpukern-report=run.json").stdout.fnmatch_lines([f"{meant} {accept}"])
    into = "gpukern baseline merge run.json --into baselines --accept doubling/numba.first/n=8 --reason TEXT"
    run = recorded("--gpukern-report=run.json", "--gpukern-baseline-dir=baselines")
    run.stdout.fnmatch_lines([f"{meant} {into}"])
    monkeypatch.delenv("FIRST_TAKES_NS")
    assert "if that is meant" not in recorded().stdout.str()


def test_an_update_accepts_what_is_slower_and_says_so_loudly(recorded, slower, pytester):
    result = recorded("--gpukern-baseline=update", "--gpukern-reason=more exact", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    accepted = f"gpukern: recorded as a new epoch though SLOWER (kernel/event/cold): {FIRST}: +10.0 % *"
    result.stdout.fnmatch_lines(
        [
            "gpukern: 2 passed · baseline: 1 same, 1 slower",
            f"{accepted}; 2 fresh sessions confirmed at least *",
        ]
    )
    assert verdict_of(pytester.path / "run.json", FIRST) == "SLOWER"


def test_an_update_accepts_nothing_that_is_wrong_or_invalid(recorded, slower, monkeypatch):
    monkeypatch.setenv("FIRST_ESCAPES", "work was found outside the timed stream")
    result = recorded("--gpukern-baseline=update", "--gpukern-reason=x")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*though SLOWER*")


def test_what_is_new_to_an_update_does_not_fail_it(gpu):
    gpu("--gpukern-fail-on=new", "--gpukern-baseline=update", "--gpukern-reason=x").assert_outcomes(passed=2)


def test_the_report_says_how_many_false_alarms_such_a_run_has(recorded, gpu):
    lines = recorded().stdout.lines
    (line,) = [line for line in lines if "false SLOWER" in line]
    assert line == "2 times were gated: 0.002 false SLOWER to expect in such a run"
    assert "false SLOWER" not in gpu("--gpukern-baseline=off").stdout.str()


def test_a_regression_is_a_failure_of_its_testcase_in_junit(recorded, slower, pytester):
    recorded("--junitxml=junit.xml")
    cases = {
        case.get("name"): case for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    }
    assert cases.keys() == {f"test_doubling[{FIRST}]", f"test_doubling[{SECOND}]"}
    failure = cases[f"test_doubling[{FIRST}]"].find("failure")
    assert failure is not None
    assert "SLOWER (kernel/event/cold): +10.0 %" in failure.get("message")
    assert cases[f"test_doubling[{SECOND}]"].find("failure") is None


def test_junit_has_the_verdict_the_time_and_the_change_of_each_test(recorded, slower, pytester):
    recorded("--junitxml=junit.xml")
    found = properties_in(pytester.path / "junit.xml")
    assert found.keys() == {f"test_doubling[{FIRST}]", f"test_doubling[{SECOND}]"}
    first, second = found[f"test_doubling[{FIRST}]"], found[f"test_doubling[{SECOND}]"]
    assert (first["verdict"], second["verdict"]) == ("SLOWER", "SAME")
    assert first["reason"].startswith("+10.0 %")
    assert (first["time_ns"], first["change"], second["change"]) == ("1100.0", "0.1", "0.0")
    assert 0.0 < float(first["low"]) <= 0.1 <= float(first["high"])
    assert first["device"] == second["device"] == "Fake GPU"


def test_a_reason_that_xml_cannot_hold_is_spelt_out_in_junit(gpu, monkeypatch, pytester):
    monkeypatch.setenv("FIRST_ESCAPES", "<&\x1b[31m\udc80]]>\u202e")
    gpu("--junitxml=junit.xml", "-k", "first")
    (found,) = properties_in(pytester.path / "junit.xml").values()
    assert found["verdict"] == "INVALID"
    assert "<&#x1B[31m#xDC80]]>" in found["reason"]


def test_a_check_without_timing_has_its_device_alone_in_junit(host, pytester):
    host("--junitxml=junit.xml")
    found = properties_in(pytester.path / "junit.xml")
    assert len(found) == 4
    assert all(list(each) == ["device"] for each in found.values())


def test_the_last_failed_are_the_regressions_alone(recorded, slower):
    recorded()
    result = recorded("--lf", "-v")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*test_doubling[[]{FIRST}[]] FAILED*"])


def test_an_improvement_passes_with_the_command_that_keeps_it(recorded, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "900")
    result = recorded()
    result.assert_outcomes(passed=2)
    test = "'test_doubling.py::test_doubling[[]doubling/numba.first/n=8]'"
    update = f"pytest {test} --gpu-benchmark --gpukern-baseline=update --gpukern-reason=TEXT"
    result.stdout.fnmatch_lines(
        [
            "gpukern: 2 passed · baseline: 1 same, 1 faster",
            f"gpukern: 1 case is faster; to gate at the new time: {update}",
        ]
    )


def test_a_run_that_nothing_fails_reports_without_a_warning(recorded, slower):
    result = recorded("--gpukern-fail-on=none")
    result.assert_outcomes(passed=2, warnings=0)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gpukern: 2 passed · baseline: 1 same, 1 slower"])


def test_a_larger_threshold_lets_a_small_regression_pass_that_the_default_fails(recorded, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1050")
    recorded().assert_outcomes(passed=1, failed=1)
    recorded("--gpukern-threshold=20%").assert_outcomes(passed=2)


def test_a_threshold_of_the_test_wins_over_that_of_the_run(recorded, slower, pytester):
    marked = GPU_PROBLEM.replace(
        "@doubling.cases", "@pytest.mark.gpu_benchmark(threshold='20%')\n@doubling.cases"
    )
    pytester.makepyfile(test_doubling=marked)
    recorded("--gpukern-threshold=1%").assert_outcomes(passed=2)


def test_what_is_not_recorded_is_new_and_fails_only_where_asked_to(gpu):
    gpu().assert_outcomes(passed=2)
    result = gpu("--gpukern-fail-on=new")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["NEW (kernel/event/cold): nothing recorded yet"])


def test_what_cannot_be_compared_fails_where_asked_to_with_the_difference(recorded):
    recorded("--gpukern-cache=hot").assert_outcomes(passed=2)
    result = recorded("--gpukern-cache=hot", "--gpukern-fail-on=uncomparable")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["UNCOMPARABLE (kernel/event/hot): *cold*"])


def test_what_is_the_same_fails_nothing(recorded):
    recorded(f"--gpukern-fail-on={','.join(FAILURES)}").assert_outcomes(passed=2)


@pytest.mark.parametrize("options", [[], ["--gpukern-baseline=off"]], ids=["comparing", "without-baseline"])
def test_an_invalid_measurement_fails_its_test(gpu, monkeypatch, options):
    monkeypatch.setenv("SECOND_ESCAPES", "work was found outside the timed stream")
    result = gpu(*options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["INVALID (kernel/event/cold): work was found outside the timed stream"])


def test_an_invalid_measurement_is_never_recorded(gpu, monkeypatch, pytester):
    monkeypatch.setenv("SECOND_ESCAPES", "work was found outside the timed stream")
    result = gpu("--gpukern-baseline=create")
    result.stdout.fnmatch_lines([f"gpukern: not recorded: kernel/event/cold is INVALID: *({SECOND})"])
    (path,) = (pytester.path / "baselines").iterdir()
    assert SECOND not in path.read_text()


@pytest.fixture
def hosts_that_sleep(pytester, gpu, monkeypatch):
    """Runs whose two host variants sleep, and did not in the three recorded sessions."""
    pytester.makepyfile(
        test_doubling=GPU_PROBLEM.replace('"numba"', '"host"')
        .replace("np.multiply(", "time.sleep(float(os.environ.get('SLEEP_S', 0)))\n        np.multiply(", 1)
        .replace("import os", "import os, time", 1)
    )
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    repeat_sessions(pytester.path, 3)
    monkeypatch.setenv("SLEEP_S", "0.02")
    return gpu


def test_a_host_variant_fails_where_that_is_asked_for_once_fresh_sessions_confirm_it(hosts_that_sleep):
    result = hosts_that_sleep("--gpukern-fail-on=host", "-rf")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["SLOWER (end_to_end/host/*): * confirmed at least *"])
    result.stdout.fnmatch_lines(["gpukern: 2 cases are slower; if meant: pytest *=update *"])
    result.stdout.no_fnmatch_line("*fails no test*")


def test_a_host_variant_never_fails_however_slow_it_became(hosts_that_sleep):
    result = hosts_that_sleep()
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gpukern: 2 passed · *"])


def test_a_plain_test_is_recorded_judged_and_failed_like_a_case(pytester, gpu, monkeypatch):
    pytester.makepyfile(
        test_doubling="""
import os

def test_plain(gpu_benchmark):
    def launch(): pass
    launch.takes_ns = float(os.environ.get("FIRST_TAKES_NS", 1000))
    gpu_benchmark(launch)
"""
    )
    gpu("--gpukern-baseline=create").assert_outcomes(passed=1)
    repeat_sessions(pytester.path, 3)
    gpu().assert_outcomes(passed=1)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = gpu("-rf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["SLOWER (kernel/event/cold): +10.0 %*"])


def test_an_expected_failure_covers_a_regression(recorded, slower, pytester):
    marked = GPU_PROBLEM.replace(
        "@doubling.cases", "@pytest.mark.xfail(reason='slow driver')\n@doubling.cases"
    )
    pytester.makepyfile(test_doubling=marked)
    result = recorded()
    result.assert_outcomes(xfailed=1, xpassed=1)
    result.stdout.fnmatch_lines([f"1 skipped: expected to fail: slow driver ({FIRST})"])


def test_a_regression_found_by_a_worker_of_xdist_fails_the_same_test(pytester, on_fake_gpu, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "GPU-A,GPU-B")
    run = recorded_by_workers(pytester, on_fake_gpu, 2)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = run("-rf", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SLOWER (kernel*", f"FAILED *{FIRST}*SLOWER*"])
    found = properties_in(pytester.path / "junit.xml")
    assert found[f"test_doubling[{FIRST}]"]["verdict"] == "SLOWER"
    assert found[f"test_doubling[{SECOND}]"]["verdict"] == "SAME"
