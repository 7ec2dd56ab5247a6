"""Computes `add_constant` with Numba on a GPU: the seed's kernel, a 3-D grid, grid-stride, `vectorize`."""

from __future__ import annotations

import functools

from numba import cuda, vectorize

from .problem import add_constant


@cuda.jit
def add_to_column(a, out):
    """One thread an x, which loops over z and y."""
    x = cuda.grid(1)
    if x < a.shape[2]:
        for z in range(a.shape[0]):
            for y in range(a.shape[1]):
                out[z, y, x] = a[z, y, x] + 2.0


@cuda.jit
def add_to_element(a, out):
    """One thread an element, thread x along the axis that runs fastest."""
    x, y, z = cuda.grid(3)
    if x < a.shape[2] and y < a.shape[1] and z < a.shape[0]:
        out[z, y, x] = a[z, y, x] + 2.0


@cuda.jit
def add_striding(a, out):
    """Each thread takes every n-th element of the flat array, n being the number of threads."""
    for index in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[index] = a[index] + 2.0


@functools.cache
def add_ufunc():
    """The scalar sum as a CUDA ufunc; its decorator compiles at once, hence not on import."""

    def add_to_scalar(value):
        return value + 2.0

    return vectorize(["float64(float64)"], target="cuda")(add_to_scalar)


@add_constant.variant("numba", layouts=("misaligned", "strided"))
def column_per_thread(a, out, x, stream):
    """As the seed gives it: 512 threads in blocks of 16, so the card is almost empty."""
    kernel = add_to_column[-(-x // 16), 16, stream]
    return lambda: kernel(a, out)


@add_constant.variant("numba", width=(32, 64), layouts=("misaligned", "strided"))
def grid_3d(a, out, x, y, z, stream, width):
    """One thread an element on a 3-D grid; blocks of 256 threads, `width` of them along x."""
    height = 256 // width
    kernel = add_to_element[(-(-x // width), -(-y // height), z), (width, height, 1), stream]
    return lambda: kernel(a, out)


@add_constant.variant("numba", block=(128, 256, 512), layouts=("misaligned",))
def grid_stride(a, out, stream, block):
    """A flat grid-stride loop; at least four elements a thread, and at most 2048 blocks of them."""
    source, target = a.ravel(), out.ravel()
    blocks = min(2048, -(-a.size // (4 * block)))
    kernel = add_striding[blocks, block, stream]
    return lambda: kernel(source, target)


@add_constant.variant("numba", layouts=("misaligned",))
def vectorize_cuda(a, out, stream):
    """`vectorize(target='cuda')` on device arrays: one thread an element at the largest block size."""
    ufunc = add_ufunc()
    return lambda: ufunc(a, out=out, stream=stream)
