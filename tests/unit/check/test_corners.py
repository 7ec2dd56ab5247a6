"""Where a variant is checked besides its own point, and what a failure there says."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeClock, FakeEnvironment, diagnose_case, doubling, right, run

from pytest_gpukern import Axis, ProblemError, Tolerance, boundaries, random_array
from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.check.diagnosis import Fault
from pytest_gpukern.problems.cases import cases_of as iter_cases
from pytest_gpukern.run.spine import NotRunError
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings

CHECKING = Settings(requested=True)


def with_sizes(*sizes, **changes):
    return doubling(check_points=[{"n": n} for n in sizes], **changes)


def cases_of(problem, size="smoke", axes=None, *, wrong=False):
    return list(iter_cases(problem, size, axes, wrong=wrong))


def checked(problem, prepare, backend="host", **arguments):
    problem.variant(backend, **arguments)(prepare)
    return run(cases_of(problem)[0], FakeEnvironment(settings=CHECKING))


def forgets_the_last(least):
    def prepare(a, out, n):
        count = n if n < least else n - 1
        return lambda: np.multiply(a[:count], 2, out=out[:count])

    return prepare


@pytest.mark.parametrize(
    ("tool", "sizes", "notes"),
    [
        (None, (0, 65, 127, 3, 129), ()),
        ("memcheck", (0, 65), ("n=127, n=3, n=129: a launch took 3.0 s under memcheck at n=65",)),
    ],
)
def test_each_size_is_checked_and_told_and_under_a_tool_none_that_follows_a_slow_one(
    monkeypatch, tool, sizes, notes
):
    clock = FakeClock()

    def slow_from_65_on(a, out, n):
        launch = right(a, out)
        return lambda: (launch(), clock.passes(3_000_000_000 if n >= 65 else 1))

    monkeypatch.setattr("pytest_gpukern.check.engine.time", clock)
    monkeypatch.setenv("GPUKERN_UNDER_SANITIZER", tool or "")
    result = checked(with_sizes(0, 65, 127, 3, 129), slow_from_65_on)
    assert result.correctness is Correctness.PASSED
    assert result.corners == tuple(f"n={n}" for n in sizes)
    assert result.notes == tuple(Note(f"not checked at {left_out}", About.SIZES) for left_out in notes)


def test_under_a_tool_no_launch_is_made_twice_for_its_poison(monkeypatch):
    launched = []

    def prepare(a, out, n):
        return lambda: (launched.append(n), np.multiply(a, 2, out=out))

    monkeypatch.setenv("GPUKERN_UNDER_SANITIZER", "racecheck")
    checked(with_sizes(9), prepare, "host")
    under_a_tool = list(launched)
    launched.clear()
    monkeypatch.delenv("GPUKERN_UNDER_SANITIZER")
    checked(with_sizes(9), prepare, "host")
    assert under_a_tool == [8, 8, 9]
    assert launched == [8, 8, 8, *(8, 8), 9, 9]


def test_a_broken_variant_is_rejected_for_what_it_does_at_a_size():
    problem = with_sizes(9)
    problem.wrong("host", expected_fault="not written")(forgets_the_last(9))
    (case,) = cases_of(problem, wrong=True)
    found = diagnose_case(case, FakeEnvironment(settings=CHECKING))
    assert found.fault is Fault.NOT_WRITTEN
    assert found.message.startswith("n=9: ")


def test_memory_of_a_size_is_given_back_also_where_it_fails():
    problem = with_sizes(9)
    problem.variant("host")(forgets_the_last(9))
    closed = []

    class Noting(HostBackend):
        def workspace(self, inputs, outputs, placed=None):
            made = super().workspace(inputs, outputs, placed)
            size, close = len(made.arrays["out"]), made.close
            made.close = lambda: (closed.append(size), close())
            return made

    run(cases_of(problem)[0], FakeEnvironment(Noting(), settings=CHECKING))
    assert closed == [9, 8]


# which cases, and which points


@pytest.mark.parametrize(
    ("sizes", "most", "chosen", "first"),
    [
        ((4, 5), 9, None, [(4, 1), (4, 2)]),
        ((50, 4), 10, None, [(4, 1), (4, 2)]),  # the first that the variant can run
        ((4, 5), 9, {"n": (3,)}, []),  # who chooses an axis gets that alone
    ],
)
def test_each_variant_and_set_of_parameters_is_checked_at_its_first_point_only(sizes, most, chosen, first):
    problem = with_sizes(9, axes={"n": Axis(sizes, (8,))})
    problem.variant("host", block=(1, 2), max_size={"n": most})(lambda a, out, block: right(a, out))
    cases = cases_of(problem, axes=chosen)
    assert [(case.point["n"], case.parameters["block"]) for case in cases if case.first] == first


def test_sizes_may_follow_the_block_that_a_case_is_launched_with():
    problem = doubling(check_points=lambda block=256: [{"n": n} for n in boundaries(block)])
    assert [point["n"] for _, point in problem.boundary_points({"block": 64})] == list(boundaries(64))
    assert problem.boundary_points({})[-1] == ("n=1026", {"n": 1026})


def test_other_axes_keep_their_first_smoke_value():
    problem = doubling(
        axes={"n": Axis((8, 9), (8,)), "m": Axis((3, 4), (5,))}, check_points=[{"n": 1}, {"m": 7, "n": 2}]
    )
    assert problem.boundary_points({}) == [("n=1", {"n": 1, "m": 3}), ("m=7 n=2", {"n": 2, "m": 7})]


def test_what_is_too_large_for_the_simulator_is_left_out_there_and_said(gpu):
    sizes, limits = (1, 8, 9, 17), {"n": 8}
    elsewhere = checked(with_sizes(*sizes, simulator_limits=limits), right)
    assert elsewhere.corners == ("n=1", "n=8", "n=9", "n=17")
    gpu.on_gpu, gpu.simulated = False, True
    problem = with_sizes(*sizes, simulator_limits=limits)
    problem.variant("numba")(right)
    result = run(cases_of(problem)[0], FakeEnvironment(gpu, settings=CHECKING, simulating=True))
    assert result.corners == ("n=1", "n=8")
    assert result.notes == (Note("not checked at n=9, n=17: too large for the simulator", About.SIZES),)


def test_what_the_variant_cannot_run_is_left_out_and_said():
    result = checked(with_sizes(0, 8, 9), right, max_size={"n": 8}, min_size={"n": 1})
    assert result.corners == ("n=8",)
    assert result.notes == (
        Note("not checked at n=0: too small for the variant", About.SIZES),
        Note("not checked at n=9: too large for the variant", About.SIZES),
    )


# huge sizes


def test_huge_sizes_are_those_that_an_axis_declares_and_only_one_set_of_parameters_runs():
    problem = doubling(axes={"n": Axis((8,), (80,), huge=(2**31 + 11,)), "m": Axis((3, 4), (5,))})
    problem.variant("host", block=(1, 2))(lambda a, out, block: right(a, out))
    (case,) = cases_of(problem, "huge")
    assert case.point == {"n": 2**31 + 11, "m": 3}
    assert case.parameters == {"block": 1}
    assert not case.first


# special values, exact integers, an input that stays


def summing(**changes):
    """out = a + b in float32."""
    return doubling(
        make_inputs=lambda rng, n: {name: rng.random(n).astype(np.float32) for name in "ab"},
        reference=lambda a, b: a.astype(np.float64) + b,
        tolerance=Tolerance(1e-6),
        **changes,
    )


def add(a, b, out):
    return lambda: np.add(a, b, out=out)


SPECIAL = {"a": (np.nan, np.inf, -np.inf, 1e-45)}


def test_special_values_are_planted_once_each_at_places_that_are_always_the_same():
    problem = summing(special_values=SPECIAL)
    inputs, planted = problem.with_special({"n": 8})
    again, _ = problem.with_special({"n": 8})
    assert np.array_equal(inputs["a"], again["a"], equal_nan=True)
    assert sorted(map(repr, planted["a"].values())) == sorted(map(repr, map(float, SPECIAL["a"])))
    random = problem.inputs({"n": 8})
    assert np.array_equal(inputs["b"], random["b"])
    elsewhere = np.ones(8, bool)
    elsewhere[list(planted["a"])] = False
    assert np.array_equal(inputs["a"][elsewhere], random["a"][elsewhere])
    assert [
        np.array_equal(inputs["a"][at], np.float32(value), equal_nan=True)
        for at, value in planted["a"].items()
    ] == [True] * 4


def test_nan_is_right_where_the_reference_has_it():
    result = checked(summing(special_values=SPECIAL), add)
    assert result.correctness is Correctness.PASSED
    assert result.corners == ("special values", "one input kept")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda out: np.nan_to_num(out, copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf), "wrong values"),
        (lambda out: np.clip(out, -3e38, 3e38, out=out), "wrong values"),
        (lambda out: np.copyto(out, np.nan, where=np.isinf(out)), "unexpected NaN"),
    ],
)
def test_what_is_wrong_for_special_values_only_says_what_was_planted_where(spoil, fault):
    def prepare(a, b, out):
        return lambda: (np.add(a, b, out=out), spoil(out))

    result = checked(summing(special_values=SPECIAL), prepare)
    assert result.diagnosis.startswith(f"special values: out: {fault}")
    *_, last = result.diagnosis.splitlines()
    assert last.startswith("  special values in a, by flat index: ")
    assert last.count(" at ") == 4


def test_warnings_about_special_values_are_none_of_the_variants():
    """This suite's warnings are errors, which would be failed launches."""

    def without_infinities(a, b, out):
        return lambda: np.add(a + b, a - a, out=out)

    problem = summing(special_values={"a": (np.nan, np.inf)})
    assert checked(problem, without_infinities).diagnosis.startswith("special values: out: unexpected NaN")


