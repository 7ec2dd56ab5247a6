"""Uses Numba's CPU target: the same scalar function as on the GPU, over all cores."""

import functools
import math

from numba import float32, vectorize

from .problem import vector_exp


@functools.cache
def exp_ufunc():
    """The ufunc, built at first use: the target "parallel" compiles at once."""

    @vectorize([float32(float32)], target="parallel")
    def exp(value):
        return math.exp(value)

    return exp


@vector_exp.variant("host", layouts=("misaligned", "strided"))
def vectorize_parallel(x, y):
    """`@vectorize(target="parallel")`: one ufunc, all cores, no temporary."""
    exp = exp_ufunc()
    return lambda: exp(x, out=y)
