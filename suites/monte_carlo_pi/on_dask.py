"""Uses Dask over CuPy: a task a piece, each with a generator of its own."""

import cupy
import dask
import numpy as np

from .on_cupy import count_hits
from .problem import monte_carlo_pi

PIECE = 1 << 23  # points; their coordinates take 64 MiB


def draw_and_count(state, size):
    """Hits among `size` new points, as a CuPy array without axes."""
    numbers = state.random_sample(2 * size, dtype=np.float32)
    return count_hits(numbers[:size], numbers[size:])


@monte_carlo_pi.variant("dask", max_size={"n": 10**8})
def delayed(n, seed, hits):
    """`dask.delayed` tasks, summed: the generators are made untimed, and calls continue their streams."""
    sizes = [min(PIECE, n - first) for first in range(0, n, PIECE)]
    seeds = np.random.SeedSequence(seed).generate_state(len(sizes))
    states = [cupy.random.RandomState(int(one)) for one in seeds]
    draw = dask.delayed(draw_and_count)
    total = dask.delayed(sum)([draw(state, size) for state, size in zip(states, sizes, strict=True)])

    def launch():
        hits[...] = total.compute()

    return launch
