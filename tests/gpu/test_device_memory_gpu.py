"""Tests that a test's leaks in real libraries are reported, and that first allocations are not leaks."""

from pathlib import Path

import pytest
from made_up_runs import whole_run

MIB = 2**20
LEFT = "of device memory allocated after its teardown"

CUPY = """
import cupy
import pytest

KEPT = []
MIB = 2**20

@pytest.fixture(scope="module")
def shared():
    return cupy.ones(16 * MIB, "uint8")

@pytest.fixture
def own():
    return cupy.ones(64 * MIB, "uint8")

def test_first_use_of_cublas(gpu_benchmark):
    a = cupy.random.default_rng(0).random((2048, 2048), dtype=cupy.float32)
    gpu_benchmark(lambda: a @ a)

def test_clean(gpu_benchmark, shared, own):
    gpu_benchmark(lambda: own + 1)

def test_leaks(gpu_benchmark, shared):
    gpu_benchmark(lambda: KEPT.append(shared[:MIB] + 1))

def test_after(gpu_benchmark, shared, own):
    gpu_benchmark(lambda: own + 1)

def test_keeps(gpu_benchmark, shared):
    KEPT.append(cupy.ones(8 * MIB, "uint8"))
    gpu_benchmark(lambda: shared + 1)

def test_last(gpu_benchmark, own):
    gpu_benchmark(lambda: own + 1)
"""

NUMBA = """
import numpy as np
from numba import cuda

KEPT = []

@cuda.jit
def fill(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 1

def test_clean(gpu_benchmark):
    x = cuda.device_array(4 << 20, np.float32)
    gpu_benchmark(fill[x.size // 256, 256], x)

def test_leaks(gpu_benchmark):
    def leaks():
        KEPT.append(cuda.device_array(1 << 18, np.float32))
        fill[1024, 256](KEPT[-1])
    gpu_benchmark(leaks)

def test_after(gpu_benchmark):
    x = cuda.device_array(4 << 20, np.float32)
    gpu_benchmark(fill[x.size // 256, 256], x)
"""

TORCH = """
import torch

KEPT = []

def test_first_use_of_cublas(gpu_benchmark):
    a = torch.rand(2048, 2048, device="cuda")
    gpu_benchmark(lambda: a @ a)

def test_leaks(gpu_benchmark):
    gpu_benchmark(lambda: KEPT.append(torch.ones(1 << 20, dtype=torch.uint8, device="cuda")))

def test_after(gpu_benchmark):
    x = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
    gpu_benchmark(lambda: x + 1)
"""


@pytest.fixture
def found(measured):
    """The results of a run of a file's tests, all of which pass, by test."""

    def run(source):
        done, results = measured(source, "-v")
        done.assert_outcomes(passed=source.count("def test_"))
        done.stdout.fnmatch_lines(["*device memory of libraries: before *, at most *, after *"])
        return {result["case"]["variant"]: result for result in results}

    return run


def findings(results):
    """Returns test → its memory finding, for tests that have one."""
    told = {
        name: [each["text"] for each in result["findings"] if each["kind"] == "memory"]
        for name, result in results.items()
    }
    return {name: texts for name, texts in told.items() if texts}


def test_a_leak_through_cupy_is_reported_for_its_test_and_no_neighbour(found):
    pytest.importorskip("cupy")
    results = found(CUPY)
    told = findings(results)
    assert told.keys() == {"test_leaks", "test_keeps"}, told
    (leak,), (keeps,) = told["test_leaks"], told["test_keeps"]
    assert LEFT in leak
    assert keeps.startswith(f"the test leaves 8 MiB {LEFT}")
    memory = {name: result["observations"]["memory"] for name, result in results.items()}
    clean = memory["test_clean"]
    assert clean["peak_bytes"] - clean["before_bytes"] >= 64 * MIB
    assert clean["after_bytes"] - clean["before_bytes"] < 64 * MIB
    assert memory["test_keeps"]["kept_bytes"] == 8 * MIB
    assert memory["test_last"]["kept_bytes"] == 0


@pytest.mark.parametrize(("library", "source"), [("numba", NUMBA), ("torch", TORCH)])
def test_a_leak_is_reported_for_its_test_and_a_workspace_of_cublas_is_none(found, library, source):
    pytest.importorskip(library)
    told = findings(found(source))
    assert told.keys() == {"test_leaks"}, told
    assert LEFT in told["test_leaks"][0]


def test_cases_of_the_suites_leak_nothing_and_have_figures(pytester, plugin_option):
    suites = Path(__file__).parents[2] / "suites"
    options = ("--gpu-benchmark", "--gpukern-baseline=off", "--gpukern-size=smoke", *plugin_option)
    output = f"--gpukern-report={pytester.path}/run.json"
    pytester.runpytest_subprocess(*options, output, f"--rootdir={suites}", str(suites / "vector_exp"))
    results = whole_run(pytester.path / "run.json")["results"]
    assert results
    assert findings({result["nodeid"]: result for result in results}) == {}
    assert all(result["observations"]["memory"] for result in results)
