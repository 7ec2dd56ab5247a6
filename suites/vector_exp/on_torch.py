"""Uses PyTorch: into the given tensor, and into a new one from its caching allocator."""

import torch

from .problem import vector_exp


@vector_exp.variant("torch", layouts=("misaligned", "strided"), dtypes=("float64", "float16"))
def exp(x, y):
    """`torch.exp` with `out`."""
    return lambda: torch.exp(x, out=y)


@vector_exp.variant("torch", allocates=True, layouts=("misaligned", "strided"), dtypes=("float64", "float16"))
def exp_allocating(x):
    """`x.exp()` as one would write it: after the first calls the memory is that of an earlier result."""
    return lambda: x.exp()
