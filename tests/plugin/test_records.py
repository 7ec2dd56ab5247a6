"""Checks records over several runs: more sessions, reasons, cases that no longer exist, and new ones."""

import functools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.cli.main import main
from pytest_gpukern.report import records

from .conftest import FIRST, GPU_PROBLEM, SECOND, refused, repeat_sessions


@pytest.fixture
def recorded(gpu):
    """As `gpu`, with a baseline of one session of 1 µs for both variants."""
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    return gpu


RECORD = "--gpu-benchmark --gpukern-baseline=create"
NEW_HINT = f"gpukern: 2 cases are new; to record: pytest test_doubling.py {RECORD}"
MODES = {
    "create": ["--gpukern-baseline=create"],
    "append": ["--gpukern-baseline=append"],
    "update": ["--gpukern-baseline=update", "--gpukern-reason=x"],
}
PRUNE = "to remove: gpukern baseline prune baselines/doubling.fake-gpu.json --case"


def stored(pytester):
    (path,) = (pytester.path / "baselines").glob("*.json")
    return path


def epochs(pytester, case_id=FIRST):
    return load(stored(pytester)).cases[case_id].epochs


def rename_second(pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("def second(", "def other("))


# --- append and reasons ---------------------------------------------------------------------------


def test_append_adds_a_session_to_the_current_epoch(recorded, pytester, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1002")
    recorded("--gpukern-baseline=append", "-k", "first").assert_outcomes(passed=1, deselected=1)
    (epoch,) = epochs(pytester)
    medians = [session.measurements["kernel/event/cold"].median_ns for session in epoch.sessions]
    assert medians == pytest.approx([1000, 1002])
    assert [len(epoch.sessions) for epoch in epochs(pytester, SECOND)] == [1]


def test_append_records_nothing_of_what_was_confirmed_to_be_slower(recorded, pytester, monkeypatch):
    repeat_sessions(pytester.path, 3)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=append")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [f"gpukern: not recorded: slower than its current epoch: use --gpukern-baseline=update ({FIRST})"]
    )
    recorded().assert_outcomes(passed=1, failed=1)


def test_append_to_another_problem_version_is_refused_and_names_update(recorded, pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("version=1", "version=2"))
    before = stored(pytester).read_bytes()
    result = recorded("--gpukern-baseline=append")
    result.stdout.fnmatch_lines(
        ["gpukern: not recorded: recorded with problem version 1, now 2: use --gpukern-baseline=update *"]
    )
    assert stored(pytester).read_bytes() == before


def test_the_reason_of_an_update_is_kept_with_what_it_records(recorded, pytester):
    recorded("--gpukern-baseline=update", "--gpukern-reason=new tiles", "-k", "first")
    assert [epoch.reason for epoch in epochs(pytester)] == [None, "new tiles"]
    assert [epoch.reason for epoch in epochs(pytester, SECOND)] == [None]


def test_a_reason_without_an_update_is_refused(recorded):
    refused(recorded("--gpukern-reason=why not"), "--gpukern-reason=why not: an update keeps it; add *")


@pytest.mark.parametrize("mode", ["create", "append", "update"])
def test_ci_writes_only_when_told_to(gpu, pytester, monkeypatch, mode):
    monkeypatch.setenv("CI", "true")
    refused(gpu(f"--gpukern-baseline={mode}"), f"--gpukern-baseline={mode}: CI is set in the environment *")
    assert not (pytester.path / "baselines").exists()
    gpu(*MODES[mode], "--gpukern-write-in-ci").assert_outcomes(passed=2)
    assert len(load(stored(pytester)).cases) == 2


@pytest.mark.parametrize("mode", ["append", "update"])
def test_what_is_invalid_is_not_recorded(recorded, pytester, monkeypatch, mode):
    monkeypatch.setenv("FIRST_ESCAPES", "ran elsewhere")
    recorded(*MODES[mode]).assert_outcomes(passed=1, failed=1)
    assert sum(len(epoch.sessions) for epoch in epochs(pytester)) == 1
    assert sum(len(epoch.sessions) for epoch in epochs(pytester, SECOND)) == 2


