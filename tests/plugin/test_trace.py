"""Tests `--gpukern-trace`, and the report that shows what it recorded."""

from __future__ import annotations

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


def test_each_case_has_the_trace_of_one_execution_and_the_command_prints_it(with_cupti, capsys, monkeypatch):
    result = with_cupti("--gpukern-trace", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*trace:*")
    monkeypatch.delenv("COLUMNS")
    capsys.readouterr()
    assert cli.main(["report", "run.json", "-k", ""]) == 0
    shown = capsys.readouterr().out
    for case in (FIRST, SECOND):
        table = shown.partition(f"{case} · kernel\n")[2].splitlines()
        assert "DstMemType" in table[0], "in a pipe it is whole"
        assert table[1].split()[-1] == "saxpy"


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
    assert output.count(f"{FIRST}, {SECOND}: no trace: {fake_gpu.NO_CUPTI}") == 1
    assert output.count("no trace") == 1
    assert not any(result["trace"] for result in results_in(pytester.path / "run.json").values())
