"""Defines y = softmax(x) along the rows of a matrix: exp(x - max) / Σ exp(x - max).

Every element is read once and written once, so what is fast here keeps a row on the chip between its maximum
and its quotient. All timed matrices have 2²⁴ elements, 134 MB of traffic in float32, which no L2 holds: many
short rows, 4096 × 4096, or few long ones. Rows of a prime length are checked, not timed;
so are float16 and bfloat16.
"""

import numpy as np

from pytest_gpukern import Axis, Problem, Tolerance, boundaries, elementwise, random_array

LOWEST = float(np.finfo("float32").min)
"""Where a running maximum begins: -inf - -inf would be NaN, and this minus -inf is not."""


def make_inputs(rng, elements, columns, dtype):
    """Standard normals about an offset for each row, beyond what exp of float32 can hold (-103 … 88.7).

    The softmax does not depend on the offset, but it overflows, or is 0/0, without the maximum taken off.
    """
    rows = elements // columns
    x = random_array(rng, (rows, columns), "float32", distribution="normal")
    signs = 2 * rng.integers(0, 2, (rows, 1)) - 1
    x += (signs * rng.uniform(110, 200, (rows, 1))).astype(np.float32)
    return {"x": x.astype(dtype, copy=False)}


def reference(x):
    """NumPy's softmax in float64."""
    highest = x.max(axis=1, keepdims=True)
    powers = elementwise(np.exp, elementwise(np.subtract, x, highest))
    return elementwise(np.divide, powers, powers.sum(axis=1, keepdims=True))


# float32, in units of 2⁻²³: 2 for expf (CUDA C++ Programming Guide, "Mathematical Functions"); 5 more where
# exp is 2^(x·log₂e), since rounding the exponent is worth |x - max|/2, and |x - max| < 10 for normals; about
# 6 for a thread's chain of 128 terms, of which half a unit each is the worst; 2 for the quotient. That is 15,
# and we allow twice that. NumPy and PyTorch reach 5; a sum in float16 is off by 4,000.
# Results of 16 bits are rounded once from float32, which is half a unit; another half is for values near the
# middle of two. float16 below 2⁻¹⁴ has units of 2⁻²⁴.
TOLERANCES = {
    "float32": Tolerance(rtol=32 * 2.0**-23),
    "float16": Tolerance(rtol=2.0**-10, atol=2.0**-24),
    "bfloat16": Tolerance(rtol=2.0**-7),
}


def check_points(block=64):
    """Rows around the edges of warps, blocks and powers of two, three of each and a single one.

    The usual block is small: Triton compiles a kernel for each power of two that a row is rounded to. The
    prime 1031 is for kernels that read a row in several pieces or by several warps.
    """
    points = [{"columns": n, "elements": 3 * n} for n in boundaries(block, minimum=1)]
    return [*points, {"columns": 33, "elements": 33}, {"columns": 1031, "elements": 3 * 1031}]


softmax = Problem(
    "softmax",
    version=1,
    axes={
        "columns": Axis(smoke=(97,), full=(128, 4096, 32_768)),
        "elements": Axis(smoke=(5 * 97,), full=(2**24,)),
    },
    check_points=check_points,
    simulator_limits={"columns": 2053},
    # A row with NaN or +inf is NaN throughout; -inf becomes 0, as in a mask of attention.
    special_values={"x": (np.nan, np.inf, *(-np.inf,) * 5)},
    layouts={"misaligned": ("x", "y"), "strided": ("x", "y")},
    make_inputs=make_inputs,
    reference=reference,
    outputs=lambda elements, columns, dtype: {"y": ((elements // columns, columns), dtype)},
    tolerance=lambda dtype: TOLERANCES[dtype],
    dtypes=("float32", "float16", "bfloat16"),
    traffic_bytes=lambda elements, columns: 8 * (elements // columns * columns),
    scopes=("kernel",),
    speedup_against="host.numpy",
    package=__package__,
)
