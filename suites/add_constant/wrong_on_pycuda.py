"""Declares broken variants of `add_constant` that PyCUDA invites. The checker rejects them all."""

from __future__ import annotations

import operator

import pycuda.driver
from pycuda.elementwise import ElementwiseKernel

from .problem import add_constant

add_floats = ElementwiseKernel("float *a, float *out", "out[i] = a[i] + 2.0f", "add_floats")


@add_constant.wrong("pycuda", expected_fault="not written")
def declared_as_float(a, out, stream):
    """The kernel says float, the arrays hold float64: nobody compares, and half of the bytes are written."""
    return lambda: add_floats(a, out, stream=stream)


@add_constant.wrong("pycuda", expected_fault="input modified")
def added_in_place(a, out, stream):
    """`a += 2`, then a copy: each launch adds two more."""

    def launch():
        operator.iadd(a, 2)
        pycuda.driver.memcpy_dtod_async(out.gpudata, a.gpudata, a.nbytes, stream)

    return launch
