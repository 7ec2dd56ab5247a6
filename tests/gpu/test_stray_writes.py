"""Tests launches that write where they should not, each in its own process, whose context may be lost."""

import subprocess
import sys

import pytest

SCRIPT = r"""
import numpy as np
from numba import cuda

from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.backends.backend import open_backend
from pytest_gpukern.check.check_variant import Prepared, check
from pytest_gpukern.problems.dataset import Datasets
from pytest_gpukern import Axis, Problem
from pytest_gpukern.check.diagnosis import IncorrectError

problem = Problem(
    "doubling",
    version=1,
    axes={{"n": Axis(smoke=(1000,), full=(1000,))}},
    make_inputs=lambda rng, n: {{"a": rng.random(n)}},
    outputs=lambda n: {{"out": ((n,), "float64")}},
    reference=lambda a: 2 * a,
)

@cuda.jit
def far_away(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i + {offset}] = 2 * a[i]

@problem.variant("numba")
def strays(a, out, stream):
    return lambda: far_away[4, 256, stream](a, out)

(case,) = cases_of(problem, "smoke")
backend = open_backend("numba", simulated=False)
datasets = Datasets().for_check(problem, case.point, contents=2, available_bytes=1e9)
workspace = backend.workspace(datasets[0].inputs, datasets[0].specs)
try:
    check(Prepared(case, case.point, backend, workspace, datasets))
except IncorrectError as error:
    print(error.diagnosis.message)
"""


def diagnosis(offset):
    """Returns the diagnosis of a kernel that writes so many elements beyond its array."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.format(offset=offset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def test_an_illegal_address_is_the_fault_of_the_launch_with_cudas_name_for_it():
    found = diagnosis(1 << 45)
    assert found.startswith("launch failed: launching numba.strays")
    # The driver's name or the runtime's, as the library has it that sees the error first.
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in found or "cudaErrorIllegalAddress" in found


@pytest.mark.parametrize("offset", [1, 24])
def test_what_hits_memory_of_the_process_is_found_by_its_guard_zones(offset):
    """CUDA says nothing of it: the allocation is larger than the array."""
    found = diagnosis(offset)
    assert found.startswith("out: out of bounds\n")
    assert "bytes written after the end of out, the nearest 1 element away: flat index 1000 of 1000" in found
