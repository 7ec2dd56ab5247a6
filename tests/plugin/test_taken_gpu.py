"""Tests a GPU that another program takes during a test."""

import dataclasses
import os

from pytest_gpukern.gpu.nvml import GpuProcess

from . import fake_gpu
from .conftest import FIRST, GPU_PROBLEM, SECOND, results_in

STRANGER = GpuProcess(4711, "trainer", 900, 97)
TAKING = """
    if name == "FIRST":
        os.environ["TAKEN"] = "1"
    else:
        os.environ.pop("TAKEN", None)
    return launch
"""


class SharedBoard(fake_gpu.Board):
    """A stranger computes on it while the environment says so."""

    def state(self):
        foreign = (STRANGER,) if os.environ.get("TAKEN") else ()
        return dataclasses.replace(super().state(), foreign=foreign)


def test_what_was_measured_beside_another_program_is_invalid_and_the_next_test_is_not(pytester, monkeypatch):
    monkeypatch.delenv("TAKEN", raising=False)
    monkeypatch.setattr("pytest_gpukern.measure.device_clocks._PAUSES_S", 0.1)
    fake_gpu.install(monkeypatch, board=SharedBoard())
    pytester.makepyfile(test_doubling=GPU_PROBLEM.replace("    return launch\n", TAKING, 1))
    result = pytester.runpytest_inprocess("--gpu-benchmark", "--gpukern-report=run.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["INVALID (kernel/event/cold): *pid 4711 (trainer, 900 MiB*"])
    found = results_in(pytester.path / "run.json")
    invalid = [found[case]["measurements"][0]["invalid"] for case in (FIRST, SECOND)]
    assert "4711" in invalid[0]
    assert invalid[1] is None
