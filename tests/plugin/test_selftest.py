"""Runs `gpukern selftest` whole on a machine that is not there: its sessions are real processes of pytest."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from pytest_gpukern.cli import main as cli
from pytest_gpukern.cli import selftest as command
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.selftest import kernels

TARGETS = 27


@pytest.fixture
def selftest(monkeypatch, pytester, capfd):
    """Runs the command on the fake machine; returns status, table and what was said beside it."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import fake_selftest

    monkeypatch.setattr(kernels, "SIZES", fake_selftest.SIZES)
    monkeypatch.setattr(command, "missing_gpu_reason", lambda environ: None)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p fake_selftest")
    monkeypatch.setenv("CI", "true")

    def run(*options, **machine):
        for name, value in ({"LATER_TAKE": "1"} | machine).items():
            monkeypatch.setenv(name, value)
        status = cli.main(["selftest", *options])
        return status, *capfd.readouterr()

    return run


def missed(table):
    return [" ".join(line.split()) for line in table.splitlines() if "FAIL" in line]


def test_a_machine_as_good_as_promised_passes_and_its_file_is_that_of_a_run(selftest):
    status, table, beside = selftest("--sessions=2", "-o", "kept.json")
    assert status == 0, table + beside
    assert table.endswith(f"{TARGETS} of {TARGETS} targets reached\n")
    assert "15 passed" in beside
    run = read_run(Path("kept.json"))
    assert len(run.results) == 15
    assert all(len(run.sessions_of(each)) == 1 for each in run.results)
    assert len({each.session for each in (run.results[0], *run.sessions_of(run.results[0]))}) == 2
    assert not list(Path().glob("*baselines*"))


def test_a_wrong_timer_sessions_that_differ_and_a_kernel_that_breaks_miss_their_targets(selftest):
    status, table, _ = selftest("--sessions=2", CUPTI_READS="1.02", LATER_TAKE="1.03", BREAKS="200")
    assert status == 1
    own, apart, broken = missed(table)[:5], missed(table)[5:-3], missed(table)[-3:]
    assert ["own time cupti" in line for line in own] == [True] * 5, "all but 20 ns of 1 µs"
    differing = ["exp 10 M f32", "add 32 M f64", "sgemm 2048"]  # of exp 64 K, 39 ns are less than two ticks
    assert [line.partition(", ")[0] for line in apart] == [
        name for name in differing for _ in ("cold", "hot")
    ]
    assert [line.partition("]")[0] for line in broken] == [
        f"FAIL: test_kernel[exp 100 M f32, {way}" for way in ("cold", "hot", "graph")
    ]
    assert " ".join(table.split()).count("RuntimeError: no such kernel") == 3


def test_a_pytest_that_cannot_run_is_refused(selftest, monkeypatch):
    monkeypatch.setattr(command, "pytest_command", lambda *_: [sys.executable, "-c", "raise SystemExit(4)"])
    status, table, beside = selftest()
    assert (status, table) == (1, "")
    assert "pytest ended with status 4 and wrote no results; see above" in beside


def test_the_device_is_passed_on():
    known = Namespace(device="7", sessions=3)
    arguments = command.pytest_command(Path("run.json"), known)
    assert {"--gpukern-device=7", "--gpukern-sessions=3", "--gpu-benchmark"} <= set(arguments)


def test_without_a_gpu_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(command, "missing_gpu_reason", lambda environ: "no NVIDIA driver library")
    assert cli.main(["selftest"]) == 1
    told = "gpukern selftest: no GPU: no NVIDIA driver library; without one no timer can be tested\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--sessions=1", "'1' is not a number of sessions: give at least 2"),
        ("--sessions=many", "not a number of sessions"),
        ("--output=it.html", "'it.html' is no .json; gpukern report makes other forms of one"),
    ],
)
def test_impossible_options_are_refused(option, told, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["selftest", option])
    assert end.value.code == 2
    assert told in capsys.readouterr().err
