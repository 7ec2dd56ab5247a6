"""Declares broken host variants of `add_constant`, which need NumPy alone and are rejected everywhere."""

from __future__ import annotations

import ctypes

import numpy as np

from .problem import add_constant


@add_constant.wrong("host", expected_fault="not written")
def last_column_missing(a, out):
    """Stops one x early."""
    return lambda: np.add(a[..., :-1], 2.0, out=out[..., :-1])


@add_constant.wrong("host", expected_fault="wrong values")
def half_precision(a, out):
    """Computes in float16 and stores float64."""
    return lambda: np.copyto(out, a.astype(np.float16) + np.float16(2.0))


@add_constant.wrong("host", expected_fault="input modified")
def input_overwritten(a, out):
    """`a += 2`, then a copy."""

    def launch():
        np.add(a, 2.0, out=a)
        out[...] = a

    return launch


@add_constant.wrong("host", expected_fault="stale result")
def computed_while_preparing(a, out):
    """Computes before the timed region and only copies in it."""
    answer = a + 2.0
    return lambda: np.copyto(out, answer)


@add_constant.wrong("host", expected_fault="wrong type", allocates=True)
def output_as_list(a):
    """Returns nested lists."""
    return lambda: (a + 2.0).tolist()


@add_constant.wrong("host", expected_fault="out of bounds")
def ghost_cell_copied_back(a, out):
    """Computes with a ghost cell in front, as a stencil would, and copies that back as well."""
    padded = np.zeros(a.size + 1)

    def launch():
        np.add(a.reshape(-1), 2.0, out=padded[1:])
        ctypes.memmove(out.ctypes.data - padded.itemsize, padded.ctypes.data, padded.nbytes)

    return launch


@add_constant.wrong("host", expected_fault="wrong strides", allocates=True)
def fortran_order_returned(a):
    """Returns the elements in Fortran order: whoever reads them in C order waits for each."""
    return lambda: np.add(a, 2.0, order="F")


@add_constant.wrong("host", expected_fault="aliased", allocates=True)
def input_returned(a):
    """Adds in place and returns its input."""
    return lambda: np.add(a, 2.0, out=a)
