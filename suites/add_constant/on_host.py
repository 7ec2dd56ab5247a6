"""Computes `add_constant` with Python loops and with NumPy."""

from __future__ import annotations

import numpy as np

from .problem import add_constant


@add_constant.variant("host", max_size={"z": 64, "y": 64}, layouts=("misaligned", "strided"))
def python_loops(a, out):
    """The seed's triple loop in the interpreter: about a quarter of a second a million elements."""

    def launch():
        for z in range(a.shape[0]):
            for y in range(a.shape[1]):
                for x in range(a.shape[2]):
                    out[z, y, x] = a[z, y, x] + 2

    return launch


@add_constant.variant("host", max_size={"x": 64}, layouts=("misaligned", "strided"))
def add(a, out):
    """`numpy.add` into the given output: one thread, 10 GB/s at x = 37; at 512 a call takes 1.2 s."""
    return lambda: np.add(a, 2.0, out=out)


@add_constant.variant("host", allocates=True, max_size={"x": 64}, layouts=("misaligned", "strided"))
def add_allocating(a):
    """`a + 2` as in the seed: the page faults of a new array are part of its time."""
    return lambda: a + 2
