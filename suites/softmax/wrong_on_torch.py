"""Declares broken variants that PyTorch invites; each must be rejected for its fault."""

import torch

from .problem import softmax


@softmax.wrong("torch", expected_fault="wrong values")
def along_columns(x, y):
    """`dim=0`: the columns add up to one."""
    return lambda: torch.softmax(x, dim=0, out=y)


@softmax.wrong("torch", expected_fault="wrong values")
def half_precision(x, y):
    """Computes in float16; `copy_` widens without a word."""
    return lambda: y.copy_(torch.softmax(x.half(), dim=1))


@softmax.wrong("torch", allocates=True, expected_fault="wrong dtype")
def double_returned(x):
    """`dtype=torch.float64`, which converts the result as well."""
    return lambda: torch.softmax(x, dim=1, dtype=torch.float64)
