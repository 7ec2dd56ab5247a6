"""Compares an output with a plain test's reference, and says what else would have passed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import Tolerance, compare, default_tolerance
from pytest_gpukern.backends.foreign_array import narrow_dtype, refuse_what_proves_nothing, to_host
from pytest_gpukern.backends.host import bits_of
from pytest_gpukern.check.check_call import SeenOutputs
from pytest_gpukern.check.diagnosis import diagnose_form, diagnose_values
from pytest_gpukern.problems.problem import Output
from pytest_gpukern.problems.soundness import passes_lower_precision, passes_zeros

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.check.diagnosis import Diagnosis
    from pytest_gpukern.values.result import OutputError


@dataclass(frozen=True)
class ReferenceCheck:
    """Holds the result of comparing an output with its reference.

    Attributes:
        name: what the output is called.
        diagnosis: what is wrong, or None.
        error: distance from the reference; None if the shapes differ.
        loose: what else would pass within these bounds, in words, or None.
    """

    name: str
    diagnosis: Diagnosis | None
    error: OutputError | None = None
    loose: str | None = None


def check_against_reference(
    name: str,
    actual: Any,
    expected: Any,
    rtol: float | None,
    atol: float | None,
    *,
    seen: SeenOutputs | None,
    hashes: bool,
    asks_what_else: bool,
) -> ReferenceCheck:
    """Compares an output with its reference; the device must be idle.

    Args:
        name: what to call the output in messages if it is none that the marker declares.
        actual: array on the device or the host, of any shape.
        expected: reference of the same shape, in the same or a higher precision.
        rtol: relative bound, or None.
        atol: absolute bound, or None; if both are None, `default_tolerance` gives them.
        seen: what the test's calls left in their outputs; this may be one of them.
        hashes: whether the error includes the hash of the output.
        asks_what_else: whether to say if the bounds would also pass a lower precision or zeros.

    Raises:
        TypeError: `actual` is lazy, or an array is of a subclass of NumPy's or holds no numbers.
        ValueError: a bound is negative or not finite, the arrays share memory, or nothing is compared.
    """
    refuse_what_proves_nothing(actual, expected)
    found, reference = to_host(actual), to_host(expected)
    seen = seen or SeenOutputs(None, fixed=True)
    known = seen.name_of(actual, found)
    poisoned = known is not None and seen.outputs[known].poisoned
    if known is not None and seen.outputs[known].declared:
        name = known
    diagnosis = diagnose_form(name, found.shape, found.dtype, Output(reference.shape, found.dtype))
    if diagnosis is not None:
        return ReferenceCheck(name, diagnosis)
    _refuse_nothing(reference, may_be_empty=seen.given_empty)
    dtype = narrow_dtype(actual) or found.dtype
    if (rtol, atol) == (None, None):
        tolerance = default_tolerance(reference, dtype)
    else:
        tolerance = Tolerance(rtol=rtol or 0.0, atol=atol or 0.0)
    comparison = compare(found, reference, tolerance, poison=None)
    bits = bits_of(found) if hashes else None
    determinism = None
    diagnosis = diagnose_values(name, comparison, tolerance, poisoned=poisoned)
    if known is not None:
        determinism = seen.determinism(known)
        diagnosis = diagnosis or seen.diagnose_others(known, reference, tolerance)
    seen.note_compared(known, actual, found)
    error = dataclasses.replace(comparison.error, bits=bits, determinism=determinism)
    loose = None
    if asks_what_else and diagnosis is None:
        if dtype == found.dtype:
            loose = passes_lower_precision(name, reference, dtype, tolerance)
        if reference.any():
            loose = passes_zeros(name, reference, found.dtype, tolerance) or loose
    return ReferenceCheck(name, diagnosis, error, loose)


def _refuse_nothing(reference: np.ndarray[Any, Any], *, may_be_empty: bool) -> None:
    """Raises ValueError if a reference has no element to compare with, or only NaN."""
    import numpy as np

    if not reference.size and not may_be_empty:
        raise ValueError(
            f"actual and expected have shape {reference.shape}, so nothing is compared: verify what the "
            "call wrote or returned; where that must be empty, give the call an empty array"
        )
    if reference.size and np.isnan(reference).all():
        raise ValueError(
            f"expected is NaN in all of its {reference.size} elements, so an output of NaN would pass: "
            "compute a reference with numbers"
        )
