"""Options are read at start-up: impossible and contradictory ones end the run with what would be valid."""

import os
import re

import pytest

from pytest_gpukern.values.options import GROUPS, OPTIONS

from .conftest import refused


def test_an_impossible_value_is_refused_with_option_value_and_what_is_valid_before_workers_start(host):
    refused(
        host("-o", "gpukern_fail_on=maybe"),
        "ini value gpukern_fail_on = maybe: 'maybe' is none of slower, *, none",
    )
    result = host("--gpukern-size=tiny", "-n1")
    refused(result, "--gpukern-size=tiny: must be one of smoke, full, huge")
    result.stdout.no_fnmatch_line("*bringing up nodes*")


def test_a_value_of_another_kind_than_the_axis_has_is_refused_and_the_environment_stays_as_it_was(host):
    before = dict(os.environ)
    for value, wrong in (("abc", "abc"), ("0.5", "0.5"), ("8,many", "many"), ("-5", "-5")):
        message = f"--gpukern-axis n={wrong}: a problem with this axis takes values such as 8, 9, 100"
        refused(host(f"--gpukern-axis=n={value}", "--gpu-benchmark"), message)
    assert {**os.environ, "PYTEST_CURRENT_TEST": None} == {**before, "PYTEST_CURRENT_TEST": None}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--gpukern-tresh=3%"], "--gpukern-threshold"),
        (["--gpukern_cache", "hot"], "--gpukern-cache"),
        (["--gpu-bench"], "--gpu-benchmark"),
        (["-o", "gpukern_treshold=3%"], "gpukern_threshold"),
        (["--gpu-of-others"], None),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_of_ours(pytester, given, meant):
    pytester.makepyfile("def test_it(): pass")
    message = f"*: there is no such option; did you mean {meant!r}?" if meant else "usage: *"
    refused(pytester.runpytest_inprocess(*given), message)
    pytester.makeconftest(
        """
def pytest_addoption(parser):
    for name in ("--gpukern-tresh", "--gpukern_cache"):
        parser.addoption(name, dest=name)
    for name in ("--gpu-bench", "--gpu-of-others"):
        parser.addoption(name, dest=name, action="store_true")
    parser.addini("gpukern_treshold", "")
"""
    )
    pytester.runpytest_inprocess(*given).assert_outcomes(passed=1)  # what others have added is theirs


HOST_TEST = """
import pytest
@pytest.mark.gpu_benchmark(timer="host")
def test_host(gpu_benchmark): gpu_benchmark(lambda: None)
"""


@pytest.mark.parametrize(
    ("kinds", "status"), [("unchecked tail", 1), ("unchecked none", 0), ("none unchecked", 1)]
)
def test_kinds_of_addopts_and_command_line_join_up_to_none(pytester, kinds, status):
    pytester.makepyfile(HOST_TEST)
    added, given = (f"--gpukern-fail-on={kind}" for kind in kinds.split())
    pytester.makeini(f"[pytest]\naddopts = {added}\ngpukern_fail_on = slower\n")
    assert pytester.runpytest_inprocess("--gpukern-simulator=never", given).ret == status


@pytest.mark.parametrize(
    ("more", "option", "status"),
    [
        ("def test_plain(): pytest.skip('soon')", "-n1", 0),
        ("", "--gpukern-fail-on=no-gpu", 1),
        ("def test_kernel(gpu_benchmark): pytest.skip('no GPU')", "--gpukern-fail-on=none", 1),
        ("def test_kernel(gpu_benchmark): pytest.skip('no GPU')", "-ktest_host", 0),
        ("pytest.importorskip('no_such_cupy')", "-n0", 1),
    ],
)
def test_ci_asks_for_a_gpu_unless_all_tests_are_the_hosts_own(pytester, monkeypatch, more, option, status):
    monkeypatch.setenv("CI", "1")
    pytester.makepyfile(test_host=HOST_TEST, test_more=f"import pytest\n{more}")
    run = ["--gpu-benchmark", "--gpukern-simulator=never", "--gpukern-baseline=compare", option]
    result = pytester.runpytest_inprocess(*run)
    assert (result.ret, "=no-gpu: " in result.stdout.str()) == (status, bool(status))


def test_no_gpu_asks_nothing_of_a_run_that_only_collects(host, pytester):
    result = host(
        "--gpu-benchmark", "--gpukern-fail-on=no-gpu", "--collect-only", "--gpukern-report=run.json"
    )
    assert result.ret == pytest.ExitCode.OK
    assert not (pytester.path / "run.json").exists()


def test_help_shows_the_options_in_groups_by_two_lines_each(pytester, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = pytester.runpytest_inprocess("--help").outlines
    assert [line[:-1] for line in lines if line[:-1] in GROUPS] == list(GROUPS)
    for option in OPTIONS:
        (first,) = (i for i, line in enumerate(lines) if re.match(rf"  {option.cli}(=|\s|$)", line))
        after = next(i for i in range(first + 1, len(lines)) if not lines[i].startswith("     "))
        name_takes_a_line = len(lines[first]) < 24 or "  " not in lines[first].strip()
        assert after - first - name_takes_a_line <= 2, f"{option.cli} takes more than two lines"
