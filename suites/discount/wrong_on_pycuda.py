"""Declares broken variants of `discount` that PyCUDA invites. The checker rejects them all."""

from __future__ import annotations

from pycuda.elementwise import ElementwiseKernel

from .problem import discount

multiply_elements = ElementwiseKernel(
    "double *mult, double *discount, unsigned int columns, double *cv",
    "cv[i] = mult[i % columns] * discount[i]",
    "discount_elements",
)


@discount.wrong("pycuda", expected_fault="not written")
def smallest_array_first(mult, discount, cv, stream):
    """The first array decides over how many elements the kernel runs, and here it is the smallest."""
    return lambda: multiply_elements(mult, discount, mult.size, cv, stream=stream)
