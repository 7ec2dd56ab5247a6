"""What the terminal shows of a run."""

import contextlib
import os
import subprocess
import sys

import pytest

from pytest_gpukern.report import progress

from .conftest import HOST_PROBLEM, without_pytests_plugins


@pytest.fixture
def _at_once(monkeypatch):
    """A line about progress is due at once."""
    monkeypatch.setattr(progress, "EVERY_S", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_a_long_run_tells_how_far_it_is_unless_it_is_quiet(host):
    for workers, more in (([], []), (["-n1"], ["--gpukern-baseline=create", "--gpukern-sessions=2"])):
        lines = host("--gpu-benchmark", *workers, *more).stderr
        lines.fnmatch_lines([f"gpukern: tests: {number} of 4, *" for number in (1, 2, 3, 4)])
    lines.fnmatch_lines(["gpukern: tests in 1 more sessions: 0 of 4, *"])
    host("--gpu-benchmark", "-q").stderr.no_fnmatch_line("gpukern: tests: *")


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


def test_a_terminal_has_colours(in_a_terminal):
    shown = in_a_terminal(TERM="xterm", PYTHONIOENCODING="UTF-8")
    assert "\x1b[1mdoubling · end_to_end by host, hot" in shown


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_that_knows_ascii_only_has_the_rest_spelt_out(in_a_terminal, term):
    shown = in_a_terminal(PYTHONIOENCODING="ascii", TERM=term)
    assert "doubling | end_to_end by host, hot" in shown
    assert "\\" not in shown
    (header,) = (line for line in shown.splitlines() if " +-" in line and "verdict" in line)
    (row, _) = (line for line in shown.splitlines() if line.startswith("  host."))
    assert row.rstrip().endswith("NEW")
    assert (row.index("NEW"), " us " in row) == (header.index("verdict"), True)
    assert len([line for line in shown.splitlines() if line.startswith("  host.")]) == 2
    assert ("\x1b" in shown) is (term == "xterm")
