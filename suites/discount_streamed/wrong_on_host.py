"""Declares broken host variants of `discount_streamed`: they need NumPy alone."""

from __future__ import annotations

import numpy as np

from .problem import discount_streamed


@discount_streamed.wrong("host", expected_fault="not written")
def last_rows_missing(mult, discount, cv, i):
    """Rounds the number of slabs along i down."""
    rows = i - 1
    return lambda: np.multiply(mult[:rows], discount[:, :rows], out=cv[:, :rows])


@discount_streamed.wrong("host", expected_fault="wrong values")
def rows_shifted(mult, discount, cv):
    """Off by one row in `mult`."""
    return lambda: np.multiply(np.roll(mult, 1, axis=0), discount, out=cv)


@discount_streamed.wrong("host", expected_fault="stale result")
def computed_while_preparing(mult, discount, cv):
    """Computes before the timed region and only copies in it."""
    answer = mult * discount
    return lambda: np.copyto(cv, answer)
