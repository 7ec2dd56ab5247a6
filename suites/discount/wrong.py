"""Declares broken GPU variants of `discount`, with real mistakes; the checker rejects them all."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from .problem import discount

BLOCK = 64


def blocks_for(size):
    """Blocks that cover `size` elements."""
    return -(-size // BLOCK)


@cuda.jit
def multiply_flat(mult, discount, cv):
    """The right kernel, for variants that go wrong around it."""
    index = cuda.grid(1)
    if index < cv.size:
        cv[index] = mult[index % mult.size] * discount[index]


@cuda.jit
def multiply_in_single_precision(mult, discount, cv):
    """Rounds both factors and the product to float32."""
    index = cuda.grid(1)
    if index < cv.size:
        cv[index] = np.float32(mult[index % mult.size]) * np.float32(discount[index])


@cuda.jit
def multiply_by_neighbour(mult, discount, cv):
    """Takes the factor of the element to the right."""
    index = cuda.grid(1)
    if index < cv.size:
        cv[index] = mult[(index + 1) % mult.size] * discount[index]


@cuda.jit
def multiply_by_first(mult, discount, cv):
    """Takes mult[0, 0] throughout."""
    index = cuda.grid(1)
    if index < cv.size:
        cv[index] = mult[0] * discount[index]


@cuda.jit
def multiply_in_place(mult, discount, cv):
    """Scales `discount` itself before storing it."""
    index = cuda.grid(1)
    if index < cv.size:
        discount[index] *= mult[index % mult.size]
        cv[index] = discount[index]


@cuda.jit
def multiply_masked(mult, discount, cv):
    """Leaves rows out by weighting them with ∞ − ∞ where a selection was meant."""
    index = cuda.grid(1)
    if index < cv.size:
        weight = math.inf - math.inf if index % 3 == 0 else 1.0
        cv[index] = weight * mult[index % mult.size] * discount[index]


@cuda.jit
def multiply_where_nan(mult, discount, cv):
    """Takes a number in the output for one that was computed."""
    index = cuda.grid(1)
    if index < cv.size and math.isnan(cv[index]):
        cv[index] = mult[index % mult.size] * discount[index]


@cuda.jit
def copy_flat(source, target):
    """target = source."""
    index = cuda.grid(1)
    if index < target.size:
        target[index] = source[index]


@discount.wrong("numba", expected_fault="not written")
def does_nothing(cv):
    """Launches nothing: right whenever the output buffer still holds somebody else's answer."""
    return lambda: None


@discount.wrong("numba", expected_fault="not written")
def tail_missing(mult, discount, cv, stream):
    """One block too few: (n − 1) // block where ⌈n / block⌉ was meant."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    blocks = (cv.size - 1) // BLOCK
    return lambda: multiply_flat[blocks, BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="wrong values")
def single_precision(mult, discount, cv, stream):
    """Computes in float32: seven digits are right, and bitwise equality is demanded."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_in_single_precision[blocks_for(cv.size), BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="wrong values")
def neighbours_factor(mult, discount, cv, stream):
    """Off by one in `mult`."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_by_neighbour[blocks_for(cv.size), BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="wrong values")
def first_factor_throughout(mult, discount, cv, stream):
    """Does what a CUDA ufunc of numba-cuda 0.30.4 does when it broadcasts (i, k) against (t, i, k) itself."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_by_first[blocks_for(cv.size), BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="input modified")
def input_overwritten(mult, discount, cv, stream):
    """The first answer is right, and every later one starts from scaled inputs."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_in_place[blocks_for(cv.size), BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="stale result")
def input_copied_while_preparing(mult, discount, cv, stream):
    """Keeps its own copy of `discount` from before the timed region, as a cached layout conversion would."""
    kept = cuda.device_array(discount.size, discount.dtype)
    copy_flat[blocks_for(kept.size), BLOCK, stream](discount.ravel(), kept)
    kept_mult = cuda.device_array(mult.size, mult.dtype)
    copy_flat[blocks_for(kept_mult.size), BLOCK, stream](mult.ravel(), kept_mult)
    out = cv.ravel()
    return lambda: multiply_flat[blocks_for(cv.size), BLOCK, stream](kept_mult, kept, out)


@discount.wrong("numba", expected_fault="stale result")
def first_answer_replayed(mult, discount, cv, stream):
    """Caches by identity of its arrays: the first answer is kept and copied out ever after."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    kept = cuda.device_array(cv.size, cv.dtype)
    calls = []

    def launch():
        if not calls:
            multiply_flat[blocks_for(cv.size), BLOCK, stream](*arrays)
            copy_flat[blocks_for(cv.size), BLOCK, stream](arrays[2], kept)
            calls.append(True)
        else:
            copy_flat[blocks_for(cv.size), BLOCK, stream](kept, arrays[2])

    return launch


@discount.wrong("numba", expected_fault="unexpected NaN")
def masked_by_weight(mult, discount, cv, stream):
    """Every third element becomes NaN: ∞ − ∞ as a weight."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_masked[blocks_for(cv.size), BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="launch failed")
def output_forgotten(mult, discount, stream):
    """Launches with an argument too few."""
    arrays = mult.ravel(), discount.ravel()
    return lambda: multiply_flat[blocks_for(discount.size), BLOCK, stream](*arrays)


@discount.wrong("numba", expected_fault="launch failed", needs_gpu="the limit of 1024 threads a block")
def block_too_large(mult, discount, cv, stream):
    """Asks for 2048 threads a block, which no device has."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_flat[1, 2048, stream](*arrays)


@discount.wrong("numba", expected_fault="wrong shape", allocates=True)
def output_flat(mult, discount, stream):
    """Returns t·i·k elements in one dimension."""
    arrays = mult.ravel(), discount.ravel()

    def launch():
        cv = cuda.device_array(discount.size, discount.dtype)
        multiply_flat[blocks_for(cv.size), BLOCK, stream](*arrays, cv)
        return cv

    return launch


@discount.wrong("numba", expected_fault="wrong dtype", allocates=True)
def output_in_single_precision(mult, discount, stream):
    """Returns float32."""
    arrays = mult.ravel(), discount.ravel()

    def launch():
        cv = cuda.device_array(discount.shape, np.float32)
        multiply_flat[blocks_for(cv.size), BLOCK, stream](*arrays, cv.ravel())
        return cv

    return launch


@discount.wrong("numba", expected_fault="not written")
def gaps_filled(mult, discount, cv, stream):
    """Computes only where there is no number yet: nothing at all, once the output was written."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    return lambda: multiply_where_nan[blocks_for(cv.size), BLOCK, stream](*arrays)
