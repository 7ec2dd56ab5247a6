"""Says whether a reference and its tolerance reject results that are less precise, constant or zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_gpukern.arrays.compare import Tolerance, compare

_LOWER = {"float32": ("float16", 11), "float64": ("float32", 24)}
"""dtype → the next lower precision and the bits of its significand; TF32 has as many as float16."""
_LOOKED_AT = 1 << 16  # elements of a large array
_ALIKE = 0.5
_ALIKE_OF_FEW = 0.9
"""Share of elements that two references may have in common: floats, and dtypes with few values."""


def rounded(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Rounds values to the significand of the precision below `dtype`, ties to even.

    Their range stays, as in TF32 and bfloat16: values that overflow float16 would be rejected for that alone.
    Values return unchanged if one of the dtypes has no lower precision.
    """
    bits = _LOWER.get(_part(dtype), (None, 0))[1]
    if not bits or values.dtype.kind not in "fc":
        return values
    if values.dtype.kind == "c":
        parts = np.ascontiguousarray(values).view(values.real.dtype)
        whole: np.ndarray[Any, Any] = rounded(parts, dtype).view(values.dtype).reshape(values.shape)
        return whole
    significand, exponent = np.frexp(values)
    with np.errstate(all="ignore"):
        made: np.ndarray[Any, Any] = np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)
    return made.astype(values.dtype)


def _lowered(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Returns values as `dtype`, rounded to the precision below; what is too large for it is infinite."""
    with np.errstate(all="ignore"):
        lowered: np.ndarray[Any, Any] = rounded(values, dtype).astype(dtype)
    return lowered


def passes_lower_precision(
    name: str,
    expected: np.ndarray[Any, Any],
    dtype: Any,
    tolerance: Tolerance,
    again: Callable[[], np.ndarray[Any, Any]] | None = None,
) -> str | None:
    """Says that the next lower precision would pass a tolerance, and what to write; None if it would not.

    We first round the reference, which is mostly outside the tolerance already. If it is not, as with terms
    that cancel, `again` computes the reference from rounded inputs, and we round that. An exact tolerance
    cannot be tighter, so it always gives None.
    """
    lower = _LOWER.get(_part(dtype), (None, 0))[0]
    if lower is None or not expected.size or (tolerance.rtol == 0 == tolerance.atol):
        return None
    wanted = _sample(expected)
    wrong = _lowered(wanted, dtype)
    comparison = compare(wrong, wanted, tolerance, poison=None)
    if not comparison.mismatches and again is not None:
        wrong = _lowered(_sample(again()), dtype)
        comparison = compare(wrong, wanted, tolerance, poison=None)
    exact = not comparison.absolute.value  # as with small integers, which no tolerance can tell apart
    if comparison.mismatches or (again is None and exact):
        return None
    return _would_pass(name, f"{lower} too", wrong, wanted, tolerance)


def passes_zeros(name: str, expected: np.ndarray[Any, Any], dtype: Any, tolerance: Tolerance) -> str | None:
    """Says that an output of zeros would pass, as where `atol` is 1 and results are below 1; else None."""
    wanted = _sample(expected)
    if not wanted.size or compare(np.zeros(wanted.shape, dtype), wanted, tolerance, poison=None).mismatches:
        return None
    lower = _lowered(wanted, dtype)  # which is to be rejected, too
    return _would_pass(name, "an output of zeros", lower, wanted, tolerance)


def hardly_varies(
    name: str, expected: np.ndarray[Any, Any], other: np.ndarray[Any, Any], dtype: Any
) -> str | None:
    """Says that a constant would pass, as results hardly depend on inputs (a mean of normals); else None.

    Elements that are zero in both references do not count, since results may be sparse.
    """
    if expected.shape != other.shape:
        return None
    one, two = _sample(expected), _sample(other)
    differs = (one != two)[(one != 0) | (two != 0)]
    if not differs.size:
        return None
    share = 1.0 - float(differs.mean())
    most = _ALIKE if np.dtype(dtype).kind in "fc" else _ALIKE_OF_FEW
    if share <= most:
        return None
    return (
        f"{name}: the references of two seeds are equal in {100 * share:.0f} % of the elements, so a "
        "constant, or a result for other inputs, would pass"
    )


def _part(dtype: Any) -> str:
    """Names a dtype; for a complex one, the dtype of its parts."""
    name = str(np.dtype(dtype))
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def _would_pass(name: str, what: str, wrong: Any, wanted: np.ndarray[Any, Any], tolerance: Tolerance) -> str:
    """Says that a tolerance would pass a wrong output, how large the values are, and what to write."""
    usual = Tolerance.for_dtype(wrong.dtype)
    error = compare(wrong, wanted, Tolerance(), poison=None).absolute.value
    # Rounding to the dtype itself is thousands of times smaller than to the next lower precision.
    atol = 10.0 ** math.floor(math.log10(error / 64)) if 0 < error < math.inf else 0.0
    tighter = Tolerance(min(tolerance.rtol, usual.rtol), min(tolerance.atol or atol, atol))
    rejects = compare(wrong, wanted, tighter, poison=None).mismatches
    exact = "these are exact there, too: write Tolerance(), or make inputs with other results"
    remedy = f"write {_bounds(tighter)}" if rejects else exact
    bounds = "the default " * (tolerance == usual) + _bounds(tolerance)
    return f"{name}: {bounds} would pass {what}: its values are at most {abs(wanted).max():.3g}; {remedy}"


def _bounds(tolerance: Tolerance) -> str:
    return f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"


def _sample(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns every n-th element of a large array, and all of a small one, in one dimension."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.size // _LOOKED_AT)]
