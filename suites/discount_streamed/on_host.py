"""Computes `discount_streamed` with NumPy."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .problem import discount_streamed


@discount_streamed.variant("host")
def multiply(mult, discount, cv):
    """NumPy's broadcast multiplication into the given output: one thread."""
    return lambda: np.multiply(mult, discount, out=cv)


@discount_streamed.variant("host")
def multiply_threaded(mult, discount, cv, t):
    """The same with the time steps shared out among as many threads as there are cores."""
    pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def one(step):
        np.multiply(mult, discount[step], out=cv[step])

    return lambda: list(pool.map(one, range(t)))
