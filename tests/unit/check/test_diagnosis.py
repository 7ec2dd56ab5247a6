"""What a diagnosis of values says, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpukern import Tolerance
from pytest_gpukern.arrays.compare import POISON, compare, poison_bytes
from pytest_gpukern.check.diagnosis import Fault, complaint, diagnose_values

EXACT = Tolerance()
HALF_WRITTEN = np.concatenate([np.ones(2, "f4"), poison_bytes(POISON, 8).view("f4")]).reshape(2, 2)
POISONED = "2 still hold poison, the first at [1, 0]: never written, or added to before being set"
UNWRITTEN = "2 were never written, the first at [1, 0]"
NAN = ["unexpected NaN: 1 of 2 elements", "1 are NaN where the reference is not"]
NAN_AT_FIRST = "first mismatch at [0]: expected 1.0, actual nan"
ON_PURPOSE = "zero it first, or declare inout=, or written= for what is left on purpose"


def read(kind):
    remedy = "if the kernel adds to it, zero it first, or declare inout="
    return f"the output held {kind} before the launch: {remedy}"


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "poisoned", "lines"),
    [
        (
            [1.0, 2.5, 5.0],
            [1.0, 2.0, 4.0],
            Tolerance(0.1, 0.125),
            True,
            [
                "wrong values: 2 of 3 elements outside rtol=0.1, atol=0.125",
                "first mismatch at [1]: expected 2.0, actual 2.5",
                "worst absolute error 1 at [2]: expected 4.0, actual 5.0",
                "worst relative error 0.25 at [1]: expected 2.0, actual 2.5",
                "worst error in ULP 1.1259e+15 at [1]: expected 2.0, actual 2.5",
            ],
        ),
        (
            np.float32(3),
            np.float32(1),
            EXACT,
            True,
            [
                "wrong values: 1 of 1 elements",
                "first mismatch at [()]: expected 1.0, actual 3.0",
                "worst absolute error 2 at [()]: expected 1.0, actual 3.0",
                "worst relative error 2 at [()]: expected 1.0, actual 3.0",
                "worst error in ULP 1.67772e+07 at [()]: expected 1.0, actual 3.0",
            ],
        ),
        *(
            (
                HALF_WRITTEN,
                np.ones((2, 2)),
                EXACT,
                poisoned,
                [*counts, "first mismatch at [1, 0]: expected 1.0, actual nan", *more],
            )
            for poisoned, counts, more in (
                (True, ["2 of 4 elements", POISONED], [ON_PURPOSE]),
                (False, ["not written: 2 of 4 elements", UNWRITTEN], []),
            )
        ),
        *(
            ([np.nan, 1.0], [1.0, 1.0], EXACT, poisoned, [*NAN, NAN_AT_FIRST, *more])
            for poisoned, more in ((True, [read("NaN")]), (False, []))
        ),
        (
            [np.nan, 2.0],
            [1.0, 1.0],
            EXACT,
            True,
            [
                "wrong values: 2 of 2 elements",
                "1 are NaN where the reference is not",
                NAN_AT_FIRST,
                "worst absolute error 1 at [1]: expected 1.0, actual 2.0",
                "worst relative error 1 at [1]: expected 1.0, actual 2.0",
                "worst error in ULP 4.5036e+15 at [1]: expected 1.0, actual 2.0",
                read("NaN"),
            ],
        ),
        (
            [7, 12],
            [7, 8],
            EXACT,
            True,
            [
                "wrong values: 1 of 2 elements",
                "first mismatch at [1]: expected 8, actual 12",
                "worst absolute error 4 at [1]: expected 8, actual 12",
                "worst relative error 0.5 at [1]: expected 8, actual 12",
            ],
        ),
    ],
)
def test_a_diagnosis_says_how_many_where_and_how_far(actual, expected, tolerance, poisoned, lines):
    comparison = compare(np.asarray(actual), np.asarray(expected), tolerance, poison=POISON)
    first, *rest = lines
    first += "" if "rtol" in first else " outside rtol=0, atol=0"
    told = diagnose_values("y", comparison, tolerance, poisoned=poisoned)
    assert told.message.splitlines() == [f"y: {first}", *(f"  {line}" for line in rest)]
    assert first.startswith(told.fault) or (POISONED in rest and told.fault is Fault.NOT_WRITTEN)


@pytest.mark.parametrize("dtype", ["i4", "i8", "u8", "f8"])
@pytest.mark.parametrize("far_off", [False, True])
@pytest.mark.parametrize("poisoned", [False, True])
def test_an_integer_that_is_far_off_may_have_been_added_to_what_the_output_held(dtype, far_off, poisoned):
    actual, expected = np.array([8, 2**20 if far_off else 2000], dtype), np.array([7, 7], dtype)
    comparison = compare(actual, expected, EXACT, poison=None)
    told = diagnose_values("y", comparison, EXACT, poisoned=poisoned).message
    assert (read("a pattern") in told) == (dtype != "f8" and far_off and poisoned)


def of_torch(value):
    return type("Tensor", (), {"dtype": "torch.bool", "shape": (), "__bool__": lambda self: value})()


@pytest.mark.parametrize("truth", [bool, np.bool_, np.array, of_torch])
def test_a_truth_value_of_any_library_says_whether_a_check_found_something(truth):
    assert complaint(truth(True), TypeError) is None
    assert "check returned False" in complaint(truth(False), TypeError)


@pytest.mark.parametrize("answer", [0, 1, 0.0, np.ones(2, bool), np.int8(1), [], ("wrong",), b"wrong"])
def test_a_check_that_returns_neither_a_truth_value_nor_a_text_is_refused_by_its_type(answer):
    with pytest.raises(TypeError, match=f"of type {type(answer).__qualname__}: it must return"):
        complaint(answer, TypeError)
    assert [complaint(right, TypeError) for right in (None, "")] == [None, None]
