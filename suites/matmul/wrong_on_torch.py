"""Declares broken variants that PyTorch invites; each must be rejected for its fault."""

import torch

from .problem import matmul

SIDE = 1024  # at which cuBLAS uses tensor cores where it may


@matmul.wrong("torch", expected_fault="wrong values")
def tf32(A, B, C, n):
    """Asks for TF32, which keeps eleven bits of each operand; padded with zeros, which change no sum."""
    a, b = torch.zeros((2, SIDE, SIDE), device="cuda")
    settings = torch.backends.cuda.matmul

    def launch():
        a[:n, :n], b[:n, :n] = A, B
        before, settings.fp32_precision = settings.fp32_precision, "tf32"
        try:
            C.copy_(torch.matmul(a, b)[:n, :n])
        finally:
            settings.fp32_precision = before

    return launch


@matmul.wrong("torch", allocates=True, expected_fault="wrong dtype")
def autocast(A, B):
    """Multiplies under `torch.autocast`, which computes in float16 and returns it."""

    def launch():
        with torch.autocast("cuda", dtype=torch.float16):
            return A @ B

    return launch
