"""Declares broken variants that SourceModule invites; each must be rejected for its fault."""

import numpy as np
from pycuda.compiler import SourceModule

from .on_pycuda import TILE, kernels
from .problem import matmul


@matmul.wrong("pycuda", expected_fault="not written")
def partial_tiles_forgotten(A, B, C, n, stream):
    """n // tile blocks where ⌈n / tile⌉ was meant: right for sizes that the tile divides."""
    kernel, blocks = kernels().get_function("tiled"), n // TILE
    return lambda: kernel(A, B, C, np.int32(n), grid=(blocks, blocks), block=(TILE, TILE, 1), stream=stream)


SOURCE = r"""
__global__ void one_row_more(const float* A, const float* B, float* C, const int n)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i > n || j >= n) return;
    float total = 0.0f;
    for (int k = 0; k < n; ++k)
        total += A[(size_t)min(i, n - 1) * n + k] * B[(size_t)k * n + j];
    C[(size_t)i * n + j] = total;
}
"""


@matmul.wrong("pycuda", expected_fault="out of bounds")
def one_row_too_many(A, B, C, n, stream):
    """`>` where `>=` was meant: a row behind the last one is written too."""
    kernel, blocks = SourceModule(SOURCE).get_function("one_row_more"), n // TILE + 1
    return lambda: kernel(A, B, C, np.int32(n), grid=(blocks, blocks), block=(TILE, TILE, 1), stream=stream)
