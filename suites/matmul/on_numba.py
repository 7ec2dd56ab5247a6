"""Uses Numba on the GPU: one thread for all, one an element, tiles in shared memory, tiles in registers too.

A tile's size must be a constant when a kernel is compiled, so kernels are made by factories, once a size.
"""

import functools

import numpy as np
from numba import config, cuda, float32, guvectorize

from .problem import matmul

THREADS = 16  # a side of the block that computes register tiles
# 16-byte reads need arrays that start at multiples of 16; the simulator knows no alignment, and needs none.
SHARED_ALIGNMENT = None if config.ENABLE_CUDASIM else 16
QUAD = 4  # neighbouring elements a thread reads from shared memory, 16 bytes


@functools.cache
def triple_loop():
    """The gufunc, built at first use: a signature makes Numba compile at once, for the current device."""

    @guvectorize([(float32[:, :], float32[:, :], float32[:, :])], "(m,n),(n,p)->(m,p)", target="cuda")
    def product(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                total = np.float32(0)
                for k in range(A.shape[1]):
                    total += A[i, k] * B[k, j]
                C[i, j] = total

    return product


@cuda.jit
def one_element(A, B, C):
    """Thread (x, y) computes C[y, x]; x runs along a row, so that a warp reads neighbours of B."""
    j, i = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        total = np.float32(0)
        for k in range(A.shape[1]):
            total += A[i, k] * B[k, j]
        C[i, j] = total


@functools.cache
def tiled_kernel(tile):
    """One element a thread, operands staged through shared memory in tile × tile pieces."""
    zero = np.float32(0)

    @cuda.jit
    def kernel(A, B, C):
        a_tile = cuda.shared.array((tile, tile), float32)
        b_tile = cuda.shared.array((tile, tile), float32)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        j = cuda.blockIdx.x * tile + tx
        i = cuda.blockIdx.y * tile + ty
        n = A.shape[1]
        total = zero
        for first in range(0, n, tile):
            # Outside the matrices a tile holds zeros, which add nothing to the sum.
            a_tile[ty, tx] = A[i, first + tx] if i < A.shape[0] and first + tx < n else zero
            b_tile[ty, tx] = B[first + ty, j] if first + ty < n and j < B.shape[1] else zero
            cuda.syncthreads()
            for k in range(tile):
                total += a_tile[ty, k] * b_tile[k, tx]
            if first + tile < n:
                cuda.syncthreads()  # nobody overwrites a tile that somebody still reads
        if i < C.shape[0] and j < C.shape[1]:
            C[i, j] = total

    return kernel


@functools.cache
def register_tiled_kernel(side, depth):
    """side × side elements a thread, 16 × 16 threads a block.

    A step stages a (16 · side) × depth piece of A, transposed, and a depth × (16 · side) piece of B in shared
    memory; each value read from there is used `side` times. A thread's rows and columns are quads of four
    neighbours, 64 apart, so that a warp's 16-byte reads of shared memory do not collide.
    """
    tile = THREADS * side
    padded = tile + QUAD  # spreads the transposing stores over the banks
    stride = THREADS * QUAD
    staged = tile * depth // (THREADS * THREADS)
    zero = np.float32(0)

    @cuda.jit
    def kernel(A, B, C):
        a_tile = cuda.shared.array((depth, padded), float32, SHARED_ALIGNMENT)
        b_tile = cuda.shared.array((depth, tile), float32, SHARED_ALIGNMENT)
        a_next = cuda.local.array(staged, float32)
        b_next = cuda.local.array(staged, float32)
        a = cuda.local.array(side, float32)
        b = cuda.local.array(side, float32)
        total = cuda.local.array((side, side), float32)
        # The masks change nothing in a 16 × 16 block. They tell the compiler that no index is negative, so
        # that it drops the tests for wraparound and joins four reads into one.
        tx = cuda.threadIdx.x & (THREADS - 1)
        ty = cuda.threadIdx.y & (THREADS - 1)
        thread = ty * THREADS + tx
        top = cuda.blockIdx.y * tile
        left = cuda.blockIdx.x * tile
        n = A.shape[1]
        for i in range(side):
            for j in range(side):
                total[i, j] = zero
        for first in range(0, n, depth):
            for piece in range(staged):
                # Clamped, then replaced by zero: without branches all loads are in flight together.
                element = thread + piece * THREADS * THREADS
                row = top + element // depth
                k = first + element % depth
                value = A[min(row, A.shape[0] - 1), min(k, n - 1)]
                a_next[piece] = value if row < A.shape[0] and k < n else zero
                k = first + element // tile
                column = left + element % tile
                value = B[min(k, n - 1), min(column, B.shape[1] - 1)]
                b_next[piece] = value if k < n and column < B.shape[1] else zero
            if first > 0:
                cuda.syncthreads()  # nobody overwrites a tile that somebody still reads
            for piece in range(staged):
                element = thread + piece * THREADS * THREADS
                a_tile[element % depth, element // depth] = a_next[piece]
                b_tile[element // tile, element % tile] = b_next[piece]
            cuda.syncthreads()
            for k in range(depth):
                for i in range(side):
                    a[i] = a_tile[k, i // QUAD * stride + ty * QUAD + i % QUAD]
                    b[i] = b_tile[k, i // QUAD * stride + tx * QUAD + i % QUAD]
                for i in range(side):
                    for j in range(side):
                        total[i, j] += a[i] * b[j]
        for i in range(side):
            row = top + i // QUAD * stride + ty * QUAD + i % QUAD
            for j in range(side):
                column = left + j // QUAD * stride + tx * QUAD + j % QUAD
                if row < C.shape[0] and column < C.shape[1]:
                    C[row, column] = total[i, j]

    return kernel


@matmul.variant("numba", max_size={"n": 200})
def gufunc(A, B, C, stream):
    """The seed's gufunc as given: the whole product is one core call, hence the work of one thread."""
    product = triple_loop()
    return lambda: product(A, B, C, stream=stream)


@matmul.variant("numba", max_size={"n": 4096}, side=(16, 32), layouts=("misaligned", "strided"))
def naive(A, B, C, n, stream, side):
    """One thread an element, straight from global memory, in square blocks."""
    blocks = -(-n // side)
    return lambda: one_element[(blocks, blocks), (side, side), stream](A, B, C)


@matmul.variant("numba", max_size={"n": 4096}, tile=(16, 32), layouts=("misaligned", "strided"))
def shared_tiles(A, B, C, n, stream, tile):
    """One thread an element, operands through shared memory: global reads divided by the tile's side."""
    kernel = tiled_kernel(tile)
    blocks = -(-n // tile)
    return lambda: kernel[(blocks, blocks), (tile, tile), stream](A, B, C)


@matmul.variant("numba", max_size={"n": 4096}, side=(4, 8), layouts=("misaligned", "strided"))
def register_tiles(A, B, C, n, stream, side):
    """side × side elements a thread in registers: shared-memory reads divided by `side` as well."""
    kernel = register_tiled_kernel(side, 64 // side)
    blocks = -(-n // (THREADS * side))
    return lambda: kernel[(blocks, blocks), (THREADS, THREADS), stream](A, B, C)
