"""Uses NumPy: three passes over the result, one thread."""

import numpy as np

from .problem import softmax


@softmax.variant("host", layouts=("misaligned", "strided"))
def numpy(x, y):
    """Maximum, `np.exp` in place, quotient by the sum: float32 throughout, summed in pairs."""

    def launch():
        np.subtract(x, x.max(axis=1, keepdims=True), out=y)
        np.exp(y, out=y)
        np.divide(y, y.sum(axis=1, keepdims=True), out=y)

    return launch
