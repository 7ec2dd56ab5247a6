"""Declares broken variants of `discount_streamed` in slabs, on device arrays; the checker rejects them all.

A slab is one element more than a time step, so that slabs and time steps begin together only once.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .problem import discount_streamed

BLOCK = 64


@cuda.jit
def multiply_slab(mult, source, target, start, origin):
    """target = mult · source for a slab at `start`, which takes its first factor at `origin`."""
    index = cuda.grid(1)
    if index < source.size:
        target[start + index] = mult[(origin + index) % mult.size] * source[index]


@cuda.jit
def multiply_slab_in_single_precision(mult, source, target, start):
    """The same, rounded to float32."""
    index = cuda.grid(1)
    if index < source.size:
        factor = np.float32(mult[(start + index) % mult.size])
        target[start + index] = factor * np.float32(source[index])


@cuda.jit
def scale_slab(mult, slab, start):
    """slab *= mult."""
    index = cuda.grid(1)
    if index < slab.size:
        slab[index] *= mult[(start + index) % mult.size]


@cuda.jit
def copy_flat(source, target):
    """target = source."""
    index = cuda.grid(1)
    if index < target.size:
        target[index] = source[index]


def blocks_for(size):
    """Blocks that cover `size` elements."""
    return -(-size // BLOCK)


def slabs_of(mult, discount):
    """(start, stop) of each slab; the last is shorter than the others."""
    size = mult.size + 1
    return [(start, min(start + size, discount.size)) for start in range(0, discount.size, size)]


def run_slabs(mult, discount, cv, bounds, stream):
    """The right answer for the slabs in `bounds`."""
    factors, source, target = mult.ravel(), discount.ravel(), cv.ravel()
    for start, stop in bounds:
        multiply_slab[blocks_for(stop - start), BLOCK, stream](
            factors, source[start:stop], target, start, start
        )


@discount_streamed.wrong("numba", expected_fault="not written")
def short_slab_dropped(mult, discount, cv, stream):
    """Rounds the number of slabs down, so that the short one at the end is missing."""
    bounds = slabs_of(mult, discount)[:-1]
    return lambda: run_slabs(mult, discount, cv, bounds, stream)


@discount_streamed.wrong("numba", expected_fault="not written")
def buffer_never_flushed(mult, discount, cv, stream):
    """Copies a slab out when its buffer is wanted again, and forgets the buffer that nobody wants again."""
    factors, source, target = mult.ravel(), discount.ravel(), cv.ravel()
    bounds = slabs_of(mult, discount)
    room = cuda.device_array(mult.size + 1, discount.dtype)

    def launch():
        for number, (start, stop) in enumerate(bounds):
            if number > 0:
                before, until = bounds[number - 1]
                copy_flat[blocks_for(until - before), BLOCK, stream](room, target[before:until])
            slab = room[: stop - start]
            copy_flat[blocks_for(stop - start), BLOCK, stream](source[start:stop], slab)
            scale_slab[blocks_for(stop - start), BLOCK, stream](factors, slab, start)

    return launch


@discount_streamed.wrong("numba", expected_fault="wrong values")
def factors_start_over(mult, discount, cv, stream):
    """Takes each slab for the beginning of a time step."""
    factors, source, target = mult.ravel(), discount.ravel(), cv.ravel()

    def launch():
        for start, stop in slabs_of(mult, discount):
            multiply_slab[blocks_for(stop - start), BLOCK, stream](
                factors, source[start:stop], target, start, 0
            )

    return launch


@discount_streamed.wrong("numba", expected_fault="wrong values")
def single_precision(mult, discount, cv, stream):
    """Halves the traffic by computing in float32."""
    factors, source, target = mult.ravel(), discount.ravel(), cv.ravel()

    def launch():
        for start, stop in slabs_of(mult, discount):
            multiply_slab_in_single_precision[blocks_for(stop - start), BLOCK, stream](
                factors, source[start:stop], target, start
            )

    return launch


@discount_streamed.wrong("numba", expected_fault="input modified")
def input_used_as_buffer(mult, discount, cv, stream):
    """Saves the slab's buffer by multiplying in the input itself."""
    factors, source, target = mult.ravel(), discount.ravel(), cv.ravel()

    def launch():
        for start, stop in slabs_of(mult, discount):
            slab = source[start:stop]
            scale_slab[blocks_for(stop - start), BLOCK, stream](factors, slab, start)
            copy_flat[blocks_for(stop - start), BLOCK, stream](slab, target[start:stop])

    return launch


@discount_streamed.wrong("numba", expected_fault="stale result")
def slabs_kept(mult, discount, cv, stream):
    """Keeps the finished slabs on the device and copies them out again in every later call."""
    target, kept = cv.ravel(), cuda.device_array(cv.size, cv.dtype)
    calls = []

    def launch():
        if not calls:
            run_slabs(mult, discount, kept, slabs_of(mult, discount), stream)
            calls.append(True)
        copy_flat[blocks_for(cv.size), BLOCK, stream](kept, target)

    return launch


@discount_streamed.wrong("numba", expected_fault="launch failed")
def short_slab_in_full_room(mult, discount, cv, stream):
    """Copies the short slab at the end from an array of the full size, which Numba refuses."""
    bounds = slabs_of(mult, discount)
    short = np.empty(bounds[-1][1] - bounds[-1][0])
    room = cuda.device_array(mult.size + 1, discount.dtype)

    def launch():
        run_slabs(mult, discount, cv, bounds, stream)
        room.copy_to_host(short)

    return launch
