"""Checks what fails a test, by name, and what does not. The GPU is fake, and so are its times."""

import re
import time
import xml.etree.ElementTree as ElementTree

import pytest
from made_up_runs import whole_run

from pytest_gpukern.measure import host_load
from pytest_gpukern.measure.host_load import CpuTimes
from pytest_gpukern.values.failure_table import FAILURES

from .conftest import FIRST, GPU_PROBLEM, SECOND, properties_in, repeat_sessions, results_in

UPDATE = "--gpukern-baseline=update"


@pytest.fixture
def slower(monkeypatch):
    """Makes the first variant ten per cent slower than recorded."""
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")


def verdict_of(path, case_id):
    (verdict,) = results_in(path)[case_id]["verdicts"].values()
    return verdict["kind"]


def test_unchanged_times_are_the_same_and_pass_whatever_fails_a_test(recorded, pytester):
    result = recorded("--gpukern-report=run.json", f"--gpukern-fail-on={','.join(FAILURES)}")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    assert verdict_of(pytester.path / "run.json", FIRST) == "SAME"
    result.stdout.fnmatch_lines_random(
        [
            "if nothing had changed, 1 run in 400 would blame one of 2 times",
            "gpukern: 2 passed · of 2 times: 2 same",
        ]
    )
    result.stdout.no_fnmatch_line("*if that is meant*")
    result.stdout.no_fnmatch_line("*= gpukern =*")
    result.stdout.no_fnmatch_line("*-v*")


def test_a_regression_fails_its_own_test_by_name_also_in_junit_and_as_the_last_failed(
    recorded, slower, pytester
):
    result = recorded("-rf", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    test = f"test_doubling.py::test_doubling[[]{FIRST}[]]"
    result.stdout.fnmatch_lines(
        [
            "SLOWER (kernel/event/cold): +10.0 % *, threshold 2 %*",
            "=* gpukern *=",
            "FAILED: 1 kernel +10.0 %",
            f"SLOWER  {FIRST}",
            "  kernel    1.00 → 1.10 µs, +10.0 % [[]+10.0, +10.0[]], threshold 2 %",
            f"  repeat    pytest '{test}' --gpu-benchmark*",
            f"  accept    pytest '{test}' --gpu-benchmark {UPDATE} *",
            "gpukern: 1 passed, 1 failed by the gate · of 2 times: 1 same, 1 slower",
            f"FAILED {test} - *",
        ]
    )
    result.stdout.no_fnmatch_line(f"FAILED *{SECOND}*")
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    failures = {case.get("name"): case.find("failure") for case in cases}
    assert "SLOWER (kernel/event/cold): +10.0 %" in failures.pop(f"test_doubling[{FIRST}]").get("message")
    assert failures == {f"test_doubling[{SECOND}]": None}
    first, second = properties_in(pytester.path / "junit.xml").values()
    assert (first["verdict"], first["time_ns"], second["verdict"]) == ("SLOWER", "1100.0", "SAME")
    assert first["repeat"] == f"pytest 'test_doubling.py::test_doubling[{FIRST}]' --gpu-benchmark"
    assert first["since"].startswith("new in this run; all 3 recorded sessions of")
    assert not {"since", "why", "repeat"} & second.keys()
    again = recorded("--lf", "-v")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([f"*test_doubling[[]{FIRST}[]] FAILED*"])


def test_a_suspicion_on_a_card_that_is_not_on_record_is_measured_again_if_that_may_confirm_it(
    recorded, pytester, monkeypatch
):
    (record,) = pytester.path.glob("baselines/*.json")
    record.write_text(record.read_text().replace("GPU-fa4e", "GPU-0ddd"))
    for takes_ns, sessions, verdict in (("1050", 0, "UNDECIDED"), ("3000", 3, "SLOWER")):
        monkeypatch.setenv("FIRST_TAKES_NS", takes_ns)
        recorded("--gpukern-report=run.json")
        assert verdict_of(pytester.path / "run.json", FIRST) == verdict
        assert len(whole_run(pytester.path / "run.json")["sessions"]) == sessions


def test_where_a_run_is_stored_a_slowdown_is_accepted_from_its_file(recorded, slower):
    accept = f"--accept {FIRST} --reason TEXT"
    for more, into in (((), ""), (("--gpukern-baseline-dir=baselines",), "--into baselines ")):
        told = f"  accept    gpukern baseline merge run.json {into}{accept}"
        recorded("--gpukern-report=run.json", *more).stdout.fnmatch_lines([told])


def test_an_update_accepts_what_is_slower_and_says_so(recorded, slower, pytester):
    result = recorded(UPDATE, "--gpukern-reason=more exact", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["PASSED: 2 cases are right, 1 slower", f"slower *{FIRST}: +10.0 %*", "gpukern: 2 passed *1 slower"]
    )
    assert verdict_of(pytester.path / "run.json", FIRST) == "SLOWER"


def test_a_reason_that_xml_cannot_hold_is_spelt_out_in_junit(gpu, monkeypatch, pytester):
    monkeypatch.setenv("FIRST_ESCAPES", "<&\x1b[31m\udc80]]>\u202e")
    gpu("--junitxml=junit.xml", "-k", "first")
    (found,) = properties_in(pytester.path / "junit.xml").values()
    assert found["verdict"] == "INVALID"
    assert r"<&\u001b[31m\udc80]]>" in found["reason"]


def test_an_improvement_passes_with_the_command_that_keeps_it(recorded, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "900")
    result = recorded()
    result.assert_outcomes(passed=2)
    test = f"'test_doubling.py::test_doubling[[]{FIRST}[]]'"
    update = f"pytest {test} --gpu-benchmark {UPDATE} --gpukern-reason=TEXT"
    result.stdout.fnmatch_lines(
        [
            "gpukern: 2 passed · of 2 times: 1 same, 1 faster",
            f"gpukern: 1 case faster; to gate at the new time: {update}",
        ]
    )


def test_a_run_that_nothing_fails_reports_without_a_warning(recorded, slower):
    result = recorded("--gpukern-fail-on=none")
    result.assert_outcomes(passed=2, warnings=0)
    result.stdout.fnmatch_lines(["gpukern: 2 passed · of 2 times: 1 same, 1 slower"])


def test_the_threshold_is_that_of_the_run_unless_the_test_has_its_own(recorded, slower, pytester):
    recorded("--gpukern-threshold=20%").assert_outcomes(passed=2)
    marked = GPU_PROBLEM.replace(
        "@doubling.cases", "@pytest.mark.gpu_benchmark(threshold='20%')\n@doubling.cases"
    )
    pytester.makepyfile(test_doubling=marked)
    recorded("--gpukern-threshold=1%").assert_outcomes(passed=2)


def test_an_invalid_measurement_fails_its_test_and_is_never_recorded(gpu, monkeypatch, pytester):
    monkeypatch.setenv("SECOND_ESCAPES", "work was found outside the timed stream")
    result = gpu("--gpukern-baseline=create")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "INVALID (kernel/event/cold): work was found outside the timed stream",
            f"gpukern: not recorded: kernel/event/cold is INVALID: *({SECOND})",
        ]
    )
    (path,) = (pytester.path / "baselines").iterdir()
    assert SECOND not in path.read_text()


