"""Defines y = (x - mean) · rstd · weight + bias along the rows of a matrix, with mean and rstd as outputs.

rstd is 1/√(variance + eps); the variance is that of the row itself, over n and not n - 1. Mean and rstd are
float32 whatever x is: a backward pass needs them. Every element is read once and written once, and all timed
matrices have 2²⁴ elements, as in `softmax`. Rows of a prime length are checked, not timed;
so are float16 and bfloat16.
"""

import numpy as np

from pytest_gpukern import Axis, Problem, Tolerance, boundaries, elementwise, random_array

EPS = 1e-5
"""PyTorch's default; 1 + EPS still differs from 1 in float32."""
MOST_MEAN = 100.0
"""The largest offset of a row, in standard deviations."""


def make_inputs(rng, elements, columns, dtype):
    """Standard normals about an offset of 50 to 100 for each row; weights about 1, biases about 0.

    With the offset, E[x²] - E[x]² loses twelve bits and more to cancellation.
    """
    rows = elements // columns
    x = random_array(rng, (rows, columns), "float32", distribution="normal")
    signs = 2 * rng.integers(0, 2, (rows, 1)) - 1
    x += (signs * rng.uniform(MOST_MEAN / 2, MOST_MEAN, (rows, 1))).astype(np.float32)
    weight = 0.5 + random_array(rng, columns, "float32")
    bias = random_array(rng, columns, "float32", distribution="normal")
    inputs = {"x": x, "weight": weight, "bias": bias}
    return {name: array.astype(dtype, copy=False) for name, array in inputs.items()}


def reference(x, weight, bias):
    """NumPy's in float64, in two passes: the variance is the mean of squared deviations."""
    mean = x.mean(axis=1, dtype=np.float64)[:, np.newaxis]
    deviations = elementwise(np.subtract, x, mean)
    rstd = 1 / np.sqrt(np.square(deviations).mean(axis=1, keepdims=True) + EPS)
    scaled = elementwise(np.multiply, deviations, rstd)
    y = elementwise(np.add, elementwise(np.multiply, scaled, weight, dtype=np.float64), bias)
    return {"y": y, "mean": mean[:, 0], "rstd": rstd[:, 0]}


# The mean of numbers of size 100 is off by half a unit of 2⁻²³ · 100 for its own rounding, and by about as
# much for the chains and trees of its sum (N. J. Higham, Accuracy and Stability of Numerical Algorithms,
# 2002, section 4.2). Kernels reach 2 of these 8 units.
MEAN = Tolerance(atol=8 * 2.0**-23 * MOST_MEAN)
# An error d of the mean adds d² to the variance of 1: nothing. Its terms are positive, so rstd is off by half
# the relative error of a sum (6 units of 2⁻²³ for 128 terms in turn) and by that of rsqrt (2 ULP, CUDA C++
# Programming Guide, "Mathematical Functions"). B. P. Welford's update, as in PyTorch, multiplies deviations
# from a mean that changes, and reaches 26 units at 128 columns. E[x²] - E[x]² is off by 8,000.
RSTD = Tolerance(rtol=64 * 2.0**-23)
# The error of the mean, scaled by a weight of at most 1.5, and a dozen roundings of the deviation.
OFF_BY_MEAN = 1.5 * MEAN.atol
# Results of 16 bits are rounded once from float32, half a unit; another half is for those near the middle.
UNITS = {"float32": 16 * 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def check_points(block=64):
    """Rows around the edges of warps, blocks and powers of two, three of each and a single one.

    The usual block is small: Triton compiles a kernel for each power of two that a row is rounded to. The
    prime 1031 is for kernels that read a row in several pieces or by several warps.
    """
    # A row of one element is eps alone, which says nothing.
    points = [{"columns": n, "elements": 3 * n} for n in boundaries(block, minimum=31)]
    return [*points, {"columns": 33, "elements": 33}, {"columns": 1031, "elements": 3 * 1031}]


layer_norm = Problem(
    "layer_norm",
    version=1,
    axes={
        "columns": Axis(smoke=(97,), full=(4096, 32_768)),
        "elements": Axis(smoke=(5 * 97,), full=(2**24,)),
    },
    check_points=check_points,
    simulator_limits={"columns": 2053},
    special_values={"x": (np.nan,), "weight": (np.inf, 0.0), "bias": (np.nan, -np.inf)},
    layouts={"misaligned": ("x", "weight", "bias", "y"), "strided": ("x", "weight", "bias", "y")},
    make_inputs=make_inputs,
    reference=reference,
    outputs=lambda elements, columns, dtype: {
        "y": ((elements // columns, columns), dtype),
        "mean": ((elements // columns,), "float32"),
        "rstd": ((elements // columns,), "float32"),
    },
    tolerance=lambda dtype: {"y": Tolerance(UNITS[dtype], OFF_BY_MEAN), "mean": MEAN, "rstd": RSTD},
    dtypes=("float32", "float16", "bfloat16"),
    traffic_bytes=lambda elements, columns: 8 * (elements // columns * (columns + 1) + columns),
    scopes=("kernel",),
    speedup_against="host.numpy",
    package=__package__,
)
