"""Broken host variants of `add_constant`: they need NumPy alone, so they are rejected on every machine."""

from __future__ import annotations

import numpy as np

from .problem import add_constant


@add_constant.wrong("host", rejected_for="not written")
def last_column_missing(a, out):
    """Stops one x early."""
    return lambda: np.add(a[..., :-1], 2.0, out=out[..., :-1])


@add_constant.wrong("host", rejected_for="wrong values")
def half_precision(a, out):
    """Computes in float16 and stores float64."""
    return lambda: np.copyto(out, a.astype(np.float16) + np.float16(2.0))


@add_constant.wrong("host", rejected_for="input modified")
def input_overwritten(a, out):
    """`a += 2`, then a copy."""

    def launch():
        np.add(a, 2.0, out=a)
        out[...] = a

    return launch


@add_constant.wrong("host", rejected_for="stale result")
def computed_while_preparing(a, out):
    """Computes before the timed region and only copies in it."""
    answer = a + 2.0
    return lambda: np.copyto(out, answer)


@add_constant.wrong("host", rejected_for="wrong type", allocates=True)
def output_as_list(a):
    """Returns nested lists."""
    return lambda: (a + 2.0).tolist()
