"""Checks records over several runs: more sessions, reasons, cases that no longer exist, and new ones."""

import functools
import shlex
from pathlib import Path

import pytest

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.cli.main import main
from pytest_gpukern.report import records

from .conftest import FIRST, GPU_PROBLEM, IN_A_WORKERS_PROCESS, SECOND, refused

RECORD = "--gpu-benchmark --gpukern-baseline=create"
PRUNE = (
    "gpukern baseline rename keeps a record; to remove: "
    "gpukern baseline prune baselines/doubling.fake-gpu.json --case"
)


def stored(pytester):
    (path,) = (pytester.path / "baselines").glob("*.json")
    return path


def rename_second(pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("def second(", "def other("))


# --- append and reasons ---------------------------------------------------------------------------


def test_append_records_nothing_of_what_was_confirmed_to_be_slower(recorded, pytester, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=append")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [f"gpukern: not recorded: slower than its current epoch: use --gpukern-baseline=update ({FIRST})"]
    )
    recorded().assert_outcomes(passed=1, failed=1)


def test_ci_writes_only_when_told_to(gpu, pytester, monkeypatch):
    monkeypatch.setenv("CI", "true")
    refused(gpu("--gpukern-baseline=create"), "--gpukern-baseline=create: CI is set in the environment *")
    assert not (pytester.path / "baselines").exists()
    gpu("--gpukern-baseline=create", "--gpukern-write-in-ci").assert_outcomes(passed=2)
    assert len(load(stored(pytester)).cases) == 2


# --- cases that are no more -----------------------------------------------------------------------


PARTS = [
    ["-k", "first"],
    ["--deselect", "test_doubling.py::test_doubling[doubling/numba.other/n=8]"],
    [f"test_doubling.py::test_doubling[{FIRST}]"],
    ["--gpukern-backend=numba"],
    ["--gpukern-backend=host"],
    ["--gpukern-axis=n=8"],
    ["--gpukern-baseline=off"],
]


def test_of_a_run_of_a_part_no_case_is_told_to_be_no_more(recorded, pytester, monkeypatch):
    rename_second(pytester)
    for part in PARTS:
        result = recorded("--gpukern-fail-on=missing,memory", *part)
        assert result.ret == pytest.ExitCode.OK, part
        result.stdout.no_fnmatch_line("*no longer exist*")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    whole, last_failed = recorded(), recorded("--lf")
    whole.stdout.fnmatch_lines(["*no longer exist*", "FAILED *"])
    last_failed.assert_outcomes(failed=1)
    last_failed.stdout.no_fnmatch_line("*no longer exist*")
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("full=(8,)", "full=(9,)").replace("def other(", "def second("))
    recorded().stdout.no_fnmatch_line("*no longer exist*")


def test_a_run_of_everything_names_recorded_cases_that_are_no_more_with_the_command_that_removes_them(
    recorded, pytester, capsys
):
    rename_second(pytester)
    before = stored(pytester).read_bytes()
    (line,) = (line for line in recorded().outlines if "no longer exists" in line)
    assert line == f"gpukern: 1 recorded case no longer exists: {SECOND}; {PRUNE} {SECOND}"
    assert stored(pytester).read_bytes() == before
    command = shlex.split(line.partition("to remove: gpukern ")[2])
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    assert f"would remove {SECOND}\n" in capsys.readouterr().out
    assert main(command) == 0
    assert load(stored(pytester)).cases.keys() == {FIRST}
    recorded().stdout.no_fnmatch_line("*no longer exist*")


def test_a_case_with_a_new_name_keeps_its_record_by_the_command_that_is_told(recorded, pytester):
    rename_second(pytester)
    recorded().stdout.fnmatch_lines(["*no longer exists: *; gpukern baseline rename keeps a record; *"])
    assert main(["baseline", "rename", "doubling/numba.second", "doubling/numba.other", "baselines"]) == 0
    again = recorded()
    again.stdout.no_fnmatch_line("*no longer exist*")
    again.stdout.no_fnmatch_line("*to record:*")


