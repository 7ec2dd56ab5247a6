"""Tests tests written for pytest-benchmark's fixture, on the device."""

import json

import pytest

pytest.importorskip("cupy")

KERNELS = """
import cupy
import numpy as np
import pytest

N = 1 << 24  # three arrays of 64 MiB, more than an L2 holds
a = cupy.random.default_rng(0).random(N, dtype=np.float32)
b = cupy.empty_like(a)

def double():
    cupy.multiply(a, 2, out=b)
    return b
"""


@pytest.fixture
def suite(pytester, plugin_option):
    def run(tests, *options):
        pytester.makepyfile(test_it=KERNELS + tests)
        return pytester.runpytest_subprocess("--gpu-benchmark", *plugin_option, *options)

    return run


def test_a_marked_test_is_measured_as_with_our_own_fixture_and_an_unmarked_one_by_pytest_benchmark(
    suite, pytester
):
    suite(
        """
@pytest.mark.gpu_benchmark(bytes=8 * N)
def test_marked(benchmark):
    assert bool((benchmark(double) == 2 * a).all())
    assert benchmark.stats["median"] > 10e-6, "an unsynchronized launch returns in less"

@pytest.mark.gpu_benchmark(bytes=8 * N)
def test_pedantic(benchmark):
    benchmark.pedantic(double, rounds=50, warmup_rounds=3)
    assert benchmark.stats["rounds"] >= 49

@pytest.mark.gpu_benchmark(bytes=8 * N, cache="hot")
def test_iterations(benchmark):
    benchmark.pedantic(double, rounds=20, iterations=5)
    assert benchmark.stats.iterations == 5 and benchmark.stats["rounds"] >= 18

def test_ours(gpu_benchmark):
    gpu_benchmark(double)

def test_numpy(benchmark):
    benchmark(np.sort, np.arange(1000))
""",
        "--benchmark-json=out.json",
    ).assert_outcomes(passed=5)
    found = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    medians = {each["name"]: each["stats"]["median"] for each in found}
    tests = ["test_iterations", "test_marked", "test_numpy", "test_ours", "test_pedantic"]
    assert sorted(medians) == tests
    for name in ("test_marked", "test_pedantic", "test_iterations"):
        assert medians[name] == pytest.approx(medians["test_ours"], rel=0.25)


def test_a_setup_comes_before_every_call_and_what_it_leaves_running_is_no_work_that_escapes(suite):
    suite(
        """
@pytest.mark.gpu_benchmark
def test_in_place(benchmark):
    seen = []
    def reset():
        b[...] = a
    def double_in_place():
        cupy.multiply(b, 2, out=b)
    def look():
        seen.append(bool((b == 2 * a).all()))
    benchmark.pedantic(double_in_place, setup=reset, teardown=look, rounds=30)
    assert benchmark.stats["rounds"] >= 28
    assert seen == [True] * 30, "a call saw what another had left"

@pytest.mark.gpu_benchmark
def test_left_running(benchmark):
    own, c = cupy.cuda.Stream(non_blocking=True), cupy.empty_like(a)
    def leave_work_running():
        with own:
            for _ in range(20):
                cupy.multiply(a, a, out=c)
    benchmark.pedantic(double, setup=leave_work_running, rounds=20)
"""
    ).assert_outcomes(passed=2)


def test_work_on_a_stream_of_its_own_fails_as_invalid_by_events(suite):
    result = suite(
        """
pytestmark = pytest.mark.gpu_benchmark(timer="event")

@pytest.fixture
def escape():
    own = cupy.cuda.Stream(non_blocking=True)
    def call():
        with own:
            for _ in range(4):
                cupy.multiply(a, a, out=b)
    return call

def test_theirs(benchmark, escape):
    benchmark(escape)

def test_ours(gpu_benchmark, escape):
    gpu_benchmark(escape)

def test_rounds(gpu_benchmark, escape):
    gpu_benchmark.pedantic(escape, setup=tuple, rounds=20)
"""
    )
    result.assert_outcomes(failed=3)
    invalid = [f"FAILED *::test_{name} - *INVALID*" for name in ("theirs", "ours", "rounds")]
    result.stdout.fnmatch_lines(["*INVALID*outside the timed stream*", *invalid])


OWN_CONTEXT = """
from cuda.bindings import driver, nvrtc

def ask(function, *arguments):
    status, *found = function(*arguments)
    assert int(status) == 0, status
    return found[0] if len(found) == 1 else found

@pytest.fixture
def launch():
    ask(driver.cuInit, 0)
    device = ask(driver.cuDeviceGet, 0)
    try:
        context = ask(driver.cuCtxCreate, None, 0, device)
    except TypeError:  # of CUDA 12
        context = ask(driver.cuCtxCreate, 0, device)
    program = ask(nvrtc.nvrtcCreateProgram, b'extern "C" __global__ void empty() {}', b"", 0, [], [])
    ask(nvrtc.nvrtcCompileProgram, program, 0, [])
    ptx = b" " * ask(nvrtc.nvrtcGetPTXSize, program)
    ask(nvrtc.nvrtcGetPTX, program, ptx)
    empty = ask(driver.cuModuleGetFunction, ask(driver.cuModuleLoadData, ptx), b"empty")
    stream = ask(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    yield lambda: ask(driver.cuLaunchKernel, empty, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
    ask(driver.cuCtxSynchronize)
    ask(driver.cuCtxDestroy, context)

@pytest.mark.gpu_benchmark(scope="launch")
def test_marked(benchmark, launch):
    benchmark(launch)

def test_launch(benchmark, launch):
    benchmark(launch)

def test_after(gpu_benchmark):
    gpu_benchmark(double)
"""


@pytest.mark.parametrize("options", [(), ("--gpukern-all",)])
def test_what_a_launch_costs_in_a_context_of_the_tests_own_is_measured(suite, options):
    """As NVIDIA's launch-latency benchmarks for cuda-python do."""
    suite(OWN_CONTEXT, "--gpukern-timeout=40", *options).assert_outcomes(passed=3)
