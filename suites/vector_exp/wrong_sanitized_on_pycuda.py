"""Declares a broken variant in CUDA C++ that may be right by luck; compute-sanitizer must reject it."""

import functools

import numpy as np
from pycuda.compiler import SourceModule

from .problem import vector_exp

BLOCK = 128
SOURCE = r"""
__global__ void smoothed_exp(const float *x, float *y, const int n, const float weight)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = expf(x[i] + weight * x[i + 1]);
}
"""


@functools.cache
def smoothed_exp():
    """The kernel, compiled at first use."""
    return SourceModule(SOURCE).get_function("smoothed_exp")


@vector_exp.wrong("pycuda", detected_by="memcheck", needs_gpu="memory behind an array that belongs to nobody")
def reads_one_too_many(x, y, n, stream):
    """Adds a neighbour with weight 0; after the end of x that is wrong only if it is NaN or infinite."""
    kernel, grid = smoothed_exp(), (-(-n // BLOCK), 1)
    return lambda: kernel(x, y, np.int32(n), np.float32(0), grid=grid, block=(BLOCK, 1, 1), stream=stream)
