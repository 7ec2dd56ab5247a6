"""Who is checked on arrays that are misaligned or strided, and what is found there."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from fakes import FakeEnvironment, doubling, right, run

from pytest_gpukern import Output, ProblemError, Tolerance
from pytest_gpukern.arrays.memory import LAYOUTS, placements
from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings

CHECKING = Settings(requested=True)
BOTH = dict.fromkeys(LAYOUTS, ("a", "out"))


def checked(prepare, backend="host", layouts=LAYOUTS, problem=None, **arguments):
    problem = problem or doubling(layouts=BOTH)
    problem.variant(backend, layouts=layouts, **arguments)(prepare)
    return run(next(iter(cases_of(problem, "smoke"))), FakeEnvironment(settings=CHECKING))


def test_a_variant_is_checked_in_the_layouts_that_it_declares():
    seen = []

    def prepare(a, out):
        seen.append((a.ctypes.data % 256, a.strides, out.ctypes.data % 256, out.strides))
        return right(a, out)

    result = checked(prepare)
    assert result.correctness is Correctness.PASSED
    assert result.corners == LAYOUTS
    assert seen[1:] == [(4, (4,), 12, (4,)), (0, (8,), 0, (12,))]


def flat(array, count):
    return np.lib.stride_tricks.as_strided(array, (count,), (array.itemsize,))


def test_who_ignores_the_strides_of_an_output_damages_its_gaps():
    result = checked(lambda a, out, n: lambda: np.multiply(a, 2, out=flat(out, n)))
    assert result.correctness is Correctness.INCORRECT
    assert result.diagnosis.startswith("strided: out: out of bounds\n")
    assert "bytes written between the elements of out, the first after flat index 0 of 8" in result.diagnosis


def test_who_ignores_the_strides_of_an_input_reads_nan():
    result = checked(lambda a, out, n: lambda: np.multiply(flat(a, n), 2, out=out))
    assert result.diagnosis.startswith("strided: out: ")
    assert "NaN where the reference is not" in result.diagnosis


def test_who_takes_the_strides_of_another_array_is_found():
    def prepare(a, out, n):
        alike = np.lib.stride_tricks.as_strided(out, (n,), a.strides)
        return lambda: np.multiply(a, 2, out=alike)

    assert checked(prepare).diagnosis.startswith("strided: ")


def test_who_rounds_an_address_down_is_found_misaligned():
    def prepare(a, out, n):
        back = a.ctypes.data % 16
        aligned = np.frombuffer((ctypes.c_ubyte * (4 * n)).from_address(a.ctypes.data - back), np.float32)
        return lambda: np.multiply(aligned, 2, out=out)

    assert checked(prepare).diagnosis.startswith("misaligned: out: ")


def test_who_goes_on_to_where_the_first_array_is_aligned_finds_the_others_not():
    """As a kernel that peels elements off for one pointer, and takes vectors of both from there on."""

    def prepare(a, out):
        peeled = -(a.ctypes.data // 4) % 4
        assert (out.ctypes.data + 4 * peeled) % 16 == 0, "misaligned address"
        return right(a, out)

    assert checked(prepare).diagnosis.startswith("misaligned: launch failed")


def test_a_new_array_may_be_made_of_strided_ones():
    result = checked(
        lambda a: lambda: 2 * a,
        allocates=True,
        problem=doubling(layouts={"strided": ("a",)}),
        layouts=("strided",),
    )
    assert result.correctness is Correctness.PASSED


def test_a_layout_is_checked_once_a_variant_and_left_out_where_it_cannot_run():
    problem = doubling(layouts=BOTH)
    problem.variant("host", layouts=("strided",), min_size={"n": 9})(right)
    (case,) = cases_of(problem, "full")
    assert run(case, FakeEnvironment(settings=CHECKING)).notes == (
        Note("not checked at strided: too small for the variant", About.SIZES),
    )


def test_an_array_that_is_none_is_refused():
    with pytest.raises(ProblemError, match="layouts names 'b', which is not an array:"):
        checked(right, problem=doubling(layouts={"misaligned": ("a", "b"), "strided": ("a",)}))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_poisons_are_told_from_values_in_every_layout(dtype):
    for layout in LAYOUTS:
        made = HostBackend().workspace({}, {"out": Output((5,), dtype)}, placements(layout, ["out"]))
        made.arrays["out"][2] = 1
        found = made.compare("out", np.ones(5), Tolerance())
        assert (found.unwritten, found.mismatches) == (4, 4)
