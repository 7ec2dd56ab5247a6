"""Who is checked on arrays that are misaligned or strided, and what is found there."""

from __future__ import annotations

import ctypes
import fnmatch

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


def ignores_the_output_s_strides(a, out, n):
    return lambda: np.multiply(a, 2, out=flat(out, n))


def ignores_the_input_s_strides(a, out, n):
    return lambda: np.multiply(flat(a, n), 2, out=out)


def takes_the_strides_of_another(a, out, n):
    return lambda: np.multiply(a, 2, out=np.lib.stride_tricks.as_strided(out, (n,), a.strides))


def rounds_an_address_down(a, out, n):
    back = a.ctypes.data % 16
    aligned = np.frombuffer((ctypes.c_ubyte * (4 * n)).from_address(a.ctypes.data - back), np.float32)
    return lambda: np.multiply(aligned, 2, out=out)


def goes_on_to_where_the_first_is_aligned(a, out):
    """As a kernel that peels elements off for one pointer, and takes vectors of both from there on."""
    peeled = -(a.ctypes.data // 4) % 4
    assert (out.ctypes.data + 4 * peeled) % 16 == 0, "misaligned address"
    return right(a, out)


BETWEEN = "* bytes written between the elements of out, the first after flat index 0 of 8*"


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (ignores_the_output_s_strides, f"strided: out: out of bounds\n{BETWEEN}"),
        (ignores_the_input_s_strides, "strided: out: *NaN where the reference is not*"),
        (takes_the_strides_of_another, "strided: *"),
        (rounds_an_address_down, "misaligned: out: *"),
        (goes_on_to_where_the_first_is_aligned, "misaligned: launch failed*"),
    ],
)
def test_who_mistakes_where_elements_lie_is_found_in_that_layout(prepare, told):
    result = checked(prepare)
    assert result.correctness is Correctness.INCORRECT
    assert fnmatch.fnmatchcase(result.diagnosis, told)


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
