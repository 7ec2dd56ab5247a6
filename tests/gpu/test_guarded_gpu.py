"""Tests each library's guarded arrays on the device: right calls pass, writes around them are found."""

import pytest
from on_device import LIBRARIES

TESTS = (
    LIBRARIES
    + """
N = 10_007
host = np.random.default_rng(0).random(N, dtype=np.float32)

def of_pycuda(array):
    import pycuda.autoprimaryctx
    from pycuda import gpuarray
    return gpuarray.to_gpu(array)

@cuda.jit
def double(x, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = 2 * x[i]

@pytest.mark.parametrize("size", [N, N + 1])
def test_it(gpu_benchmark, size):
    x = of_LIBRARY(host)
    given, out = gpu_benchmark.guarded(x, "x"), gpu_benchmark.guarded_like(x, "out")
    assert type(given) is type(out) is type(x)
    gpu_benchmark(double[-(-N // 256) + 1, 256], given, out, size)
    gpu_benchmark.verify(out, 2 * host)
    if "LIBRARY" == "torch":
        with pytest.raises(TypeError, match="cannot be guarded"):
            gpu_benchmark.guarded(x.cpu())
"""
)


@pytest.mark.parametrize("library", ["numba", "cupy", "pycuda", "torch"])
def test_one_element_too_many_is_told_whatever_made_the_array(pytester, plugin_option, library):
    pytest.importorskip(library)
    pytester.makepyfile(test_it=TESTS.replace("LIBRARY", library))
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
