"""Declares broken variants of `discount_streamed` that Numba invites on a CPU, as it checks no bounds."""

from __future__ import annotations

import numpy as np
from numba import njit

from .problem import discount_streamed


@njit
def multiply_slab(mult, discount, cv, start, stop):
    """The elements from `start` to `stop` of the flat arrays."""
    for index in range(start, stop):
        cv[index] = mult[index % mult.size] * discount[index]


@discount_streamed.wrong("host", expected_fault="out of bounds")
def last_slab_taken_for_full(mult, discount, cv):
    """A slab is one element more than a time step, and the last one ends after the array."""
    factors, source, target = mult.reshape(-1), discount.reshape(-1), cv.reshape(-1)
    size = mult.size + 1

    def launch():
        for start in range(0, source.size, size):
            multiply_slab(factors, source, target, start, start + size)

    return launch


@discount_streamed.wrong("host", expected_fault="aliased", allocates=True)
def staging_memory_returned(mult, discount):
    """Returns the memory that the next call's slabs go through."""
    staging = np.empty_like(discount)
    factors, source, target = mult.reshape(-1), discount.reshape(-1), staging.reshape(-1)

    def launch():
        multiply_slab(factors, source, target, 0, source.size)
        return staging

    return launch
