"""Outputs that a launch updates in place, or writes in part."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, doubling, measuring, only_case, run

from pytest_gpukern import Output, ProblemError
from pytest_gpukern.arrays.compare import POISONS, draw_poisons
from pytest_gpukern.problems.dataset import Dataset
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings

CHECKING = Settings(requested=True)
N = 64


def histogram(**changes):
    """Counts are added to those that are there."""

    def reference(data, counts):
        counts += np.bincount(data, minlength=16)
        return {"counts": counts}

    return doubling(
        N,
        make_inputs=lambda rng, n: {"data": rng.integers(0, 16, n), "counts": rng.integers(1, 1000, 16)},
        **{"outputs": lambda n: {}, "reference": reference, "inout": ("counts",), **changes},
    )


def count(data, counts):
    return lambda: np.add.at(counts, data, counts.dtype.type(1))


def count_from_zero(data, counts):
    def launch():
        counts[:] = 0
        np.add.at(counts, data, 1)

    return launch


def stencil(**changes):
    """Each inner element is the mean of its neighbours; the border is not written."""
    return doubling(
        N,
        **{
            "outputs": lambda n: {"out": Output(n, "float32", written=np.s_[1:-1])},
            "reference": lambda a: np.convolve(a, [0.5, 0, 0.5], "same"),
            **changes,
        },
        tolerance=None,
    )


def inner(a, out):
    def launch():
        out[1:-1] = (a[:-2] + a[2:]) / 2

    return launch


def over_the_border(a, out):
    def launch():
        inner(a, out)()
        out[-1] = a[-1]

    return launch


def not_the_last(a, out):
    def launch():
        out[1:-2] = (a[:-3] + a[2:-1]) / 2

    return launch


NAMES = {histogram: ("data", "counts"), stencil: ("a", "out")}


def checked(problem, prepare, settings=CHECKING, **arguments):
    return run(case_of(prepare, "host", problem, **arguments), FakeEnvironment(settings=settings))


@pytest.mark.parametrize("settings", [CHECKING, measuring(timer="host")], ids=["checked", "timed"])
@pytest.mark.parametrize(
    ("problem", "prepare"), [(histogram, count), (stencil, inner)], ids=["updated", "in part"]
)
def test_what_updates_or_writes_a_part_is_right_however_often_it_is_launched(problem, prepare, settings):
    result = checked(problem(), prepare, settings)
    assert (result.correctness, result.diagnosis) == (Correctness.PASSED, None)
    assert bool(result.measurements) is settings.benchmark


@pytest.mark.parametrize("settings", [CHECKING, measuring(timer="host")], ids=["checked", "timed"])
@pytest.mark.parametrize(
    ("problem", "prepare", "message"),
    [
        (histogram, count_from_zero, "counts: wrong values: 16 of 16 elements"),
        (histogram, lambda data, counts: lambda: None, "counts: wrong values: "),
        (stencil, over_the_border, "out: wrong values: 1 of 64 elements"),
        (stencil, not_the_last, "out: not written: 1 of 64 elements"),
    ],
)
def test_what_ignores_what_was_there_or_writes_beyond_its_part_is_wrong(problem, prepare, message, settings):
    result = checked(problem(), prepare, settings)
    assert result.correctness is Correctness.INCORRECT
    assert result.diagnosis.startswith(message)


@pytest.mark.parametrize("scopes", [("kernel", "end_to_end"), ("kernel", "transfer")])
@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [(histogram, count, count_from_zero), (stencil, inner, not_the_last)],
    ids=["updated", "in part"],
)
def test_on_a_device_it_is_put_back_before_each_timed_execution(
    gpu, timer, problem, right, wrong, cache, scopes
):
    environment = FakeEnvironment(gpu, settings=measuring(cache=cache, scopes=scopes))
    result = run(case_of(right, "numba", problem()), environment)
    assert (result.correctness, result.diagnosis) == (Correctness.PASSED, None)
    assert {measurement.scope for measurement in result.measurements} == set(scopes)
    calls = []

    def turns_wrong(**arrays):
        launches = [prepare(**{name: arrays[name] for name in NAMES[problem]}) for prepare in (right, wrong)]
        return lambda: (calls.append(1), launches[len(calls) > 40]())

    result = run(case_of(turns_wrong, "numba", problem()), environment)
    assert result.diagnosis.startswith("correct before timing, wrong after it")


def test_an_allocating_variant_takes_what_was_there_and_returns_the_whole():
    def made(a, out):
        def launch():
            new = out.copy()
            inner(a, new)()
            return new

        return launch

    assert checked(stencil(), made, allocates=True).correctness is Correctness.PASSED


def test_what_is_not_written_is_random_before_and_expected_behind():
    one, other = (Dataset.make(stencil(), {"n": N}, seed) for seed in (0, 1))
    assert one.expected["out"][0] == one.inputs["out"][0] != other.inputs["out"][0]


def test_data_of_a_problem_do_not_change_where_an_output_is_declared_to_be_written_in_part():
    """Bits of outputs are recorded."""
    plain = doubling(N)
    assert plain.inputs({"n": N})["a"].tobytes() == stencil().inputs({"n": N})["a"].tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inout": "counts"}, r"inout='counts' is not a tuple of names; write inout=\('counts',\)"),
        ({"inout": ("count",)}, r"inout names 'count', which is not an input array: \['counts', 'data'\]"),
        (
            {"outputs": lambda n: {"counts": (n, "int8")}},
            r"inout 'counts' is int64 of shape \(16,\), but outputs has",
        ),
        ({"outputs": lambda n: {"data": (n, "int64")}}, r"'data' is an input and an output; declare inout="),
    ],
)
def test_a_slip_in_what_is_updated_is_refused(changes, message):
    with pytest.raises(ProblemError, match=message):
        Dataset.make(histogram(**changes), {"n": N}, 0)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (np.s_[1:1], r"selects no element of \(\d+,\): leave such a size out of check_points, as boundaries"),
        (np.zeros(N, bool), "selects no element of"),
        (np.ones(N + 1, bool), "boolean index did not match"),
        (np.s_[1:, 1:], "too many indices"),
    ],
)
def test_a_region_that_is_none_is_refused(written, message):
    problem = stencil(outputs=lambda n: {"out": Output(n, "float32", written=written)})
    with pytest.raises(ProblemError, match=message):
        Dataset.make(problem, {"n": N}, 0)


def test_a_problem_whose_reference_changes_nothing_is_refused():
    with pytest.raises(
        ProblemError, match="counts: the reference equals the input, so a launch that does nothing"
    ):
        checked(histogram(reference=lambda counts: counts), count)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("poisons", [POISONS, draw_poisons(1), draw_poisons(2)])
def test_where_something_is_added_to_a_poison_the_diagnosis_names_the_declaration(dtype, poisons):
    problem = doubling(
        N,
        make_inputs=lambda rng, n: {"data": rng.integers(0, 16, n)},
        outputs=lambda n: {"counts": (16, dtype)},
        reference=lambda data: np.bincount(data, minlength=16),
    )
    environment = FakeEnvironment(settings=CHECKING)
    environment.poisons = poisons
    with np.errstate(over="ignore"):
        result = run(case_of(count, "host", problem), environment)
    assert "wrong values: 16 of 16" in result.diagnosis
    assert "held a pattern before the launch: if the kernel adds to it" in result.diagnosis
    assert result.diagnosis.endswith("zero it first, or declare inout=")


def test_nan_and_what_is_left_out_name_the_declaration_too():
    def adds(a, out):
        return lambda: np.copyto(out, np.where(np.isnan(out), np.float32("nan"), out + 2 * a))  # as a GPU

    assert "the output held NaN before the launch" in checked(doubling(N), adds).diagnosis
    assert checked(doubling(N), inner).diagnosis.endswith(
        "zero it first, or declare inout=, or written= for what is left on purpose"
    )


def test_in_several_layouts_and_contents_what_is_updated_is_put_back():
    problem = histogram(
        layouts={"strided": ("counts",)},
        check_points=[{"n": 3}],
        exact_inputs=lambda rng, n: {"data": rng.integers(0, 16, n), "counts": rng.integers(1, 9, 16)},
    )
    result = checked(problem, count, layouts=("strided",))
    assert result.corners == ("exact integers", "one input kept", "strided", "n=3")
    assert only_case(problem).id == "doubling/host.count/n=64"
