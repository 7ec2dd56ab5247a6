"""Declares broken variants that PyTorch invites; each must be rejected for its fault."""

import torch

from .problem import EPS, layer_norm


@layer_norm.wrong("torch", expected_fault="wrong values")
def variance_of_a_sample(x, weight, bias, y, mean, rstd):
    """`torch.var_mean` as it comes divides by n - 1."""

    def launch():
        variance, centre = torch.var_mean(x, dim=1)
        mean.copy_(centre)
        rstd.copy_(torch.rsqrt(variance + EPS))
        y.copy_((x - mean[:, None]) * rstd[:, None] * weight + bias)

    return launch


@layer_norm.wrong("torch", allocates=True, expected_fault="wrong type")
def result_alone(x, weight, bias, columns):
    """`F.layer_norm` returns y and no statistics."""
    return lambda: torch.nn.functional.layer_norm(x, (columns,), weight, bias, EPS)
