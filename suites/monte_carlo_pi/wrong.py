"""Declares broken variants; each must be rejected for its fault.

A count is judged by statistics, so most of these would pass a comparison of one estimate with π.
"""

import numpy as np
from numba import cuda

from .on_numba import THREADS_OF_FULL_GPU, count_philox, is_hit, philox4x32, set_zero
from .problem import P, monte_carlo_pi

BLOCK = 128

first_counts = {}


@cuda.jit
def store(count, hits):
    """Writes a given count."""
    hits[0] = count


@cuda.jit
def count_on_diagonal(n, seed, hits):
    """Takes one word for both coordinates: points on the diagonal, p = 1/√2."""
    count = 0
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x, _, _, _ = philox4x32(i & 0xFFFFFFFF, i >> 32, 0, 0, seed, 0)
        count += is_hit(x, x)
    cuda.atomic.add(hits, 0, count)


@cuda.jit
def count_same_points(n, seed, hits):
    """Every thread draws the same points: the mean is right, the variance is that of far fewer points."""
    threads = cuda.gridsize(1)
    count = 0
    for i in range(cuda.grid(1), n, threads):
        x, y, _, _ = philox4x32(i // threads, 0, 0, 0, seed, 0)
        count += is_hit(x, y)
    cuda.atomic.add(hits, 0, count)


@cuda.jit
def count_by_block(n, seed, hits):
    """The counts of the blocks beside each other."""
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x, y, _, _ = philox4x32(i & 0xFFFFFFFF, i >> 32, 0, 0, seed, 0)
        cuda.atomic.add(hits, cuda.blockIdx.x, is_hit(x, y))


def blocks(n):
    """Blocks that give every thread at least eight points."""
    return -(-min(-(-n // 8), THREADS_OF_FULL_GPU) // BLOCK)


def philox_launch(n, seed, hits, stream):
    """The right count, for variants that go wrong elsewhere."""
    total = cuda.to_device(np.zeros(1, np.int64), stream=stream)
    tickets = cuda.to_device(np.zeros(1, np.uint32), stream=stream)
    return lambda: count_philox[blocks(n), BLOCK, stream](n, seed, total, tickets, hits)


@monte_carlo_pi.wrong("numba", expected_fault="not written")
def nothing_written():
    """Launches nothing; right only where the allocator hands back an old answer."""
    return lambda: None


@monte_carlo_pi.wrong("numba", expected_fault="statistics")
def constant(n, hits, stream):
    """The best count there is, n·π/4 rounded, without drawing anything: too good for chance."""
    count = round(n * P)
    return lambda: store[1, 1, stream](count, hits)


@monte_carlo_pi.wrong("numba", expected_fault="statistics")
def seed_ignored(n, hits, stream):
    """A correct count, always of the same points."""
    return philox_launch(n, 12345, hits, stream)


@monte_carlo_pi.wrong("numba", expected_fault="statistics")
def first_count_replayed(n, seed, hits, stream):
    """Computes once for an n and replays that count for every other seed."""
    if n not in first_counts:
        count = cuda.to_device(np.zeros(1, np.int64), stream=stream)
        philox_launch(n, seed, count, stream)()
        first_counts[n] = int(count.copy_to_host(stream=stream)[0])
    count = first_counts[n]
    return lambda: store[1, 1, stream](count, hits)


@monte_carlo_pi.wrong("numba", expected_fault="statistics")
def biased(n, seed, hits, stream):
    """The same random number for x and y."""

    def launch():
        set_zero[1, 1, stream](hits)
        count_on_diagonal[blocks(n), BLOCK, stream](n, seed, hits)

    return launch


@monte_carlo_pi.wrong("numba", expected_fault="statistics")
def same_stream_in_all_threads(n, seed, hits, stream):
    """All threads share one seed: right on average, but the counts of different seeds spread too widely."""

    def launch():
        set_zero[1, 1, stream](hits)
        count_same_points[blocks(n), BLOCK, stream](n, seed, hits)

    return launch


@monte_carlo_pi.wrong("host", expected_fault="statistics")
def more_hits_than_points(n, seed, hits):
    """Forgets that the counter is not zeroed between two passes."""
    rng = np.random.default_rng(seed)

    def launch():
        hits[0] = 2 * rng.binomial(n, P)

    return launch


@monte_carlo_pi.wrong("host", allocates=True, expected_fault="wrong dtype")
def estimate_returned(n, seed):
    """Returns the estimate of π instead of the count."""
    rng = np.random.default_rng(seed)
    return lambda: np.array([4 * rng.binomial(n, P) / n])


@monte_carlo_pi.wrong("host", allocates=True, expected_fault="wrong dtype")
def int32_counter(n, seed):
    """Counts in 32 bits, which wraps for 10¹⁰ points."""
    rng = np.random.default_rng(seed)
    return lambda: np.array([rng.binomial(n, P)]).astype(np.int32)


@monte_carlo_pi.wrong("host", allocates=True, expected_fault="wrong shape")
def scalar_array_returned(n, seed):
    """Returns an array without axes."""
    rng = np.random.default_rng(seed)
    return lambda: np.array(rng.binomial(n, P))


@monte_carlo_pi.wrong("host", allocates=True, expected_fault="wrong type")
def int_returned(n, seed):
    """Returns a Python int."""
    rng = np.random.default_rng(seed)
    return lambda: int(rng.binomial(n, P))


@monte_carlo_pi.wrong("numba", expected_fault="launch failed")
def argument_missing(n, seed, hits, stream):
    """Launches without the output."""
    return lambda: count_on_diagonal[blocks(n), BLOCK, stream](n, seed)


@monte_carlo_pi.wrong(
    "numba", expected_fault="out of bounds", needs_gpu="a write out of bounds, at which it raises"
)
def room_for_one_block_only(n, seed, hits, stream):
    """Each of two blocks counts in an element of its own, and there is one element."""

    def launch():
        set_zero[1, 1, stream](hits)
        count_by_block[2, BLOCK, stream](n, seed, hits)

    return launch
