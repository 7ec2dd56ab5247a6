"""Tests device memory in whole runs on a fake device: figures, and leaks reported for the right test."""

import sys

import pytest

from . import fake_gpu
from .conftest import results_in

KERNELS = """
import fake_gpu
import pytest

KEPT = []
MIB = 2**20

def clean():
    fake_gpu.Array(4 * MIB)

def leaks():
    KEPT.append(fake_gpu.Array(MIB))

@pytest.fixture(scope="module")
def shared():
    return fake_gpu.Array(100 * MIB)

@pytest.fixture
def own():
    return fake_gpu.Array(50 * MIB)

def test_before(gpu_benchmark, own):
    held = fake_gpu.Array(70 * MIB)
    gpu_benchmark(clean)
    del held

def test_leaks(gpu_benchmark):
    gpu_benchmark(leaks)

def test_between(gpu_benchmark, shared, own):
    gpu_benchmark(clean)

def test_fails(gpu_benchmark):
    own = fake_gpu.Array(8 * MIB)
    gpu_benchmark(clean)
    assert own is None, "what a failure refers to is not kept"

def test_keeps(gpu_benchmark, shared):
    KEPT.append(fake_gpu.Array(8 * MIB))
    gpu_benchmark(clean)

def test_after(gpu_benchmark, own):
    own.myself = own  # a cycle
    gpu_benchmark(clean)
"""
MIB = 2**20
LEAK = "the test leaves * MiB of device memory allocated after its teardown: *"
KEPT = "the test leaves 8 MiB of device memory allocated after its teardown: *"


@pytest.fixture
def kernels(gpu, pytester, monkeypatch):
    """Runs tests on the fake device, some of which leak; with what their results say."""
    fake_gpu.ALIVE.clear()
    monkeypatch.setitem(sys.modules, "fake_gpu", fake_gpu)
    pytester.makepyfile(test_doubling=KERNELS)

    def run(*options):
        result = gpu("--gpukern-report=run.json", *options)
        found = results_in(pytester.path / "run.json")
        return result, {case.partition("/")[2]: each for case, each in found.items()}

    return run


def test_a_leak_is_reported_for_the_test_that_leaked_and_figures_by_a_verbose_run(kernels):
    run, found = kernels("-v")
    run.assert_outcomes(passed=5, failed=1)
    leaky = {name: [each["kind"] for each in result["findings"]] for name, result in found.items()}
    assert {name for name, kinds in leaky.items() if kinds == ["memory"]} == {"test_leaks", "test_keeps"}
    assert sum(map(len, leaky.values())) == 2
    memory = {name: result["observations"]["memory"] for name, result in found.items()}
    assert memory["test_before"] == {
        "before_bytes": 0,
        "peak_bytes": 120 * MIB,
        "after_bytes": 0,
        "kept_bytes": 0,
    }
    assert memory["test_keeps"]["kept_bytes"] == 8 * MIB
    assert memory["test_after"]["kept_bytes"] == 0
    run.stdout.fnmatch_lines_random(
        [
            "*test_before · device memory of libraries: before 0 B, at most 120 MiB, after 0 B, kept 0 B",
            f"memory *test_leaks*: {LEAK}",
            f"memory *test_keeps*: {KEPT}",
        ]
    )


@pytest.mark.parametrize(
    "options", [["--gpukern-baseline=off"], ["--gpukern-baseline=update", "--gpukern-reason=x"]]
)
def test_leaks_fail_their_tests_where_that_is_asked_for_with_any_record_and_no_update_accepts_them(
    kernels, options
):
    run, _ = kernels("--gpukern-fail-on=memory", "-rfE", *options)
    run.assert_outcomes(passed=5, failed=1, errors=2)
    run.stdout.fnmatch_lines([f"MEMORY: {LEAK}", f"MEMORY: {KEPT}"])
    run.stdout.fnmatch_lines(["ERROR *::test_leaks - *MEMORY: *", "ERROR *::test_keeps - *MEMORY: *"])
    run.stdout.fnmatch_lines(["gpukern: 2 failed by the gate, 1 failed otherwise, 3 unchecked*"])
    run.stdout.no_fnmatch_line("*device memory of libraries*")
