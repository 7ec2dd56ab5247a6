"""Uses Numba on the GPU: a ufunc, and kernels that differ in how threads share out the elements."""

import functools
import math

from numba import cuda, float32, vectorize

from .problem import vector_exp

ELEMENTS_PER_THREAD = 4


@functools.cache
def exp_ufunc():
    """The ufunc, built at first use: a signature makes Numba compile at once, for the current device."""

    @vectorize([float32(float32)], target="cuda")
    def exp(value):
        return math.exp(value)

    return exp


@cuda.jit
def exp_one_element(x, y):
    """Thread i computes element i."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] = math.exp(x[i])


@cuda.jit
def exp_grid_stride(x, y):
    """Each thread strides over the array by the size of the grid."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = math.exp(x[i])


@cuda.jit
def exp_four_elements(x, y):
    """A block covers 4 · blockDim neighbouring elements; a thread's four are blockDim apart."""
    first = cuda.blockIdx.x * cuda.blockDim.x * ELEMENTS_PER_THREAD + cuda.threadIdx.x
    for k in range(ELEMENTS_PER_THREAD):
        i = first + k * cuda.blockDim.x
        if i < x.size:
            y[i] = math.exp(x[i])


@vector_exp.variant("numba", layouts=("misaligned", "strided"))
def ufunc(x, y, stream):
    """`@vectorize(target="cuda")` into the given array; Numba chooses the launch, at the largest block."""
    exp = exp_ufunc()
    return lambda: exp(x, out=y, stream=stream)


@vector_exp.variant("numba", block=(128, 256, 512), layouts=("misaligned", "strided"), dtypes=("float64",))
def one_element(x, y, n, stream, block):
    """One thread an element, the plain way; neighbouring threads touch neighbouring addresses."""
    grid = max(1, -(-n // block))  # a grid of no blocks is no launch
    return lambda: exp_one_element[grid, block, stream](x, y)


@vector_exp.variant(
    "numba",
    block=(128, 256),
    most_blocks=(1056, 8448),
    layouts=("misaligned", "strided"),
    dtypes=("float64",),
)
def grid_stride(x, y, n, stream, block, most_blocks):
    """A bounded grid (8 or 64 blocks on each of an H200's 132 multiprocessors) strides over any n."""
    grid = max(1, min(-(-n // block), most_blocks))
    return lambda: exp_grid_stride[grid, block, stream](x, y)


@vector_exp.variant("numba", block=(128, 256), layouts=("misaligned", "strided"), dtypes=("float64",))
def four_elements(x, y, n, stream, block):
    """Four coalesced elements a thread: their loads are in flight together."""
    grid = max(1, -(-n // (block * ELEMENTS_PER_THREAD)))
    return lambda: exp_four_elements[grid, block, stream](x, y)
