"""Uses Numba on the GPU: its xoroshiro128+ states in memory, and Philox, which keeps no state at all."""

import numpy as np
from numba import cuda, int64
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

from .problem import monte_carlo_pi

MULTIPROCESSORS = 132  # of an H200; only the size of the largest grid follows from it
THREADS_OF_FULL_GPU = MULTIPROCESSORS * 2048

MASK = 0xFFFFFFFF
M0, M1 = 0xD2511F53, 0xCD9E8D57  # the multipliers of Philox4x32
W0, W1 = 0x9E3779B9, 0xBB67AE85  # what its key grows by in each round
RADIUS_SQUARED = 1 << 62  # of coordinates below 2³¹
MOST_THREADS = 256  # a block


@cuda.jit(device=True)
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10: four random 32-bit words from a 128-bit counter and a 64-bit key, all as 32-bit words.

    J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC '11,
    https://doi.org/10.1145/2063384.2063405. The words are 64-bit integers that get masked, so that the
    same code is right on a GPU, where products wrap at 64 bits, and as plain Python, where they do not.
    """
    for _ in range(10):
        p0 = M0 * c0
        p1 = M1 * c2
        c0 = ((p1 >> 32) & MASK) ^ c1 ^ k0
        c1 = p1 & MASK
        c2 = ((p0 >> 32) & MASK) ^ c3 ^ k1
        c3 = p0 & MASK
        k0 = (k0 + W0) & MASK
        k1 = (k1 + W1) & MASK
    return c0, c1, c2, c3


@cuda.jit(device=True)
def is_hit(x, y):
    """1 where two 32-bit words are the coordinates of a point in the circle: exact, with 31 bits of each."""
    x >>= 1
    y >>= 1
    return 1 if x * x + y * y < RADIUS_SQUARED else 0


@cuda.jit
def set_zero(hits):
    """Zeroes the counter, in one thread; the next kernel of the stream adds to it."""
    hits[0] = 0


@cuda.jit
def count_xoroshiro(states, n, hits):
    """Each thread draws its share of the points from its own state and adds its count once."""
    thread = cuda.grid(1)
    count = 0
    for _ in range(thread, n, cuda.gridsize(1)):
        x = xoroshiro128p_uniform_float32(states, thread)
        y = xoroshiro128p_uniform_float32(states, thread)
        if x * x + y * y < 1:
            count += 1
    cuda.atomic.add(hits, 0, count)


@cuda.jit
def count_philox(n, seed, total, tickets, hits):
    """Pair i of points comes from counter i and key `seed`, whatever the grid, so the count is reproducible.

    A block adds its count to `total`; the one that draws the last ticket moves the total into `hits` and
    leaves zero behind; `tickets` wraps to zero by itself. So one launch is enough and the next may follow.
    """
    counts = cuda.shared.array(MOST_THREADS, int64)
    low_key = seed & MASK
    high_key = (seed >> 32) & MASK
    pairs = (n + 1) // 2
    count = 0
    for pair in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        x0, y0, x1, y1 = philox4x32(pair & MASK, (pair >> 32) & MASK, 0, 0, low_key, high_key)
        count += is_hit(x0, y0)
        if 2 * pair + 1 < n:  # the last pair of an odd n is one point
            count += is_hit(x1, y1)
    counts[cuda.threadIdx.x] = count
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        count = 0
        for thread in range(cuda.blockDim.x):
            count += counts[thread]
        cuda.atomic.add(total, 0, count)
        cuda.threadfence()  # the count is there before the ticket is taken
        last = cuda.gridDim.x - 1
        if cuda.atomic.inc(tickets, 0, last) == last:
            hits[0] = cuda.atomic.exch(total, 0, 0)


@monte_carlo_pi.variant("numba", block=(128,))
def xoroshiro(n, seed, hits, stream, block):
    """numba.cuda.random: a state a thread in device memory, 64 points a thread or more; zeroing is timed too.

    The states are made on the host, untimed, and each call continues them.
    """
    threads = min(-(-n // 64), THREADS_OF_FULL_GPU)
    block = min(block, threads)
    grid = -(-threads // block)
    states = create_xoroshiro128p_states(grid * block, seed, stream=stream)

    def launch():
        set_zero[1, 1, stream](hits)
        count_xoroshiro[grid, block, stream](states, n, hits)

    return launch


@monte_carlo_pi.variant("numba", block=(64, 256))
def philox(n, seed, hits, stream, block):
    """Counter-based generator in registers, exact integer test, one launch; the same count in every call."""
    threads = min(-(-n // 8), THREADS_OF_FULL_GPU)
    grid = -(-threads // block)
    total = cuda.to_device(np.zeros(1, np.int64), stream=stream)
    tickets = cuda.to_device(np.zeros(1, np.uint32), stream=stream)
    return lambda: count_philox[grid, block, stream](n, seed, total, tickets, hits)