@pytest.fixture
def on_the_host(pytester, gpu, monkeypatch):
    """Records two host variants, which then take 20 ms instead of a microsecond, and not by waiting."""
    spinning = "[0 for _ in iter(lambda: time.thread_time() < until, False)]"
    until = "until = time.thread_time() + float(os.environ.get('SPIN_S', 0))"
    pytester.makepyfile(
        test_doubling=GPU_PROBLEM.replace('"numba"', '"host"')
        .replace("np.multiply(", f"{until}\n        {spinning}\n        np.multiply(", 1)
        .replace("import os", "import os, time", 1)
    )
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    repeat_sessions(pytester.path, 3)
    monkeypatch.setenv("SPIN_S", "0.02")
    return gpu


def test_a_slower_host_variant_fails_only_where_that_is_asked_for_and_fresh_sessions_confirm_it(on_the_host):
    assert on_the_host().ret == pytest.ExitCode.OK
    result = on_the_host("--gpukern-fail-on=host", "-rf")
    failed = result.parseoutcomes()["failed"]  # on a busy host one of both may spread too far
    result.stdout.fnmatch_lines(["SLOWER (end_to_end/host/*): * confirmed at least *"])
    accepts = [line for line in result.outlines if re.match(r"  accept    pytest .*=update ", line)]
    assert len(accepts) == failed
    result.stdout.no_fnmatch_line("*fails no test*")


@pytest.mark.parametrize(("threads", "outcomes"), [(1, {"failed": 2}), (2, {"passed": 2})])
def test_beside_other_programs_a_slower_host_variant_fails_by_what_they_cannot_explain(
    on_the_host, monkeypatch, threads, outcomes
):
    """Two threads might have waited for each other."""

    def read():
        now, own_s = time.monotonic(), time.thread_time()
        return CpuTimes(now, 2, 1.9 * now, 0.0, 0.0, threads * own_s, own_s)

    monkeypatch.setattr(host_load, "read", read)
    result = on_the_host("--gpukern-fail-on=host", "-v")
    result.assert_outcomes(**outcomes)
    certain = "confirmed at least *; at least so much, though" if threads == 1 else ""
    result.stdout.fnmatch_lines([f"*{certain} other programs used 95 % of *"])


def test_an_expected_failure_covers_a_regression(recorded, slower, pytester):
    marked = GPU_PROBLEM.replace(
        "@doubling.cases", "@pytest.mark.xfail(reason='slow driver')\n@doubling.cases"
    )
    pytester.makepyfile(test_doubling=marked)
    result = recorded()
    result.assert_outcomes(xfailed=1, xpassed=1)
    result.stdout.fnmatch_lines([f"1 skipped: expected to fail: slow driver ({FIRST})"])
