"""Uses CuPy: random arrays in pieces that are counted by a reduction, and Philox in CUDA C++."""

import cupy
import numpy as np

from .problem import monte_carlo_pi

PIECE = 1 << 25  # points; their coordinates take 256 MiB
THREADS_OF_FULL_GPU = 132 * 2048

count_hits = cupy.ReductionKernel(
    "float32 x, float32 y",
    "int64 hits",
    "x * x + y * y < 1.0f ? 1 : 0",
    "a + b",
    "hits = a",
    "0",
    "count_hits",
)

# Philox4x32-10 of J. K. Salmon et al., SC '11, https://doi.org/10.1145/2063384.2063405: the same counters,
# keys, test and hand-over between blocks as in on_numba.py, so the counts are equal.
SOURCE = r"""
__device__ __forceinline__ unsigned int hits_of(unsigned int x, unsigned int y)
{
    const unsigned long long a = x >> 1, b = y >> 1;
    return a * a + b * b < (1ULL << 62);
}

extern "C" __global__ void count_philox(
    const unsigned long long n, const unsigned long long seed,
    unsigned long long* total, unsigned int* tickets, unsigned long long* hits)
{
    __shared__ unsigned long long block_count;
    if (threadIdx.x == 0) block_count = 0;
    __syncthreads();

    const unsigned long long pairs = (n + 1) / 2, threads = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long count = 0;
    for (unsigned long long pair = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; pair < pairs;
         pair += threads) {
        unsigned int c0 = (unsigned int)pair, c1 = (unsigned int)(pair >> 32), c2 = 0, c3 = 0;
        unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)(seed >> 32);
        #pragma unroll
        for (int round = 0; round < 10; ++round) {
            const unsigned long long p0 = 0xD2511F53ULL * c0, p1 = 0xCD9E8D57ULL * c2;
            c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
            c1 = (unsigned int)p1;
            c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
            c3 = (unsigned int)p0;
            k0 += 0x9E3779B9U;
            k1 += 0xBB67AE85U;
        }
        count += hits_of(c0, c1);
        if (2 * pair + 1 < n) count += hits_of(c2, c3);
    }

    atomicAdd(&block_count, count);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(total, block_count);
        __threadfence();
        if (atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1) hits[0] = atomicExch(total, 0ULL);
    }
}
"""
count_philox = cupy.RawKernel(SOURCE, "count_philox")


def in_pieces(draw, n, hits):
    """Counts n points, PIECE of them at a time; `draw(size)` returns that many uniform float32."""
    count = hits.reshape(())

    def launch():
        count.fill(0)
        for first in range(0, n, PIECE):
            size = min(PIECE, n - first)
            numbers = draw(2 * size)
            cupy.add(count, count_hits(numbers[:size], numbers[size:]), out=count)

    return launch


@monte_carlo_pi.variant("cupy", max_size={"n": 10**8})
def random_state(n, seed, hits):
    """`RandomState` (cuRAND's host API, XORWOW): a new array a piece; calls continue the stream."""
    state = cupy.random.RandomState(seed)
    return in_pieces(lambda size: state.random_sample(size, dtype=np.float32), n, hits)


@monte_carlo_pi.variant("cupy", max_size={"n": 10**8})
def generator(n, seed, hits):
    """`Generator` (cuRAND's device API, XORWOW): a launch fills 256 000 numbers, one from each state."""
    rng = cupy.random.Generator(cupy.random.XORWOW(seed))
    return in_pieces(lambda size: rng.random(size, dtype=np.float32), n, hits)


@monte_carlo_pi.variant("cupy", block=(64, 256))
def raw_philox(n, seed, hits, block):
    """RawKernel: counter-based generator in registers, one launch; the same count in every call."""
    threads = min(-(-n // 8), THREADS_OF_FULL_GPU)
    grid = -(-threads // block)
    total, tickets = cupy.zeros(1, np.uint64), cupy.zeros(1, np.uint32)
    arguments = (np.uint64(n), np.uint64(seed), total, tickets, hits)
    return lambda: count_philox((grid,), (block,), arguments)