# --- cases that are no more -----------------------------------------------------------------------


def test_a_run_of_everything_counts_recorded_cases_that_are_no_more(recorded, pytester):
    rename_second(pytester)
    before = stored(pytester).read_bytes()
    recorded().stdout.fnmatch_lines(
        [f"gpukern: 1 recorded case no longer exists: {SECOND}; {PRUNE} {SECOND}"]
    )
    assert stored(pytester).read_bytes() == before


@pytest.mark.parametrize(
    "selection",
    [
        ["-k", "first"],
        ["--deselect", "test_doubling.py::test_doubling[doubling/numba.other/n=8]"],
        [f"test_doubling.py::test_doubling[{FIRST}]"],
        ["--gpukern-backend=numba"],
        ["--gpukern-backend=host"],
        ["--gpukern-axis=n=8"],
        ["--gpukern-baseline=off"],
    ],
    ids=["k", "deselect", "nodeid", "backend", "other backend", "axis", "off"],
)
def test_a_run_of_a_part_does_not(recorded, pytester, selection):
    rename_second(pytester)
    result = recorded("--gpukern-fail-on=missing,memory", *selection)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*no longer exist*")


def test_the_last_failed_are_a_part_too(recorded, pytester, monkeypatch):
    rename_second(pytester)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    recorded()
    recorded("--lf").stdout.no_fnmatch_line("*no longer exist*")


def test_other_sizes_of_a_problem_exist_too(recorded, pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("full=(8,)", "full=(9,)"))
    recorded().stdout.no_fnmatch_line("*no longer exist*")


def test_the_command_that_is_told_removes_them(recorded, pytester, capsys):
    rename_second(pytester)
    (line,) = (line for line in recorded().outlines if "no longer exists" in line)
    program, *command = shlex.split(line.partition("to remove: ")[2])
    assert program == "gpukern"
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    assert f"would remove {SECOND}: 1 epoch, 1 session, the newest of 2" in capsys.readouterr().out
    assert main(command) == 0
    assert load(stored(pytester)).cases.keys() == {FIRST}
    recorded().stdout.no_fnmatch_line("*no longer exist*")


def test_workers_of_xdist_tell_which_cases_there_are(host, pytester):
    host("--gpu-benchmark", "--gpukern-baseline=create", "-n1").assert_outcomes(passed=4)
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("def add(", "def plus("))
    host("--gpu-benchmark", "-n1").stdout.fnmatch_lines(
        ["gpukern: 2 recorded cases no longer exist: *; to remove: * --case 'doubling/host.add/[*]'"]
    )


# --- cases on record that did not run -------------------------------------------------------------

MAY_MISS = """
import os
import pytest
MISSING = os.environ.get("MISSING")
def call(): pass
@pytest.mark.skipif(bool(MISSING), reason="no soup")
def test_marked(gpu_benchmark): gpu_benchmark(call)
def test_skipped(gpu_benchmark):
    if MISSING: pytest.skip("no luck")
    gpu_benchmark(call)
def test_passed(gpu_benchmark):
    if not MISSING: gpu_benchmark(call)
def test_xfailed(gpu_benchmark):
    if MISSING: pytest.xfail("known")
    gpu_benchmark(call)
@pytest.mark.skip(reason="never ran")
def test_never(gpu_benchmark): gpu_benchmark(call)
"""
IN_A_FILE = """
import os
import pytest
if os.environ.get("MISSING"): pytest.importorskip("no_such_library")
def test_it(gpu_benchmark): gpu_benchmark(lambda: None)
"""
MISSING = "gpukern: --gpukern-fail-on=missing: {} did not run: {}"
WITHOUT_A_TEST = "no test measures it any more (test_deleted/test_it)"
NOT_RUN = [
    MISSING.format("1 recorded case", "its test measured nothing (test_kept/test_passed)"),
    MISSING.format("1 recorded case", "no luck (test_kept/test_skipped)"),
    MISSING.format("1 recorded case", "no soup (test_kept/test_marked)"),
]


