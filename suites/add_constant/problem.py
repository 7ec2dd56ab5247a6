"""Defines the problem `add_constant`: out[z, y, x] = a[z, y, x] + 2 in float64, x running fastest in memory.

With 1024 × 1024 × 512 elements it reads 4.3 GB and writes 4.3 GB for one addition an element, so what is fast
here is what reaches the memory's bandwidth. The seed filled its array with zeros, for which a constant is a
right answer: zeros are there by name only (`fill=zeros`).
"""

from __future__ import annotations

import numpy as np

from pytest_gpukern import Axis, Output, Problem, Tolerance, boundaries, elementwise, random_array


def make_inputs(rng, z, y, x, fill):
    """`a` (z, y, x): "random" on [0, 1), or "zeros" as in the seed."""
    if fill == "random":
        return {"a": random_array(rng, (z, y, x))}
    if fill == "zeros":
        return {"a": np.zeros((z, y, x))}
    raise ValueError(f"fill={fill!r}: one of random, zeros")


def outputs(z, y, x):
    """`out` (z, y, x)."""
    return {"out": Output((z, y, x), "float64")}


def reference(a):
    """NumPy's sum: IEEE 754 rounds one addition correctly, so float64 is exact enough."""
    return elementwise(np.add, a, 2.0)


def traffic_bytes(z, y, x):
    """Every element is read once and written once."""
    return 16 * z * y * x


def flops(z, y, x):
    """One addition an element."""
    return z * y * x


# NaN, infinities, signed zeros, the smallest subnormal, the largest number, and those beside which 2 is lost
# or half rounded: one addition is rounded correctly for all of them.
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1.7976931348623157e308, -2.0, 2.0**53, 2.0**54, 1e17)


def check_points(block=256, width=32):
    """The edges of a block along x, alone and in a volume, and of a block's height; no planes are no work."""
    rows = [{"z": 1, "y": 1, "x": n} for n in boundaries(block, minimum=1)]
    height = 256 // width
    return rows + [{"z": 2, "y": y, "x": 3} for y in (height - 1, height + 1)] + [{"z": 3, "y": 1, "x": 1}]


add_constant = Problem(
    "add_constant",
    version=1,
    axes={
        "z": Axis(smoke=(4,), full=(1024,)),
        "y": Axis(smoke=(8,), full=(1024,)),
        "x": Axis(smoke=(16, 13), full=(512, 37)),
        "fill": Axis(smoke=("random",), full=("random",)),
    },
    check_points=check_points,
    special_values={"a": SPECIAL},
    layouts={"misaligned": ("a", "out"), "strided": ("a", "out")},
    make_inputs=make_inputs,
    outputs=outputs,
    reference=reference,
    # A single addition is rounded once, the same way everywhere: nothing but bitwise equality is right.
    tolerance=Tolerance(rtol=0.0, atol=0.0),
    traffic_bytes=traffic_bytes,
    flops=flops,
    transfer_bytes=traffic_bytes,  # the array crosses the bus once each way, as it does device memory
    scopes=("kernel",),
    speedup_against="host.add",
    package=__package__,
)
