"""Inputs and reference of a point, made once for all variants."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import doubling

from pytest_gpukern import Axis, Output
from pytest_gpukern.problems import dataset as dataset_module
from pytest_gpukern.problems.call_by_name import ProblemError
from pytest_gpukern.problems.dataset import Dataset, Datasets

POINT = {"n": 8}


def counting(**changes):
    """A problem that counts how often its reference was computed."""
    calls = []

    def reference(a):
        calls.append(a)
        return 2.0 * a

    return doubling(reference=reference, **changes), calls


def test_bytes_are_those_of_the_arrays():
    problem = doubling(
        make_inputs=lambda rng, n: {"a": np.zeros(n), "k": 3, "s": np.float64(1.0)},
        outputs=lambda n: {"x": ((n, 2), "float32"), "y": ((), "int8")},
        reference=lambda a: {"x": np.zeros((len(a), 2)), "y": 0},
    )
    made = Dataset.make(problem, POINT, 0)
    assert made.output_bytes == 8 * 2 * 4 + 1
    assert made.input_bytes == 8 * 8
    assert made.scalars == {"k": 3, "s": np.float64(1.0)}


@pytest.mark.parametrize("many", ["a", "out"])
def test_arrays_whose_shape_is_drawn_are_refused_with_both_shapes(many):
    def drawn(rng, n):
        kept = n - int(rng.integers(1000))
        return {"a": np.ones(n if many == "out" else kept, "float32"), "count": kept}

    problem = doubling(
        axes={"n": Axis((2000,), (2000,))},
        make_inputs=drawn,
        outputs=lambda n, count: {"out": ((n if many == "a" else count,), "float32")},
        reference=lambda n, count: np.ones(n if many == "a" else count),
    )
    sets = Datasets()
    sets.get(problem, {"n": 2000}, 0)
    with pytest.raises(ProblemError, match=rf"'{many}' has shape \(\d+,\) from one seed .* or pad them"):
        sets.get(problem, {"n": 2000}, 1)


@pytest.mark.parametrize("other", ["point", "problem"])
def test_another_point_or_problem_drops_what_was_held(other):
    problem, calls = counting()
    sets = Datasets()
    sets.get(problem, {"n": 8}, 0)
    if other == "point":
        assert len(sets.get(problem, {"n": 9}, 0).inputs["a"]) == 9
    else:
        ones = doubling(make_inputs=lambda n: {"a": np.ones(n, "f4")})
        assert sets.get(ones, {"n": 8}, 0).inputs["a"][0] == 1 != calls[0][0]
    sets.get(problem, {"n": 8}, 0)
    assert len(calls) == 2 + (other == "point")


def test_of_small_points_as_many_are_held_as_were_asked_for():
    problem, calls = counting()
    sets = Datasets(points=2)
    for n in (8, 9, 8, 10, 9):
        assert len(sets.get(problem, {"n": n}, 0).inputs["a"]) == n
    assert len(calls) == 3, "8 was dropped for 10, and 9 is still there"
    sets.get(problem, {"n": 8}, 0)
    assert len(calls) == 4


def test_the_problem_is_kept_alive_so_that_no_other_is_taken_for_it():
    """Python gives the address of a dead object, and so its id, to the next."""
    sets = Datasets()
    problem = doubling()
    alive = weakref.ref(problem)
    sets.get(problem, POINT, 0)
    del problem
    gc.collect()
    assert alive() is not None


def for_check(sets, problem, *, contents=3, available_bytes=1e9):
    return sets.for_check(problem, POINT, contents=contents, available_bytes=available_bytes)


@pytest.mark.parametrize("contents", [1, 2, 3])
def test_a_variant_is_checked_on_as_many_sets_of_different_contents_as_were_asked_for(contents):
    made = for_check(Datasets(), doubling(), contents=contents)
    assert [one.seed_offset for one in made] == list(range(contents))
    assert len({one.inputs["a"].tobytes() for one in made}) == contents


@pytest.mark.parametrize(("large_bytes", "contents"), [(96, 3), (95, 2)])
def test_a_large_set_has_one_other_beside_it(monkeypatch, large_bytes, contents):
    monkeypatch.setattr(dataset_module, "_LARGE_BYTES", large_bytes)
    assert len(for_check(Datasets(), doubling())) == contents


@pytest.mark.parametrize(("missing_bytes", "expected"), [(0, 3), (1, 1)])
def test_a_set_of_more_than_a_third_of_the_free_memory_stays_alone(missing_bytes, expected):
    one = Dataset.make(doubling(), POINT, 0)
    assert one.host_bytes == 8 * 4 + 8 * 8, "float32 inputs and a float64 reference"
    available_bytes = 3 * one.host_bytes - missing_bytes
    assert len(for_check(Datasets(), doubling(), available_bytes=available_bytes)) == expected


def test_sets_that_are_held_already_need_no_more_memory():
    """Or the variants of a problem, which share them, would be checked on fewer and fewer."""
    sets, problem = Datasets(), doubling()
    before = for_check(sets, problem)
    assert for_check(sets, problem, available_bytes=0) == before
    assert len(for_check(sets, problem, contents=2, available_bytes=0)) == 2


def test_a_statistical_check_gets_eight_sets():
    problem = doubling(axes={"n": Axis((8,), (8,))}, reference=None, check=lambda runs: None)
    sets = for_check(Datasets(), problem)
    assert [one.seed_offset for one in sets] == [*range(8)]
    assert [one.expected for one in sets] == [None] * 8


def test_a_seed_of_the_run_changes_all_contents_and_goes_with_each_set():
    own, other = Datasets(), Datasets(seed=2)
    problem = doubling()
    assert not np.array_equal(
        own.get(problem, POINT, 0).inputs["a"], other.get(problem, POINT, 0).inputs["a"]
    )
    assert np.array_equal(
        other.get(problem, POINT, 1).inputs["a"], Datasets(seed=2).get(problem, POINT, 1).inputs["a"]
    )
    assert (own.get(problem, POINT, 0).seed, other.get(problem, POINT, 0).seed) == (None, 2)


@pytest.mark.parametrize("written", [None, np.s_[1:]])
def test_the_third_set_differs_from_the_second_in_few_elements(written):
    problem = doubling(64, outputs=lambda n: {"out": Output((n,), "float32", written=written)})
    first, second, third = Datasets().for_check(problem, {"n": 64}, contents=3, available_bytes=1e9)
    assert list(third.inputs) == list(second.inputs)
    assert not (first.inputs["a"] == second.inputs["a"]).any()
    changed = second.inputs["a"] != third.inputs["a"]
    assert 1 <= changed.sum() <= 2
    assert np.array_equal(changed[1:], (second.expected["out"] != third.expected["out"])[1:])


@pytest.mark.parametrize(
    "make",
    [
        lambda rng, n: {"a": rng.permutation(n).astype("float32")},
        lambda rng, n: {"a": np.sort(rng.random(n).astype("float32")), "k": float(rng.random(n).sum())},
    ],
    ids=["nothing that could be changed", "a scalar changes, too"],
)
def test_where_drawing_makes_no_such_set_the_third_is_another(make):
    problem = doubling(64, make_inputs=make, reference=lambda a: 2.0 * a)
    _, second, third = Datasets().for_check(problem, {"n": 64}, contents=3, available_bytes=1e9)
    assert (second.inputs["a"] != third.inputs["a"]).sum() > 32


def test_sessions_with_one_folder_draw_inputs_and_compute_references_once(tmp_path):
    def inputs(rng, n):
        return {"a": rng.random(n).astype("float32"), "m": rng.random((n, 2)), "k": 3, "s": np.float32(1.5)}

    (first, made), (second, calls) = counting(make_inputs=inputs), counting(make_inputs=inputs)
    one = for_check(Datasets(folder=tmp_path), first)
    assert (len(made), len(calls)) == (3, 0)
    other = for_check(Datasets(folder=tmp_path), second)
    assert (len(made), len(calls)) == (3, 0)
    for before, after in zip(one, other, strict=True):
        assert {name: type(value) for name, value in after.inputs.items()} == {
            "a": np.ndarray,
            "m": np.ndarray,
            "k": int,
            "s": np.float32,
        }
        for name, value in before.inputs.items():
            assert np.array_equal(value, after.inputs[name])
        assert np.array_equal(before.expected["out"], after.expected["out"])
        assert after.expected["out"].dtype == before.expected["out"].dtype
        assert (after.specs, after.tolerances) == (before.specs, before.tolerances)
        after.inputs["a"][0] = 7
    again = for_check(Datasets(folder=tmp_path), second)
    assert again[0].inputs["a"][0] == one[0].inputs["a"][0], "who writes to it writes to a copy"
    assert for_check(Datasets(folder=tmp_path, seed=2), second)[0].inputs["a"][0] != one[0].inputs["a"][0]


def test_problems_that_one_helper_declares_share_no_files(tmp_path):
    doubled, tripled = counting()[0], doubling(reference=lambda a: 3.0 * a)
    assert doubled.declared_at == tripled.declared_at
    for problem, test, factor in ((doubled, "test_double", 2.0), (tripled, "test_triple", 3.0)):
        sets = Datasets(folder=tmp_path)
        sets.test = test
        made = sets.get(problem, POINT, 0)
        assert np.array_equal(made.expected["out"], factor * made.inputs["a"])


@pytest.mark.parametrize(
    "value",
    [np.arange(16.0)[::2], np.array([object()]), np.ma.masked_array([1.0]), float("nan"), 1j, np.zeros(0)],
    ids=["strided", "objects", "masked", "nan", "complex", "empty"],
)
def test_what_would_not_come_back_as_it_was_is_made_in_each_session(tmp_path, value):
    for _ in range(2):
        problem, calls = counting(make_inputs=lambda rng, n: {"a": rng.random(n), "v": value})
        made = Datasets(folder=tmp_path).get(problem, POINT, 0)
        assert made.inputs["v"] is value
        assert len(calls) == 1
        assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_time_and_nothing_else(tmp_path, monkeypatch):
    """Also one that the sets fill: a set of 32 bytes and its reference of 32 have headers of 128."""
    free = [4 * 64 - 1]
    monkeypatch.setattr(dataset_module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    problem, calls = counting()
    for times in (1, 2):
        Datasets(folder=tmp_path).get(problem, POINT, 0)
        assert len(calls) == times
    assert list(tmp_path.iterdir()) == []
    free[0] = 4 * 64
    for offset in (0, 1):
        Datasets(folder=tmp_path).get(problem, POINT, offset)
    assert len(list(tmp_path.iterdir())) == 1
