"""What a plain test's `verify` accepts, refuses and notes, with bounds of the test's own and without."""

from __future__ import annotations

import numpy as np
import pytest
from test_checked_calls import checked

from pytest_gpukern import Tolerance
from pytest_gpukern.arrays.compare import default_tolerance
from pytest_gpukern.check.verify import check_against_reference

RNG = np.random.default_rng(0)


def verified(actual, expected, rtol=None, atol=None, seen=None):
    return check_against_reference(
        "output", actual, expected, rtol, atol, seen=seen, hashes=False, asks_what_else=True
    )


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum(dtype=logits.dtype)


LOGITS = RNG.standard_normal(200_000).astype("float32")
EXPECTED = softmax(LOGITS.astype("float64"))
"""None of whose values reaches the absolute bound that is usual for float32."""


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros_like(LOGITS),
        np.full_like(LOGITS, 1 / len(LOGITS)),
        (EXPECTED / 2).astype("float32"),
        np.roll(softmax(LOGITS), 1),
    ],
    ids=["zeros", "a constant", "half of it", "shifted"],
)
def test_small_results_are_compared_by_bounds_that_are_smaller(wrong):
    assert verified(softmax(LOGITS), EXPECTED).diagnosis is None
    assert "wrong values" in verified(wrong, EXPECTED).diagnosis.message


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (np.sin(np.pi * np.arange(9.0)), np.sin(np.pi * np.arange(9.0)).astype("float32") + np.float32(1e-7)),
        (np.zeros(9), np.full(9, 1e-7, "float32")),
        (np.full(9, 1e-7, "float32"), np.zeros(9, "float32")),
        (np.linspace(0, 1, 9), np.linspace(0, 1, 9).astype("float32") + np.float32(5e-6)),
        (np.array([np.inf, 1e-5]), np.array([np.inf, 1.00005e-5], "float32")),
    ],
    ids=["rounding of terms that cancel", "zeros", "rounding of float32", "of order one", "infinite"],
)
def test_what_rounding_explains_stays_right(expected, actual):
    assert verified(actual, expected).diagnosis is None


