"""Tests `--gpukern-trace`, and the commands that show what it recorded."""

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
def with_cupti(gpu, monkeypatch):
    """As `gpu`, on a machine with CUPTI."""
    fake_gpu.install(monkeypatch, cupti=True)
    return gpu


@pytest.fixture
def stored(with_cupti, pytester):
    """The file of a run of two cases, both with a trace."""
    result = with_cupti("--gpukern-trace", "--gpukern-output=run.json")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*trace:*")
    return pytester.path / "run.json"


def gpukern(capsys, *arguments):
    capsys.readouterr()
    status = cli.main([*map(str, arguments)])
    return status, *capsys.readouterr()


def test_each_case_has_the_trace_of_one_execution(stored):
    for case in (FIRST, SECOND):
        trace = results_in(stored)[case]["trace"]
        assert trace["scope"] == "kernel"
        assert [each["name"] for each in trace["activities"]] == ["saxpy"]
        assert [each["name"] for each in trace["calls"]] == ["cuLaunchKernel"]


def test_a_test_of_a_callable_has_one_too_also_in_rounds(with_cupti, pytester):
    pytester.makepyfile(test_doubling=PLAIN)
    with_cupti("--gpukern-trace", "--gpukern-output=run.json").assert_outcomes(passed=2)
    for result in results_in(pytester.path / "run.json").values():
        assert result["trace"]["scope"] == "kernel"
        assert len(result["trace"]["activities"]) == 1


def test_without_cupti_the_reason_is_told_once_and_nothing_fails(gpu, pytester):
    result = gpu("--gpukern-trace", "--gpukern-output=run.json")
    result.assert_outcomes(passed=2)
    output = " ".join(result.stdout.str().split())
    assert output.count(f"2 cases ({FIRST}, …): no trace: {fake_gpu.NO_CUPTI}") == 1
    assert output.count("no trace") == 1
    assert not any("trace" in result for result in results_in(pytester.path / "run.json").values())


# the commands


def test_show_prints_nvprofs_table(stored, capsys):
    status, shown, complaints = gpukern(capsys, "show", "--trace", stored, "second")
    title, header, row, *_ = shown.splitlines()
    assert (status, complaints) == (0, "")
    assert title == f"{SECOND} · kernel"
    assert header.split()[:4] == ["Start", "Duration", "Grid", "Size"]
    assert header.endswith("Name")
    assert row.split()[:4] == ["5.0000", "µs", "1.0000", "µs"]
    assert row.endswith("saxpy")
    assert FIRST not in shown


def test_a_table_in_a_pipe_is_whole(stored, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    _, shown, _ = gpukern(capsys, "show", "--trace", stored)
    header = shown.splitlines()[1]
    assert len([title for title in header.split("  ") if title]) == 15
    monkeypatch.setenv("COLUMNS", "80")
    _, shown, _ = gpukern(capsys, "show", "--trace", stored)
    assert "columns left out: Context" in shown


def test_a_timeline_is_written_and_told(stored, capsys, pytester):
    output = pytester.path / "trace.json"
    status, shown, complaints = gpukern(capsys, "trace", stored, "-o", output)
    assert (status, complaints) == (0, "")
    assert shown.splitlines() == [
        f"{output}: 2 activities of the device and 2 calls of the host, of 2 of 2 cases",
        "open it in https://ui.perfetto.dev, which keeps it in the browser",
    ]
    assert "µs" in output.read_text(encoding="utf-8"), "Perfetto shows an escape as it is written"
    slices = [event for event in json.loads(output.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["cuLaunchKernel", "saxpy"] * 2
    gpukern(capsys, "trace", stored, "first", "-o", output)
    assert sum(event["ph"] == "X" for event in json.loads(output.read_text())["traceEvents"]) == 2


@pytest.mark.parametrize("command", [("show", "--trace"), ("trace", "-o", "trace.json")])
def test_a_run_without_a_trace_says_how_to_record_one(with_cupti, pytester, capsys, command):
    with_cupti("--gpukern-output=run.json")
    status, shown, complaints = gpukern(capsys, *command, "run.json")
    assert (status, shown) == (1, "")
    assert "no case has a trace; a run with --gpukern-trace and --gpukern-output records them" in complaints
    assert not (pytester.path / "trace.json").exists()


def test_a_file_that_cannot_be_written_or_read_is_named(stored, capsys, pytester):
    (pytester.path / "taken").write_text("")
    status, _, complaints = gpukern(capsys, "trace", stored, "-o", "taken/trace.json")
    assert status == 3
    assert "taken/trace.json" in complaints
    assert "name another file with -o" in complaints
    status, _, complaints = gpukern(capsys, "trace", "none.json", "-o", "trace.json")
    assert status == 3
    assert "none.json" in complaints
