"""Options are read at start-up: impossible and contradictory ones end the run with what would be valid."""

import pytest

from .conftest import refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpukern-size=tiny"], "--gpukern-size=tiny: must be one of smoke, full, huge"),
        (["-o", "gpukern_gate=maybe"], "ini value gpukern_gate = maybe: must be one of fail, warn, off"),
    ],
)
def test_an_impossible_value_is_refused_with_option_value_and_what_is_valid(host, options, message):
    refused(host(*options), message)


@pytest.mark.parametrize("value", ["abc", "0.5", "8,many", "-5"])
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


def test_a_refusal_leaves_the_environment_as_it_was(host, monkeypatch):
    import os

    before = dict(os.environ)
    refused(host("--gpukern-axis=m=3", "--gpu-benchmark"), "--gpukern-axis m=…: *")
    assert {**os.environ, "PYTEST_CURRENT_TEST": None} == {**before, "PYTEST_CURRENT_TEST": None}


def test_require_gpu_fails_a_run_that_measured_on_none_and_says_so(host):
    result = host("--gpu-benchmark", "--gpukern-require=gpu", "--gpukern-axis=n=8")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpukern: --gpukern-require=gpu: nothing was measured on a GPU in this run (*)"]
    )


def test_require_gpu_asks_nothing_of_a_run_that_only_collects(host, pytester):
    result = host("--gpu-benchmark", "--gpukern-require=gpu", "--collect-only", "--gpukern-output=run.json")
    assert result.ret == pytest.ExitCode.OK
    assert not (pytester.path / "run.json").exists()


def test_require_gpu_is_content_with_a_gpu(gpu):
    assert gpu("--gpukern-require=gpu").ret == pytest.ExitCode.OK
