"""A problem in several dtypes: an axis, whose values are timed, or checked in beside that of its cases."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fakes import FakeEnvironment, doubling, run

from pytest_gpukern import Axis, ProblemError, Tolerance, random_array
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings

CHECKING = Settings(requested=True)
IN_SEVERAL = {
    "make_inputs": lambda rng, n, dtype: {"a": rng.random(n).astype(dtype)},
    "outputs": lambda n, dtype: {"out": ((n,), dtype)},
    "reference": lambda a: 2.0 * a.astype(np.float64),
    "tolerance": lambda dtype: Tolerance(rtol=float(np.finfo(dtype).eps)),
    "traffic_bytes": lambda n, dtype: 2 * n * np.dtype(dtype).itemsize,
}


def in_several(*dtypes, **changes):
    return doubling(**{**IN_SEVERAL, **changes}, dtypes=dtypes)


def first_case(problem, *, wrong=False):
    return next(iter(cases_of(problem, "smoke", wrong=wrong)))


def checked(problem, prepare, **arguments):
    problem.variant("host", **arguments)(prepare)
    return run(first_case(problem), FakeEnvironment(settings=CHECKING))


def right(a, out):
    return lambda: np.multiply(a, 2, out=out)


# as an axis


def test_an_axis_of_dtypes_gives_a_case_each_which_its_id_names():
    problem = doubling(
        **IN_SEVERAL,
        axes={"n": Axis((8,), (16,)), "dtype": Axis(("float32", "float16"), ("float32", "float64"))},
    )
    seen = []
    problem.variant("host")(lambda a, out: seen.append((a.dtype, out.dtype)) or right(a, out))
    cases = list(cases_of(problem, "smoke"))
    assert [case.id.rpartition("/")[2] for case in cases] == ["n=8,dtype=float32", "n=8,dtype=float16"]
    for case in cases:
        assert run(case, FakeEnvironment(settings=CHECKING)).correctness is Correctness.PASSED
    assert seen == [("f4", "f4"), ("f2", "f2")]
    assert [problem.traffic_bytes(case.point) for case in cases] == [64, 32]


# to be checked in


def test_a_variant_is_checked_in_the_dtypes_that_it_declares_and_its_case_does_not_name_them():
    seen = []

    def prepare(a, out, dtype):
        seen.append((dtype, a.dtype, out.dtype))
        return right(a, out)

    problem = in_several("float32", "float64", "float16")
    result = checked(problem, prepare, dtypes=("float64", "float16"))
    assert result.correctness is Correctness.PASSED
    assert result.corners == ("dtype=float64", "dtype=float16")
    assert seen == [("float32", "f4", "f4"), ("float64", "f8", "f8"), ("float16", "f2", "f2")]
    assert first_case(problem).id == "doubling/host.prepare/n=8"


def test_contents_of_the_first_dtype_are_those_of_a_problem_without_others():
    """Bits of outputs are recorded: declaring dtypes must not change them."""
    one, several = doubling(), in_several("float32", "float64")
    assert one.inputs({"n": 8})["a"].tobytes() == several.inputs({"n": 8})["a"].tobytes()


def test_a_failure_names_the_dtype():
    def single(a, out):
        return lambda: np.multiply(a.astype("f2"), 2, out=out, dtype="f2", casting="unsafe")

    def prepare(a, out):
        return right(a, out) if a.dtype == np.float32 else single(a, out)

    result = checked(in_several("float32", "float64"), prepare, dtypes=("float64",))
    assert result.diagnosis.startswith("dtype=float64: out: wrong values: ")


# dtypes that NumPy lacks

NARROW = {"tolerance": lambda dtype: Tolerance(rtol=2.0**-24 if dtype == "float32" else 2.0**-8)}


@pytest.mark.parametrize(("factor", "correctness"), [(2, "PASSED"), (2.1, "INCORRECT")])
def test_an_axis_of_dtypes_draws_and_judges_bfloat16_too(factor, correctness):
    pytest.importorskip("ml_dtypes")
    problem = doubling(
        **IN_SEVERAL
        | {"make_inputs": lambda rng, n, dtype: {"a": random_array(rng, n, dtype)}}
        | {"tolerance": lambda dtype: Tolerance.for_ulps(1, dtype)},
        axes={"n": Axis((8,), (16,)), "dtype": Axis(("float16", "bfloat16"), ("float32",))},
    )
    problem.variant("host")(lambda a, out: lambda: np.multiply(a, a.dtype.type(factor), out=out))
    for case in cases_of(problem, "smoke"):
        assert run(case, FakeEnvironment(settings=CHECKING)).correctness == correctness
        assert problem.traffic_bytes(case.point) == 32


def with_fewer_bits(a, out):
    """In bfloat16, two bits of the eight are lost."""
    many = a.dtype != np.float32

    def launch():
        out[...] = np.rint(a.astype("f4") * 64) / 32 if many else 2 * a

    return launch


@pytest.mark.parametrize(("prepare", "correctness"), [(right, "PASSED"), (with_fewer_bits, "INCORRECT")])
def test_a_variant_is_checked_in_bfloat16_by_its_precision(prepare, correctness):
    pytest.importorskip("ml_dtypes")
    problem = in_several("float32", "bfloat16", **NARROW)
    result = checked(problem, prepare, dtypes=("bfloat16",))
    assert result.correctness == correctness
    if correctness == "INCORRECT":
        assert result.diagnosis.startswith("dtype=bfloat16: out: wrong values: ")
    else:
        assert result.corners == ("dtype=bfloat16",)


def test_without_ml_dtypes_a_note_says_that_bfloat16_was_not_checked(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    result = checked(in_several("float32", "bfloat16", **NARROW), right, dtypes=("bfloat16",))
    assert (result.correctness, result.corners) == (Correctness.PASSED, ())
    why = "arrays of bfloat16 need ml_dtypes, which is not installed; pip install ml_dtypes"
    assert [note.text for note in result.notes] == [f"not checked at dtype=bfloat16: {why}"]
    with pytest.raises(ProblemError, match=f"output 'out': {why}"):
        checked(in_several("bfloat16", **NARROW), right)


@pytest.mark.parametrize("dtype", ["float32", "float16", "double"])
def test_a_dtype_that_the_problem_is_not_checked_in_is_refused(dtype):
    with pytest.raises(ProblemError, match=f"further dtype '{dtype}' is none of float64"):
        in_several("float32", "float64").variant("host", dtypes=(dtype,))(right)
