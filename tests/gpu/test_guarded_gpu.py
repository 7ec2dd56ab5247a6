"""Tests each library's guarded arrays on the device: right calls pass, writes around them are found."""

import pytest

SETUP = """
import numpy as np
import pytest
from numba import cuda

N = 10_007
host = np.random.default_rng(0).random(N, dtype=np.float32)

@cuda.jit
def double(x, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = 2 * x[i]

with_one_more = pytest.mark.parametrize("size", [N, N + 1])

def check(gpu_benchmark, x, size):
    given, out = gpu_benchmark.guarded(x, "x"), gpu_benchmark.guarded_like(x, "out")
    assert type(given) is type(out) is type(x)
    gpu_benchmark(double[-(-N // 256) + 1, 256], given, out, size)
    gpu_benchmark.verify(out, 2 * host)
"""
NUMBA = """
@with_one_more
def test_it(gpu_benchmark, size):
    check(gpu_benchmark, cuda.to_device(host), size)
"""
CUPY = """
import cupy

@with_one_more
def test_it(gpu_benchmark, size):
    check(gpu_benchmark, cupy.asarray(host), size)
"""
PYCUDA = """
import pycuda.autoprimaryctx
import pycuda.driver
from pycuda import gpuarray
from pycuda.compiler import SourceModule

@with_one_more
def test_it(gpu_benchmark, size):
    kernel = SourceModule(
        "__global__ void twice(const float *x, float *out, int n)"
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = 2 * x[i]; }"
    ).get_function("twice")
    x = gpuarray.to_gpu(host)
    given, out = gpu_benchmark.guarded(x, "x"), gpu_benchmark.guarded_like(x, "out")
    assert type(given) is type(out) is type(x)
    blocks = {"grid": (-(-N // 256) + 1, 1), "block": (256, 1, 1)}
    gpu_benchmark(kernel, given.gpudata, out.gpudata, np.int32(size), **blocks)
    gpu_benchmark.verify(out, 2 * host)
"""
TORCH = """
import torch

@with_one_more
def test_it(gpu_benchmark, size):
    x = torch.from_numpy(host).cuda()
    given, out = gpu_benchmark.guarded(x, "x"), gpu_benchmark.guarded_like(x, "out")
    assert type(given) is type(out) is torch.Tensor
    arrays = [cuda.as_cuda_array(each) for each in (given, out)]
    gpu_benchmark(double[-(-N // 256) + 1, 256], *arrays, size)
    gpu_benchmark.verify(out, 2 * host)
    with pytest.raises(TypeError, match="cannot be guarded"):
        gpu_benchmark.guarded(torch.zeros(3))
"""
EACH = {"numba": NUMBA, "cupy": CUPY, "pycuda": PYCUDA, "torch": TORCH}


@pytest.mark.parametrize("library", EACH)
def test_one_element_too_many_is_told_whatever_made_the_array(pytester, plugin_option, library):
    pytest.importorskip(library)
    pytester.makepyfile(test_it=SETUP + EACH[library])
    result = pytester.runpytest_subprocess("--gpu-benchmark", "--gpukern-baseline=off", *plugin_option)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*INCORRECT: out: out of bounds",
            # A NaN was read and doubled; some of its bytes may be those of the zone.
            "  [1-4] byte* written after the end of out, the nearest 1 element away: flat index 10007 of *",
            "  seen in the first call",
        ]
    )
