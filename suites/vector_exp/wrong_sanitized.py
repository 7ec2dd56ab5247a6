"""Declares a broken variant that may be right by luck; compute-sanitizer must reject it."""

import math

from numba import cuda

from .problem import vector_exp
from .wrong import BLOCK


@cuda.jit
def exp_and_one_more(x, y, count):
    """`<=` where `<` was meant: the last thread writes after the end of y."""
    i = cuda.grid(1)
    if i <= count:
        y[i] = math.exp(x[min(i, count - 1)])


@vector_exp.wrong("numba", detected_by="memcheck", needs_gpu="memory behind an array that belongs to nobody")
def writes_one_too_many(x, y, n, stream):
    """Out of bounds by one."""
    return lambda: exp_and_one_more[n // BLOCK + 1, BLOCK, stream](x, y, n)
