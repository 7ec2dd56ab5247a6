import numpy as np
import pytest
from numba import cuda

N = 1_000


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@pytest.mark.gpu_benchmark(outputs="out", bytes=12 * N)
def test_saxpy(gpu_benchmark):
    rng = np.random.default_rng(0)
    x, y = rng.random((2, N), dtype=np.float32)
    out = cuda.device_array(N, np.float32)
    gpu_benchmark(saxpy[-(-N // 256), 256], 2.0, cuda.to_device(x), cuda.to_device(y), out)
    gpu_benchmark.verify(out, 2.0 * x + y, rtol=1e-6)
