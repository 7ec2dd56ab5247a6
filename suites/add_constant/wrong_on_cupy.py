"""Declares broken variants of `add_constant` that CuPy invites. The checker rejects them all."""

from __future__ import annotations

import operator

import cupy

from .problem import add_constant


@add_constant.wrong("cupy", expected_fault="aliased", allocates=True)
def input_returned(a):
    """`a += 2` and returns its input."""
    return lambda: operator.iadd(a, 2)


@add_constant.wrong("cupy", expected_fault="wrong strides", allocates=True)
def fortran_order_returned(a):
    """Returns the elements in Fortran order: whoever reads them in C order waits for each."""
    return lambda: cupy.asfortranarray(a + 2)
