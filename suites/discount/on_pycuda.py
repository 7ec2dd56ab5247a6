"""Computes `discount` on the GPU with PyCUDA: an ElementwiseKernel and CUDA C++.

There is no array expression: operators of gpuarray take arrays of one shape, or a scalar.
"""

from __future__ import annotations

import functools

import numpy as np
from pycuda.compiler import SourceModule
from pycuda.elementwise import ElementwiseKernel

from .problem import discount

BLOCK = 256

# The first array decides over how many elements the kernel runs.
multiply_elements = ElementwiseKernel(
    "double *discount, double *mult, unsigned int columns, double *cv",
    "cv[i] = mult[i % columns] * discount[i]",
    "discount_elements",
)

SOURCE = r"""
__global__ void multiply_pairs(const double* __restrict__ mult, const double* __restrict__ discount,
                               double* __restrict__ cv, const long long columns, const long long size)
{
    const long long pairs = size / 2, threads = (long long)gridDim.x * blockDim.x;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long step = 2 * threads % columns;
    long long column = 2 * thread % columns;
    for (long long i = thread; i < pairs; i += threads) {
        double2 v = reinterpret_cast<const double2*>(discount)[i];
        v.x *= mult[column];
        v.y *= mult[column + 1 < columns ? column + 1 : 0];  // an odd row ends within a pair
        reinterpret_cast<double2*>(cv)[i] = v;
        column += step;
        if (column >= columns) column -= columns;
    }
    if (thread == 0 && size % 2) cv[size - 1] = mult[(size - 1) % columns] * discount[size - 1];
}
"""


@functools.cache
def multiply_pairs():
    """The kernel, compiled at first use."""
    return SourceModule(SOURCE).get_function("multiply_pairs")


@discount.variant("pycuda", layouts=("misaligned",))
def elementwise_kernel(mult, discount, cv, stream):
    """ElementwiseKernel, which knows flat arrays only: a remainder finds the factor."""
    return lambda: multiply_elements(discount, mult, mult.size, cv, stream=stream)


@discount.variant("pycuda")
def source_16_bytes(mult, discount, cv, stream):
    """SourceModule: double2 loads and stores in a grid-stride loop, the factor's place carried along.

    Raises:
        ValueError: an array does not start at a multiple of 16 bytes.
    """
    for name, array in (("discount", discount), ("cv", cv)):
        if array.ptr % 16:
            raise ValueError(f"{name} starts at {array.ptr:#x}, not a multiple of 16: no double2 there")
    kernel, grid = multiply_pairs(), (min(1056, -(-discount.size // (2 * BLOCK))), 1)
    arguments = mult, discount, cv, np.int64(mult.size), np.int64(discount.size)
    return lambda: kernel(*arguments, grid=grid, block=(BLOCK, 1, 1), stream=stream)
