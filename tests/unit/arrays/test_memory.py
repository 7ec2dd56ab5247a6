"""Where the elements of an array lie, against NumPy's own account of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.arrays.memory import (
    GUARD_BYTES,
    INPUT_GUARD,
    OUTPUT_GUARD,
    Damage,
    Placed,
    Placement,
    Span,
    c_strides,
    guard_pattern,
    out_of_c_order,
    span_of,
)
from pytest_gpukern.backends.foreign_array import users_array
from pytest_gpukern.backends.host import GuardedArray


@st.composite
def views(draw):
    """Views of a small array: transposed, stepped, reversed, broadcast, empty."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    array = np.zeros(shape, draw(st.sampled_from(["u1", "f2", "f8", "c16"])))
    steps = [slice(None, None, draw(st.sampled_from([1, 1, 2, -1, -2]))) for _ in shape]
    array = array[(*steps, ...)].transpose(draw(st.permutations(range(len(shape)))))
    return np.broadcast_to(array, (2, *array.shape)) if draw(st.booleans()) else array


@given(views())
def test_order_and_addresses_are_those_that_numpy_finds(array):
    found = out_of_c_order(array.shape, array.strides, array.itemsize)
    assert (found is None) == array.flags.c_contiguous
    assert found in (None, array.strides)
    span = users_array(array).span
    if array.size:
        assert span == byte_bounds(array)
        assert span == span_of(array.ctypes.data, array.shape, array.strides, array.itemsize)
    else:
        assert span.start == span.stop


@given(st.lists(st.integers(1, 5), max_size=4), st.sampled_from([1, 4, 16]))
def test_c_strides_are_numpys(shape, itemsize):
    assert c_strides(tuple(shape), itemsize) == np.empty(shape, f"V{itemsize}").strides


SPANS = st.builds(Span, st.integers(0, 6), st.integers(0, 6)).filter(lambda span: span.start <= span.stop)


@given(SPANS, SPANS)
def test_spans_overlap_where_they_have_an_address_in_common(one, other):
    common = set(range(*one)) & set(range(*other))
    assert one.overlaps(other) == other.overlaps(one) == bool(common)


GUARDS = [INPUT_GUARD, OUTPUT_GUARD]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_read_out_of_bounds_is_nan_in_every_floating_point_type(guard, dtype):
    pattern = guard_pattern(guard, 0, 16)
    assert np.isnan(pattern.view(dtype)).all()
    assert np.isnan((pattern.view("u2").astype("u4") << 16).view("f4")).all(), "bfloat16"


def test_guards_are_no_poisons_and_differ_from_each_other_in_every_byte():
    assert not set(GUARDS) & set(POISONS)
    assert (guard_pattern(INPUT_GUARD, 0, 4) != guard_pattern(OUTPUT_GUARD, 0, 4)).all()


@given(
    count=st.integers(0, 20),
    dtype=st.sampled_from(["uint8", "float16", "float32", "float64", "complex128"]),
    changes=st.sets(st.tuples(st.booleans(), st.integers(0, 63)), max_size=5),
)
def test_every_changed_byte_is_counted_and_the_nearest_is_named(count, dtype, changes):
    """The oracle goes through the bytes one by one."""
    itemsize = np.dtype(dtype).itemsize
    nbytes = count * itemsize
    placed = Placed((count,), np.dtype(dtype), Placement(), INPUT_GUARD, zone_bytes=64)
    allocation = np.empty(placed.nbytes, np.uint8)
    for start, pattern in placed.zones():
        allocation[start : start + pattern.size] = pattern
    for is_behind, distance in changes:
        allocation[placed.start + nbytes + distance if is_behind else placed.start - 1 - distance] ^= 1
    damages = placed.damage("x", lambda start, stop: allocation[start:stop])
    found = {each.behind: each for each in damages}
    for is_behind in (False, True):
        distances = [distance for side, distance in changes if side is is_behind]
        assert (is_behind in found) == bool(distances)
        if not distances:
            continue
        first = nbytes + min(distances) if is_behind else -1 - min(distances)
        assert found[is_behind] == Damage("x", is_behind, len(distances), first // itemsize, count)


# on the host


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128", "longdouble", "i4,f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7)])
def test_a_guarded_array_is_what_variants_expect(dtype, shape):
    array = GuardedArray(shape, dtype, INPUT_GUARD).array
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.flags.aligned
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0
    assert type(array) is np.ndarray


def test_the_zones_of_a_guarded_array_are_wide_on_both_sides():
    guarded = GuardedArray((5,), "float64", INPUT_GUARD)
    whole = guarded.array.base
    start = guarded.array.ctypes.data - whole.ctypes.data
    whole[start - GUARD_BYTES] ^= 1
    whole[start + 40 + GUARD_BYTES - 1] ^= 1
    assert [each.index for each in guarded.damage("a")] == [-1024, 5 + 1023]
