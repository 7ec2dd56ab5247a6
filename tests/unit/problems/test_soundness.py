"""Data and tolerances that cannot tell right from wrong are refused, and others are not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fakes import FakeEnvironment, doubling, only_case, right, run

from pytest_gpukern import ProblemError, Tolerance
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.problems.dataset import Datasets
from pytest_gpukern.problems.soundness import hardly_varies, passes_lower_precision, passes_zeros, rounded
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings

CHECKING = Settings(requested=True)
RANDOM = np.random.default_rng(1)
VALUES = RANDOM.standard_normal(1000)


# one precision lower


@pytest.mark.parametrize(("dtype", "lower"), [("float32", "float16"), ("float64", "float32")])
def test_what_is_rounded_is_what_a_conversion_to_the_lower_precision_gives(dtype, lower):
    values = VALUES.astype(dtype)
    assert np.array_equal(rounded(values, dtype), values.astype(lower).astype(dtype))


def test_the_range_stays_and_what_is_no_number_too():
    """TF32 has float32's range, so that a large value is no sign of a higher precision."""
    values = np.array([1e30, -1e-30, 0.0, -0.0, np.inf, np.nan], "float32")
    found = rounded(values, "float32")
    assert np.allclose(found[:2], values[:2], rtol=2.0**-11)
    assert not np.array_equal(found[:2], values[:2])
    assert np.array_equal(found[2:], values[2:], equal_nan=True)
    assert np.signbit(found[3])


def test_ties_go_to_even_as_in_hardware():
    assert rounded(np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11]), "float32").tolist() == [1.0, 1 + 2 * 2.0**-10]


def test_complex_numbers_are_rounded_in_both_parts_and_integers_are_left():
    values = (VALUES + 1j * VALUES[::-1]).astype("complex64").reshape(10, 100)
    found = rounded(values, "complex64")
    assert np.array_equal(found.real, values.real.astype("float16"))
    assert np.array_equal(found.imag, values.imag.astype("float16"))
    assert rounded(np.arange(5000), "float32").tolist() == list(range(5000))
    longer = rounded(values.astype(np.clongdouble), "complex128")
    assert np.array_equal(longer, values), "it has no more bits than complex64"


@pytest.mark.parametrize(
    ("dtype", "rtol", "passes"),
    [
        ("float32", 2.0**-11, True),  # half an ULP of float16 at most
        ("float32", 2.0**-12, False),
        ("float64", 2.0**-24, True),
        ("float64", 2.0**-25, False),
        ("complex64", 2.0**-11, True),
        ("float16", 0.5, False),  # nothing is lower
        ("int32", 0.5, False),
    ],
)
def test_a_tolerance_passes_the_lower_precision_from_its_rounding_error_on(dtype, rtol, passes):
    said = passes_lower_precision("y", VALUES.astype(dtype), dtype, Tolerance(rtol))
    assert (said is not None) is passes


def test_an_exact_tolerance_passes_nothing_however_round_the_values_are():
    assert passes_lower_precision("y", np.arange(9.0), "float32", Tolerance()) is None


def test_beside_terms_that_cancel_what_inputs_lose_counts():
    """Results near zero are rounded by little; computed from rounded inputs they are off by much."""
    x = VALUES + 100.0
    differences = x - 100.0
    tolerance = Tolerance(atol=1e-2)
    assert passes_lower_precision("y", differences, "float32", tolerance) is not None
    again = lambda: rounded(x, "float32") - 100.0  # noqa: E731
    assert passes_lower_precision("y", differences, "float32", tolerance, again) is None


def test_a_large_reference_is_looked_at_from_end_to_end_and_an_empty_one_not_at_all():
    values = np.ones(10**6)
    values[-3:] = np.pi
    assert passes_lower_precision("y", np.full(10**6, np.pi), "float32", Tolerance(1e-6)) is None
    assert passes_lower_precision("y", values[:0], "float32", Tolerance(1.0)) is None
    assert passes_zeros("y", values[:0], "float32", Tolerance()) is None


# zeros and constants


@pytest.mark.parametrize(
    ("values", "atol", "passes"),
    [([0.0, 1e-3], 1e-2, True), ([0.0, 1e-1], 1e-2, False), ([0.0, 0.0], 0, True)],
)
def test_zeros_pass_where_every_value_is_within_the_absolute_bound(values, atol, passes):
    assert (passes_zeros("y", np.array(values), "float32", Tolerance(0, atol)) is not None) is passes


