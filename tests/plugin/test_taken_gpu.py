"""A GPU that another program takes while a test measures: that one is invalid, the next is not."""

import dataclasses
import os

from pytest_gpukern.gpu.nvml import GpuProcess

from . import fake_gpu
from .conftest import GPU_PROBLEM, results_in

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
        state = super().state()
        return dataclasses.replace(state, foreign=(STRANGER,)) if os.environ.get("TAKEN") else state


def test_what_was_measured_beside_another_program_is_invalid_and_the_next_test_is_not(pytester, monkeypatch):
    monkeypatch.delenv("TAKEN", raising=False)
    fake_gpu.install(monkeypatch, board=SharedBoard())
    pytester.makepyfile(test_doubling=GPU_PROBLEM.replace("    return launch\n", TAKING, 1))
    result = pytester.runpytest_inprocess("--gpu-benchmark", "--gpukern-output=run.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["INVALID (kernel/event/cold): *pid 4711 (trainer, 900 MiB, *"])
    invalid = {
        case: [measurement["invalid"] for measurement in found["measurements"]]
        for case, found in results_in(pytester.path / "run.json").items()
    }
    assert "4711" in invalid["doubling/numba.first/n=8"][0]
    assert invalid["doubling/numba.second/n=8"] == [None]
