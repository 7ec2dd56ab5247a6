"""Declares broken variants that may be right by luck; compute-sanitizer must reject them."""

import numpy as np
from numba import cuda, float32

from .problem import matmul
from .wrong import SIDE, square


@cuda.jit
def product_without_barriers(A, B, C):
    """Shared tiles that nobody waits for: right where the warps of a block happen to run abreast."""
    a_tile = cuda.shared.array((SIDE, SIDE), float32)
    b_tile = cuda.shared.array((SIDE, SIDE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    j, i = cuda.grid(2)
    n = A.shape[1]
    zero = np.float32(0)
    total = zero
    for first in range(0, n, SIDE):
        a_tile[ty, tx] = A[i, first + tx] if i < n and first + tx < n else zero
        b_tile[ty, tx] = B[first + ty, j] if first + ty < n and j < n else zero
        for k in range(SIDE):
            total += a_tile[ty, k] * b_tile[k, tx]
    if i < n and j < n:
        C[i, j] = total


@cuda.jit
def product_with_barriers_of_some(A, B, C):
    """Only threads with something to load wait, so that in the last tile a warp is divided at a barrier."""
    a_tile = cuda.shared.array((SIDE, SIDE), float32)
    b_tile = cuda.shared.array((SIDE, SIDE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    j, i = cuda.grid(2)
    n = A.shape[1]
    zero = np.float32(0)
    total = zero
    for first in range(0, n, SIDE):
        a_tile[ty, tx] = A[i, first + tx] if i < n and first + tx < n else zero
        b_tile[ty, tx] = B[first + ty, j] if first + ty < n and j < n else zero
        if first + tx < n:
            cuda.syncthreads()
        for k in range(SIDE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if i < n and j < n:
        C[i, j] = total


@matmul.wrong("numba", detected_by="racecheck", needs_gpu="warps that run in different order (a race)")
def missing_barriers(A, B, C, n, stream):
    """Tiles are read before all of the block has written them."""
    grid, block = square(n)
    return lambda: product_without_barriers[grid, block, stream](A, B, C)


@matmul.wrong("numba", detected_by="synccheck", needs_gpu="barriers that a part of a warp does not reach")
def barrier_in_a_branch(A, B, C, n, stream):
    """A barrier inside a condition that differs between threads."""
    grid, block = square(n)
    return lambda: product_with_barriers_of_some[grid, block, stream](A, B, C)
