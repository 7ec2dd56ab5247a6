"""Declares broken host variants of `matmul`: they need NumPy alone."""

import numpy as np

from .problem import matmul


@matmul.wrong("host", expected_fault="wrong values")
def all_zero(C):
    """Zeros: the mean of the products of normals."""
    return lambda: C.fill(0.0)


@matmul.wrong("host", expected_fault="wrong values")
def large_accumulator(A, B, C):
    """Sums on top of a large number that is taken off again: twelve bits of every product are lost."""

    def launch():
        C[:] = np.float32(4096)
        for k in range(A.shape[1]):
            np.add(C, np.outer(A[:, k], B[k]), out=C)
        np.subtract(C, np.float32(4096), out=C)

    return launch


@matmul.wrong("host", expected_fault="wrong values")
def rescaled(A, B, C):
    """Multiplies by a seventh and by seven: an ULP here and there, within any tolerance; integers tell."""

    def launch():
        np.matmul(A, B, out=C)
        np.multiply(C, np.float32(1 / 7), out=C)
        np.multiply(C, np.float32(7), out=C)

    return launch


@matmul.wrong("host", expected_fault="wrong values")
def zeros_skipped(A, B, C):
    """Leaves out what is not finite, as a mask against overflow does."""
    return lambda: np.matmul(np.nan_to_num(A, posinf=0, neginf=0), B, out=C)


@matmul.wrong("host", expected_fault="stale result")
def cached_by_left_operand(A, B, C):
    """Remembers the product by the contents of A, as a layer does with weights that it takes for constant."""
    answers = {}

    def launch():
        key = A.tobytes()
        if key not in answers:
            answers[key] = A @ B
        np.copyto(C, answers[key])

    return launch
