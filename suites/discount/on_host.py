"""Computes `discount` with NumPy."""

from __future__ import annotations

import numpy as np

from .problem import discount


@discount.variant("host", layouts=("misaligned", "strided"))
def multiply(mult, discount, cv):
    """NumPy's broadcast multiplication into the given output: one thread."""
    return lambda: np.multiply(mult, discount, out=cv)


@discount.variant("host", allocates=True, layouts=("misaligned", "strided"))
def multiply_allocating(mult, discount):
    """`mult * discount` as one would write it: the page faults of a new array are part of its time."""
    return lambda: mult * discount
