"""Options are read at start-up: impossible and contradictory ones end the run with what would be valid."""

import pytest

from .conftest import refused, results_in


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpukern-size=tiny"], "--gpukern-size=tiny: must be one of smoke, full, huge"),
        (["--gpukern-simulator=maybe"], "--gpukern-simulator=maybe: must be one of auto, always, never"),
        (["--gpukern-backend=host,cuda"], "--gpukern-backend=host,cuda: 'cuda' is none of host, numba, *"),
        (["--gpukern-scope=,"], "--gpukern-scope=,: names none of kernel, transfer, end_to_end"),
        (["--gpukern-threshold=200%"], "--gpukern-threshold=200%: a threshold is * such as 2% or 0.02"),
        (["--gpukern-axis", "n"], "--gpukern-axis=n: an axis is written NAME=VALUE*such as n=1000"),
        (["-o", "gpukern_gate=maybe"], "ini value gpukern_gate = maybe: must be one of fail, warn, off"),
        (["-o", "gpukern_strict=maybe"], "ini value gpukern_strict = maybe: must be true or false"),
    ],
)
def test_an_impossible_value_is_refused_with_option_value_and_what_is_valid(host, options, message):
    refused(host(*options), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpukern-baseline=create"], "--gpukern-baseline=create: *add --gpu-benchmark"),
        (["--gpukern-strict", "--gpukern-gate=off"], "--gpukern-strict: *drop it or --gpukern-gate=off"),
        (
            ["--gpukern-simulator=always", "--gpukern-device=0"],
            "--gpukern-device=0: *drop it or --gpukern-simulator=always",
        ),
        (
            ["--gpukern-require=gpu", "--gpukern-backend=host"],
            "--gpukern-require=gpu: only host variants are selected; drop it or --gpukern-backend=host",
        ),
    ],
)
def test_contradictory_options_are_refused_naming_both(host, options, message):
    refused(host(*options), message)


def test_an_ini_value_and_an_option_that_contradict_each_other_are_refused(host, pytester):
    pytester.makeini("[pytest]\ngpukern_gate = off")
    refused(host("--gpukern-strict"), "--gpukern-strict: *drop it or ini value gpukern_gate = off")


def test_ci_may_not_write_a_baseline_unless_told_to(host, pytester, monkeypatch):
    monkeypatch.setenv("CI", "true")
    options = ("--gpu-benchmark", "--gpukern-baseline=create", "--gpukern-axis=n=8")
    refused(host(*options), "--gpukern-baseline=create: CI is set *add --gpukern-write-in-ci if meant")
    assert not (pytester.path / "baselines").exists()
    host(*options, "--gpukern-write-in-ci").assert_outcomes(passed=2)
    assert (pytester.path / "baselines").exists()


def test_an_axis_that_no_problem_has_is_refused_with_those_there_are(host):
    refused(host("--gpukern-axis=m=3"), "--gpukern-axis m=…: no selected problem has this axis; there is n")


@pytest.mark.parametrize("value", ["abc", "0.5", "8,many"])
def test_a_value_of_another_kind_than_the_axis_has_is_refused_with_its_own(host, value):
    wrong = value.rpartition(",")[2]
    message = f"--gpukern-axis n={wrong}: a problem with this axis takes values such as 8, 9, 100"
    refused(host(f"--gpukern-axis=n={value}"), message)


def test_an_axis_is_refused_by_the_workers_of_xdist_as_well(host):
    refused(host("--gpukern-axis=m=3", "-n2"), "--gpukern-axis m=…: no selected problem has this axis; *")


def test_an_impossible_value_is_refused_before_workers_are_started(host):
    result = host("--gpukern-size=tiny", "-n2")
    refused(result, "--gpukern-size=tiny: *")
    result.stdout.no_fnmatch_line("*bringing up nodes*")


@pytest.mark.parametrize("options", [["--gpukern-foo"], ["--gpukern-foo=3"], ["--gpukern-device"]])
def test_an_unknown_option_and_a_missing_value_are_refused_by_pytest_itself(host, options):
    refused(host(*options), "usage: *", "*error: *" + options[0].partition("=")[0] + "*")


def test_a_refusal_leaves_the_environment_as_it_was(host, monkeypatch):
    import os

    before = dict(os.environ)
    refused(host("--gpukern-axis=m=3", "--gpu-benchmark"), "--gpukern-axis m=…: *")
    assert {**os.environ, "PYTEST_CURRENT_TEST": None} == {**before, "PYTEST_CURRENT_TEST": None}


def test_the_ini_file_gives_what_the_command_line_does_not(host, pytester):
    pytester.makeini("[pytest]\ngpukern_axis = n=5\ngpukern_output = run.json\ngpukern_backend = host")
    host().assert_outcomes(passed=2)
    assert {result["case"]["point"]["n"] for result in results_in(pytester.path / "run.json").values()} == {5}
    host("--gpukern-axis=n=6").assert_outcomes(passed=2)
    assert {result["case"]["point"]["n"] for result in results_in(pytester.path / "run.json").values()} == {6}


def test_require_gpu_fails_a_run_that_measured_on_none_and_says_so(host):
    result = host("--gpu-benchmark", "--gpukern-require=gpu", "--gpukern-axis=n=8")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpukern: --gpukern-require=gpu: nothing was measured on a GPU in this run (*)"]
    )


def test_require_gpu_fails_a_run_that_selected_nothing(host):
    result = host("--gpu-benchmark", "--gpukern-require=gpu", "-k", "nothing")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpukern: --gpukern-require=gpu: nothing was measured on a GPU*"])


def test_require_gpu_asks_nothing_of_a_run_that_only_collects(host, pytester):
    result = host("--gpu-benchmark", "--gpukern-require=gpu", "--collect-only", "--gpukern-output=run.json")
    assert result.ret == pytest.ExitCode.OK
    assert not (pytester.path / "run.json").exists()


def test_require_gpu_is_content_with_a_gpu(gpu):
    assert gpu("--gpukern-require=gpu").ret == pytest.ExitCode.OK


def test_ci_requires_a_gpu_of_a_run_that_names_a_baseline(host, monkeypatch):
    monkeypatch.setenv("CI", "true")
    named = ("--gpu-benchmark", "--gpukern-axis=n=8", "--gpukern-baseline=compare")
    assert host(*named).ret == pytest.ExitCode.TESTS_FAILED
    assert host(*named, "--gpukern-require=none").ret == pytest.ExitCode.OK
