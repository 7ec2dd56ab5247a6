"""Declares broken variants; each must be rejected for its fault."""

import numpy as np
from numba import cuda

from .problem import matmul

SIDE = 16


@cuda.jit
def product(A, B, C, rows, terms):
    """The first `rows` rows of the product, from the first `terms` terms of each sum."""
    j, i = cuda.grid(2)
    if i < rows and j < C.shape[1]:
        total = np.float32(0)
        for k in range(terms):
            total += A[i, k] * B[k, j]
        C[i, j] = total


@cuda.jit
def product_with_left_transposed(A, B, C):
    """Aᵀ·B: the indices of A are swapped."""
    j, i = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        total = np.float32(0)
        for k in range(A.shape[1]):
            total += A[k, i] * B[k, j]
        C[i, j] = total


@cuda.jit
def scale_diagonal(A, factor):
    """Multiplies the diagonal of A by `factor`."""
    i = cuda.grid(1)
    if i < A.shape[0]:
        A[i, i] *= factor


@cuda.jit
def copy(source, target):
    """Copies element by element."""
    j, i = cuda.grid(2)
    if i < source.shape[0] and j < source.shape[1]:
        target[i, j] = source[i, j]


def square(n):
    """Grid and block of one thread an element."""
    blocks = -(-n // SIDE)
    return (blocks, blocks), (SIDE, SIDE)


@matmul.wrong("numba", expected_fault="not written")
def nothing_written():
    """Launches nothing; right only where the allocator hands back an old answer."""
    return lambda: None


@matmul.wrong("numba", expected_fault="not written")
def last_row_missing(A, B, C, n, stream):
    """One row short."""
    grid, block = square(n)
    return lambda: product[grid, block, stream](A, B, C, n - 1, n)


@matmul.wrong("numba", expected_fault="wrong values")
def last_term_missing(A, B, C, n, stream):
    """Every sum is one term short."""
    grid, block = square(n)
    return lambda: product[grid, block, stream](A, B, C, n, n - 1)


@matmul.wrong("numba", expected_fault="wrong values")
def left_transposed(A, B, C, n, stream):
    """Aᵀ·B, which symmetric or constant data would not show."""
    grid, block = square(n)
    return lambda: product_with_left_transposed[grid, block, stream](A, B, C)


@matmul.wrong("host", expected_fault="wrong values")
def half_precision(A, B, C):
    """Operands rounded to float16, sums in float32, as in a tensor core; TF32 has the same eleven bits."""

    def launch():
        np.matmul(A.astype(np.float16).astype(np.float32), B.astype(np.float16).astype(np.float32), out=C)

    return launch


@matmul.wrong("numba", expected_fault="input modified")
def input_overwritten(A, B, C, n, stream):
    """The right product, but the diagonal of A is doubled afterwards."""
    grid, block = square(n)

    def launch():
        product[grid, block, stream](A, B, C, n, n)
        scale_diagonal[grid[0], SIDE, stream](A, np.float32(2))

    return launch


@matmul.wrong("numba", expected_fault="stale result")
def replayed(A, B, C, n, stream):
    """Computes once for its buffers and copies that answer out whatever they hold now."""
    grid, block = square(n)
    answer = cuda.device_array((n, n), np.float32, stream=stream)
    answered = []

    def launch():
        if not answered:
            product[grid, block, stream](A, B, answer, n, n)
            answered.append(True)
        copy[grid, block, stream](answer, C)

    return launch


@matmul.wrong("host", allocates=True, expected_fault="wrong dtype")
def double_returned(A, B):
    """Returns float64: right to more digits than were asked for, in twice the bytes."""
    return lambda: np.matmul(A, B, dtype=np.float64)


@matmul.wrong("host", allocates=True, expected_fault="wrong shape")
def flattened(A, B):
    """Returns the right values as one row after the other."""
    return lambda: np.matmul(A, B).ravel()


@matmul.wrong("host", allocates=True, expected_fault="wrong type")
def rows_in_a_list(A, B):
    """Returns a list of rows, which NumPy would quietly convert."""
    return lambda: list(np.matmul(A, B))


@matmul.wrong("host", expected_fault="launch failed")
def shapes_do_not_match(A, B, C):
    """Drops a column of A, so that the inner dimensions differ."""
    return lambda: np.matmul(A[:, 1:], B, out=C)


@matmul.wrong("host", allocates=True, expected_fault="wrong strides")
def transposed_view_returned(A, B):
    """(Bᵀ·Aᵀ)ᵀ, the detour of those whose BLAS counts by columns: right, and by columns."""
    return lambda: np.matmul(B.T, A.T).T


@matmul.wrong("host", allocates=True, expected_fault="aliased")
def same_memory_each_time(A, B):
    """Saves an allocation: the next call overwrites what this one returned."""
    C = np.empty_like(A)
    return lambda: np.matmul(A, B, out=C)


@matmul.wrong("host", allocates=True, expected_fault="wrong type")
def masked_array_returned(A, B):
    """`numpy.ma.dot`: a subclass that carries a mask along."""
    return lambda: np.ma.dot(A, B)
