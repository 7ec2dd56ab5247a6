"""Declares broken host variants of `layer_norm`: they need NumPy alone."""

import numpy as np

from .problem import EPS, layer_norm


def normalise(x, weight, bias, outputs, centre, variance):
    """All three outputs, from these statistics."""
    y, mean, rstd = outputs
    mean[:] = centre
    rstd[:] = 1 / np.sqrt(variance + np.float32(EPS))
    y[:] = (x - mean[:, np.newaxis]) * rstd[:, np.newaxis] * weight + bias


@layer_norm.wrong("host", expected_fault="wrong values")
def variance_by_moments(x, weight, bias, y, mean, rstd):
    """E[x²] - E[x]² in float32, even if summed in pairs: the rounding of 10⁴ is not that of 1."""

    def launch():
        centre = x.mean(axis=1)
        variance = np.maximum(np.square(x).mean(axis=1) - np.square(centre), 0)
        normalise(x, weight, bias, (y, mean, rstd), centre, variance)

    return launch


@layer_norm.wrong("host", expected_fault="wrong values")
def accumulated_in_half_precision(x, weight, bias, y, mean, rstd):
    """Sums in float16, which has eleven bits."""

    def launch():
        centre = x.mean(axis=1, dtype=np.float16).astype(np.float32)
        normalise(x, weight, bias, (y, mean, rstd), centre, x.var(axis=1))

    return launch


@layer_norm.wrong("host", expected_fault="wrong values")
def variance_of_a_sample(x, weight, bias, y, mean, rstd):
    """Divides by n - 1, as statistics of samples do."""
    return lambda: normalise(x, weight, bias, (y, mean, rstd), x.mean(axis=1), x.var(axis=1, ddof=1))


@layer_norm.wrong("host", expected_fault="wrong values")
def deviation_returned(x, weight, bias, y, mean, rstd):
    """Right in y; rstd holds the deviation and not its reciprocal."""

    def launch():
        normalise(x, weight, bias, (y, mean, rstd), x.mean(axis=1), x.var(axis=1))
        np.divide(1, rstd, out=rstd)

    return launch


@layer_norm.wrong("host", expected_fault="not written")
def statistics_not_written(x, weight, bias, y):
    """An inference kernel where a training one was wanted: mean and rstd stay in its registers."""
    statistics = np.empty((2, len(x)), np.float32)
    return lambda: normalise(x, weight, bias, (y, *statistics), x.mean(axis=1), x.var(axis=1))


@layer_norm.wrong("host", expected_fault="wrong values")
def weights_folded_in(x, weight, bias, y, mean, rstd):
    """Copies the weights while it prepares, as a model does that is never trained on."""
    folded = weight.copy()
    return lambda: normalise(x, folded, bias, (y, mean, rstd), x.mean(axis=1), x.var(axis=1))