@pytest.fixture
def may_miss(pytester, on_fake_gpu, monkeypatch):
    """Runs plain tests that are recorded and then do not run, each for a reason of its own."""
    pytester.makepyfile(test_kept=MAY_MISS, test_imports=IN_A_FILE, test_deleted=IN_A_FILE)

    def run(*options, record=()):
        once = ["--gpukern-baseline=create", "--gpukern-sessions=1", "--gpukern-isolate=off"]
        on_fake_gpu("--gpu-benchmark", *once, *record).assert_outcomes(passed=6, skipped=1)
        monkeypatch.setenv("MISSING", "1")
        (pytester.path / "test_deleted.py").unlink()
        return on_fake_gpu("--gpu-benchmark", *options, *record)

    return run


@pytest.mark.parametrize(
    ("options", "record"),
    [
        (["--gpukern-isolate=off"], ["--gpukern-baseline-dir=all"]),
        (["--gpukern-isolate=on"], []),
        (["-n1"], []),
    ],
    ids=["one folder", "isolated", "workers"],
)
def test_each_case_on_record_that_did_not_run_is_missing_with_its_reason(may_miss, options, record):
    result = may_miss("--gpukern-fail-on=missing", *options, record=record)
    result.assert_outcomes(passed=1, skipped=4, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = sorted(line for line in result.outlines if "missing: " in line)
    gone = MISSING.format("1 recorded case", WITHOUT_A_TEST)
    imports = MISSING.format("1 recorded case", "could not import 'no_such_library': ")
    assert [line for line in told if not line.startswith(imports)] == sorted([*NOT_RUN, gone])
    assert [line.endswith("(test_imports/test_it)") for line in told if line.startswith(imports)] == [True]


def test_what_is_missing_fails_only_where_asked_to(may_miss):
    result = may_miss("--gpukern-isolate=off")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*fail-on=missing*")


@pytest.mark.parametrize(
    ("selection", "told"),
    [(["-k", "skipped or xfailed"], NOT_RUN[1:2]), (["test_kept.py"], NOT_RUN)],
    ids=["-k", "file"],
)
def test_of_a_part_only_selected_cases_are_missing(may_miss, selection, told):
    result = may_miss("--gpukern-fail-on=missing", "--gpukern-isolate=off", *selection)
    assert sorted(line for line in result.outlines if "missing: " in line) == told


def test_records_from_beside_the_root_folder_are_not_missing(pytester, monkeypatch, on_fake_gpu):
    (pytester.path / ".git").mkdir()
    pytester.makefile(".py", **{f"{name}/test_it": IN_A_FILE for name in ("here", "here/gone", "there")})
    once = ["--gpu-benchmark", "--gpukern-isolate=off", "--import-mode=importlib"]
    run = functools.partial(on_fake_gpu, *once, f"--gpukern-baseline-dir={pytester.path}")
    run("--gpukern-baseline=create", "--gpukern-sessions=1").assert_outcomes(passed=3)
    monkeypatch.chdir(pytester.path / "here")
    result = run("--gpukern-fail-on=missing")
    assert result.ret == pytest.ExitCode.OK
    Path("gone/test_it.py").unlink()
    result = run("--gpukern-fail-on=missing")
    gone = MISSING.format("1 recorded case", "no test measures it any more (test_it/test_it)")
    assert [line for line in result.outlines if "missing: " in line] == [gone]


def test_a_variant_whose_library_no_longer_imports_is_missing_and_a_new_one_is_not(
    recorded, pytester, monkeypatch
):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + '\n@doubling.variant("numba")\ndef new(x, y): ...\n')
    why = "numba is not installed"
    monkeypatch.setattr("pytest_gpukern.run.environment.Libraries.unusable", lambda *_: why)
    result = recorded("--gpukern-fail-on=missing")
    result.assert_outcomes(skipped=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([MISSING.format("2 recorded cases", f"{why} ({FIRST}, {SECOND})")])


def test_cases_of_two_files_with_one_folder_of_baselines_all_exist(gpu, pytester):
    (pytester.path / "other").mkdir()
    test = GPU_PROBLEM.partition("@doubling.cases")
    more = '@doubling.variant("numba")\ndef third(x, y): return launch_of("THIRD", x, y)\n'
    other = f"from test_doubling import doubling, launch_of\n{more}{test[1]}{test[2]}"
    (pytester.path / "other" / "test_other.py").write_text(other)
    options = ("test_doubling.py", "other", "-opythonpath=.", "--gpukern-baseline-dir=all")
    gpu(*options, "--gpukern-baseline=create").assert_outcomes(passed=2 + 3)
    gpu(*options).stdout.no_fnmatch_line("*no longer exist*")
    assert len(load(pytester.path / "all" / "doubling.fake-gpu.json").cases) == 3


# --- what is new ----------------------------------------------------------------------------------


def test_the_command_that_records_what_is_new_is_told_once(gpu):
    result = gpu()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([NEW_HINT])
    assert result.stdout.str().count("--gpukern-baseline=create") == 1


def test_that_command_does_it(gpu, pytester):
    (line,) = (line for line in gpu().outlines if "to record: " in line)
    command = shlex.split(line.partition("to record: ")[2])
    assert command[:2] == ["pytest", "test_doubling.py"]
    assert command[2] == "--gpu-benchmark"
    gpu(*command[3:], command[1])
    gpu().stdout.no_fnmatch_line("*to record:*")
    assert len(load(stored(pytester)).cases) == 2


def test_it_names_the_file_as_seen_from_where_pytest_was_started_and_what_shapes_a_record(
    gpu, pytester, monkeypatch
):
    (pytester.path / "sub dir").mkdir()
    monkeypatch.chdir(pytester.path / "sub dir")
    result = gpu("..", "--gpukern-cache=hot", "--gpukern-baseline-dir=my baselines")
    options = "--gpukern-cache=hot '--gpukern-baseline-dir=my baselines'"
    result.stdout.fnmatch_lines([f"* to record: pytest ../test_doubling.py {RECORD} {options}"])


def test_of_many_files_the_arguments_are_told(gpu, pytester):
    for number in range(5):
        (pytester.path / f"test_more{number}.py").write_text(
            GPU_PROBLEM.replace('"doubling"', f'"p{number}"')
        )
    gpu(".").stdout.fnmatch_lines(["gpukern: 12 cases are new; to record: pytest . --gpu-benchmark *"])


def test_records_are_not_proposed_into_the_installed_package(gpu, pytester, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", pytester.path)
    told = gpu("--gpukern-cache=hot").stdout
    told.fnmatch_lines(
        ["*: gpukern validate --gpukern-baseline=create --gpukern-baseline-dir=FOLDER --gpukern-cache=hot"]
    )
    told = gpu("--gpukern-baseline-dir=mine").stdout
    told.fnmatch_lines(["*: gpukern validate --gpukern-baseline=create --gpukern-baseline-dir=mine"])


# --- two runs at once -----------------------------------------------------------------------------


def test_two_runs_that_append_at_once_lose_nothing(recorded, pytester):
    command = [sys.executable, "-m", "pytest", "-p", "fake_gpu", "--gpu-benchmark"]
    command += ["--gpukern-baseline=append", "--gpukern-sessions=1", "-p", "no:cacheprovider"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert all(re.search("gpukern: wrote .*json", text) for text in told)
    assert [len(epoch.sessions) for epoch in epochs(pytester)] == [3]
    assert json.loads(stored(pytester).read_text())["schema"] == 2
