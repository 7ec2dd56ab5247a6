"""Uses Numba's CPU target: the triple loop as a gufunc, and in an order that suits a cache."""

import functools

import numpy as np
from numba import float32, guvectorize, njit, prange

from .problem import matmul


@functools.cache
def triple_loop():
    """The gufunc, built at first use: a signature makes Numba compile at once."""

    @guvectorize([(float32[:, :], float32[:, :], float32[:, :])], "(m,n),(n,p)->(m,p)", target="cpu")
    def product(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                total = np.float32(0)
                for k in range(A.shape[1]):
                    total += A[i, k] * B[k, j]
                C[i, j] = total

    return product


@njit(parallel=True, fastmath={"contract"})
def rows_in_parallel(A, B, C):
    """Adds multiples of the rows of B to a row of C: every access is to neighbouring addresses."""
    for i in prange(A.shape[0]):
        C[i, :] = np.float32(0)
        for k in range(A.shape[1]):
            a = A[i, k]
            for j in range(B.shape[1]):
                C[i, j] += a * B[k, j]


@matmul.variant("host", max_size={"n": 1000}, layouts=("misaligned", "strided"))
def gufunc(A, B, C):
    """The seed's gufunc core on one CPU thread: the host's answer to the same code on one GPU thread."""
    product = triple_loop()
    return lambda: product(A, B, C)


@matmul.variant("host", max_size={"n": 1000}, layouts=("misaligned",))
def prange_rows(A, B, C):
    """`prange` over rows, i-k-j order, so that the inner loop is vectorised; no tiling."""
    return lambda: rows_in_parallel(A, B, C)
