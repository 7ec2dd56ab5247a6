"""Declares broken variants that Numba invites on the CPU, where it checks no bounds."""

import math

from numba import njit

from .problem import vector_exp


@njit
def exp_of_one_more(x, y):
    """`size + 1` elements."""
    for i in range(x.size + 1):
        y[i] = math.exp(x[i])


@vector_exp.wrong("host", expected_fault="out of bounds")
def one_behind_the_end(x, y):
    """Counts up to and including the size."""
    return lambda: exp_of_one_more(x, y)