def residual(dtype):
    matrix = np.random.default_rng(1).standard_normal((64, 64)).astype(dtype)
    solution = np.linalg.solve(matrix.astype("float64"), np.ones(64)).astype(dtype)
    return lambda kind: np.ones(64, kind) - (matrix.astype(kind) @ solution.astype(kind))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_left_of_terms_that_cancel_is_right_though_small(dtype):
    kernel = residual(dtype)
    expected = kernel(np.longdouble if dtype == "float64" else np.float64)
    assert 0 < np.abs(expected).max() < 1e-5
    assert verified(kernel(dtype), expected).diagnosis is None


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes_are_compared_by_the_bounds_of_their_dtype(name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    expected = np.linspace(1, 2, 100)
    declared = ("out",) if name == "bfloat16" else ()  # float8 cannot be declared
    out = np.empty(100, dtype)
    _, seen = after_a_call(lambda x, out: np.copyto(out, x.astype(dtype)), expected, out, outputs=declared)
    check = verified(out, expected, seen=seen)
    assert check.diagnosis is None
    assert not seen.never_compared
    assert check.error.max_rel > 2**-10, "it was rounded"
    assert verified(out, out.copy()).error.max_abs == 0
    assert verified(out.astype("float32"), out).error.max_abs == 0
    assert not verified(out, expected).doubts, "there is no lower precision"
    for wrong in (out * dtype(1.5), np.zeros_like(out)):
        assert "wrong values" in verified(wrong, expected).diagnosis.message


def test_the_reference_rounded_to_the_dtype_of_the_output_is_right_whatever_the_bounds():
    expected = np.array([1 / 3, 1e-3])
    nearest = expected.astype("float32")
    assert verified(nearest, expected, rtol=1e-9).diagnosis is None
    for bound in ("rtol", "atol"):  # of which the other is 0
        assert (
            "wrong values" in verified(np.nextafter(nearest, 1), expected, **{bound: 1e-9}).diagnosis.message
        )


def test_bounds_of_integers_and_of_references_of_order_one_are_those_of_the_dtype():
    assert default_tolerance(np.arange(5), "int32") == Tolerance()
    for dtype in ("float16", "float32", "float64", "complex64"):
        assert default_tolerance(np.arange(5.0), dtype) == Tolerance.for_dtype(dtype)


@pytest.mark.parametrize(
    ("expected", "what"),
    [
        (EXPECTED, "would pass float16 too"),
        (1e-17 * EXPECTED, "would pass an output of zeros"),
        (LOGITS.astype("float64"), None),
        (np.arange(1.0, 9), None),  # exact in float16, so that no bounds could tell
    ],
)
def test_what_else_the_usual_bounds_would_pass_is_noted(expected, what):
    check = verified(expected.astype("float32"), expected)
    assert check.diagnosis is None
    assert (check.doubts == ()) if what is None else (what in str(check.doubts))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_reference_of_nothing_but_nan_is_refused(dtype):
    nothing = np.full((2, 3), np.nan, dtype)
    with pytest.raises(ValueError, match="expected is NaN in all of its 6 elements"):
        verified(nothing.copy(), nothing)
    some = nothing.copy()
    some[0, 0] = 1
    assert verified(some.copy(), some).diagnosis is None


def after_a_call(function, *args, outputs=()):
    checks, returned = checked(function, *args, calls=1, outputs=outputs)
    return returned, checks.seen


NARROW = np.arange(5, dtype="float16")
RECORDS = np.zeros(5, "u8,f4")


@pytest.mark.parametrize(
    ("actual", "given", "noted"),
    [
        (NARROW, [np.ones(5, "float32")], "float32"),
        (NARROW, [{"x": [np.ones(5)]}, np.ones(5, "float32"), np.arange(5), RECORDS], "float32, float64"),
        (NARROW.astype("complex64"), [np.ones(5)], "float64"),
        (NARROW.astype("float32"), [np.ones(5, "complex128")], "complex128"),
        (NARROW, [np.ones(5), np.ones(1, "float16")], None),  # one is as narrow
        (NARROW, [np.arange(5), 2.0, np.float64(3)], None),  # no array of floats
        (np.arange(5, dtype="int8"), [np.ones(5)], None),
        (NARROW.astype("float64"), [np.ones(5, "complex128")], None),
    ],
)
def test_an_output_narrower_than_all_floats_that_the_call_read_is_right_and_noted(actual, given, noted):
    returned, seen = after_a_call(lambda *given: actual.copy(), *given)
    check = verified(returned, np.arange(5), seen=seen)
    assert check.diagnosis is None
    assert (check.doubts == ()) if noted is None else (f"call read ({noted})" in str(check.doubts))


def test_what_the_call_updates_in_place_is_read_and_its_outputs_are_not():
    wide, narrow = np.ones(5), np.zeros(5, "float16")
    for declared, noted in (({"outputs": (1,)}, True), ({"inout": (1,)}, False)):
        checks, _ = checked(lambda x, out: np.copyto(out, 2 * x), wide, narrow, **declared)
        assert bool(verified(narrow, np.full(5, 2.0), seen=checks.seen).doubts) is noted


def test_a_comparison_of_no_element_is_refused_unless_the_call_was_given_an_empty_array():
    message = r"actual and expected have shape \(0,\), so nothing is compared.*give the call an empty array"
    with pytest.raises(ValueError, match=message):
        verified(np.empty(0), np.empty(0))
    returned, seen = after_a_call(lambda x: x[x > 9] * 2, np.ones(5))
    with pytest.raises(ValueError, match=message):
        verified(returned, np.empty(0), seen=seen)
    returned, seen = after_a_call(lambda x: x * 2, np.ones(0))
    assert verified(returned, np.empty(0), seen=seen).diagnosis is None
    out = np.empty((3, 0))
    _, seen = after_a_call(lambda out: None, out, outputs=(0,))
    assert verified(out, np.empty((3, 0)), seen=seen).diagnosis is None
