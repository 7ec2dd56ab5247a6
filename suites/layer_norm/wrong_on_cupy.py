"""Declares broken variants that CuPy invites; each must be rejected for its fault."""

import cupy
import numpy as np

from .problem import EPS, layer_norm


def normalise(x, weight, bias, mean, variance):
    """All three outputs, from these statistics."""
    rstd = 1 / cupy.sqrt(variance + np.float32(EPS))
    return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd


@layer_norm.wrong("cupy", allocates=True, expected_fault="wrong values")
def variance_by_moments(x, weight, bias):
    """E[x²] - E[x]² in float32: the difference of two numbers of 10⁴ that should be 1."""

    def launch():
        mean = x.mean(axis=1)
        return normalise(x, weight, bias, mean, cupy.maximum(cupy.square(x).mean(axis=1) - mean * mean, 0))

    return launch


@layer_norm.wrong("cupy", allocates=True, expected_fault="wrong shape")
def dimension_kept(x, weight, bias):
    """`keepdims=True`: a column where a vector is wanted."""

    def launch():
        y, mean, rstd = normalise(x, weight, bias, x.mean(axis=1), x.var(axis=1))
        return y, mean[:, None], rstd[:, None]

    return launch
