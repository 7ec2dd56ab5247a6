"""Uses Numba on the GPU: a block a row, an online maximum in each thread, and a reduction between them."""

import functools
import math

import numpy as np
from numba import cuda, float32

from .problem import LOWEST, softmax


@functools.cache
def row_kernel(block):
    """Made once a block size, which must be a constant where shared arrays are made."""
    lowest, zero = np.float32(LOWEST), np.float32(0)

    @cuda.jit
    def softmax_row(x, y):
        """Block i computes row i; neighbouring threads touch neighbouring columns."""
        tops = cuda.shared.array(block, float32)
        totals = cuda.shared.array(block, float32)
        row = cuda.blockIdx.x
        thread = cuda.threadIdx.x
        top = lowest
        total = zero
        for column in range(thread, x.shape[1], block):
            value = np.float32(x[row, column])
            higher = max(top, value)
            total = total * math.exp(top - higher) + math.exp(value - higher)
            top = higher
        tops[thread] = top
        totals[thread] = total
        cuda.syncthreads()
        half = block // 2
        while half > 0:
            if thread < half:
                one, other = tops[thread], tops[thread + half]
                higher = max(one, other)
                totals[thread] = totals[thread] * math.exp(one - higher) + totals[thread + half] * math.exp(
                    other - higher
                )
                tops[thread] = higher
            cuda.syncthreads()
            half //= 2
        top = tops[0]
        total = totals[0]
        for column in range(thread, x.shape[1], block):
            y[row, column] = math.exp(np.float32(x[row, column]) - top) / total

    return softmax_row


@softmax.variant("numba", block=(256,), layouts=("misaligned", "strided"), dtypes=("float16",))
def block_a_row(x, y, stream, block):
    """Every row is read twice; the second time it comes from the caches."""
    kernel = row_kernel(block)
    return lambda: kernel[len(x), block, stream](x, y)
