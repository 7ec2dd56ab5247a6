"""Uses PyCUDA: `pycuda.curandom` into an array that is counted, and cuRAND's device API in a kernel."""

import functools

import numpy as np
import pycuda.driver
from pycuda import gpuarray
from pycuda.compiler import SourceModule
from pycuda.curandom import XORWOWRandomNumberGenerator, _RandomNumberGeneratorBase

from .problem import monte_carlo_pi

PIECE = 1 << 25  # points; their coordinates take 256 MiB
THREADS_OF_FULL_GPU = 132 * 2048
BLOCK = 256

COUNT = r"""
__global__ void count_hits(
    const float* __restrict__ numbers, const unsigned long long n, unsigned long long* hits)
{
    __shared__ unsigned long long block_count;
    if (threadIdx.x == 0) block_count = 0;
    __syncthreads();

    unsigned long long count = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (unsigned long long)gridDim.x * blockDim.x) {
        const float x = numbers[i], y = numbers[n + i];
        count += x * x + y * y < 1.0f;
    }

    atomicAdd(&block_count, count);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(hits, block_count);
}
"""

# Each thread draws from a subsequence of its own, so the count depends on the grid, and on nothing else.
PHILOX = r"""
#include <curand_kernel.h>

extern "C" __global__ void count_philox(
    const unsigned long long n, const unsigned long long seed,
    unsigned long long* total, unsigned int* tickets, unsigned long long* hits)
{
    __shared__ unsigned long long block_count;
    if (threadIdx.x == 0) block_count = 0;
    __syncthreads();

    const unsigned long long thread = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x, pairs = (n + 1) / 2;
    curandStatePhilox4_32_10_t state;
    curand_init(seed, thread, 0, &state);
    unsigned long long count = 0;
    for (unsigned long long pair = thread; pair < pairs; pair += threads) {
        const float4 p = curand_uniform4(&state);
        count += p.x * p.x + p.y * p.y < 1.0f;
        if (2 * pair + 1 < n)  // the last pair of an odd n is one point
            count += p.z * p.z + p.w * p.w < 1.0f;
    }

    atomicAdd(&block_count, count);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(total, block_count);
        __threadfence();  // the count is there before the ticket is taken
        if (atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1) hits[0] = atomicExch(total, 0ULL);
    }
}
"""


@functools.cache
def count_hits():
    """The counting kernel, compiled at first use."""
    return SourceModule(COUNT).get_function("count_hits")


@functools.cache
def count_philox():
    """The kernel that draws and counts, compiled at first use; cuRAND's header has templates in it."""
    return SourceModule(PHILOX, no_extern_c=True).get_function("count_philox")


def seeds_from(seed):
    """Makes what PyCUDA asks for a seed each of its generators, on the device."""

    def seeds(count):
        host = np.random.default_rng(seed).integers(0, 2**31 - 1, count, dtype=np.int32)
        return gpuarray.to_gpu(host)

    return seeds


class CompiledOnce(_RandomNumberGeneratorBase):
    """Keeps the kernels of the first generator for the others.

    PyCUDA 2026.1 runs nvcc for each one, also where its cache has them, since the source includes a header:
    0.2 s for each of a check's eight seeds.
    """

    kernels = None

    def __init__(self, *source):
        if CompiledOnce.kernels is None:
            super().__init__(*source)
            CompiledOnce.kernels = dict(vars(self))
        vars(self).update(CompiledOnce.kernels)


class Xorwow(XORWOWRandomNumberGenerator, CompiledOnce):
    """PyCUDA's generator, whose states are those of its own seed."""


def count_in_pieces(generator, n, hits, stream):
    """Counts n points, PIECE of them at a time: the generator fills an array, a kernel counts."""
    numbers = gpuarray.empty(2 * min(n, PIECE), np.float32)
    kernel = count_hits()

    def launch():
        pycuda.driver.memset_d32_async(hits.gpudata, 0, 2, stream)
        for first in range(0, n, PIECE):
            size = min(PIECE, n - first)
            drawn = numbers[: 2 * size]
            generator.fill_uniform(drawn, stream=stream)
            grid = (min(-(-size // BLOCK), THREADS_OF_FULL_GPU // BLOCK), 1)
            kernel(drawn, np.uint64(size), hits, grid=grid, block=(BLOCK, 1, 1), stream=stream)

    return launch


@monte_carlo_pi.variant("pycuda", max_size={"n": 10**8})
def xorwow(n, seed, hits, stream):
    """`XORWOWRandomNumberGenerator`: a block of states on each multiprocessor; calls continue the stream."""
    return count_in_pieces(Xorwow(seeds_from(seed)), n, hits, stream)


@monte_carlo_pi.variant("pycuda")
def curand_philox(n, seed, hits, stream):
    """SourceModule with `curand_kernel.h`: state in registers, one launch; the same count in every call."""
    threads = min(-(-n // 8), THREADS_OF_FULL_GPU)
    total, tickets = gpuarray.to_gpu(np.zeros(1, np.uint64)), gpuarray.to_gpu(np.zeros(1, np.uint32))
    arguments = np.uint64(n), np.uint64(seed), total, tickets, hits
    kernel, grid = count_philox(), (-(-threads // BLOCK), 1)
    return lambda: kernel(*arguments, grid=grid, block=(BLOCK, 1, 1), stream=stream)
