"""What the terminal shows, and what pytest-benchmark is given."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from .conftest import FIRST, GPU_PROBLEM, HOST_PROBLEM, SECOND, without_pytests_plugins


def test_there_is_one_table_a_problem_and_a_last_line_that_counts(recorded, pytester):
    pytester.makepyfile(
        test_tripling=GPU_PROBLEM.replace('"doubling"', '"tripling"').replace("doubling", "tripling")
    )
    result = recorded()
    result.stdout.fnmatch_lines(
        [
            "doubling · n=8 · kernel by event, cold L2",
            "  variant * time * verdict",
            "  numba.first * 1.000 µs * exact  SAME",
            "  numba.second * 1.000 µs * exact  SAME",
            "",
            "tripling · n=8 · kernel by event, cold L2",
            "  numba.first * NEW",
            "  numba.second * NEW",
            "",
            "gpukern: 4 passed · baseline: 2 same, 2 new",
        ]
    )


def test_the_header_names_device_simulator_libraries_and_host(gpu):
    gpu().stdout.fnmatch_lines(
        [
            "gpukern device: 0: Fake GPU, compute capability 9.0, 16.0 GiB, GPU-fa4e",
            "gpukern simulator: off",
            "gpukern libraries: *numpy *",
            "gpukern host: *BLAS behind NumPy: *",
        ]
    )


def test_what_libraries_were_supplied_with_is_said_once_they_were_opened(gpu, monkeypatch):
    from pytest_gpukern.run.environment import Libraries

    monkeypatch.setattr(Libraries, "notes", ["scikit-cuda 0.5.3: numpy.typeDict is supplied"])
    gpu().stdout.fnmatch_lines(
        ["collected *", "gpukern note: scikit-cuda 0.5.3: numpy.typeDict is supplied", "", "test_*"]
    )


def test_a_run_without_cases_reports_nothing(pytester, gpu):
    pytester.makepyfile(test_doubling="def test_it(): pass")
    gpu().stdout.no_fnmatch_line("gpukern: *")


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_long_run_shows_how_far_it_is(host, monkeypatch, workers):
    from pytest_gpukern.report.progress import Progress

    monkeypatch.setitem(Progress.__init__.__kwdefaults__, "every_s", 0.0)  # a line is due at once
    lines = host("--gpu-benchmark", workers).stdout
    lines.fnmatch_lines([f"gpukern: {number} of 4 · doubling/host.* · *" for number in (1, 2, 3, 4)])
    host("--gpu-benchmark", "-q", workers).stdout.no_fnmatch_line("gpukern: ? of 4 *")


def test_the_time_left_is_by_the_recorded_durations(host, pytester, monkeypatch):
    from pytest_gpukern.report.progress import Progress

    monkeypatch.setitem(Progress.__init__.__kwdefaults__, "every_s", 0.0)
    host("--gpu-benchmark", "--gpukern-baseline=create").assert_outcomes(passed=4)
    (path,) = (pytester.path / "baselines").iterdir()
    content = json.loads(path.read_text())
    for case_id, record in content["records"].items():
        (session,) = record["epochs"][0]["sessions"]
        assert session["duration_s"] > 0
        session["duration_s"] = 3600 if case_id == "doubling/host.add/n=9" else 0.001
    path.write_text(json.dumps(content))
    lines = host("--gpu-benchmark", "-k", "add").stdout
    lines.fnmatch_lines(["gpukern: 1 of 2 · doubling/host.add/n=8 * h * left"])
    for record in content["records"].values():
        del record["epochs"][0]["sessions"][0]["duration_s"]
    path.write_text(json.dumps(content))
    lines = host("--gpu-benchmark", "-k", "add").stdout
    lines.fnmatch_lines(["gpukern: 1 of 2 · doubling/host.add/n=8 * s left"])
    lines.no_fnmatch_line("gpukern: 1 of 2 * h * left")


def test_recording_shows_which_session_it_is_at(host, monkeypatch):
    from pytest_gpukern.report.progress import Progress

    monkeypatch.setitem(Progress.__init__.__kwdefaults__, "every_s", 0.0)
    lines = host("--gpu-benchmark", "--gpukern-baseline=create", "--gpukern-sessions=3").stdout
    lines.fnmatch_lines([f"gpukern: 0 of 4 · session {number} of 3 · * left" for number in (2, 3)])


def test_an_expected_failure_is_listed_with_its_reason_and_not_with_its_traceback(host, pytester):
    pytester.makepyfile(
        test_doubling=HOST_PROBLEM.replace(
            "return lambda: np.add(x, x, out=y)", "return lambda: None"
        ).replace("@doubling.cases", "@pytest.mark.xfail(reason='known to be wrong')\n@doubling.cases")
    )
    result = host("--gpukern-axis=n=8")
    result.assert_outcomes(xfailed=1, xpassed=1)
    result.stdout.fnmatch_lines(["1 skipped: expected to fail: known to be wrong (doubling/host.add/n=8)"])


def test_every_measured_case_is_in_the_json_of_pytest_benchmark(gpu, pytester):
    gpu("--benchmark-json=benchmark.json", "--benchmark-only").assert_outcomes(passed=2)
    content = json.loads((pytester.path / "benchmark.json").read_text())
    found = {each["extra_info"]["case"]: each for each in content["benchmarks"]}
    assert found.keys() == {FIRST, SECOND}
    for each in found.values():
        assert each["stats"]["median"] == pytest.approx(1e-6)
        assert each["group"] == "doubling"
        assert each["extra_info"]["device"] == "Fake GPU"
    assert content["machine_info"]["gpukern"]["device"] == "Fake GPU"


def test_the_group_of_the_marker_is_the_group_in_pytest_benchmark(gpu, pytester):
    marked = GPU_PROBLEM.replace("@doubling.cases", "@pytest.mark.gpu_benchmark(flops=1)\n@doubling.cases")
    pytester.makepyfile(test_doubling=f"{marked}\npytestmark = pytest.mark.gpu_benchmark(group='mine')\n")
    gpu("--benchmark-json=benchmark.json")
    content = json.loads((pytester.path / "benchmark.json").read_text())
    assert {each["group"] for each in content["benchmarks"]} == {"mine"}


@pytest.mark.parametrize(
    "blocked", [["-pno:benchmark"], ["-pno:pytest-benchmark"], without_pytests_plugins()]
)
def test_a_run_works_with_other_plugins_blocked(recorded, monkeypatch, blocked):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert recorded(*blocked).ret == pytest.ExitCode.OK
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    assert recorded(*blocked).ret == pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def in_a_terminal(pytester):
    """What a run prints into a terminal with these environment variables."""
    pytester.makepyfile(test_doubling=HOST_PROBLEM)

    def run(*options, **environ):
        ours, theirs = os.openpty()
        kept = {name: text for name, text in os.environ.items() if not name.endswith(("_COLOR", "_COLORS"))}
        command = [sys.executable, "-m", "pytest", "--gpukern-simulator=never", "--gpu-benchmark", *options]
        process = subprocess.Popen(command, stdout=theirs, cwd=pytester.path, env=kept | environ)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO, once nobody writes any more
            while found := os.read(ours, 4096):
                shown += found
        os.close(ours)
        assert process.wait() == 0
        return shown.decode(environ.get("PYTHONIOENCODING", "utf-8"))

    return run


def test_a_terminal_has_colours_unless_it_is_dumb_or_nobody_wants_them(in_a_terminal):
    assert "\x1b[1mdoubling · end_to_end by host, hot" in in_a_terminal(TERM="xterm")
    for none in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        shown = in_a_terminal(**none)
        assert "\x1b" not in shown
        assert "\r\ndoubling · end_to_end by host, hot" in shown


def test_a_terminal_that_knows_ascii_only_has_it_spelled(in_a_terminal):
    shown = in_a_terminal(PYTHONIOENCODING="ascii", TERM="dumb")
    assert "doubling - end_to_end by host, hot" in shown
    assert " +- " in shown
    assert " ns " in shown or " us " in shown
    assert "\\u" not in shown
    assert "\\x" not in shown


@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_a_case_is_one_row_however_wide_the_terminal_is(host, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = host("--gpu-benchmark", "--gpukern-size=smoke").outlines
    rows = [line for line in lines if line.startswith("  host.") and line.endswith(" NEW")]
    assert len(rows) == 4
    assert all(len(row) <= int(columns) for row in rows)
