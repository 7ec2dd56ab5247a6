"""Large arrays made by several threads are those that one thread would make."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pytest_gpukern import elementwise, random_array, rolled


@pytest.mark.parametrize("chunk", [7, 1 << 22])
@pytest.mark.parametrize(
    "shapes",
    [[(100,), ()], [(3, 50), (3, 50)], [(5, 4), (30, 5, 4)], [(30, 1), (4,)], [(), ()], [(0, 3), (3,)]],
    ids=str,
)
def test_a_reference_is_computed_piece_by_piece_in_the_wider_dtype(monkeypatch, shapes, chunk):
    monkeypatch.setattr("pytest_gpukern.arrays.threaded._CHUNK", chunk)
    rng = np.random.default_rng(3)
    operands = [rng.random(shape).astype(np.float32) for shape in shapes]
    found = elementwise(np.multiply, *operands)
    expected = np.multiply(*(np.asarray(operand, np.float64) for operand in operands))
    assert found.dtype == np.float64
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


def test_the_pieces_of_a_view_that_is_not_contiguous_are_its_own(monkeypatch):
    monkeypatch.setattr("pytest_gpukern.arrays.threaded._CHUNK", 10)
    whole = np.arange(60, dtype=np.float32).reshape(6, 10)
    assert np.array_equal(elementwise(np.exp, whole.T[::2]), np.exp(whole.T[::2].astype(np.float64)))
    assert np.array_equal(elementwise(np.add, 2.0, np.asfortranarray(whole), dtype="float32"), whole + 2)


def test_operands_that_do_not_broadcast_are_refused():
    with pytest.raises(ValueError, match="shape"):
        elementwise(np.add, np.ones(3), np.ones(4))


@pytest.mark.parametrize("threads", [1, 7])
def test_a_random_array_does_not_depend_on_the_number_of_threads(threads, monkeypatch):
    size = (1 << 22) + 5  # two pieces, the second of them short
    expected = random_array(np.random.default_rng(5), size, "float32")
    monkeypatch.setattr(os, "cpu_count", lambda: threads)
    assert np.array_equal(random_array(np.random.default_rng(5), (size,), "float32"), expected)
    assert len(np.unique(expected[-5:])) == 5, "the second piece is filled"
    assert not np.array_equal(expected[:5], expected[-5:]), "and with other numbers than the first"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_values_have_the_distribution_asked_for(dtype):
    uniform = random_array(np.random.default_rng(1), (100, 100), dtype)
    assert uniform.shape == (100, 100)
    assert uniform.dtype == dtype
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1
    normal = random_array(np.random.default_rng(1), 10_000, dtype, distribution="normal")
    assert abs(float(normal.mean())) < 0.05
    assert abs(float(normal.std()) - 1) < 0.05


def test_an_unknown_distribution_is_refused():
    with pytest.raises(ValueError, match="distribution='gauss': one of uniform, normal"):
        random_array(np.random.default_rng(1), 3, distribution="gauss")


def test_an_empty_random_array_is_empty():
    assert random_array(np.random.default_rng(1), (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("shape", [(7,), (5, 8), (3, 4, 5), (0, 3)])
@pytest.mark.parametrize("chunk", [6, 1 << 22])
def test_an_array_is_rotated_as_by_numpy(monkeypatch, shape, chunk):
    monkeypatch.setattr("pytest_gpukern.arrays.threaded._CHUNK", chunk)
    array = np.arange(np.prod(shape)).reshape(shape)
    shifts = (2, -3, 6)[: len(shape)]
    assert np.array_equal(rolled(array, shifts), np.roll(array, shifts, range(len(shape))))
