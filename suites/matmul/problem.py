"""Defines C = A·B for square float32 matrices: from the triple loop on one thread to the libraries.

n = 50, 100, 200 and 10 000 are the seed's sizes, 4096 fills a GPU, and 211 is a prime that no tile divides.
10 000 is for libraries: kernels written here stop at 4096. At smoke size 17 is one more than the smallest
tile: several blocks and steps, each with a tail, and few barriers, at which the simulator is slow.
"""

import numpy as np

from pytest_gpukern import Axis, Problem, Tolerance, random_array


def make_inputs(rng, n):
    """Two matrices of standard normals."""
    return {
        "A": random_array(rng, (n, n), "float32", distribution="normal"),
        "B": random_array(rng, (n, n), "float32", distribution="normal"),
    }


def reference(A, B):
    """The product in float64: NumPy's is the reference side, `expected`, of every comparison here."""
    return A.astype(np.float64) @ B.astype(np.float64)


def exact_inputs(rng, n):
    """Integers from -8 to 8: TF32 and float16 hold them, and float32 every partial sum below n = 2**18."""
    return {name: rng.integers(-8, 9, (n, n)).astype(np.float32) for name in "AB"}


def tolerance(n):
    """8 eps √n · √n, absolute for the most part.

    Rounding k of n is at most eps/2 of the partial sum, which for products of normals has standard deviation
    √k, so the error of plain summation has about eps/2 · √(n²/6): the √n of `Tolerance.for_sum` for the
    number of roundings, and a magnitude of √n. The worst element of plain summation reaches a fifth of the
    bound (n = 211 … 2048), a BLAS a tenth; operands rounded to float16 or TF32 exceed it 35 to 150 times.
    """
    return Tolerance.for_sum(n, "float32", magnitude=n**0.5)


matmul = Problem(
    "matmul",
    version=1,
    axes={"n": Axis(smoke=(17,), full=(50, 100, 200, 4096, 10_000), awkward=(211,))},
    check_points=[
        {"n": n} for n in (1, 2, 15, 16, 31, 33, 63, 64, 65, 127, 128, 129)
    ],  # the edges of all tiles
    simulator_limits={"n": 33},
    special_values={"A": (np.nan, np.inf, -np.inf)},  # a row each, of NaN or of both infinities
    layouts={"misaligned": ("A", "B", "C"), "strided": ("A", "B", "C")},
    exact_inputs=exact_inputs,
    make_inputs=make_inputs,
    reference=reference,
    outputs=lambda n: {"C": ((n, n), "float32")},
    tolerance=tolerance,
    traffic_bytes=lambda n: 3 * 4 * n * n,
    flops=lambda n: 2 * n**3,
    scopes=("kernel",),
    speedup_against="host.numpy",
    package=__package__,
)
