"""Work that is done by several threads, and draws of which a few elements change."""

import gc
import re
import sys

import numpy as np
import pytest

from pytest_gpukern.arrays import threaded
from pytest_gpukern.arrays.compare import Tolerance
from pytest_gpukern.arrays.threaded import few_changed, map_in_threads, random_array


def test_threads_collect_no_garbage_which_may_belong_to_another_threads_cuda_context():
    assert gc.isenabled()
    assert map_in_threads(lambda _: gc.isenabled(), range(3)) == [False] * 3
    assert gc.isenabled()


DRAWS = {
    "uniform": lambda rng, n: rng.random(n),
    "float32 into an array": lambda rng, n: rng.random(out=np.empty(n, "float32"), dtype="float32"),
    "matrix": lambda rng, n: rng.normal(1, 2, (n // 4, 4)),
    "integers": lambda rng, n: rng.integers(0, 2**40, n),
    "in threads": lambda rng, n: random_array(rng, n, "float32"),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("n", [8, 256, 10_000])
def test_few_elements_are_drawn_anew_and_never_the_first_the_middle_or_the_last(draw, n):
    def drawn(change):
        rng = change(np.random.default_rng(5))
        return draw(rng, n).reshape(-1), rng.integers(2**40)

    (before, behind), (changed, behind_changed) = drawn(lambda rng: rng), drawn(few_changed)
    places = np.flatnonzero(before != changed)
    assert 1 <= len(places) <= max(1, n // 32)
    assert not {0, n // 2, n - 1} & set(places.tolist())
    assert behind == behind_changed, "numbers, and what is drawn behind, stay"
    assert np.array_equal(changed, drawn(few_changed)[0])


def test_what_is_shuffled_or_of_three_elements_stays():
    one, other = np.random.default_rng(5), few_changed(np.random.default_rng(5))
    assert np.array_equal(one.permutation(100), other.permutation(100))
    assert np.array_equal(one.random(3), other.random(3))


def test_in_large_arrays_the_share_that_changes_is_the_same(monkeypatch):
    monkeypatch.setattr(threaded, "_CHUNK", 1000)
    one = random_array(np.random.default_rng(5), 10_500)
    other = random_array(few_changed(np.random.default_rng(5)), 10_500)
    assert 200 < (one != other).sum() < 350


DRAWN = ("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e5m2")


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", DRAWN)
def test_floats_and_complex_numbers_are_drawn_and_narrow_ones_rounded_from_float32(dtype, distribution):
    if dtype.startswith(("bfloat", "float8")):
        pytest.importorskip("ml_dtypes")

    def drawn(dtype):
        return random_array(np.random.default_rng(5), (10, 100), dtype, distribution=distribution)

    array = drawn(dtype)
    assert (array.dtype.name, array.shape) == (dtype, (10, 100))
    if array.itemsize <= 2:
        assert array.tobytes() == drawn("float32").astype(dtype).tobytes()
    parts = [array.real, array.imag] if array.dtype.kind == "c" else [array.astype("f8")]
    mean = 0.5 if distribution == "uniform" else 0.0
    assert [part.mean() for part in parts] == pytest.approx([mean] * len(parts), abs=0.1)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "int32", "longdouble", "U3"])
def test_what_is_no_such_float_is_refused_with_what_draws_it(dtype):
    with pytest.raises(ValueError, match=rf"dtype='{re.escape(dtype)}': must be float16, .*, rng.integers"):
        random_array(np.random.default_rng(5), 100, dtype)


def test_without_ml_dtypes_it_is_named_by_what_needs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match=r"bfloat16.* ml_dtypes.*; pip install ml_dtypes$"):
        Tolerance.for_ulps(4, "bfloat16")
