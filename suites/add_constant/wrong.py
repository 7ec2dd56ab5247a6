"""Declares broken GPU variants of `add_constant`, with real mistakes; the checker rejects them all."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from .problem import add_constant

BLOCK = 64


def blocks_for(size):
    """Blocks that cover `size` elements."""
    return -(-size // BLOCK)


@cuda.jit
def add_flat(a, out):
    """The right kernel, for variants that go wrong around it."""
    index = cuda.grid(1)
    if index < out.size:
        out[index] = a[index] + 2.0


@cuda.jit
def add_to_first_columns(a, out, columns):
    """One thread an x, for the first `columns` of them."""
    x = cuda.grid(1)
    if x < columns:
        for z in range(a.shape[0]):
            for y in range(a.shape[1]):
                out[z, y, x] = a[z, y, x] + 2.0


@cuda.jit
def store_constant(out):
    """Stores 2."""
    index = cuda.grid(1)
    if index < out.size:
        out[index] = 2.0


@cuda.jit
def add_in_single_precision(a, out):
    """Rounds the element and the sum to float32."""
    index = cuda.grid(1)
    if index < out.size:
        out[index] = np.float32(a[index]) + np.float32(2.0)


@cuda.jit
def add_to_neighbour(a, out):
    """Reads the element to the right."""
    index = cuda.grid(1)
    if index < out.size:
        out[index] = a[(index + 1) % a.size] + 2.0


@cuda.jit
def add_in_place(a, out):
    """Adds to the input, then copies it out."""
    index = cuda.grid(1)
    if index < out.size:
        a[index] += 2.0
        out[index] = a[index]


@cuda.jit
def add_with_nan_border(a, out):
    """Marks the first and last x of each line as NaN, as a stencil with a border would."""
    x, y, z = cuda.grid(3)
    if x < a.shape[2] and y < a.shape[1] and z < a.shape[0]:
        if x == 0 or x == a.shape[2] - 1:
            out[z, y, x] = math.nan
        else:
            out[z, y, x] = a[z, y, x] + 2.0


@cuda.jit
def copy_flat(source, target):
    """target = source."""
    index = cuda.grid(1)
    if index < target.size:
        target[index] = source[index]


@add_constant.wrong("numba", expected_fault="not written")
def does_nothing(out):
    """Launches nothing: right whenever the output buffer still holds somebody else's answer."""
    return lambda: None


@add_constant.wrong("numba", expected_fault="not written")
def tail_missing(a, out, stream):
    """One block too few: (n − 1) // block where ⌈n / block⌉ was meant."""
    source, target = a.ravel(), out.ravel()
    blocks = (a.size - 1) // BLOCK
    return lambda: add_flat[blocks, BLOCK, stream](source, target)


@add_constant.wrong("numba", expected_fault="not written")
def half_the_columns(a, out, x, stream):
    """Starts threads for half of the columns only."""
    return lambda: add_to_first_columns[blocks_for(x), BLOCK, stream](a, out, x // 2)


@add_constant.wrong("numba", expected_fault="wrong values")
def constant_answer(out, stream):
    """Never reads its input: right for the zeros of the seed, which is why inputs are random."""
    target = out.ravel()
    return lambda: store_constant[blocks_for(out.size), BLOCK, stream](target)


@add_constant.wrong("numba", expected_fault="wrong values")
def single_precision(a, out, stream):
    """Computes in float32: seven digits are right, and bitwise equality is demanded."""
    source, target = a.ravel(), out.ravel()
    return lambda: add_in_single_precision[blocks_for(a.size), BLOCK, stream](source, target)


@add_constant.wrong("numba", expected_fault="wrong values")
def neighbours_value(a, out, stream):
    """Off by one in `a`."""
    source, target = a.ravel(), out.ravel()
    return lambda: add_to_neighbour[blocks_for(a.size), BLOCK, stream](source, target)


@add_constant.wrong("numba", expected_fault="input modified")
def input_overwritten(a, out, stream):
    """The first answer is right; every launch adds two more to its own input."""
    source, target = a.ravel(), out.ravel()
    return lambda: add_in_place[blocks_for(a.size), BLOCK, stream](source, target)


@add_constant.wrong("numba", expected_fault="unexpected NaN")
def border_of_nan(a, out, x, y, z, stream):
    """Leaves NaN along the border in x."""
    grid = (-(-x // 16), -(-y // 4), z)
    return lambda: add_with_nan_border[grid, (16, 4, 1), stream](a, out)


@add_constant.wrong("numba", expected_fault="stale result")
def first_answer_replayed(a, out, stream):
    """Caches by identity of its arrays: the first answer is kept and copied out ever after."""
    source, target = a.ravel(), out.ravel()
    kept = cuda.device_array(out.size, out.dtype)
    calls = []

    def launch():
        if not calls:
            add_flat[blocks_for(a.size), BLOCK, stream](source, target)
            copy_flat[blocks_for(a.size), BLOCK, stream](target, kept)
            calls.append(True)
        else:
            copy_flat[blocks_for(a.size), BLOCK, stream](kept, target)

    return launch


@add_constant.wrong("numba", expected_fault="launch failed")
def output_forgotten(a, stream):
    """Launches with an argument too few."""
    source = a.ravel()
    return lambda: add_flat[blocks_for(a.size), BLOCK, stream](source)


@add_constant.wrong(
    "numba", expected_fault="launch failed", needs_gpu="the limit of 64 threads in a block's z"
)
def block_too_deep(a, out, stream):
    """Asks for 1 × 1 × 128 threads a block, and no device takes more than 64 along z."""
    return lambda: add_with_nan_border[1, (1, 1, 128), stream](a, out)


@add_constant.wrong("numba", expected_fault="wrong shape", allocates=True)
def axes_reversed(a, x, y, z, stream):
    """Returns (x, y, z): all elements, in another shape."""
    source = a.ravel()

    def launch():
        out = cuda.device_array((x, y, z), a.dtype)
        add_flat[blocks_for(a.size), BLOCK, stream](source, out.ravel())
        return out

    return launch


@add_constant.wrong("numba", expected_fault="wrong dtype", allocates=True)
def output_in_single_precision(a, stream):
    """Returns float32."""
    source = a.ravel()

    def launch():
        out = cuda.device_array(a.shape, np.float32)
        add_flat[blocks_for(a.size), BLOCK, stream](source, out.ravel())
        return out

    return launch


@add_constant.wrong("numba", expected_fault="aliased", allocates=True)
def same_memory_each_time(a, stream):
    """Saves an allocation: the next call overwrites what this one returned."""
    source, out = a.ravel(), cuda.device_array(a.shape, a.dtype)

    def launch():
        add_flat[blocks_for(a.size), BLOCK, stream](source, out.ravel())
        return out

    return launch
