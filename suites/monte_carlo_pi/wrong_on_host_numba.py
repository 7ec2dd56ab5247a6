"""Declares broken variants that Numba invites on the CPU, where it checks no bounds."""

import numpy as np
from numba import njit

from .problem import P, monte_carlo_pi

WORKERS = 4


@njit
def add_up(counts, hits):
    """Keeps the count of each worker in `hits`, then adds them up in the first."""
    for worker in range(counts.size):
        hits[worker] = counts[worker]
    for worker in range(1, counts.size):
        hits[0] += hits[worker]


@monte_carlo_pi.wrong("host", expected_fault="out of bounds")
def room_for_one_count_only(n, seed, hits):
    """The right count, in an output that has room for one worker's and gets those of four."""
    rng = np.random.default_rng(seed)
    shares = [n // WORKERS] * (WORKERS - 1) + [n - n // WORKERS * (WORKERS - 1)]
    return lambda: add_up(rng.binomial(shares, P), hits)