@pytest.mark.parametrize(
    ("dtype", "equal", "refused"),
    [
        ("float32", 50, False),
        ("float32", 51, True),
        ("bool", 90, False),
        ("bool", 91, True),
        ("int64", 91, True),
    ],
)
def test_references_of_two_seeds_differ_in_half_of_the_floats_or_a_tenth_of_the_rest(dtype, equal, refused):
    one = np.arange(1, 101)
    other = np.where(one <= equal, one, -one)
    assert (hardly_varies("y", one, other, dtype) is not None) is refused
    sparse = [np.concatenate([values, np.zeros(900)]) for values in (one, other)]
    assert (hardly_varies("y", *sparse, dtype) is not None) is refused, "zeros of both do not count"


# problems


def refused(problem, point=None):
    problem.variant("host")(right)
    sets = Datasets()
    point = point or only_case(problem).point
    made = sets.for_check(problem, point, contents=2, available_bytes=1e9)
    return sets.examined(problem, point, made)


def constant(rng, n):
    return {"a": np.full(n, 1 / 3, "float32")}


def whole(rng, n):
    return {"a": rng.integers(0, 256, n).astype("float32")}


def tiny(rng, n):
    return {"a": (rng.random(n) * 1e-9).astype("float32")}


@pytest.mark.parametrize(
    ("changes", "rule", "remedy"),
    [
        (
            {"tolerance": Tolerance(1e-2)},
            "rtol=0.01, atol=0 would pass float16 too",
            "write rtol=1.3e-06, atol=1e-06, or say in allow_lower_precision",
        ),
        ({"make_inputs": constant}, "equal in 100 % of the elements", "have make_inputs draw from rng"),
        (
            {"make_inputs": whole, "tolerance": None},
            "the default rtol=1.3e-06, atol=1e-05 would pass float16 too",
            "these are exact there, too: write Tolerance(), or make inputs with other results",
        ),
        (
            {"make_inputs": tiny, "tolerance": None},
            "the default rtol=1.3e-06, atol=1e-05 would pass an output of zeros: its values are at most 1.",
            "write rtol=1.3e-06, atol=1e-15",
        ),
        (
            {"make_inputs": tiny, "tolerance": Tolerance(1e-6, 1e-6)},
            "atol=1e-06 would pass an output of zeros",
            "write rtol=1e-06, atol=1e-15, or make inputs",
        ),
    ],
)
def test_a_problem_that_cannot_tell_is_refused_with_value_rule_and_remedy(changes, rule, remedy):
    with pytest.raises(ProblemError) as error:
        refused(doubling(**changes))
    message = str(error.value)
    assert message.startswith(
        "problem 'doubling': its tolerance or data accepts wrong results at n=8\n  out: "
    )
    assert rule in message
    assert remedy in message


def test_where_nothing_is_given_results_need_not_vary():
    table = {"make_inputs": lambda rng, n: {}, "reference": lambda n: np.hanning(n + 2)[1:-1]}
    assert not refused(doubling(**table, tolerance=None)), "and nothing is to be noted"


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize("tolerance", [None, Tolerance(1e-2), Tolerance(0, 1.0), Tolerance(1, 1)])
def test_the_tolerance_that_a_refusal_says_to_write_is_not_refused_and_accepts_the_right(scale, tolerance):
    def scaled(rng, n):
        return {"a": (scale * (rng.random(n) - 0.5)).astype("float32")}

    with pytest.raises(ProblemError) as error:
        refused(doubling(make_inputs=scaled, tolerance=tolerance))
    bounds = re.search(r"write rtol=(\S+), atol=(\S+),", str(error.value)).groups()
    tighter = doubling(make_inputs=scaled, tolerance=Tolerance(*map(float, bounds)))
    assert refused(tighter) == ()
    assert run(only_case(tighter), FakeEnvironment(settings=CHECKING)).correctness is Correctness.PASSED


def test_a_problem_may_say_why_a_lower_precision_passes():
    assert refused(doubling(tolerance=Tolerance(1e-2), allow_lower_precision="inputs are of float16")) == ()


def test_notes_of_a_point_asked_for_by_hand_are_on_the_result():
    problem = doubling(make_inputs=constant)
    problem.variant("host")(right)
    (case,) = cases_of(problem, "smoke", {"n": (5,)})
    (note,) = run(case, FakeEnvironment(settings=CHECKING)).notes
    assert note.text.startswith("accepts wrong results: out: the references of two seeds")
