"""Declares a broken variant that may be right by luck; compute-sanitizer must reject it."""

import numpy as np
from numba import cuda

from .problem import add_constant
from .wrong import BLOCK, blocks_for


@cuda.jit
def add_to_scratch(a, scratch, out):
    """Adds to what is in `scratch`: 0 where the memory is fresh from the driver."""
    index = cuda.grid(1)
    if index < out.size:
        scratch[index] += a[index]
        out[index] = scratch[index] + 2.0
        scratch[index] = 0.0


@add_constant.wrong("numba", detected_by="initcheck", needs_gpu="memory that nobody has written")
def scratch_not_zeroed(a, out, stream):
    """Takes for granted that new device memory holds zeros."""
    scratch = cuda.device_array(a.size, np.float64, stream=stream)
    source, target = a.ravel(), out.ravel()
    return lambda: add_to_scratch[blocks_for(a.size), BLOCK, stream](source, scratch, target)
