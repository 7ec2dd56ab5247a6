"""Uses PyTorch's softmax: into the given tensor, and into a new one from its caching allocator."""

import torch

from .problem import softmax


@softmax.variant("torch", layouts=("misaligned", "strided"), dtypes=("float16", "bfloat16"))
def softmax_out(x, y):
    """`torch.softmax` with `out`."""
    return lambda: torch.softmax(x, dim=1, out=y)


@softmax.variant("torch", allocates=True, layouts=("misaligned", "strided"), dtypes=("float16", "bfloat16"))
def softmax_allocating(x):
    """`torch.softmax` as one would write it."""
    return lambda: torch.softmax(x, dim=1)
