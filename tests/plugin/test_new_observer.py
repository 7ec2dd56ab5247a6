"""A new observer is one file in `measure/` and one row in the table; what it sees is in every form."""

import functools

import pytest

from pytest_gpukern.report.run_file import read_run

from .conftest import HOST_PROBLEM, IN_A_WORKERS_PROCESS

ROW = """
from pytest_gpukern.measure.observers import OBSERVERS, Figure, ObserverRow

OBSERVERS["fan"] = ObserverRow(
    "pytest_gpukern.measure.fan:FanObserver", "fan",
    {"speed_rpm": Figure("speed", "rpm"), "moved_bytes": Figure("moved", "bytes")},
)
"""

OBSERVER = """
from pytest_gpukern.measure.observers import Observation, Observer, Seen, SeenInTest
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Finding

class FanObserver(Observer):
    def observe(self, call, timer):
        return FanObservation()

    def end_test(self, *, passed, let_go):
        return SeenInTest({"moved_bytes": 2**20}, Finding("fan", "the fan moved something"))

class FanObservation(Observation):
    def finish(self, measurement):
        return Seen({"speed_rpm": 2300}, (Note("the fan rattles"),))
"""


@pytest.fixture
def run(beside_a_row):
    """Runs the tests of a problem beside the observer, in another process."""
    run = beside_a_row("measure", {"fan": OBSERVER}, ROW, test_doubling=HOST_PROBLEM)
    return functools.partial(run, "--gpu-benchmark", "--gpukern-simulator=never")


def test_a_file_and_a_row_are_enough(run, pytester):
    forms = ("-v", "--gpukern-report=run.json", "--gpukern-report=run.html")
    done = run("-k", "add", "--gpukern-axis=n=100", *forms, *IN_A_WORKERS_PROCESS)
    done.assert_outcomes(passed=1)
    case = "doubling/host.add/n=100"
    done.stdout.fnmatch_lines_random(
        [
            f"{case} · end_to_end/host/hot · fan: speed 2300 rpm",
            f"{case} · fan: moved 1.00 MiB",
            "*the fan rattles*",
            "fan *the fan moved something*",
        ]
    )
    (stored,) = read_run(pytester.path / "run.json").results
    assert stored.measurements[0].observations["fan"] == {"speed_rpm": 2300}
    assert stored.observations == {"fan": {"moved_bytes": 2**20}}
    page = (pytester.path / "run.html").read_text(encoding="utf-8")
    assert '["end_to_end/host/hot","fan","speed 2300 rpm"]' in page
    assert '["","fan","moved 1.00 MiB"]' in page
