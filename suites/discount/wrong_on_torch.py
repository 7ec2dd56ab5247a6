"""Declares broken variants of `discount` that PyTorch invites. The checker rejects them all."""

from __future__ import annotations

import torch

from .problem import discount


@discount.wrong("torch", expected_fault="input modified")
def multiplied_in_place(mult, discount, cv):
    """`mul_` changes the tensor that it is called on."""
    return lambda: cv.copy_(discount.mul_(mult))


@discount.wrong("torch", expected_fault="wrong shape", allocates=True)
def flattened(mult, discount):
    """Returns t·i·k elements in one dimension."""
    return lambda: torch.mul(mult, discount).ravel()
