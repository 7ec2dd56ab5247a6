"""Declares broken variants in Numba; each must be rejected for its fault."""

import math

import numpy as np
from numba import cuda, float32

from .problem import EPS, layer_norm

BLOCK = 32


@cuda.jit
def layer_norm_of_few(x, weight, bias, y, mean, rstd, written, two_passes):
    """A warp a row: the variance by E[x²] - E[x]², or by a second pass; the first columns are written."""
    sums = cuda.shared.array(BLOCK, float32)
    squares = cuda.shared.array(BLOCK, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    total = np.float32(0)
    square = np.float32(0)
    for column in range(thread, x.shape[1], BLOCK):
        total += x[row, column]
        square += x[row, column] * x[row, column]
    sums[thread] = total
    squares[thread] = square
    cuda.syncthreads()
    total = np.float32(0)
    square = np.float32(0)
    for other in range(BLOCK):
        total += sums[other]
        square += squares[other]
    columns = np.float32(x.shape[1])
    centre = total / columns
    variance = max(square / columns - centre * centre, np.float32(0))
    if two_passes:
        square = np.float32(0)
        for column in range(x.shape[1]):
            square += (x[row, column] - centre) * (x[row, column] - centre)
        variance = square / columns
    scale = np.float32(1) / math.sqrt(variance + np.float32(EPS))
    for column in range(thread, written, BLOCK):
        y[row, column] = (x[row, column] - centre) * scale * weight[column] + bias[column]
    if thread == 0:
        mean[row] = centre
        rstd[row] = scale


@layer_norm.wrong("numba", expected_fault="wrong values")
def variance_by_moments(x, weight, bias, y, mean, rstd, columns, stream):
    """E[x²] - E[x]² in float32, one pass: the difference of two numbers of 10⁴ that should be 1."""
    return lambda: layer_norm_of_few[len(x), BLOCK, stream](x, weight, bias, y, mean, rstd, columns, False)


@layer_norm.wrong("numba", expected_fault="not written")
def tail_missing(x, weight, bias, y, mean, rstd, columns, stream):
    """Writes whole warps of columns only."""
    whole = columns // BLOCK * BLOCK
    return lambda: layer_norm_of_few[len(x), BLOCK, stream](x, weight, bias, y, mean, rstd, whole, True)


@layer_norm.wrong("numba", expected_fault="not written")
def last_row_missing(x, weight, bias, y, mean, rstd, columns, stream):
    """A block a row, and one row short."""
    rows = max(1, len(x) - 1)
    return lambda: layer_norm_of_few[rows, BLOCK, stream](x, weight, bias, y, mean, rstd, columns, True)
