"""Uses Numba's CPU target: one thread, and all of them with `prange`, reseeded for each piece of work."""

# ruff: noqa: NPY002 - inside njit there is no Generator; np.random is Numba's own, one state a thread
import numba
import numpy as np
from numba import njit

from .problem import monte_carlo_pi

PIECE = 1 << 20


@njit
def count_hits(n):
    """Hits among n points of the calling thread's Mersenne Twister."""
    count = 0
    for _ in range(n):
        x = np.random.random()
        y = np.random.random()
        if x * x + y * y < 1:
            count += 1
    return count


@njit
def count_serial(n, seed):
    """Seeds the thread's generator and counts."""
    np.random.seed(seed)
    return count_hits(n)


@njit(parallel=True)
def count_parallel(n, seed):
    """Counts in pieces; a piece has a seed of its own, so the result does not depend on who computes it."""
    pieces = (n + PIECE - 1) // PIECE
    count = 0
    for piece in numba.prange(pieces):
        # The odd factor (2³² / golden ratio) gives the pieces different, scattered 32-bit seeds.
        np.random.seed((seed + piece * 0x9E3779B1) & 0xFFFFFFFF)
        count += count_hits(min(PIECE, n - piece * PIECE))
    return count


@monte_carlo_pi.variant("host", max_size={"n": 10**7})
def serial(n, seed, hits):
    """The seed's `@jit` loop on one core, 7 ns a point: the checks' eight runs limit n."""

    def launch():
        hits[0] = count_serial(n, seed)

    return launch


@monte_carlo_pi.variant("host", max_size={"n": 10**8})
def prange(n, seed, hits):
    """The same loop under `prange`: 0.7 ns a point of 33 million, 0.6 of 10⁹, whose eight runs take 5 s."""

    def launch():
        hits[0] = count_parallel(n, seed)

    return launch
