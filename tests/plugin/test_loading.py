"""Tests when the loading of machine code is observed in a run's tests, on a fake device."""

import sys

from . import fake_gpu

KERNELS = """
import fake_gpu
import pytest

def noting(seen):
    def call():
        seen.append("".join(fake_gpu.OBSERVED))
    call.takes_ns = 1000.0
    return call

@pytest.fixture
def made_by_a_fixture(gpu_benchmark):
    return list(fake_gpu.OBSERVED)

def test_a_call(gpu_benchmark, made_by_a_fixture):
    seen, body = [], list(fake_gpu.OBSERVED)
    gpu_benchmark(noting(seen))
    assert made_by_a_fixture == body == ["begin"]
    assert seen[0] == "loading"
    assert seen[1] == "launches", "in the first call an autotuner takes times"
    assert len(seen) > 3 and set(seen[2:]) == {""}
    assert not fake_gpu.OBSERVED

def test_setup_of_a_call(gpu_benchmark):
    set_up, seen = [], []
    def setup():
        set_up.append("".join(fake_gpu.OBSERVED))
        return ()
    gpu_benchmark.pedantic(noting(seen), setup=setup)
    assert (set_up[0], *seen[:2]) == ("loading", "loading", "launches")
    assert set(set_up[2:] + seen[2:]) == {""}

def test_nothing_is_called(gpu_benchmark):
    assert fake_gpu.OBSERVED == ["begin"]

def test_without_the_fixture():
    assert not fake_gpu.OBSERVED

@pytest.mark.gpu_benchmark
def test_of_pytest_benchmark(benchmark):
    seen, body = [], list(fake_gpu.OBSERVED)
    benchmark(noting(seen))
    assert (body, seen[0]) == (["begin"], "loading")

@pytest.mark.gpu_benchmark
def test_of_pytest_benchmark_calls_nothing(benchmark):
    assert fake_gpu.OBSERVED == ["begin"]

def test_after_it(gpu_benchmark):
    assert fake_gpu.OBSERVED == ["begin"]
"""


def test_a_tests_set_up_and_body_are_observed_until_its_first_call_ends(gpu, pytester, monkeypatch):
    """Also where a teardown fails: pytest-benchmark's warns of a fixture that was not used."""
    monkeypatch.setitem(sys.modules, "fake_gpu", fake_gpu)
    pytester.makepyfile(test_doubling=KERNELS)
    gpu("--gpukern-baseline=off").assert_outcomes(passed=7, errors=1)