def test_workers_of_xdist_tell_which_cases_there_are(host, pytester):
    host("--gpu-benchmark", "--gpukern-baseline=create").assert_outcomes(passed=4)
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text().replace("def add(", "def plus("))
    host("--gpu-benchmark", "-n1").stdout.fnmatch_lines(
        ["gpukern: 2 recorded cases no longer exist: *; to remove: * --case doubling/host.add/n=8 *"]
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
GONE_FROM = "no test measures it any more, in {} ({}/test_it)"
NOT_RUN = [
    MISSING.format("1 recorded case", "its test measured nothing (test_kept/test_passed)"),
    MISSING.format("1 recorded case", "no luck (test_kept/test_skipped)"),
    MISSING.format("1 recorded case", "no soup (test_kept/test_marked)"),
]


@pytest.fixture
def may_miss(pytester, on_fake_gpu, monkeypatch):
    """Records plain tests which then do not run, each for a reason of its own; returns how to run them."""
    pytester.makepyfile(test_kept=MAY_MISS, test_imports=IN_A_FILE, test_deleted=IN_A_FILE)

    def record(*options):
        run = functools.partial(on_fake_gpu, "--gpu-benchmark", *options)
        once = ["--gpukern-baseline=create", "--gpukern-sessions=1", "--gpukern-isolate=off"]
        run(*once).assert_outcomes(passed=6, skipped=1)
        monkeypatch.setenv("MISSING", "1")
        (pytester.path / "test_deleted.py").unlink()
        return run

    return record


def missing_in(result):
    return sorted(line for line in result.outlines if "missing: " in line)


@pytest.mark.parametrize(
    ("options", "record"),
    [(["--gpukern-isolate=off"], ["--gpukern-baseline-dir=all"]), (IN_A_WORKERS_PROCESS, [])],
    ids=["one folder", "workers"],
)
def test_each_case_on_record_that_did_not_run_is_missing_with_its_reason(may_miss, options, record):
    result = may_miss(*record)("--gpukern-fail-on=missing", *options)
    result.assert_outcomes(passed=1, skipped=4, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = missing_in(result)
    gone = GONE_FROM.format("all" if record else "baselines", "test_deleted")
    gone = MISSING.format("1 recorded case", gone)
    imports = MISSING.format("1 recorded case", "could not import 'no_such_library': ")
    assert [line for line in told if not line.startswith(imports)] == sorted([*NOT_RUN, gone])
    assert [line.endswith("(test_imports/test_it)") for line in told if line.startswith(imports)] == [True]


def test_only_selected_cases_are_missing_and_only_where_that_is_asked_for(may_miss):
    run = functools.partial(may_miss(), "--gpukern-isolate=off")
    result = run()
    assert (result.ret, missing_in(result)) == (pytest.ExitCode.OK, [])
    assert missing_in(run("--gpukern-fail-on=missing", "-k", "skipped or xfailed")) == NOT_RUN[1:2]
    assert missing_in(run("--gpukern-fail-on=missing", "test_kept.py")) == NOT_RUN


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
    assert missing_in(result) == [MISSING.format("1 recorded case", GONE_FROM.format("..", "test_it"))]


GONE = {
    "deleted": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.parents[2] / "b" / "test_moved.py"),
    "stripped": lambda path: path.write_text("def test_it(): pass"),
    "left out": lambda path: (path.parents[2] / "conftest.py").write_text("collect_ignore = ['top']"),
    "its own": lambda path: (path.unlink(), (path.parents[1] / ".git").touch()),
}
OF_A_PART = (
    *("-k b", "-k test_it", "-n1 -k b", "--deselect=b/test_c.py", "b", "b/test_b.py"),
    *("b/test_b.py::test_it", "--lf -p cacheprovider", "--ignore=top", "--ignore=top/a/test_a.py"),
    *("--ignore-glob=top/*", "-onorecursedirs=top", "-onorecursedirs=top/*"),
)


@pytest.mark.parametrize(
    ("how", "options", "missing"),
    [
        *((how, [""], how != "its own") for how in GONE),
        ("its own", ["top"], True),
        ("deleted", ["-n1", ".", "top b", "top/a top", "b/../top"], True),
        ("deleted", OF_A_PART, False),
    ],
)
def test_what_is_on_record_of_a_folder_that_measures_nothing_any_more_is_missing_in_a_run_of_everything(
    pytester, on_fake_gpu, how, options, missing
):
    pytester.makefile(".py", **dict.fromkeys(("top/a/test_a", "b/test_b", "b/test_c"), IN_A_FILE))
    run = functools.partial(on_fake_gpu, "--gpu-benchmark", "--gpukern-isolate=off", "-p", "no:cacheprovider")
    run("--gpukern-baseline=create", "--gpukern-sessions=1").assert_outcomes(passed=3)
    run = functools.partial(run, "--gpukern-fail-on=missing")
    assert run(*options[0].split()).ret == pytest.ExitCode.OK
    GONE[how](pytester.path / "top" / "a" / "test_a.py")
    gone = MISSING.format("1 recorded case", GONE_FROM.format("top/a/baselines", "test_a"))
    for given in options:
        result = run(*given.split())
        assert (result.ret, missing_in(result)) == (int(missing), [gone] * missing), given
    if how == "stripped":  # and so it is if the test is named
        result = run("top/a/test_a.py::test_it")
        (told,) = missing_in(result)
        assert (result.ret, "its test measured nothing (test_a/test_it)" in told) == (1, True)


def test_a_variant_whose_library_no_longer_imports_is_missing_and_a_new_one_is_not(
    recorded, pytester, monkeypatch
):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + '\n@doubling.variant("numba")\ndef new(x, y): ...\n')
    why = "numba is not installed"
    monkeypatch.setattr("pytest_gpukern.run.environment.Environment._why_unusable", lambda *_: why)
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


