"""Declares broken variants in Numba; each must be rejected for its fault."""

import math

import numpy as np
from numba import cuda, float32

from .problem import softmax

BLOCK = 32


@cuda.jit
def softmax_of_few(x, y, columns, pieces):
    """A thread's sum of the first `columns` columns in turn, of which it writes so many pieces."""
    sums = cuda.shared.array(BLOCK, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    top = x[row, 0]
    for column in range(columns):
        top = max(top, x[row, column])
    total = np.float32(0)
    for column in range(thread, columns, BLOCK):
        total += math.exp(x[row, column] - top)
    sums[thread] = total
    cuda.syncthreads()
    total = np.float32(0)
    for other in range(BLOCK):
        total += sums[other]
    for piece in range(pieces):
        column = piece * BLOCK + thread
        if column < columns:
            y[row, column] = math.exp(x[row, column] - top) / total


@softmax.wrong("numba", expected_fault="not written")
def tail_missing(x, y, columns, stream):
    """columns // 32 pieces where ⌈columns / 32⌉ was meant: right for rows that a warp divides."""
    return lambda: softmax_of_few[len(x), BLOCK, stream](x, y, columns, columns // BLOCK)


@softmax.wrong("numba", expected_fault="not written")
def last_column_left_out(x, y, columns, stream):
    """Takes the last column for padding: it counts in no sum, and nobody writes it."""
    pieces = -(-columns // BLOCK)
    return lambda: softmax_of_few[len(x), BLOCK, stream](x, y, max(1, columns - 1), pieces)


@softmax.wrong("numba", expected_fault="not written")
def last_row_missing(x, y, columns, stream):
    """A block a row, and one row short."""
    pieces = -(-columns // BLOCK)
    return lambda: softmax_of_few[max(1, len(x) - 1), BLOCK, stream](x, y, columns, pieces)


@cuda.jit
def softmax_without_maximum(x, y):
    """A thread a row, and exp of what it finds there."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for column in range(x.shape[1]):
            total += math.exp(x[row, column])
        for column in range(x.shape[1]):
            y[row, column] = math.exp(x[row, column]) / total


@softmax.wrong(
    "numba", expected_fault="unexpected NaN", needs_gpu="float32 that overflows: Python's exp raises"
)
def maximum_not_subtracted(x, y, stream):
    """The formula of the textbook: ∞/∞, or 0/0."""
    return lambda: softmax_without_maximum[-(-len(x) // BLOCK), BLOCK, stream](x, y)
