"""Defines y = exp(x) for n standard normals, float32: eight bytes of traffic for one transcendental function.

The data are the seed's (standard normals, seed 1), and so are the sizes; n = 10 000 019 is a prime, so that
no block or vector width divides it. float64 and float16 are checked, not timed, where a variant takes them.
"""

import numpy as np

from pytest_gpukern import Axis, Problem, Tolerance, boundaries, elementwise, random_array

# Four ULP; one ULP is at most 2⁻²³ of its value. CUDA documents 2 ULP for expf without fast math (CUDA C++
# Programming Guide, "Mathematical Functions") and NumPy 2.52 for its vectorised float32 exp (release notes of
# 1.17); the reference is float64, so its own rounding does not count. Purely relative: |x| < 7 for any sample
# that fits a machine, hence 9e-4 < y < 1.1e3, far from denormals and overflow. float16 inside is off by up to
# 2⁻¹¹, a thousand times the bound.
# Subnormal results, below exp(-87.3), may be flushed to zero, as with -ftz=true.
FOUR_ULP = Tolerance.for_ulps(4, "float32").flushing("float32")

# exp of these is 0, infinite, NaN, 1, just below overflow, above it, near the smallest normal, subnormal, 0.
SPECIAL = (-np.inf, np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-40, 88.7, 89.0, -87.3, -100.0, -104.0)


def make_inputs(rng, n, dtype):
    """n standard normals; those of float16 are rounded ones of float32."""
    drawn = random_array(rng, n, "float64" if dtype == "float64" else "float32", distribution="normal")
    return {"x": drawn.astype(dtype, copy=False)}


def reference(x, dtype):
    """NumPy's exp of the same values, in float64; of float64 in the longest there is."""
    return elementwise(np.exp, x, dtype=np.longdouble if dtype == "float64" else np.float64)


def tolerance(dtype):
    """Four ULP of the dtype. CUDA documents 1 ULP for exp, and halves are rounded from float32."""
    return FOUR_ULP if dtype == "float32" else Tolerance.for_ulps(4, dtype)


vector_exp = Problem(
    "vector_exp",
    version=1,
    axes={"n": Axis(smoke=(257, 1024), full=(10**7, 10**8), awkward=(10_000_019,), huge=(2**31 + 11,))},
    check_points=lambda block=256: [{"n": n} for n in boundaries(block)],
    special_values={"x": SPECIAL},
    layouts={"misaligned": ("x", "y"), "strided": ("x", "y")},
    make_inputs=make_inputs,
    reference=reference,
    outputs=lambda n, dtype: {"y": ((n,), dtype)},
    tolerance=tolerance,
    dtypes=("float32", "float64", "float16"),
    traffic_bytes=lambda n: 8 * n,
    scopes=("kernel",),
    speedup_against="host.numpy",
    package=__package__,
)
