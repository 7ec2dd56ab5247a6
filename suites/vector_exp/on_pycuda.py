"""Uses PyCUDA: cumath as the seed calls it, an ElementwiseKernel, and CUDA C++ with 16-byte accesses."""

import functools

import numpy as np
from pycuda import cumath
from pycuda.compiler import SourceModule
from pycuda.elementwise import ElementwiseKernel
from pycuda.gpuarray import GPUArray
from pycuda.tools import DeviceMemoryPool

from .problem import vector_exp

BLOCK = 256

exp_elements = ElementwiseKernel("float *x, float *y", "y[i] = expf(x[i])", "exp_elements")

SOURCE = r"""
__global__ void exp_by_four(const float* __restrict__ x, float* __restrict__ y, const long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long first = 4 * i;
    if (first + 3 < n) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        v.x = expf(v.x);
        v.y = expf(v.y);
        v.z = expf(v.z);
        v.w = expf(v.w);
        reinterpret_cast<float4*>(y)[i] = v;
    } else {
        for (long long k = first; k < n; ++k)  // at most three elements, in one thread of the grid
            y[k] = expf(x[k]);
    }
}
"""


@functools.cache
def exp_by_four():
    """The kernel, compiled at first use: nvcc takes a second, and the module belongs to the context."""
    return SourceModule(SOURCE).get_function("exp_by_four")


def on_pool(array):
    """The same array, whose results come from a memory pool; PyCUDA's own allocator asks the driver."""
    pool = DeviceMemoryPool()
    return GPUArray(array.shape, array.dtype, allocator=pool.allocate, base=array, gpudata=array.gpudata)


@vector_exp.variant(
    "pycuda", min_size={"n": 1}, allocates=True, allocator=("driver", "pool"), layouts=("misaligned",)
)
def cumath_exp(x, stream, allocator):
    """`pycuda.cumath.exp` as in the seed: a new array a call, freed when the next one replaces it.

    A GPUArray of no elements has no memory, and so no address. `cuMemFree` waits for the device, so with the
    driver's allocator no two calls can be queued.
    """
    source = on_pool(x) if allocator == "pool" else x
    return lambda: cumath.exp(source, stream=stream)


@vector_exp.variant("pycuda", layouts=("misaligned",))
def elementwise_kernel(x, y, stream):
    """ElementwiseKernel into the given array: a grid-stride loop in blocks of at most 128 threads."""
    return lambda: exp_elements(x, y, stream=stream)


@vector_exp.variant("pycuda")
def source_16_bytes(x, y, n, stream):
    """SourceModule: a thread loads and stores one float4; the n mod 4 last elements go one by one.

    A float4 access needs an address that is a multiple of 16, which the driver's allocations are; a slice of
    one need not be.

    Raises:
        ValueError: an array does not start at a multiple of 16 bytes.
    """
    for name, array in (("x", x), ("y", y)):
        if array.ptr % 16:
            raise ValueError(f"{name} starts at {array.ptr:#x}, not a multiple of 16: no float4 there")
    kernel, grid = exp_by_four(), (max(1, -(-n // (4 * BLOCK))), 1)  # a grid of no blocks is no launch
    return lambda: kernel(x, y, np.int64(n), grid=grid, block=(BLOCK, 1, 1), stream=stream)
