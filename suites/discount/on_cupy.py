"""Computes `discount` with CuPy: the array expression, an element-wise kernel and one in CUDA C++."""

from __future__ import annotations

import cupy
import numpy as np

from .problem import discount

multiply_elements = cupy.ElementwiseKernel(
    "float64 factor, float64 value", "float64 product", "product = factor * value", "discount_elements"
)

multiply_columns = cupy.RawKernel(
    r"""
extern "C" __global__ void discount_columns(
    const double* __restrict__ mult, const double* __restrict__ discount, double* __restrict__ cv,
    long long columns, long long steps_in_all, long long steps)
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const double factor = mult[column];
    const long long first = blockIdx.y * steps;
    const long long last = min(first + steps, steps_in_all);
    for (long long t = first; t < last; ++t)
        cv[t * columns + column] = factor * discount[t * columns + column];
}
""",
    "discount_columns",
)


@discount.variant("cupy", layouts=("misaligned", "strided"))
def multiply(mult, discount, cv):
    """`cupy.multiply` with `out`: CuPy broadcasts by strides, so nothing is blown up."""
    return lambda: cupy.multiply(mult, discount, out=cv)


@discount.variant("cupy", allocates=True, layouts=("misaligned", "strided"))
def multiply_allocating(mult, discount):
    """`mult * discount` as one would write it; the output comes from CuPy's memory pool."""
    return lambda: mult * discount


@discount.variant("cupy", layouts=("misaligned", "strided"))
def elementwise_kernel(mult, discount, cv):
    """`cupy.ElementwiseKernel`, broadcasting `mult` by strides."""
    return lambda: multiply_elements(mult, discount, cv)


@discount.variant("cupy", block=(128, 256), steps=(4, 20), layouts=("misaligned",))
def raw_kernel(mult, discount, cv, t, i, k, block, steps):
    """CUDA C++ through `cupy.RawKernel`: the factor stays in a register over several time steps."""
    grid = (-(-i * k // block), -(-t // steps))
    arguments = (mult, discount, cv, np.int64(i * k), np.int64(t), np.int64(steps))
    return lambda: multiply_columns(grid, (block,), arguments)
