"""Tests that NVML and CUDA agree about the selected device."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def shown():
    from cuda.core import Device

    return Device(0)


def test_the_selected_device_is_cudas_ordinal_0(gpu_device, shown):
    assert gpu_device.uuid.removeprefix("GPU-") == str(shown.uuid)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu_device.uuid
    assert gpu_device.name == shown.name


def test_its_figures_are_those_of_the_driver(gpu_device, shown):
    assert gpu_device.compute_capability == tuple(shown.compute_capability)
    assert gpu_device.multiprocessor_count == shown.properties.multiprocessor_count
    assert gpu_device.l2_bytes == shown.properties.l2_cache_size
    assert 0 < gpu_device.memory_free_bytes <= gpu_device.memory_total_bytes


def test_a_value_that_hides_every_device_is_an_error_that_lists_them(pytester, gpu_device, plugin_option):
    pytester.makepyfile("def test_it(gpu_device): pass")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "10DE 1B06 63933842"}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--gpu-benchmark", *plugin_option],
        env=environ,
        cwd=pytester.path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 4
    assert "10DE 1B06 63933842" in found.stderr
    assert gpu_device.uuid in found.stderr


def test_each_worker_measures_on_a_gpu_of_its_own(pytester, plugin_option):
    pytester.makepyfile(
        """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]

@pytest.mark.parametrize("n", [1 << 16, 1 << 18, 1 << 20, 1 << 22])
def test_double(gpu_benchmark, n):
    x = np.random.default_rng(n).random(n)
    out = cuda.device_array_like(x)
    gpu_benchmark(double[n // 256, 256], cuda.to_device(x), out)
    gpu_benchmark.verify(out, 2 * x)
"""
    )
    result = pytester.runpytest_subprocess(
        "--gpu-benchmark", "-nauto", "--gpukern-baseline=create", "--gpukern-report=run.json", *plugin_option
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["gpukern workers: one on each of *"])
    from pytest_gpukern.report.run_file import read_run

    found = read_run(pytester.path / "run.json").results
    assert sorted(result.case.id.rpartition("[")[2] for result in found) == sorted(
        f"{n}]" for n in (1 << 16, 1 << 18, 1 << 20, 1 << 22)
    )
    assert all(result.measurements[0].timer in ("cupti", "event") for result in found)
