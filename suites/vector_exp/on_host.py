"""Uses NumPy's own exponential."""

import numpy as np

from .problem import vector_exp


@vector_exp.variant("host", layouts=("misaligned", "strided"), dtypes=("float64", "float16"))
def numpy(x, y):
    """`np.exp` into the given array: vectorised float32 code, one thread."""
    return lambda: np.exp(x, out=y)
