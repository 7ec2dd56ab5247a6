"""Computes `add_constant` on the CPU with Numba: loop order, `prange`, `stencil` and `vectorize`."""

from __future__ import annotations

import functools

from numba import njit, prange, stencil, vectorize

from .problem import add_constant


@njit
def add_in_worst_order(a, out):
    """The seed's order (x, z, y): each step of the innermost loop is a whole line of x further on."""
    for x in range(a.shape[2]):
        for z in range(a.shape[0]):
            for y in range(a.shape[1]):
                out[z, y, x] = a[z, y, x] + 2.0


@njit
def add_in_good_order(a, out):
    """The order of memory (z, y, x)."""
    for z in range(a.shape[0]):
        for y in range(a.shape[1]):
            for x in range(a.shape[2]):
                out[z, y, x] = a[z, y, x] + 2.0


@njit(parallel=True)
def add_parallel(a, out):
    """The planes of z shared out among threads."""
    for z in prange(a.shape[0]):
        for y in range(a.shape[1]):
            for x in range(a.shape[2]):
                out[z, y, x] = a[z, y, x] + 2.0


@stencil
def add_to_centre(a):
    """A stencil of one point."""
    return a[0, 0, 0] + 2.0


@njit
def add_by_stencil(a, out):
    """A stencil without neighbours has no border, so it writes every element."""
    add_to_centre(a, out=out)


@functools.cache
def add_ufunc(target):
    """The scalar sum as a ufunc for `target` "cpu" or "parallel", compiled when first wanted."""

    def add_to_scalar(value, constant):
        return value + constant

    return vectorize(["float64(float64, float64)"], target=target)(add_to_scalar)


@add_constant.variant("host", max_size={"x": 64}, layouts=("misaligned",))
def jit_worst_order(a, out):
    """Compiled loops in the seed's order (x, z, y): one cache line fetched for each element.

    At the seed's x = 512 a call takes 2 to 15 s, depending on the host's memory, and shows nothing else.
    """
    return lambda: add_in_worst_order(a, out)


@add_constant.variant("host", max_size={"x": 64}, layouts=("misaligned", "strided"))
def jit_good_order(a, out):
    """The same loops in the order of memory: one thread, vectorised by LLVM."""
    return lambda: add_in_good_order(a, out)


@add_constant.variant("host", layouts=("misaligned",))
def jit_prange(a, out):
    """`njit(parallel=True)` with `prange` over z."""
    return lambda: add_parallel(a, out)


@add_constant.variant("host", max_size={"x": 64}, layouts=("misaligned",))
def jit_stencil(a, out):
    """`@stencil` with the relative index 0 alone, called from compiled code."""
    return lambda: add_by_stencil(a, out)


@add_constant.variant(
    "host", max_size={"x": 64}, target=("cpu", "parallel"), layouts=("misaligned", "strided")
)
def vectorize_host(a, out, target):
    """A Numba ufunc, on one core or on all."""
    ufunc = add_ufunc(target)
    return lambda: ufunc(a, 2.0, out=out)
