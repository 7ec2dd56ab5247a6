"""Uses NumPy's product, which is its BLAS's."""

import numpy as np

from .problem import matmul


@matmul.variant("host", layouts=("misaligned", "strided"))
def numpy(A, B, C):
    """`np.matmul` into the given array: sgemm of NumPy's BLAS, on as many threads as that uses."""
    return lambda: np.matmul(A, B, out=C)