def test_subnormal_results_may_be_flushed_where_the_tolerance_says_so():
    def flushing(a, out):
        def launch():
            np.multiply(a, 2, out=out)
            out[np.abs(out) < np.finfo("float32").tiny] = 0

        return launch

    special = {"a": (1e-39, -1e-45)}
    assert checked(doubling(special_values=special), flushing).diagnosis.startswith(
        "special values: out: wrong values"
    )
    flushed = Tolerance().flushing("float32")
    assert flushed == Tolerance(0.0, float(np.finfo("float32").tiny))
    problem = doubling(special_values=special, tolerance=flushed)
    assert checked(problem, flushing).correctness is Correctness.PASSED


@pytest.mark.parametrize("special", [{"c": (1.0,)}, {"a": (0.0,) * 9}])
def test_special_values_that_have_no_place_are_refused_with_the_inputs(special):
    with pytest.raises(
        ProblemError, match="must be an input array of at least as many floats; the inputs are a, b"
    ):
        summing(special_values=special).with_special({"n": 8})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_special_values_may_follow_the_point(dtype):
    special = {"special_values": lambda n: {"a": (np.inf,) * n}}
    problem = doubling(make_inputs=lambda rng, n: {"a": random_array(rng, n, dtype)}, **special)
    assert np.isinf(problem.with_special({"n": 8})[0]["a"].astype(float)).all()


