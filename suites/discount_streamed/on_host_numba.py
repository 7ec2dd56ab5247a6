"""Computes `discount_streamed` on all cores of the CPU with Numba."""

from __future__ import annotations

from numba import njit, prange

from .problem import discount_streamed


@njit(parallel=True)
def multiply_parallel(mult, discount, cv):
    """Rows shared out among threads; each thread reuses its row of `mult` for every time step."""
    for i in prange(discount.shape[1]):
        for t in range(discount.shape[0]):
            for k in range(discount.shape[2]):
                cv[t, i, k] = mult[i, k] * discount[t, i, k]


@njit(parallel=True)
def multiply_parallel_in_order(mult, discount, cv):
    """All (t, i) shared out among threads as one loop, in the order of memory."""
    rows = discount.shape[1]
    for step in prange(discount.shape[0] * rows):
        t, i = step // rows, step % rows
        for k in range(discount.shape[2]):
            cv[t, i, k] = mult[i, k] * discount[t, i, k]


@discount_streamed.variant("host")
def jit_prange_rows(mult, discount, cv):
    """`prange` over i: a row of `mult` is read once, and memory is walked in strides of a time step."""
    return lambda: multiply_parallel(mult, discount, cv)


@discount_streamed.variant("host")
def jit_prange(mult, discount, cv):
    """`prange` over (t, i) in the order of memory: `mult` is read again in every time step."""
    return lambda: multiply_parallel_in_order(mult, discount, cv)
