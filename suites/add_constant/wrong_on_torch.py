"""Declares broken variants of `add_constant` that PyTorch invites. The checker rejects them all."""

from __future__ import annotations

from .problem import add_constant


@add_constant.wrong("torch", expected_fault="wrong values")
def single_precision(a, out):
    """Computes in PyTorch's default dtype; `copy_` widens without a word."""
    return lambda: out.copy_(a.float() + 2)


@add_constant.wrong("torch", expected_fault="input modified")
def added_in_place(a, out):
    """`add_` changes the tensor that it is called on."""
    return lambda: out.copy_(a.add_(2))
