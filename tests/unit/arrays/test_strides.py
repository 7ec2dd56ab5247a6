"""Where the elements of an array lie, against NumPy's own account of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

from pytest_gpukern.arrays.memory import Span, c_strides, out_of_c_order, span_by_interface, span_of


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
    span = span_by_interface(array.__array_interface__)
    if array.size:
        assert span == byte_bounds(array)
        assert span == span_of(array.ctypes.data, array.shape, array.strides, array.itemsize)
    else:
        assert span.start == span.stop


@given(st.lists(st.integers(1, 5), max_size=4), st.sampled_from([1, 4, 16]))
def test_c_strides_are_numpys(shape, itemsize):
    assert c_strides(tuple(shape), itemsize) == np.empty(shape, f"V{itemsize}").strides


def test_strides_that_nobody_gave_are_those_of_c_order():
    assert out_of_c_order((2, 3), None, 8) is None
    assert span_of(1000, (2, 3), None, 8) == (1000, 1048)


SPANS = st.builds(Span, st.integers(0, 6), st.integers(0, 6)).filter(lambda span: span.start <= span.stop)


@given(SPANS, SPANS)
def test_spans_overlap_where_they_have_an_address_in_common(one, other):
    common = set(range(*one)) & set(range(*other))
    assert one.overlaps(other) == other.overlaps(one) == bool(common)


@pytest.mark.parametrize("value", [np.zeros(()), np.zeros((3, 0))])
def test_an_array_overlaps_itself_unless_it_is_empty(value):
    span = span_by_interface(value.__array_interface__)
    assert span.overlaps(span) == bool(value.size)