def test_the_command_that_records_what_is_new_is_told_once_and_does_it(gpu, pytester):
    (line,) = (line for line in gpu().outlines if "--gpukern-baseline=create" in line)
    assert line == f"gpukern: nothing is on record yet; to record: pytest test_doubling.py {RECORD}"
    gpu(*shlex.split(line.partition("to record: pytest ")[2]))
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
    gpu(".").stdout.fnmatch_lines(
        ["gpukern: nothing is on record yet; to record: pytest . --gpu-benchmark *"]
    )


def test_a_new_time_of_a_recorded_case_is_no_new_case(gpu):
    gpu("--gpukern-scope=kernel", "--gpukern-baseline=create")
    told = "gpukern: 2 times of 2 cases new; to record: *"
    gpu("--gpukern-scope=kernel,end_to_end").stdout.fnmatch_lines([told])


def test_a_record_says_that_other_programs_used_the_host_meanwhile(gpu, monkeypatch):
    monkeypatch.setattr(records, "BUSY_HOST", 0.0)
    told = f"gpukern: recorded while other programs used the host: {FIRST}, {SECOND}; *"
    gpu("--gpukern-baseline=create").stdout.fnmatch_lines([told])
    gpu().stdout.no_fnmatch_line("*recorded while*")


def test_records_are_not_proposed_into_the_installed_package(gpu, pytester, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", pytester.path)
    told = gpu("--gpukern-cache=hot").stdout
    told.fnmatch_lines(
        ["*: gpukern validate --gpukern-baseline=create --gpukern-baseline-dir=FOLDER --gpukern-cache=hot"]
    )
    told = gpu("--gpukern-baseline-dir=mine").stdout
    told.fnmatch_lines(["*: gpukern validate --gpukern-baseline=create --gpukern-baseline-dir=mine"])
