"""Runs → workflow commands of GitHub Actions."""

from pathlib import Path

import pytest

from pytest_gpukern.report.github import errors
from pytest_gpukern.report.run import Failure, RunResults

ROOT = Path("/home/me/project")
SLOWER = Failure("SLOWER (kernel/event/cold): +10.0 %, or so")


@pytest.mark.parametrize("places", [{}, {"test_a.py::test_b": ("/elsewhere/test_a.py", 3)}])
def test_a_place_that_is_not_in_the_repository_is_left_out(places):
    run = RunResults(failures={"test_a.py::test_b": Failure("KeyError")}, places=places)
    assert errors(run, ROOT) == ["::error title=FAILED test_a.py%3A%3Atest_b::KeyError"]


def test_there_are_at_most_ten():
    run = RunResults(failures={f"test_{number}": Failure(f"{number}") for number in range(30)})
    assert len(errors(run, ROOT)) == 10
    same = RunResults(failures={f"test_{number}": SLOWER for number in range(30)})
    (line,) = errors(same, ROOT)
    assert "title=FAILED 30 tests%3A test_0%2C test_1%2C test_2 and 27 more::" in line


def test_no_text_of_a_run_ends_a_command_or_begins_another():
    name = "a,line=1::x\r\n::set-env name=PATH::/evil\n\u2028::stop-commands::y%0A"
    places = {name: (f"/home/me/project/{name}.py", 1)}
    (line,) = errors(RunResults(failures={name: Failure(name.replace("\n", "\r"))}, places=places), ROOT)
    assert len(line.splitlines()) == 1
    properties, _, message = line.removeprefix("::error ").partition("::")
    assert [each.partition("=")[0] for each in properties.split(",")] == ["file", "line", "title"]
    assert "%25" in message
    assert "%0A" not in line.replace("%250A", "")
