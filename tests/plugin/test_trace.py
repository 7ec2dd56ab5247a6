"""Tests `--gpukern-trace`, and the reports that show what it recorded."""

from __future__ import annotations

import json

import pytest

from pytest_gpukern.cli import main as cli

from . import fake_gpu
from .conftest import FIRST, SECOND, results_in

PLAIN = """
import pytest

@pytest.fixture
def count():
    return []

def test_plain(gpu_benchmark, count):
    gpu_benchmark(lambda: count.append(1))

def test_rounds(gpu_benchmark, count):
    ended = []
    gpu_benchmark.pedantic(
        lambda: count.append(1),
        setup=lambda: count.clear(),
        teardown=lambda: ended.append(len(count)),
        rounds=3,
    )
    assert set(ended) == {1}, "each call is a round of its own, the recorded one too"
"""


@pytest.fixture
def stored(with_cupti, pytester):
    """The file of a run of two cases, both with a trace."""
    reports = ("--gpukern-report=run.json", "--gpukern-report=own.trace.json")
    result = with_cupti("--gpukern-trace", *reports)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*trace:*")
    return pytester.path / "run.json"


def gpukern(capsys, *arguments):
    capsys.readouterr()
    status = cli.main(["report", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_each_case_has_the_trace_of_one_execution(stored):
    for case in (FIRST, SECOND):
        trace = results_in(stored)[case]["trace"]
        assert trace["scope"] == "kernel"
        assert [each["name"] for each in trace["activities"]] == ["saxpy"]
        assert [each["name"] for each in trace["calls"]] == ["cuLaunchKernel"]


def test_a_test_of_a_callable_has_one_too_also_in_rounds(with_cupti, pytester):
    pytester.makepyfile(test_doubling=PLAIN)
    with_cupti("--gpukern-trace", "--gpukern-report=run.json").assert_outcomes(passed=2)
    for result in results_in(pytester.path / "run.json").values():
        assert result["trace"]["scope"] == "kernel"
        assert len(result["trace"]["activities"]) == 1


def test_without_cupti_the_reason_is_told_once_and_nothing_fails(gpu, pytester):
    result = gpu("--gpukern-trace", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    output = " ".join(result.stdout.str().split())
    assert output.count(f"2 cases ({FIRST}, …): no trace: {fake_gpu.NO_CUPTI}") == 1
    assert output.count("no trace") == 1
    assert not any(result["trace"] for result in results_in(pytester.path / "run.json").values())


# the reports


def test_a_timeline_is_written_by_the_run_and_by_the_command(stored, capsys, monkeypatch):
    output = stored.with_name("run.trace.json")
    assert gpukern(capsys, stored, "-o", output) == (0, "", "")
    assert "µs" in output.read_text(encoding="utf-8"), "Perfetto shows an escape as it is written"
    slices = [event for event in json.loads(output.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["cuLaunchKernel", "saxpy"] * 2
    assert stored.with_name("own.trace.json").read_bytes() == output.read_bytes()
    monkeypatch.delenv("COLUMNS")
    assert "columns left out" not in gpukern(capsys, stored, "-k", "")[1], "in a pipe the table is whole"


def test_a_run_without_a_trace_says_how_to_record_one(with_cupti, pytester, capsys):
    with_cupti("--gpukern-report=run.json")
    status, shown, complaints = gpukern(capsys, "run.json", "-o", "run.trace.json")
    assert (status, shown) == (1, "")
    assert "run.json: no case has a trace: run pytest with --gpukern-trace" in complaints
    assert not (pytester.path / "run.trace.json").exists()
