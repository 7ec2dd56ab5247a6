"""A new backend is one file in `backends/` and one row in the table; nothing else is touched."""

import pytest

pytest.importorskip("numba_cuda")

ROW = """
from pathlib import Path
import pytest_gpukern.backends
from pytest_gpukern.values.backend_table import BACKENDS, BackendRow

pytest_gpukern.backends.__path__.append(str(Path(__file__).parent / "library"))
BACKENDS["opencl"] = BackendRow(
    "opencl:OpenclBackend", needs=(("json", "opencl-of-json"), ("{needed}", "{needed}-wheel")),
    simulated_by="opencl:OpenclBackend", arrays=(("opencl_arrays", "Buffer"),), packages=("opencl_arrays",),
    distributions=("pluggy",),
)
"""

BACKEND = """
from pytest_gpukern.backends.numba import SimulatedBackend

class OpenclBackend(SimulatedBackend):
    name = "opencl"
"""

TESTS = """
import numpy as np
import opencl_arrays
from pytest_gpukern import Axis, Problem
from pytest_gpukern.backends.foreign_array import backend_of
from pytest_gpukern.gpu.fingerprint import library_versions

doubling = Problem(
    "doubling", version=1, axes={"n": Axis(smoke=(8,), full=(10**9,))},
    make_inputs=lambda rng, n: {"x": rng.random(n)}, outputs=lambda n: {"y": ((n,), "float64")},
    reference=lambda x: 2 * x,
)

@doubling.variant("opencl")
def right(x, y):
    return lambda: y.copy_to_device(2 * x.copy_to_host())

@doubling.variant("host")
def numpy(x, y):
    return lambda: np.multiply(x, 2, out=y)

@doubling.cases
def test_case(gpu_benchmark, case):
    gpu_benchmark.run(case)

def test_its_arrays_and_its_versions_are_known():
    assert backend_of(opencl_arrays.Buffer()) == "opencl"
    assert "pluggy" in library_versions()
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs the tests beside a backend whose second library is called `needed`."""

    def run(*options, needed="math"):
        pytester.makepyfile(row=ROW.format(needed=needed), test_it=TESTS)
        pytester.makepyfile(opencl_arrays="class Buffer: pass")
        pytester.mkdir("library").joinpath("opencl.py").write_text(BACKEND)
        monkeypatch.setenv("PYTHONPATH", str(pytester.path))
        arguments = ("-p", "row", "--gpukern-simulator=always", *options)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-v", "-rs", *arguments)

    return run


def test_a_file_and_a_row_are_enough(run):
    result = run("--gpukern-backend=opencl")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*opencl.right*PASSED*"])


def test_its_missing_library_is_named(run):
    result = run(needed="nobody_has_this")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*nobody_has_this-wheel is not installed*"])


def test_it_is_among_the_names_that_can_be_selected(run):
    result = run("--gpukern-backend=openc")
    result.stderr.fnmatch_lines(["*'openc' is none of host, numba, *, opencl*"])
