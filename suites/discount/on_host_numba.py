"""Computes `discount` with Numba on the CPU: the seed's gufunc, on one core or all, and a parallel loop."""

from __future__ import annotations

import functools

from numba import guvectorize, njit, prange

from .problem import discount


def multiply_slice(mult, discount, cv):
    """The core of the seed: one (i, k) slice of one time step."""
    for i in range(mult.shape[0]):
        for k in range(mult.shape[1]):
            cv[i, k] = mult[i, k] * discount[i, k]


@functools.cache
def sliced_gufunc(target):
    """The gufunc over t for `target` "cpu" or "parallel", compiled when first wanted, not on import."""
    types = ["void(float64[:,:], float64[:,:], float64[:,:])"]
    return guvectorize(types, "(i,k),(i,k)->(i,k)", target=target)(multiply_slice)


@njit(parallel=True)
def multiply_parallel(mult, discount, cv):
    """Time steps and rows shared out among threads as one loop, so that few time steps are no limit."""
    rows = discount.shape[1]
    for step in prange(discount.shape[0] * rows):
        t, i = step // rows, step % rows
        for k in range(discount.shape[2]):
            cv[t, i, k] = mult[i, k] * discount[t, i, k]


@discount.variant("host", layouts=("misaligned", "strided"))
def gufunc_sliced_t(mult, discount, cv):
    """The seed's host gufunc, sliced over t, on one core: the one that beat every GPU variant end to end."""
    gufunc = sliced_gufunc("cpu")
    return lambda: gufunc(mult, discount, cv)


@discount.variant("host", layouts=("misaligned", "strided"))
def gufunc_sliced_t_parallel(mult, discount, cv):
    """The same gufunc with target='parallel': slices are shared out among Numba's threads."""
    gufunc = sliced_gufunc("parallel")
    return lambda: gufunc(mult, discount, cv)


@discount.variant("host", layouts=("misaligned",))
def jit_prange(mult, discount, cv):
    """`njit(parallel=True)` with `prange` over all (t, i)."""
    return lambda: multiply_parallel(mult, discount, cv)
