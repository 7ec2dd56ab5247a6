"""What the terminal shows of a run."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest

from pytest_gpukern.report.progress import Progress

from .conftest import HOST_PROBLEM, without_pytests_plugins


@pytest.fixture
def _at_once(monkeypatch):
    """A line about progress is due at once."""
    monkeypatch.setitem(Progress.__init__.__kwdefaults__, "every_s", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_a_long_run_shows_how_far_its_workers_are_unless_it_is_quiet(host):
    lines = host("--gpu-benchmark", "-n1").stdout
    lines.fnmatch_lines([f"gpukern: {number} of 4 · doubling/host.* · *" for number in (1, 2, 3, 4)])
    host("--gpu-benchmark", "-q").stdout.no_fnmatch_line("gpukern: ? of 4 *")


@pytest.mark.usefixtures("_at_once")
def test_recording_shows_its_session_and_later_runs_the_time_left_by_the_recorded_durations(host, pytester):
    lines = host("--gpu-benchmark", "--gpukern-baseline=create", "--gpukern-sessions=3").stdout
    lines.fnmatch_lines([f"gpukern: 0 of 4 · session {number} of 3 · * left" for number in (2, 3)])
    (path,) = (pytester.path / "baselines").iterdir()
    content = json.loads(path.read_text())
    for case_id, record in content["records"].items():
        for session in record["epochs"][0]["sessions"]:
            assert session["duration_s"] > 0
            session["duration_s"] = 3600 if case_id == "doubling/host.add/n=9" else 0.001
    path.write_text(json.dumps(content))
    lines = host("--gpu-benchmark", "-k", "add").stdout
    lines.fnmatch_lines(["gpukern: 1 of 2 · doubling/host.add/n=8 * h * left"])


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
    """What a run prints into a terminal with these environment variables; its progress at once."""
    pytester.makepyfile(test_doubling=HOST_PROBLEM)
    pytester.makeconftest(
        "from pytest_gpukern.report import progress; "
        "progress.Progress.__init__.__kwdefaults__['every_s'] = progress._LONG_S = 0.0"
    )

    def run(**environ):
        ours, theirs = os.openpty()
        kept = {name: text for name, text in os.environ.items() if not name.endswith(("_COLOR", "_COLORS"))}
        command = [sys.executable, "-m", "pytest", "--gpukern-simulator=never", "--gpu-benchmark", "-kadd"]
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


def test_a_terminal_has_colours_and_a_line_that_is_erased(in_a_terminal):
    shown = in_a_terminal(TERM="xterm", PYTHONIOENCODING="UTF-8")
    assert "\x1b[1mdoubling · end_to_end by host, hot" in shown
    assert re.search(r"gpukern: 1 of 2 · measuring .*\x1b\[J", shown), "the line is drawn in place"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_that_knows_ascii_only_has_the_rest_escaped(in_a_terminal, term):
    shown = in_a_terminal(PYTHONIOENCODING="ascii", TERM=term)
    assert r"gpukern: 1 of 2 \xb7 doubling/host.add/n=" in shown, "in lines, which pytest escapes"
    assert r"doubling \xb7 end_to_end by host, hot" in shown
    assert len([line for line in shown.splitlines() if line.startswith("  host.")]) == 2
    assert ("\x1b" in shown) is (term == "xterm")
