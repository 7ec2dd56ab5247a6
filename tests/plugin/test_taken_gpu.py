"""Tests a GPU that another program takes during a test, and a host that several workers share."""

import dataclasses
import itertools
import os

from pytest_gpukern.gpu.nvml import GpuProcess

from . import fake_gpu
from .conftest import FIRST, GPU_PROBLEM, HOST_PROBLEM, SECOND, results_in

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


TIMED_ALONE = """
import os
import time
from pathlib import Path

import numpy as np
import pytest

from pytest_gpukern.gpu.lock import DeviceLock

LOG = Path(__file__).parent / "log"

def doubles(x, y):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    holds = DeviceLock("the host").holder()[0] == str(os.getpid())
    began = time.monotonic()
    np.multiply(x, 2, out=y)
    time.sleep(0.001)
    with LOG.open("a") as log:
        log.write(f"{worker} {int(holds)} {began} {time.monotonic()}\\n")
"""


def test_host_variants_of_several_workers_are_timed_one_after_the_other(pytester):
    pytester.makepyfile(
        test_doubling=HOST_PROBLEM.replace("import os\nimport numpy as np\nimport pytest\n", TIMED_ALONE)
        .replace("lambda: np.multiply(x, 2, out=y)", "lambda: doubles(x, y)")
        .replace("lambda: np.add(x, x, out=y)", "lambda: doubles(x, y)")
    )
    result = pytester.runpytest_subprocess("--gpu-benchmark", "-n2")
    result.assert_outcomes(passed=4)
    result.stderr.no_fnmatch_line("*the host is in use*")
    calls = [line.split() for line in (pytester.path / "log").read_text().splitlines()]
    assert {worker for worker, *_ in calls} == {"gw0", "gw1"}
    assert {holds for _, holds, *_ in calls} == {"0", "1"}, "what is only checked waits for nobody"
    timed = sorted((float(began), float(ended)) for _, holds, began, ended in calls if holds == "1")
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(timed))
