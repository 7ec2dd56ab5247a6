"""Uses PyCUDA: CUDA C++ through SourceModule, from global memory and through tiles in shared memory."""

import functools

import numpy as np
from pycuda.compiler import SourceModule

from .problem import matmul

TILE = 16

SOURCE = r"""
__global__ void one_element(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                            const int n)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x;  // along a row, so that a warp reads neighbours of B
    const int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= n || j >= n) return;
    float total = 0.0f;
    for (int k = 0; k < n; ++k)
        total += A[(size_t)i * n + k] * B[(size_t)k * n + j];
    C[(size_t)i * n + j] = total;
}

__global__ void tiled(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                      const int n)
{
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j = blockIdx.x * TILE + tx, i = blockIdx.y * TILE + ty;
    float total = 0.0f;
    for (int first = 0; first < n; first += TILE) {
        // Outside the matrices a tile holds zeros, which add nothing to the sum.
        a_tile[ty][tx] = i < n && first + tx < n ? A[(size_t)i * n + first + tx] : 0.0f;
        b_tile[ty][tx] = first + ty < n && j < n ? B[(size_t)(first + ty) * n + j] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k)
            total += a_tile[ty][k] * b_tile[k][tx];
        __syncthreads();  // nobody overwrites a tile that somebody still reads
    }
    if (i < n && j < n) C[(size_t)i * n + j] = total;
}
"""


@functools.cache
def kernels():
    """The module, compiled at first use: nvcc takes a second, and the module belongs to the context."""
    return SourceModule(SOURCE, options=[f"-DTILE={TILE}"])


@matmul.variant("pycuda", max_size={"n": 4096}, layouts=("misaligned",))
def naive(A, B, C, n, stream):
    """One thread an element, straight from global memory, in blocks of 32 × 32."""
    kernel, blocks = kernels().get_function("one_element"), -(-n // 32)
    return lambda: kernel(A, B, C, np.int32(n), grid=(blocks, blocks), block=(32, 32, 1), stream=stream)


@matmul.variant("pycuda", max_size={"n": 4096}, layouts=("misaligned",))
def shared_tiles(A, B, C, n, stream):
    """One thread an element, operands through shared memory: global reads divided by the tile's side."""
    kernel, blocks = kernels().get_function("tiled"), -(-n // TILE)
    return lambda: kernel(A, B, C, np.int32(n), grid=(blocks, blocks), block=(TILE, TILE, 1), stream=stream)
