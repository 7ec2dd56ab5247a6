"""Uses Numba on the GPU: a block a row, which it reads for its mean, its variance and its result."""

import functools
import math

import numpy as np
from numba import cuda, float32

from .problem import EPS, layer_norm


@functools.cache
def row_kernel(block):
    """Made once a block size, which must be a constant where shared arrays are made."""
    zero, one, eps = np.float32(0), np.float32(1), np.float32(EPS)

    @cuda.jit(device=True)
    def sum_of_block(sums, own):
        """The sum of what the threads have, for each of them; they must not hurry into the next one."""
        thread = cuda.threadIdx.x
        sums[thread] = own
        cuda.syncthreads()
        half = block // 2
        while half > 0:
            if thread < half:
                sums[thread] += sums[thread + half]
            cuda.syncthreads()
            half //= 2
        total = sums[0]
        cuda.syncthreads()
        return total

    @cuda.jit
    def layer_norm_row(x, weight, bias, y, mean, rstd):
        """Block i computes row i; neighbouring threads touch neighbouring columns."""
        sums = cuda.shared.array(block, float32)
        row = cuda.blockIdx.x
        thread = cuda.threadIdx.x
        columns = np.float32(x.shape[1])
        total = zero
        for column in range(thread, x.shape[1], block):
            total += np.float32(x[row, column])
        centre = sum_of_block(sums, total) / columns
        squares = zero
        for column in range(thread, x.shape[1], block):
            deviation = np.float32(x[row, column]) - centre
            squares += deviation * deviation
        scale = one / math.sqrt(sum_of_block(sums, squares) / columns + eps)
        for column in range(thread, x.shape[1], block):
            normal = (np.float32(x[row, column]) - centre) * scale
            y[row, column] = normal * np.float32(weight[column]) + np.float32(bias[column])
        if thread == 0:
            mean[row] = centre
            rstd[row] = scale

    return layer_norm_row


@layer_norm.variant("numba", block=(256,), layouts=("misaligned", "strided"), dtypes=("float16",))
def block_a_row(x, weight, bias, y, mean, rstd, stream, block):
    """Every row is read three times; the last two come from the caches."""
    kernel = row_kernel(block)
    return lambda: kernel[len(x), block, stream](x, weight, bias, y, mean, rstd)
