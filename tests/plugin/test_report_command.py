"""`gpukern report` of runs and baselines, `--gpukern-report`, and what the device did under `-v`."""

import csv
import dataclasses
import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpukern.cli import main as cli
from pytest_gpukern.cli.report import report_files
from pytest_gpukern.gpu.kernel_facts import readable
from pytest_gpukern.values.result import DeviceWork, KernelFacts

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
def seen(with_cupti, monkeypatch):
    """As `with_cupti`, which sees what a launch has the device do."""
    from pytest_gpukern.timers.cupti.timer import CuptiTimer

    collect = CuptiTimer.collect

    def collect_and_see(self, iterations, *, cold):
        return dataclasses.replace(collect(self, iterations, cold=cold), work=(KERNEL,))

    monkeypatch.setattr(CuptiTimer, "collect", collect_and_see)
    return with_cupti


@pytest.fixture
def stored(seen, pytester):
    """The file of a run of two cases."""
    seen("--gpukern-report=run.json").assert_outcomes(passed=2)
    return pytester.path / "run.json"


@pytest.fixture
def runs(recorded, monkeypatch, pytester):
    """The folder with the files of two runs, the second with a slower kernel and with a page."""
    recorded("--gpukern-report=one.json")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    recorded("--gpukern-report=two.json", "--gpukern-report=two.html")
    return pytester.path


