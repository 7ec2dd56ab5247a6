"""Defines the problem `discount`: cv[t, i, k] = mult[i, k] · discount[t, i, k] in float64.

One multiplication for every 16 bytes, on the device as on the bus to it: whether a GPU helps depends on where
the data live, so kernel, transfer and end-to-end time are three numbers and all three are measured.
"""

from __future__ import annotations

import numpy as np

from pytest_gpukern import Axis, Output, Problem, Tolerance, boundaries, elementwise, random_array


def make_inputs(rng, t, i, k, fill):
    """`mult` (i, k) and `discount` (t, i, k); random unless other data are asked for by name."""
    return {"mult": filled(rng, (i, k), fill), "discount": filled(rng, (t, i, k), fill)}


def filled(rng, shape, fill):
    """An array of `shape`: "random" on [0, 1), "counting" up from 0 as in the seed, or "zeros"."""
    if fill == "random":
        return random_array(rng, shape)
    if fill == "counting":
        return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    if fill == "zeros":
        return np.zeros(shape)
    raise ValueError(f"fill={fill!r}: one of random, counting, zeros")


def outputs(t, i, k):
    """`cv` (t, i, k)."""
    return {"cv": Output((t, i, k), "float64")}


def reference(mult, discount):
    """NumPy's product: IEEE 754 rounds one multiplication correctly, so float64 is exact enough."""
    return elementwise(np.multiply, mult, discount)


def traffic_bytes(t, i, k):
    """`mult` and `discount` are read once, `cv` is written once."""
    return 8 * (i * k + 2 * t * i * k)


def flops(t, i, k):
    """One multiplication an element."""
    return t * i * k


# NaN, infinities, signed zeros, the smallest subnormal, a larger one, the largest number: one multiplication
# is rounded correctly for all of them, and float64 has no flushing to zero.
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1e-310, 1.7976931348623157e308)


def check_points(block=128, steps=4):
    """The edges of a block of columns and of the time steps that a thread takes; without rows is no work."""
    columns = [{"t": 1, "i": n, "k": 1} for n in boundaries(block, minimum=1)]
    return columns + [{"t": t, "i": 1, "k": 1} for t in (steps - 1, steps + 1)]


discount = Problem(
    "discount",
    version=1,
    axes={
        "t": Axis(smoke=(7,), full=(100,)),
        "i": Axis(smoke=(8, 11), full=(4000,), awkward=(25_013,)),
        "k": Axis(smoke=(5,), full=(5,)),
        "fill": Axis(smoke=("random",), full=("random",)),
    },
    check_points=check_points,
    special_values={"mult": SPECIAL, "discount": SPECIAL},
    layouts={"misaligned": ("mult", "discount", "cv"), "strided": ("mult", "discount", "cv")},
    make_inputs=make_inputs,
    outputs=outputs,
    reference=reference,
    # A single multiplication is rounded once, the same way everywhere: nothing but bitwise equality is right.
    tolerance=Tolerance(rtol=0.0, atol=0.0),
    traffic_bytes=traffic_bytes,
    flops=flops,
    transfer_bytes=traffic_bytes,  # each array crosses the bus once, just as it crosses device memory once
    scopes=("kernel", "transfer", "end_to_end"),
    speedup_against="host.gufunc_sliced_t",
    package=__package__,
)