def integers(rng, n):
    return {name: rng.integers(-99, 99, n) for name in "ab"}  # which come as float32, like all inputs


def test_integers_have_to_be_met_bit_by_bit_whatever_the_tolerance():
    def nearly(a, b, out):
        return lambda: np.multiply(a + b, np.float32(1 + 2.0**-23), out=out)

    assert checked(summing(), nearly).correctness is Correctness.PASSED
    result = checked(summing(exact_inputs=integers), nearly)
    assert result.diagnosis.startswith("exact integers: out: wrong values")
    assert "rtol=0, atol=0" in result.diagnosis
    assert checked(summing(exact_inputs=integers), add).corners[0] == "exact integers"


def test_integers_that_are_not_exact_in_the_outputs_dtype_are_refused():
    problem = summing(exact_inputs=lambda rng, n: {"a": np.full(n, 2.0**24), "b": np.ones(n)})
    with pytest.raises(ProblemError, match="8 values of 'out' that float32 cannot hold exactly; use smaller"):
        checked(problem, add)


@pytest.mark.parametrize("remembered", ["a", "b"])
def test_a_result_that_is_remembered_by_one_input_alone_is_stale(remembered):
    def prepare(a, b, out):
        answers, key = {}, {"a": a, "b": b}[remembered]

        def launch():
            out[...] = answers.setdefault(key.tobytes(), a + b)

        return launch

    assert checked(summing(), prepare).diagnosis.startswith("one input kept: out: stale result")


