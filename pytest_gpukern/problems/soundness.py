"""Says whether a reference and its tolerance reject results that are less precise, constant or zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import Tolerance, compare

if TYPE_CHECKING:
    import numpy as np


_LOWER = {"float32": ("float16", 11), "float64": ("float32", 24)}
"""dtype → the next lower precision and the bits of its significand; TF32 has those of float16."""
_LOOKED_AT = 1 << 16
_ALIKE = 0.5
_ALIKE_OF_FEW = 0.9
"""Share of elements that two references may have in common: floats, and dtypes with few values."""


def rounded(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Rounds values to the significand of the precision below `dtype`, ties to even.

    Their range stays, as in TF32 and bfloat16: values that overflow float16 would be rejected for that alone.
    Values return unchanged if one of the dtypes has no lower precision.
    """
    import numpy as np

    bits = _LOWER.get(_part(dtype), (None, 0))[1]
    if not bits or values.dtype.kind not in "fc":
        return values
    if values.dtype.kind == "c":
        parts = np.ascontiguousarray(values).view(_part(values.dtype))
        whole: np.ndarray[Any, Any] = rounded(parts, dtype).view(values.dtype).reshape(values.shape)
        return whole
    significand, exponent = np.frexp(values)
    with np.errstate(all="ignore"):
        made: np.ndarray[Any, Any] = np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)
    return made.astype(values.dtype)


def passes_lower_precision(
    name: str,
    expected: np.ndarray[Any, Any],
    dtype: Any,
    tolerance: Tolerance,
    again: Callable[[], np.ndarray[Any, Any]] | None = None,
) -> str | None:
    """Says how the next lower precision would pass a tolerance, in words, or None if it would be rejected.

    We first round the reference, which is mostly outside the tolerance already. If it is not, as with terms
    that cancel, `again` computes the reference from rounded inputs, and we round that. An exact tolerance
    cannot be tighter, so it always gives None.
    """
    lower = _LOWER.get(_part(dtype), (None, 0))[0]
    if lower is None or not expected.size or (tolerance.rtol == 0 == tolerance.atol):
        return None
    wanted = _sample(expected)
    comparison = compare(rounded(wanted, dtype).astype(dtype), wanted, tolerance, poison=None)
    if not comparison.mismatches and again is not None:
        comparison = compare(rounded(_sample(again()), dtype).astype(dtype), wanted, tolerance, poison=None)
    exact = not comparison.absolute.value  # as with small integers, which no tolerance can tell apart
    if comparison.mismatches or (again is None and exact):
        return None
    off = f"{comparison.relative.value:.3g} relative and {comparison.absolute.value:.3g} absolute"
    return f"{name}: {_bounds(tolerance)} would pass {lower} too, which is off by at most {off}"


def passes_zeros(name: str, expected: np.ndarray[Any, Any], dtype: Any, tolerance: Tolerance) -> str | None:
    import numpy as np

    wanted = _sample(expected)
    if not wanted.size or compare(np.zeros(wanted.shape, dtype), wanted, tolerance, poison=None).mismatches:
        return None
    return f"{name}: {_bounds(tolerance)} would pass an output of zeros"


def hardly_varies(
    name: str, expected: np.ndarray[Any, Any], other: np.ndarray[Any, Any], dtype: Any
) -> str | None:
    import numpy as np

    if expected.shape != other.shape or not expected.size:
        return None
    same = _sample(expected) == _sample(other)
    share = float(same.mean())
    most = _ALIKE if np.dtype(dtype).kind in "fc" else _ALIKE_OF_FEW
    if share <= most:
        return None
    return (
        f"{name}: the references of two seeds are equal in {100 * share:.0f} % of the elements, so a "
        "constant, or a result for other inputs, would pass"
    )


def _part(dtype: Any) -> str:
    """Names a dtype; for a complex one, the dtype of its parts."""
    import numpy as np

    name = str(np.dtype(dtype))
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def _bounds(tolerance: Tolerance) -> str:
    return f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"


def _sample(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns every n-th element of a large array, and all of a small one, in one dimension."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.size // _LOOKED_AT)]
