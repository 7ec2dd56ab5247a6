"""`gpukern show`, and what the device did under `-v`."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from pytest_gpukern.cli import main as cli
from pytest_gpukern.gpu.kernel_facts import readable
from pytest_gpukern.values.result import DeviceWork, KernelFacts

from . import fake_gpu
from .conftest import FIRST, GPU_PROBLEM, SECOND

KERNEL = DeviceWork(
    "kernel",
    "_Z8doublifyPdi",
    1.0,
    1000.0,
    kernel=KernelFacts(
        readable("_Z8doublifyPdi"), 40, 0, 0, grid=(63, 1, 1), block=(64, 1, 1), symbol="_Z8doublifyPdi"
    ),
)
BREAKDOWN = [
    f"{FIRST} · kernel · 1.00 µs by cupti",
    "  Time(%)     Time  Calls      Avg  Name",
    "  100.0 %  1.00 µs      1  1.00 µs  doublify(double[*], int)",
    "      grid 63, block 64, 40 registers, occupancy 75 % (40 registers a thread)",
]


@pytest.fixture
def seen(gpu, monkeypatch):
    """As `gpu`, with CUPTI, which sees what a launch has the device do."""
    fake_gpu.install(monkeypatch, cupti=True)
    from pytest_gpukern.timers.cupti.timer import CuptiTimer

    collect = CuptiTimer.collect

    def collect_and_see(self, iterations, *, cold):
        return dataclasses.replace(collect(self, iterations, cold=cold), work=(KERNEL,))

    monkeypatch.setattr(CuptiTimer, "collect", collect_and_see)
    return gpu


@pytest.fixture
def stored(seen, pytester):
    """The file of a run of two cases."""
    seen("--gpukern-output=run.json").assert_outcomes(passed=2)
    return pytester.path / "run.json"


def show(capsys, *arguments):
    capsys.readouterr()
    status = cli.main(["show", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_a_verbose_run_shows_what_the_device_did_under_the_table(seen):
    seen("-v").stdout.fnmatch_lines(
        ["doubling · n=8 · kernel by cupti, cold L2", *BREAKDOWN, "gpukern: 2 passed*"]
    )


@pytest.mark.parametrize("option", ["-q", "-vq", "--tb=short"])
def test_another_run_does_not(seen, option):
    seen(option).stdout.no_fnmatch_line("*Time(%)*")


def test_a_stored_run_is_shown_as_it_was_with_what_the_device_did(stored, capsys):
    status, shown, complaints = show(capsys, stored)
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        [
            "doubling · n=8 · kernel by cupti, cold L2",
            "  variant * time * other timer * verdict",
            "  numba.first * 1.000 µs * event 1.50 µs * exact  NEW",
            "  numba.second * 1.000 µs * event 1.50 µs * exact  NEW",
            "",
            *BREAKDOWN,
            f"{SECOND} · kernel · 1.00 µs by cupti",
        ]
    )
    assert (status, complaints) == (0, "")


def test_a_run_that_failed_is_shown_as_it_told_it_itself(gpu, pytester, monkeypatch, capsys):
    more = """
def test_skipped(gpu_benchmark):
    pytest.skip("too hot")

def test_of_its_own(gpu_benchmark):
    assert not "a failure of its own"
"""
    gpu("--gpukern-baseline=create", "--gpukern-sessions=3").assert_outcomes(passed=2)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    pytester.makepyfile(test_doubling=GPU_PROBLEM + more)
    run = gpu("-v", "--tb=no", "--gpukern-output=run.json")
    run.assert_outcomes(passed=1, failed=2, skipped=1)
    shown = show(capsys, "run.json")[1].splitlines()
    told = [line for line in run.outlines if not line.startswith("gpukern: wrote ")]
    begin = told.index(shown[0])
    assert told[begin : begin + len(shown)] == shown
    pytest.LineMatcher(shown).fnmatch_lines(
        [
            f"SLOWER {FIRST} *",
            "1 skipped: too hot (test_doubling.py::test_skipped)",
            "gpukern: 1 passed, 1 failed by the gate, 1 failed otherwise, 1 skipped *",
            "gpukern: 1 case is slower; if that is meant: *",
        ]
    )


def test_failures_are_shown_where_no_test_came_to_a_result(gpu, pytester, capsys):
    pytester.makepyfile(test_doubling="def test_own(gpu_benchmark):\n    raise KeyError('n')")
    gpu("--gpukern-output=run.json").assert_outcomes(failed=1)
    assert show(capsys, "run.json") == (
        0,
        "FAILED test_doubling.py::test_own: KeyError: 'n'\n\ngpukern: 0 passed, 1 failed otherwise\n",
        "",
    )


def test_a_run_of_no_test_holds_nothing_to_show(gpu, pytester, capsys):
    gpu("--gpukern-output=run.json", "-k", "none")
    for option in ([], ["--trace"], ["--durations"]):
        assert show(capsys, "run.json", *option)[::2] == (1, "gpukern show: run.json holds no results\n")


def test_machines_get_the_results_without_their_samples(stored, capsys):
    status, shown, _ = show(capsys, stored, "second", "--json")
    (result,) = json.loads(shown)
    assert (status, result["case"]["id"]) == (0, SECOND)
    main = result["measurements"][0]
    assert main["summary"]["median_ns"] == pytest.approx(1000)
    assert "samples_ns" not in main


def test_a_text_that_no_id_holds_is_an_error_that_names_it(stored, capsys):
    status, shown, complaints = show(capsys, stored, "third")
    assert (status, shown) == (1, "")
    assert f"{stored} holds no case with 'third' in its id" in complaints


def test_durations_say_where_the_time_of_the_run_and_of_each_case_went(stored, capsys):
    status, shown, _ = show(capsys, stored, "--durations")
    of_run, *of_cases = [line for line in shown.splitlines() if not line.startswith(" ")]
    assert (status, of_run.partition(":")[0]) == (0, "time")
    assert {line.split()[2] for line in of_cases} == {f"{FIRST}:", f"{SECOND}:"}
    assert "sampling" in shown
    status, shown, _ = show(capsys, stored, "second", "--durations")
    assert (status, shown.split()[2]) == (0, f"{SECOND}:")


def test_a_file_that_is_none_is_an_error_without_a_traceback(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"schema": 99, "gpukern": "9.9"}')
    status, _, complaints = show(capsys, tmp_path / "run.json")
    assert status == 3
    assert "schema: is 99, and this pytest-gpukern reads 6" in complaints
    assert show(capsys, tmp_path / "none.json")[0] == 3


def test_a_reader_that_leaves_early_is_no_error(stored):
    command = [sys.executable, "-m", "pytest_gpukern", "show", str(stored)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stored_run_can_be_shown_where_there_is_no_gpu_library(stored):
    script = (
        "import sys; from pytest_gpukern.cli.main import main; assert main(['show', sys.argv[1]]) == 0; "
        "assert not {'cuda', 'numba', 'cupy', 'cupti', 'pynvml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(stored)], check=True, stdout=subprocess.DEVNULL)


def test_a_terminal_that_knows_ascii_only_is_told_all_of_it(stored):
    command = [sys.executable, "-m", "pytest_gpukern", "show", str(stored)]
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, env=environ, capture_output=True, check=True).stdout.decode("ascii")
    assert "1.00 us" in shown
    assert "- kernel - 1.00 us by cupti" in shown
