"""Tests a shortened self-test of a real device: it finds all its readings, and the truth is the truth."""

import subprocess
import sys

import pytest

from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.selftest.targets import Section, conclusions_of, sessions_of
from pytest_gpukern.selftest.test_timers import NODE_SPINS_NS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run of a self-test of two sessions."""
    file = tmp_path_factory.mktemp("selftest") / "run.json"
    options = ["--sessions", "2", "--output", str(file)]
    command = [sys.executable, "-m", "pytest_gpukern", "selftest", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    sys.stdout.write(f"\n{done.stdout}{done.stderr}")
    assert done.returncode in (0, 1), done.stderr
    return read_run(file)


def test_both_sessions_find_all_readings(run):
    sessions = sessions_of(run)
    assert len(sessions) == 2
    for session in sessions:
        assert [node.asked_ns for node in session.known.nodes] == list(NODE_SPINS_NS)
        assert len(session.kernels) == 5 * 2 + 4
        assert all(each.summary.median_ns > 0 for found in session.kernels.values() for each in found)


def test_the_device_agrees_with_kernels_that_know_their_time_and_with_graphs(run):
    conclusions = conclusions_of(run, 2)
    truth = [row for row in conclusions.rows if row.section is Section.TRUTH and row.reached is not None]
    assert len(truth) >= 11
    assert [row.what for row in truth if not row.reached] == []
    assert conclusions.missing == ()
