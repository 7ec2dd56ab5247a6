"""Tests a shortened self-test of a real device: it finds its readings, and its file replays."""

import json
import subprocess
import sys

import pytest

from pytest_gpukern.cli import main as cli
from pytest_gpukern.selftest.processes import run_child
from pytest_gpukern.selftest.recording import TimerRecording, TimerSession, read_recording


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A self-test of two sessions without other tools and suites, and its file."""
    file = tmp_path_factory.mktemp("selftest") / "run.json"
    options = ["--sessions", "2", "--without", "rivals,suites", "--output", str(file)]
    command = [sys.executable, "-m", "pytest_gpukern", "selftest", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done, file


def test_both_sessions_find_all_readings(tested, capsys):
    done, file = tested
    with capsys.disabled():
        sys.stdout.write(f"\n{done.stdout}{done.stderr}")
    assert done.returncode in (0, 1), done.stderr
    sessions = read_recording(file, TimerRecording).sessions
    assert [session.problem for session in sessions] == [None, None]
    for session in sessions:
        assert [each.problem for each in session.preparations] == [None] * 5
        assert len(session.readings) == 5 * 2 * len(session.ticks_ns)
        assert len(session.walls) == 5 * 2
        assert all(reading.median_ns > 0 for reading in session.readings)


def test_the_device_agrees_with_kernels_that_know_their_time(tested):
    conclusions = json.loads(tested[1].read_text())["conclusions"]
    own = [row for row in conclusions["truth"] if row["against"] == "own time" or row["timer"] == "event"]
    assert len([row for row in own if row["reached"] is not None]) >= 11
    assert [row for row in own if row["reached"] is False] == []


def test_slopes_are_found_for_everything_that_can_be_captured(tested):
    for session in read_recording(tested[1], TimerRecording).sessions:
        slopes = {node.name: node.node_ns for node in session.nodes}
        assert slopes["spin 20000"] == pytest.approx(20_000, rel=0.1)
        assert slopes["exp 10 M f32"] is not None
        assert slopes["add 32 M f64"] is not None


def test_its_file_replays_to_the_same_table(tested, capsys):
    done, file = tested
    status = cli.main(["selftest", "--replay", str(file)])
    assert status == done.returncode
    assert capsys.readouterr().out.split() == done.stdout.split()


def test_every_other_tool_that_is_installed_reads_kernels(tmp_path, capsys):
    session = run_child(TimerSession, tmp_path / "1.json", 0, rivals=True)
    assert session.problem is None
    with capsys.disabled():
        for reading in session.rivals:
            sys.stdout.write(f"\n{reading.tool}, {reading.kernel}: {reading.problem or reading.median_ns}")
    tools = {reading.tool for reading in session.rivals}
    assert len(tools) == 4
    missing = {reading.tool for reading in session.rivals if "not installed" in (reading.problem or "")}
    read = {reading.tool for reading in session.rivals if reading.median_ns is not None}
    assert read == tools - missing
    assert all(reading.median_ns is None or reading.median_ns > 1000 for reading in session.rivals)
