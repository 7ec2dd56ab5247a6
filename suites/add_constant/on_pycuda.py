"""Computes `add_constant` on the GPU with PyCUDA: the array expression, an ElementwiseKernel and CUDA C++."""

from __future__ import annotations

import functools

import numpy as np
from pycuda.compiler import SourceModule
from pycuda.elementwise import ElementwiseKernel

from .problem import add_constant

BLOCK = 256

add_elements = ElementwiseKernel(
    "double *a, double summand, double *out", "out[i] = a[i] + summand", "add_constant_elements"
)

SOURCE = r"""
__global__ void add_to_pairs(const double* __restrict__ a, double* __restrict__ out, const long long size)
{
    const long long pairs = size / 2, threads = (long long)gridDim.x * blockDim.x;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = thread; i < pairs; i += threads) {
        double2 v = reinterpret_cast<const double2*>(a)[i];
        v.x += 2.0;
        v.y += 2.0;
        reinterpret_cast<double2*>(out)[i] = v;
    }
    if (thread == 0 && size % 2) out[size - 1] = a[size - 1] + 2.0;
}
"""


@functools.cache
def add_to_pairs():
    """The kernel, compiled at first use."""
    return SourceModule(SOURCE).get_function("add_to_pairs")


@add_constant.variant("pycuda", allocates=True, layouts=("misaligned",))
def add_allocating(a):
    """`a + 2` as one would write it; the operator takes no stream, and asks the driver for the output."""
    return lambda: a + 2


@add_constant.variant("pycuda", layouts=("misaligned",))
def elementwise_kernel(a, out, stream):
    """ElementwiseKernel into the given array: a grid-stride loop in blocks of at most 128 threads."""
    return lambda: add_elements(a, 2.0, out, stream=stream)


@add_constant.variant("pycuda", most_blocks=(1056, 2**20))
def source_16_bytes(a, out, stream, most_blocks):
    """SourceModule: double2 loads and stores, in a grid that fills an H200 once, or of about a pair a thread.

    Raises:
        ValueError: an array does not start at a multiple of 16 bytes.
    """
    for name, array in (("a", a), ("out", out)):
        if array.ptr % 16:
            raise ValueError(f"{name} starts at {array.ptr:#x}, not a multiple of 16: no double2 there")
    kernel, grid = add_to_pairs(), (min(most_blocks, -(-a.size // (2 * BLOCK))), 1)
    return lambda: kernel(a, out, np.int64(a.size), grid=grid, block=(BLOCK, 1, 1), stream=stream)
