"""Declares broken variants that CuPy invites; each must be rejected for its fault."""

import cupy

from .problem import softmax


@softmax.wrong("cupy", allocates=True, expected_fault="unexpected NaN")
def maximum_not_subtracted(x):
    """The formula of the textbook: ∞/∞, or 0/0."""

    def launch():
        powers = cupy.exp(x)
        return powers / powers.sum(axis=1, keepdims=True)

    return launch


@softmax.wrong("cupy", allocates=True, expected_fault="wrong dtype")
def promoted(x):
    """Sums in float64, and forgets that the quotient is float64, too."""

    def launch():
        powers = cupy.exp(x - x.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True, dtype="float64")

    return launch