def report(capsys, *arguments):
    capsys.readouterr()
    status = cli.main(["report", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_only_a_verbose_run_shows_what_the_device_did_under_the_table(seen):
    seen("-vq").stdout.no_fnmatch_line("*Time(%)*")
    seen("-v").stdout.fnmatch_lines(
        ["doubling · n=8 · kernel by cupti, cold L2", *BREAKDOWN, "gpukern: 2 passed*"]
    )


def test_a_stored_run_is_told_as_it_told_itself_with_details_of_chosen_cases_alone(stored, capsys):
    status, shown, complaints = report(capsys, stored)
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        [
            "doubling · n=8 · kernel by cupti, cold L2",
            "  variant * time * verdict",
            "  numba.first * 1.000 µs * exact  NEW",
            "  numba.second * 1.000 µs * exact  NEW",
        ]
    )
    assert "Time(%)" not in shown
    assert (status, complaints) == (0, "")
    status, shown, complaints = report(capsys, stored, "-k", "first")
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(BREAKDOWN)
    assert SECOND not in shown
    assert (status, complaints) == (0, "")
    status, shown, complaints = report(capsys, stored, "-k", "third")
    assert (status, shown) == (1, "")
    assert f"no case with 'third' in its id in {stored}" in complaints


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
    run = gpu("--tb=no", "--gpukern-report=run.json")
    run.assert_outcomes(passed=1, failed=2, skipped=1)
    shown = report(capsys, "run.json")[1].splitlines()
    told = [line for line in run.outlines if not line.startswith("gpukern: wrote ")]
    begin = told.index(shown[0])
    assert told[begin : begin + len(shown)] == shown
    pytest.LineMatcher(shown).fnmatch_lines(
        [
            "FAILED: 1 failed test, 1 kernel +10.0 %",
            f"SLOWER  {FIRST}",
            "  accept    gpukern baseline merge run.json *",
            "1 skipped: too hot (test_doubling.py::test_skipped)",
            "gpukern: 1 passed, 1 failed by the gate, 1 failed otherwise, 1 skipped *",
        ]
    )


def test_failures_are_shown_where_no_test_came_to_a_result(gpu, pytester, capsys):
    pytester.makepyfile(test_doubling="def test_own(gpu_benchmark):\n    raise KeyError('n')")
    gpu("--gpukern-report=run.json").assert_outcomes(failed=1)
    status, shown, complaints = report(capsys, "run.json")
    assert shown.splitlines() == [
        "FAILED: 1 failed test",
        "",
        "FAILED  test_doubling.py::test_own",
        "  what      KeyError: 'n'",
        "  repeat    pytest test_doubling.py::test_own",
        "",
        "gpukern: 0 passed, 1 failed otherwise",
    ]
    assert (status, complaints) == (0, "")


def test_a_run_of_no_test_holds_nothing_to_show(gpu, pytester, capsys):
    gpu("--gpukern-report=run.json", "-k", "none")
    for option in ([], ["-k", ""]):
        assert report(capsys, "run.json", *option)[::2] == (1, "gpukern report: run.json holds no results\n")


def test_a_reader_that_leaves_early_is_no_error(stored):
    command = [sys.executable, "-m", "pytest_gpukern", "report", str(stored)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stored_run_is_shown_where_there_is_no_gpu_library_and_a_terminal_knows_ascii_only(stored):
    script = (
        "import sys; from pytest_gpukern.cli.main import main; assert main(sys.argv[1:]) == 0; "
        "assert not {'cuda', 'numba', 'cupy', 'cupti', 'pynvml'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script, "report", str(stored), "-k", ""]
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, env=environ, capture_output=True, check=True).stdout.decode("ascii")
    assert f"{SECOND} | kernel | 1.00 us by cupti" in shown


def test_what_observers_saw_alike_of_many_cases_is_one_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    run = Path(__file__).parents[1] / "data/run-h200.json.gz"
    assert cli.main(["report", str(run), "-k", "discount/"]) == 0
    nothing = "device memory of libraries: before 0 B, at most 0 B, after 0 B, kept 0 B"
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith(nothing))
    assert row.startswith("discount/")
    assert " and 43 more · " in row


# files


def test_a_run_and_its_file_make_the_same_page(runs, capsys):
    page = (runs / "two.html").read_text(encoding="utf-8")
    assert FIRST in page
    assert "SLOWER" in page
    assert report(capsys, "two.json", "-o", "again/two.html") == (0, "", "")
    assert (runs / "again" / "two.html").read_text(encoding="utf-8") == page


def test_two_runs_become_one_table(runs, capsys):
    (runs / "one.json.gz").write_bytes(gzip.compress((runs / "one.json").read_bytes()))
    assert report(capsys, "one.json.gz", "two.json", "-o", "all.csv") == (0, "", "")
    with (runs / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [
        (row["run"], row["case"], row["median_ns"], row["verdict"])
        for row in rows
        if row["role"] == "measured"
    ]
    assert found == [
        ("one.json.gz", FIRST, "1000.0", "SAME"),
        ("one.json.gz", SECOND, "1000.0", "SAME"),
        ("two.json", FIRST, "1100.0", "SLOWER"),
        ("two.json", SECOND, "1000.0", "SAME"),
    ]
    assert {row["role"] for row in rows} == {"measured", "confirming", "further"}
    assert report(capsys, "one.json", "-k", "first", "-o", "one.csv")[0] == 0
    assert SECOND not in (runs / "one.csv").read_text(encoding="utf-8")


def test_of_a_folder_the_baselines_below_count_but_not_hidden_ones(runs):
    for folder in ("deep/er/baselines", ".venv/baselines", "deep/other"):
        shutil.copytree(runs / "baselines", runs / folder)
    assert {file.parent for file in report_files(runs)} == {runs / "baselines", runs / "deep/er/baselines"}


def test_a_folder_of_baselines_is_told_and_becomes_a_table(runs, capsys):
    status, shown, _ = report(capsys, "baselines", "-k", "first")
    assert status == 0
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        ["doubling · kernel by event*", "  numba.first * n=8 *1.000 µs*"]
    )
    assert report(capsys, runs / "baselines", "-o", "records.csv")[0] == 0
    with (runs / "records.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["role"] == "measured"]
    assert [(row["case"], row["median_ns"]) for row in rows] == [(FIRST, "1000.0"), (SECOND, "1000.0")]
    baseline = next((runs / "baselines").iterdir())
    assert report(capsys, baseline, "-o", "a.html")[0] == 0
    for suffix in (".md", ".json"):
        status, _, complaints = report(capsys, "baselines", "-o", f"a{suffix}")
        assert (status, f"is a baseline, and {suffix} is a report of a run" in complaints) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["one.json", "-o", "a.txt"], 2, "a.txt names no form of a report: end it in .csv, .html, .js"),
        (["one.json", "two.json", "-o", "a.md"], 2, ".md is a report of one run, and 2 are given"),
        (["one.json", "missing.json", "-o", "a.html"], 3, "missing.json: cannot be read"),
        (["one.json", "-o", "one.json/a.html"], 3, "one.json/a.html: cannot be written"),
        (["broken.json.gz"], 3, "broken.json.gz: is not complete gzip"),
    ],
)
def test_what_cannot_be_reported_is_refused_with_the_reason(runs, capsys, arguments, status, said):
    (runs / "broken.json.gz").write_bytes(gzip.compress((runs / "one.json").read_bytes())[:-20])
    found, _, complaints = report(capsys, *arguments)
    assert (found, said in complaints) == (status, True)
    assert not list(runs.glob("a.*"))


def test_a_run_that_measured_nothing_has_no_table(host, pytester, capsys):
    (pytester.path / "run.csv").write_text("of an earlier run")
    host("--gpukern-report=run.json", "--gpukern-report=run.csv").assert_outcomes(passed=4)
    assert (pytester.path / "run.csv").read_text() == ""
    status, _, complaints = report(capsys, "run.json", "-o", "again.csv")
    assert status == 1
    assert "run.json: no measurement in it: run pytest with --gpu-benchmark" in complaints
    assert not (pytester.path / "again.csv").exists()