REMEMBERED = {
    "the first and the last element": (lambda a: (a[0], a[-1]), False),
    "the first, the middle and the last": (lambda a: (a[0], a[len(a) // 2], a[-1]), False),
    "pointer and first word": (lambda a: (a.ctypes.data, a[0]), False),
    "a few elements more": (lambda a: (*a[:4], *a[-4:]), False),
    "all elements": (lambda a: a.tobytes(), True),
}


@pytest.mark.parametrize(("key", "is_right"), REMEMBERED.values(), ids=REMEMBERED)
@pytest.mark.parametrize("n", [64, 4099])
def test_a_result_that_is_remembered_by_a_few_elements_is_stale(key, is_right, n):
    answers = {}

    def prepare(a, out):
        return lambda: np.copyto(out, answers.setdefault(key(a), 2 * a))

    result = checked(doubling(n), prepare)
    if is_right:
        assert result.correctness is Correctness.PASSED
    else:
        assert result.diagnosis.startswith("out: stale result")


def test_a_sum_that_is_remembered_by_a_few_elements_is_stale_too():
    problem = doubling(
        1000,
        outputs=lambda n: {"out": ((1,), "float32")},
        reference=lambda a: a.sum(dtype="float64", keepdims=True),
        tolerance=Tolerance.for_sum(1000, "float32"),
    )
    answers = {}

    def remembers(a, out):
        return lambda: np.copyto(out, answers.setdefault((a[0], a[-1]), a.sum(dtype="float64")))

    assert checked(problem, remembers).diagnosis.startswith("out: stale result")


def test_with_one_input_array_there_is_nothing_to_keep():
    assert checked(doubling(), right).corners == ()
    scaled = doubling(make_inputs=lambda rng, n: {"a": rng.random(n).astype("float32"), "k": 3})
    assert checked(scaled, right).corners == ()


# a broken variant that is wrong at one point only

HUGE = {"axes": {"n": Axis((8, 9), (16,), huge=(40,))}}


def wrong_above(n, at, **arguments):
    problem = doubling(**HUGE)
    problem.wrong("host", expected_fault="not written", at=at, **arguments)(forgets_the_last(n))
    return problem


@pytest.mark.parametrize("size", ["smoke", "full", "huge"])
def test_it_is_one_case_at_that_point_whatever_the_size(size):
    (case,) = cases_of(wrong_above(40, {"n": 40}), size, wrong=True)
    assert (case.id, case.first) == ("doubling/host.prepare/n=40", False)


def test_it_is_rejected_there_where_huge_values_are_asked_for_and_else_skipped_with_the_option():
    (case,) = cases_of(wrong_above(40, {"n": 40}), "huge", wrong=True)
    found = diagnose_case(case, FakeEnvironment(settings=Settings(requested=True, size="huge")))
    assert found.fault is Fault.NOT_WRITTEN
    with pytest.raises(NotRunError, match="runs only at n=40: use --gpukern-size=huge"):
        diagnose_case(case, FakeEnvironment(settings=CHECKING))


def test_a_point_that_is_not_huge_is_run_at_any_other_size():
    problem = wrong_above(16, {"n": 16})
    assert cases_of(problem, "huge", wrong=True) == []
    (case,) = cases_of(problem, wrong=True)
    assert case.first, "it is checked in corners, too: no other point is"
    assert diagnose_case(case, FakeEnvironment(settings=CHECKING)).fault is Fault.NOT_WRITTEN
    problem.wrong("host", expected_fault="not written")(lambda a, out: right)
    assert cases_of(problem, wrong=True)[-1].id == case.id, "it may break its context, so it comes last"


@pytest.mark.parametrize("at", [{"n": 41}, {"m": 8}])
def test_a_point_that_no_axis_has_is_refused(at):
    with pytest.raises(ProblemError, match="is not on the axes"):
        wrong_above(40, at)
