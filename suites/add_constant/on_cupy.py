"""Computes `add_constant` on the GPU with CuPy."""

from __future__ import annotations

import cupy

from .problem import add_constant

add_elements = cupy.ElementwiseKernel(
    "float64 value, float64 constant", "float64 sum", "sum = value + constant", "add_constant_elements"
)


@add_constant.variant("cupy", layouts=("misaligned", "strided"))
def add(a, out):
    """`cupy.add` into the given output."""
    return lambda: cupy.add(a, 2.0, out=out)


@add_constant.variant("cupy", allocates=True, layouts=("misaligned", "strided"))
def add_allocating(a):
    """`a + 2` as one would write it; the output comes from CuPy's memory pool."""
    return lambda: a + 2


@add_constant.variant("cupy", layouts=("misaligned", "strided"))
def elementwise_kernel(a, out):
    """`cupy.ElementwiseKernel`."""
    return lambda: add_elements(a, 2.0, out)
