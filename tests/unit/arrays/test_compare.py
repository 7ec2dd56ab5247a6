"""Element-wise comparison against a naive oracle, ULPs, poison, chunks, and what a diagnosis says."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpukern import Tolerance
from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.arrays.compare import POISON, POISONS, Extreme, compare, disturbed, draw_poisons
from pytest_gpukern.arrays.memory import INPUT_GUARD, OUTPUT_GUARD
from pytest_gpukern.backends.foreign_array import poison
from pytest_gpukern.check.diagnosis import Fault, diagnose_values

EXACT = Tolerance()
CHUNK = 1 << 20
POISON_BYTES = POISON.to_bytes(4, "little") * 4
FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
ALL = [*FLOATS, *INTEGERS, "bool"]


def unwritten(shape, dtype):
    """An output as a launch finds it."""
    array = np.empty(shape, dtype)
    poison(array)
    return array


# the oracle: one element at a time, in Python


def ulp_at(expected, dtype):
    """Distance of the two numbers of `dtype` around |expected|, found by stepping through them."""
    one = np.dtype(dtype).type
    below = one(abs(expected))
    if not float(below) <= abs(expected):
        below = np.nextafter(below, one(0))
    below = min(below, np.finfo(dtype).max)
    if below == np.finfo(dtype).max:
        return float(below) - float(np.nextafter(below, one(0)))
    return float(np.nextafter(below, one(np.inf))) - float(below)


def judge_one(actual, expected, tolerance, raw, offset):
    """Whether one element is bad, why, and its absolute, relative and ULP error; `raw` is its bytes."""
    held = raw == POISON_BYTES[offset % 4 : offset % 4 + len(raw)]
    if actual.dtype.kind == "f":
        a, e = float(actual), float(expected)
        if math.isnan(a) and math.isnan(e):
            return "unwritten" if held else "fine", 0.0, 0.0, 0.0
        if math.isnan(a) or math.isnan(e):
            kind = "unwritten" if held else "nan" if math.isnan(a) else "bad"
            return kind, 0.0, 0.0, 0.0
        with np.errstate(over="ignore"):
            equal = actual == actual.dtype.type(expected)
    else:
        a, e = raw[0] if actual.dtype.kind == "b" else int(actual), int(expected)
        equal = a == e
    error = 0.0 if equal and (math.isinf(a) or math.isinf(e)) else float(abs(a - e))
    within = not math.isinf(e) and error <= tolerance.atol + tolerance.rtol * abs(e)
    if not (equal or within) and held:
        return "unwritten", 0.0, 0.0, 0.0 if actual.dtype.kind == "f" else -1.0
    relative = error / abs(float(e)) if e and not math.isinf(e) else 0.0
    ulp = error / ulp_at(e, actual.dtype) if actual.dtype.kind == "f" else -1.0
    return "fine" if equal or within else "bad", error, relative, ulp


def assert_agrees_with_the_oracle(actual, expected, tolerance):
    with np.errstate(over="ignore"):
        found = compare(actual, expected, tolerance)
        width, data = actual.dtype.itemsize, actual.tobytes()
        judged = [
            judge_one(actual[i], expected[i], tolerance, data[i * width : (i + 1) * width], i * width)
            for i in range(len(actual))
        ]
    kinds = [kind for kind, *_ in judged]
    assert found.mismatches == sum(kind != "fine" for kind in kinds)
    assert found.unwritten == kinds.count("unwritten")
    assert found.unexpected_nan == kinds.count("nan")
    assert found.first_unwritten == (kinds.index("unwritten") if "unwritten" in kinds else -1)
    assert found.first_mismatch.index == next((i for i, kind in enumerate(kinds) if kind != "fine"), -1)
    for number, extreme in ((1, found.absolute), (2, found.relative), (3, found.ulp)):
        values = [one[number] for one in judged]
        assert extreme.value == pytest.approx(max(values), rel=1e-12)
        if extreme.value > 0:
            at = extreme.index
            assert values[at] == pytest.approx(max(values), rel=1e-12)
            assert extreme.expected == expected[at].item()
            assert extreme.actual == actual[at].item()


bounds = st.sampled_from([0.0, 1e-6, 1e-3, 0.5, 2.0])
tolerances = st.builds(Tolerance, bounds, bounds)


@st.composite
def float_pairs(draw):
    """An output and its reference, of the same or a higher precision: near, far, odd and unwritten."""
    dtype = np.dtype(draw(st.sampled_from(FLOATS)))
    wide = np.dtype(draw(st.sampled_from([dtype.name, "float64"])))
    info = np.finfo(dtype)
    odd = [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, float(info.max), float(info.tiny)]
    odd += [float(info.smallest_subnormal), -float(info.max), 1e300, 2.0**-14]
    numbers = st.sampled_from(odd) | st.floats(-6e4, 6e4) | st.floats(width=64)
    size = draw(st.integers(1, 9))
    with np.errstate(all="ignore"):
        expected = np.array(draw(st.lists(numbers, min_size=size, max_size=size))).astype(wide)
        actual = expected.astype(dtype)
        for index in range(size):
            change = draw(st.sampled_from(["none", "none", "step", "steps", "other", "poison"]))
            if change == "step":
                actual[index] = np.nextafter(actual[index], dtype.type(np.inf))
            elif change == "steps":
                actual[index] = actual[index] * dtype.type(1.01)
            elif change == "other":
                actual[index] = dtype.type(draw(numbers))
            elif change == "poison":
                actual[index] = unwritten(size, dtype)[index]
    return actual, expected


SUBNORMAL = np.finfo("float32").smallest_subnormal
TINY = np.finfo("float32").tiny


@given(float_pairs(), tolerances, st.sampled_from([4, CHUNK]))
@example((np.array([0, 3e38, np.nan, -np.inf]), np.full(4, np.inf)), Tolerance(0.9, 1e300), CHUNK)
@example((np.array([0, 1], "float32"), np.array([2.0**200, 1 + 2.0**-24])), EXACT, CHUNK)
@example((np.array([3, 4], "float32") * SUBNORMAL, np.array([0, 1], "float32") * SUBNORMAL), EXACT, CHUNK)
@example((np.array([TINY + 3 * SUBNORMAL]), np.array([TINY])), EXACT, CHUNK)
@settings(max_examples=150)
def test_floats_agree_with_the_oracle_in_pieces_and_in_one(pair, tolerance, chunk):
    with mock.patch.object(comparison, "_CHUNK", chunk):
        assert_agrees_with_the_oracle(*pair, tolerance)


@st.composite
def integer_pairs(draw):
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    info = np.iinfo(dtype)
    widest = "uint64" if dtype.kind == "u" else "int64"
    wide = draw(st.sampled_from([dtype.name, widest]))
    size = draw(st.integers(1, 9))
    numbers = st.sampled_from([info.min, info.max, 0, 1]) | st.integers(info.min, info.max)
    expected = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), wide)
    actual = expected.astype(dtype)
    for index in range(size):
        change = draw(st.sampled_from(["none", "other", "poison"]))
        if change == "other":
            actual[index] = draw(numbers)
        elif change == "poison":
            actual[index] = unwritten(size, dtype)[index]
    return actual, expected


@given(integer_pairs(), tolerances, st.sampled_from([4, CHUNK]))
@settings(max_examples=100)
def test_integers_agree_with_the_oracle_in_pieces_and_in_one(pair, tolerance, chunk):
    with mock.patch.object(comparison, "_CHUNK", chunk):
        assert_agrees_with_the_oracle(*pair, tolerance)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([True, False, None])), min_size=1, max_size=9))
def test_booleans_agree_with_the_oracle(pairs):
    expected = np.array([e for e, _ in pairs])
    actual = unwritten(len(pairs), bool)
    for index, (_, value) in enumerate(pairs):
        if value is not None:
            actual[index] = value
    assert_agrees_with_the_oracle(actual, expected, EXACT)


@pytest.mark.parametrize(("dtype", "rtol"), [("complex64", 1e-6), ("complex128", 1e-15)])
def test_a_complex_product_with_a_part_that_cancels_is_right_and_one_that_is_further_away_wrong(dtype, rtol):
    turned = np.exp(1j * np.linspace(0, 2 * np.pi, 1000))
    expected = turned.astype(dtype).astype("clongdouble") * turned[::-1].astype(dtype)
    product = turned.astype(dtype) * turned[::-1].astype(dtype)
    assert compare(product.imag, expected.imag, Tolerance(rtol)).mismatches > 0, "part by part it is not"
    found = compare(product, expected, Tolerance(rtol))
    assert found.mismatches == 0
    assert found.ulp.value < 4
    away = product + np.array(2j * rtol).astype(dtype)
    assert compare(away, expected, Tolerance(rtol)).mismatches > 900


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_number_is_one_element_of_a_diagnosis(dtype):
    expected = np.array([[1 + 2j, 3 - 4j], [0j, 5j]])
    actual = expected.astype(dtype)
    assert compare(actual, expected, EXACT).mismatches == 0
    actual[1, 1] = 5.5j
    actual[0, 1] = complex(math.nan, -4)
    found = compare(actual, expected, EXACT)
    assert (found.mismatches, found.unexpected_nan, found.shape) == (2, 1, (2, 2))
    assert (found.absolute.value, found.absolute.index) == (0.5, 3)
    assert found.relative.value == pytest.approx(0.1)
    assert "at [1, 1]: expected 5j, actual 5.5j" in diagnose_values("z", found, EXACT, poisoned=True).message


NEARLY_ONE = 1 + 2.0**-23


@pytest.mark.parametrize(
    ("actual", "expected", "meets"),
    [
        (complex(math.inf, NEARLY_ONE), complex(math.inf, 1), True),
        (complex(math.inf, NEARLY_ONE), complex(1e300, 1), True),  # which overflows complex64
        (complex(NEARLY_ONE, math.nan), complex(1, math.nan), True),
        (complex(math.inf, 5), complex(math.inf, 1), False),
        (complex(-math.inf, 1), complex(math.inf, 1), False),
        (complex(math.nan, 1), complex(1, math.nan), False),
        (complex(math.inf, 1), complex(1, 1), False),
        (complex(1, 1), complex(math.inf, 1), False),
    ],
)
def test_where_a_complex_reference_is_not_finite_each_part_has_to_meet_it(actual, expected, meets):
    with np.errstate(over="ignore"):
        found = compare(np.array([actual], "complex64"), np.array([expected]), Tolerance(1e-6, 1e-6))
    assert found.mismatches == (not meets)
    assert not math.isnan(found.absolute.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_a_real_output_does_not_meet_a_complex_reference(dtype):
    found = compare(np.array([1, 2], dtype), np.array([1 + 1j, 2]), EXACT)
    assert found.mismatches == 1
    assert found.absolute.value == 1.0


# what passes


def test_an_infinite_output_does_not_meet_a_finite_reference():
    found = compare(np.array([math.inf, 1.0]), np.array([1.0, 1.0]), Tolerance(0.9, 1e300))
    assert found.mismatches == 1
    assert found.absolute.value == math.inf
    assert found.error(EXACT).max_abs is None, "JSON has no infinity"


@pytest.mark.parametrize(
    ("actual", "dtype", "expected"),
    [(0, "uint8", 256), (-1, "int8", 255), (2, "int64", 2.5), (1, "bool", 2), (0, "int32", math.nan)],
)
def test_an_integer_that_wrapped_or_was_cut_off_does_not_meet_its_reference(actual, dtype, expected):
    assert compare(np.array([actual], dtype), np.array([expected]), EXACT).mismatches == 1


@pytest.mark.parametrize(("actual", "expected"), [(2**53 + 1, 2**53), (-(2**63), 2**63 - 1)])
def test_differences_of_64_bit_integers_neither_round_nor_wrap(actual, expected):
    found = compare(np.array([actual]), np.array([expected]), EXACT)
    assert (found.mismatches, found.absolute.value) == (1, float(abs(actual - expected)))


@pytest.mark.parametrize("integer", ["int64", "uint64"])
@pytest.mark.parametrize("other", ["float32", "float64", "longdouble", "complex64", "complex128"])
def test_differences_of_64_bit_integers_beside_floats_are_exact_both_ways(integer, other):
    whole, nearest = np.array([2**53 + 3], integer), np.array([2**53], other)
    for actual, expected in ((whole, nearest), (nearest, whole)):
        found = compare(actual, expected, Tolerance(atol=2.5), poison=None)
        rounds = actual is nearest and np.finfo(other).eps > 2**-52  # to what it is
        assert (found.mismatches, found.absolute.value) == (not rounds, 3.0)
        assert compare(actual, expected, Tolerance(atol=3.0), poison=None).mismatches == 0
    assert compare(whole - whole % 4, nearest, EXACT, poison=None).mismatches == 0
    assert compare(np.array([2**63], "uint64"), np.array([2**63 - 1], "int64"), EXACT).absolute.value == 1.0


# ULP


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_floats_that_numpy_lacks_are_compared_in_their_own_ulps_and_may_be_unwritten(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    step = 2.0 ** -{"bfloat16": 7, "float8_e5m2": 2}[name]
    actual = np.array([1, 1 + step, 1 + 2 * step, np.nan], dtype)
    found = compare(actual, np.array([1, 1, 1, 1.0]), Tolerance(rtol=step))
    assert (found.mismatches, found.unexpected_nan, found.ulp.value) == (2, 1, 2.0)
    expected = np.array([1 + step / 3, 2.0])
    assert compare(expected.astype(dtype), expected, EXACT).mismatches == 0, "nothing is nearer"
    assert compare(unwritten((8,), dtype), np.zeros(8), EXACT).unwritten == 8


def test_integers_have_no_ulps_whether_equal_or_not():
    for actual in (1, 2):
        assert compare(np.array([actual]), np.array([1]), EXACT).error(EXACT).max_ulp is None
    assert compare(np.array([1.0]), np.array([1.0]), EXACT).error(EXACT).max_ulp == 0.0


# pieces


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_zero_dimensional_arrays_are_compared(shape):
    found = compare(np.zeros(shape), np.zeros(shape), EXACT)
    assert (found.mismatches, found.size, found.absolute.value) == (0, math.prod(shape), 0.0)


def test_arrays_that_are_not_contiguous_are_compared_by_index():
    expected = np.arange(12.0).reshape(3, 4)
    assert compare(np.asfortranarray(expected), expected, EXACT).mismatches == 0
    assert compare(expected.T, expected.T, EXACT).mismatches == 0


# never written


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_number_that_was_written_in_part_counts_as_not_written(dtype):
    actual = unwritten(3, dtype)
    actual.real[:2], actual.imag[0] = 0, 0
    found = compare(actual, np.zeros(3, dtype), EXACT)
    assert (found.mismatches, found.unwritten, found.first_unwritten) == (2, 2, 1)


@given(st.integers() | st.text())
def test_poisons_of_any_seed_are_nan_in_every_float_differ_in_every_byte_and_are_no_guards(seed):
    words = draw_poisons(seed)
    assert words == draw_poisons(seed)
    assert not {*words} & {INPUT_GUARD, OUTPUT_GUARD}
    one, other, large, zero, opposite = (np.full(4, word, "u4") for word in words)
    assert (one.view("u1") != other.view("u1")).all()
    for word in (one, other):
        for dtype in FLOATS:
            assert np.isnan(word.view(dtype)).all()
        assert np.isnan((word.view("u2").astype("u4") << 16).view("f4")).all(), "bfloat16"
    assert not zero.any()
    for dtype in FLOATS:
        assert (np.abs(large.view(dtype)) > 5e4).all()
        assert (np.sign(large.view(dtype)) == -np.sign(opposite.view(dtype))).all()


@pytest.mark.parametrize("dtype", [*ALL, "complex64", "complex128"])
def test_an_old_answer_with_noise_differs_in_every_element_and_stays_near(dtype):
    answer = np.arange(1, 65).astype(dtype).reshape(4, 16)
    noisy = disturbed(answer)
    assert (noisy.dtype, noisy.shape) == (answer.dtype, answer.shape)
    assert (noisy.view(f"V{noisy.itemsize}") != answer.view(f"V{noisy.itemsize}")).all()
    if answer.dtype.kind in "fc":
        assert (np.abs(noisy - answer) <= np.abs(answer)).all()


def test_runs_draw_other_poisons():
    assert len({draw_poisons(seed) for seed in range(50)}) > 45


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("held", "looked_for"), list(itertools.product(POISONS, POISONS)))
def test_what_holds_one_poison_was_written_where_the_other_was_there(dtype, held, looked_for):
    actual = np.empty(5, dtype)
    poison(actual, held)
    found = compare(actual, np.zeros(5, dtype), EXACT, poison=looked_for)
    assert found.mismatches == 5
    assert found.unwritten == (5 if held == looked_for else 0)


def test_poison_does_not_count_where_nobody_poisoned():
    found = compare(unwritten(4, "float32"), np.zeros(4, "float32"), EXACT, poison=None)
    assert (found.unwritten, found.unexpected_nan) == (0, 4)


# diagnoses


def test_a_gap_beside_wrong_values_is_named_first_and_both_are_described():
    actual = unwritten(3, "float32")
    actual[:2] = [1.0, 7.0]
    found = diagnose_values("out", compare(actual, np.ones(3), EXACT), EXACT, poisoned=True)
    assert found.fault is Fault.NOT_WRITTEN
    assert "2 of 3 elements" in found.message
    assert "1 still hold poison" in found.message
    assert "worst absolute error 6 at [1]: expected 1.0, actual 7.0" in found.message


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_no_element_stands_for_an_error_of_zero_where_what_differs_was_not_written(dtype):
    found = compare(np.append(unwritten(2, dtype), np.ones(3, dtype)), np.ones(5, dtype), Tolerance())
    assert (found.unwritten, found.absolute, found.relative) == (2, Extreme(0.0), Extreme(0.0))
