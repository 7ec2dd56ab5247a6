"""Declares broken host variants of `softmax`: they need NumPy alone."""

import numpy as np

from .problem import softmax


def into(y, powers, total):
    """y = powers / total, with infinities and NaN where they come from."""
    with np.errstate(all="ignore"):
        y[...] = powers / total


@softmax.wrong("host", expected_fault="unexpected NaN")
def maximum_not_subtracted(x, y):
    """The formula of the textbook: ∞/∞, or 0/0."""

    def launch():
        with np.errstate(all="ignore"):
            powers = np.exp(x)
        into(y, powers, powers.sum(axis=1, keepdims=True))

    return launch


@softmax.wrong("host", expected_fault="wrong values")
def accumulated_in_half_precision(x, y):
    """Sums in float16, which has eleven bits."""

    def launch():
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        into(y, powers, powers.sum(axis=1, keepdims=True, dtype=np.float16))

    return launch


@softmax.wrong("host", expected_fault="unexpected NaN")
def maximum_of_all_rows(x, y):
    """One maximum for the whole matrix, which rows far below it cannot use: 0/0."""

    def launch():
        powers = np.exp(x - x.max())
        into(y, powers, powers.sum(axis=1, keepdims=True))

    return launch


@softmax.wrong("host", expected_fault="wrong values")
def summed_with_last_row(x, y):
    """`keepdims` forgotten and mended by reshaping: every row is divided by the sum of the next one."""

    def launch():
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        into(y, powers, np.roll(powers.sum(axis=1), -1).reshape(-1, 1))

    return launch


@softmax.wrong("host", expected_fault="wrong values")
def minus_infinity_clamped(x, y):
    """Clamps -inf to the lowest half, as a mask of attention often is: -65504 is far from a masked row."""

    def launch():
        values = np.nan_to_num(x, neginf=float(x[np.isfinite(x)].min()))
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        into(y, powers, powers.sum(axis=1, keepdims=True))

    return launch


@softmax.wrong("host", expected_fault="input modified")
def computed_in_place(x, y):
    """Saves an array: the differences overwrite the input."""

    def launch():
        np.subtract(x, x.max(axis=1, keepdims=True), out=x)
        powers = np.exp(x)
        into(y, powers, powers.sum(axis=1, keepdims=True))

    return launch
