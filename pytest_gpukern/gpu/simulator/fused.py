"""`cuda.fma` rounded once, and `cuda.cbrt` of negative numbers."""

import math
import struct
from fractions import Fraction
from typing import Any

from pytest_gpukern.gpu.simulator.patching import original, replace

# What numba-cuda 0.30.4 converts to float32 when resolving fma and cbrt; everything else becomes float64.
_SINGLE = {"float16", "float32", "int8", "uint8", "int16", "bool"}


def mend_float_functions() -> None:
    """Replace `fma`, which the fake rounds twice, and `cbrt`, which it takes as a power of 1/3."""
    from numba.cuda.simulator import kernelapi

    module_class = original(kernelapi, "FakeCUDAModule")
    replace(module_class, "fma", staticmethod(fma))
    replace(module_class, "cbrt", staticmethod(cbrt))


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c rounded once, in float32 or float64 as Numba would resolve the arguments."""
    return fused_multiply_add(a, b, c, _resolved_type(a, b, c))


def cbrt(a: Any) -> Any:
    """Return the cube root, in float32 or float64 as Numba would resolve the argument."""
    import numpy as np

    return np.cbrt(_resolved_type(a)(a))


def fused_multiply_add(a: Any, b: Any, c: Any, float_type: Any) -> Any:
    """Return a·b + c in a NumPy float type, rounded once.

    The exact sum is taken in rational numbers. It is rounded to double by "round to odd", after which the
    second rounding, to a type of at most 51 bits, is that of the exact sum (Boldo and Melquiond, "Emulation
    of a FMA and correctly-rounded sums", IEEE Trans. Comput. 57(4), 2008).
    """
    import numpy as np

    with np.errstate(all="ignore"):
        x, y, z = (float(float_type(value)) for value in (a, b, c))
        if not all(map(math.isfinite, (x, y, z))) or x == 0.0 or y == 0.0:
            return float_type(x * y + z)  # exact, or one of IEEE's special cases
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact == 0:
            return float_type(0.0)
        try:
            nearest = float(exact)
        except OverflowError:
            return float_type(math.copysign(math.inf, exact))
        return float_type(nearest if float_type is np.float64 else _to_odd(nearest, exact))


def _to_odd(nearest: float, exact: Fraction) -> float:
    """Of the two doubles around an inexact number, return the one whose last bit is set."""
    error = exact - Fraction(nearest)
    last_bit: int = struct.unpack("<q", struct.pack("<d", nearest))[0] & 1
    if error == 0 or last_bit:
        return nearest
    return math.nextafter(nearest, math.inf if error > 0 else -math.inf)


def _resolved_type(*values: Any) -> Any:
    import numpy as np

    single = all(str(getattr(value, "dtype", type(value).__name__)) in _SINGLE for value in values)
    return np.float32 if single else np.float64
