"""Problems, variants, points and cases; inputs that are the same everywhere."""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import pytest
from fakes import doubling

from pytest_gpukern import Axis, Output, Problem, ProblemError, Tolerance, boundaries, random_array
from pytest_gpukern.arrays.compare import compare
from pytest_gpukern.backends.foreign_array import bits_of
from pytest_gpukern.problems.call_by_name import call_by_name
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.problems.variants import SCOPES


def prepare(a, out):
    return lambda: np.multiply(a, 2, out=out)


def swept(a, out, block, order="C"):
    return prepare(a, out)


def ids(problem, size="smoke", axes=None, *, wrong=False):
    return [case.id for case in cases_of(problem, size, axes, wrong=wrong)]


def two_axes():
    return doubling(axes={"n": Axis((1, 2), (3,)), "kind": Axis(("a", "b"), ("a",))})


# points and ids


def test_cases_come_point_by_point_with_every_combination_of_each_variants_parameters():
    problem = two_axes()
    problem.variant("numba", block=(64, 128), order=("C",))(swept)
    problem.variant("host")(prepare)
    assert ids(problem, axes={"kind": ("a",)}) == [
        "doubling/numba.swept/n=1,kind=a,block=64,order=C",
        "doubling/numba.swept/n=1,kind=a,block=128,order=C",
        "doubling/host.prepare/n=1,kind=a",
        "doubling/numba.swept/n=2,kind=a,block=64,order=C",
        "doubling/numba.swept/n=2,kind=a,block=128,order=C",
        "doubling/host.prepare/n=2,kind=a",
    ]


def test_a_decorated_variant_stays_the_function_it_was():
    assert doubling().variant("host")(prepare) is prepare


# boundaries


def test_boundaries_are_few():
    assert boundaries(256) == (0, 1, 31, 36, 37, 38, 256, 257, 523, 1023, 1024, 1026)


def classes_of_sizes(block, warp=32):
    """What sizes leave behind vectors, warps, blocks and tiles of several blocks: modulus, remainder."""
    vectors = [(modulus, remainder) for modulus in (2, 4, 8) for remainder in range(modulus)]
    edges = [(modulus, remainder) for modulus in (warp, block) for remainder in (-1, 0, 1)]
    return vectors + edges + [(tile * block, remainder) for tile in (2, 4) for remainder in (-1, 0, 2)]


@pytest.mark.parametrize("block", [32, 64, 128, 256, 512, 1024])
def test_boundaries_meet_every_class_of_sizes_and_no_less_for_any_block(block):
    sizes = [size for size in boundaries(block) if size > 8]
    missing = [
        (modulus, remainder)
        for modulus, remainder in classes_of_sizes(block)
        if not any(size % modulus == remainder % modulus for size in sizes)
    ]
    assert missing == []
    assert len(boundaries(block)) == 12


@pytest.mark.parametrize("block", [1, 2, 7, 100])
def test_a_block_of_any_size_has_boundaries(block):
    sizes = boundaries(block)
    assert {0, 1, block, block + 1, 4 * block - 1, 4 * block} <= set(sizes)
    assert {size % 8 for size in sizes if size > 8} == set(range(8))


def test_boundaries_below_the_minimum_are_left_out():
    assert boundaries(128, minimum=1) == boundaries(128)[1:]
    assert boundaries(128, minimum=100)[0] == 128


# limits and scopes


def test_a_limit_is_exceeded_above_it_and_says_by_what():
    problem = doubling()
    problem.variant("host", max_size={"n": 100})(prepare)
    variant = problem.variants.right["host.prepare"]
    assert variant.limit_exceeded({"n": 100}) is None
    assert variant.limit_exceeded({"n": 101}) == "too large: n=101, but its max_size is 100"


@pytest.mark.parametrize(
    ("backend", "arguments", "expected"),
    [
        ("numba", {}, ("kernel", "transfer")),
        ("numba", {"scopes": ("end_to_end",)}, ("end_to_end",)),
        ("numba", {"host_data": True}, ("end_to_end",)),
        ("host", {}, ("end_to_end",)),
        ("host", {"scopes": ("kernel",)}, ("end_to_end",)),
    ],
)
def test_scopes_are_the_variants_own_or_the_problems_and_end_to_end_for_host_data(
    backend, arguments, expected
):
    problem = doubling(scopes=("kernel", "transfer"))
    problem.variant(backend, **arguments)(prepare)
    (case,) = cases_of(problem, "smoke")
    assert case.scopes == expected


# what is refused


def test_two_variants_of_one_name_on_one_backend_are_refused():
    problem = doubling()
    problem.variant("host")(prepare)

    def other(out):
        return lambda: None

    other.__name__ = "prepare"
    with pytest.raises(ProblemError, match=r"'doubling' has two variants named 'host.prepare'"):
        problem.variant("host")(other)
    problem.variant("cupy")(other)
    assert ids(problem) == ["doubling/host.prepare/n=8", "doubling/cupy.prepare/n=8"]


def test_the_same_file_imported_twice_is_no_second_variant():
    problem = doubling()
    source = compile("def twice(out):\n    return lambda: None\n", "on_host.py", "exec")
    for name in ("suite.on_host", "on_host"):
        namespace = {"__name__": name}
        exec(source, namespace)
        problem.variant("host")(namespace["twice"])
    assert ids(problem) == ["doubling/host.twice/n=8"]


def test_a_variant_that_takes_any_name_may_have_any_parameter():
    problem = doubling()
    problem.variant("host", block=(64,))(lambda a, out, **more: prepare(a, out))
    assert ids(problem) == ["doubling/host.<lambda>/n=8,block=64"]


NO_REFERENCE = {"reference": None, "check": lambda runs: None}
TWO = {"outputs": lambda n: {"x": ((n,), "float32"), "y": ((n,), "float32")}}
TIGHT = Tolerance(1e-9, 0)
SPEC = Output((3,), "float16")


def axis(*args, **kwargs):
    return lambda: Axis(*args, **kwargs)


def broken(**arguments):
    return lambda: doubling().wrong("numba", **arguments)


def declared(**changes):
    return lambda: doubling(**changes)


def variant(**arguments):
    """Discovery's tests have more slips, in files that can be imported and others."""
    return lambda: doubling().variant("host", **arguments)(swept)


def hiding(name):
    def declare():
        decorate = doubling(dtypes=("float32", "float64")).variant("host", **{name: (1, 2)})
        decorate(lambda a, out, n, stream, dtype: prepare(a, out))

    return declare


def reference(**changes):
    return lambda: reference_of(**changes)


def tolerance(given_as):
    return lambda: doubling(tolerance=given_as).tolerances({"out": SPEC}, {"n": 3})


REFUSED = [
    (broken(), "needs either expected_fault= or detected_by="),
    (broken(expected_fault="not written", detected_by="racecheck"), "needs either expected_fault= or"),
    (broken(detected_by="valgrind"), "detected_by='valgrind' is none of memcheck, racecheck"),
    (lambda: boundaries(0), "1 or more"),
    (lambda: Output((3,), "int8", order="F"), "order='F': the order of an output must be 'C' or 'any'"),
    # an axis lists its values, and a name is that of a file
    (axis(smoke=200), r"Axis\(smoke=200\): write a tuple, such as smoke=\(200,\)"),
    (axis(smoke=(1,), full="abc"), r"Axis\(full='abc'\): write a tuple"),
    (axis(smoke=(1,)), "an axis needs a smoke and a full value"),
    (axis(smoke=(7,), full=(64, 128), awkward=(64,)), "64 is in full and in awkward; keep one"),
    *[
        (lambda name=name: Problem(name, version=1, axes={}, make_inputs=dict, outputs=dict), "an identifier")
        for name in ("two words", "a/b", "1st", "")
    ],
    # what a variant names has to exist
    (variant(determinism="exact"), "determinism 'exact' is none of bitwise, run-to-run, tolerant"),
    (variant(layouts=("strided",)), "layout 'strided' is none of the problem's, which declares none"),
    (variant(scopes=("kernal",)), "'host.swept': scope 'kernal' is none of kernel, transfer"),
    *[
        (lambda made=made: doubling().variant("host")(made), "is registered as a variant, but is no function")
        for made in (functools.partial(swept), type("Swept", (), {}), np.multiply)
    ],
    (variant(block=[]), r"'swept': block=\[\] has no value to try, so it has no case"),
    (variant(limits={"n": 1}), "'swept': limits=.* nor a parameter with values to try"),
    (variant(block=128), r"'swept': block=128 .* values to try, such as block=\(1, 2\)"),
    (variant(layout=("strided",)), r"layout=\('strided',\) is neither .*, layouts, dtypes"),
    *[
        (hiding(name), f"the parameter '{name}' has the name of an axis, the stream or the dtype")
        for name in ("n", "stream", "dtype")
    ],
    # declarations that contradict themselves
    (declared(reference=None), "neither reference nor check, so nothing could ever fail"),
    (declared(scopes=("kernal",)), "scope 'kernal' is none of kernel, transfer, end_to_end"),
    (declared(axes={"n": (200,)}), r"axes has 'n': \(200,\); write 'n': Axis"),
    (declared(outputs=["y"]), r"outputs=\['y'\] is not a function; write outputs=lambda n: "),
    (declared(traffic_bytes=100), "traffic_bytes=100 is not a function; write traffic_bytes=lambda n: "),
    (declared(check=lambda: None), "check must take one argument, a list of Run: too many"),
    (declared(check=lambda runs, more: None), "check must take one argument, .*: missing a required"),
    (declared(axes={"dtype": Axis((1,), (1,))}, dtypes=("int8",)), "an axis named dtype; drop one of them"),
    (declared(check_points=[{"m": 3}]), r"check_points has \{'m': 3\}; .* the axes are \['n'\]"),
    (declared(check_points=[257]), r"check_points has 257; write a dict of axis and value, such as"),
    (declared(check_points=[{}]), r"check_points has \{\}; write a dict of axis and value"),
    (declared(simulator_limits={"m": 3}), "simulator_limits names 'm'"),
    (declared(layouts={"transposed": ("a",)}), "layout 'transposed' is none of misaligned, strided"),
    (declared(**NO_REFERENCE, special_values={"a": (0.0,)}), "need a reference to compare with"),
    (declared(**NO_REFERENCE, exact_inputs=dict), "need a reference to compare with"),
    (reference(make_inputs=lambda rng: {"a": [np.ones(3)]}), "returned 'a' as a list of arrays: give each"),
    (reference(make_inputs=lambda rng: {"a": {"x": np.ones(3)}}), "returned 'a' as a dict of arrays: give"),
    # references and tolerances that do not fit the outputs
    (reference(**TWO, reference=lambda a: a), r"must return a dict of its outputs \['x', 'y'\]"),
    (reference(**TWO, reference=lambda a: {"x": a}), r"returned \['x'\]; the outputs are \['x', 'y'\]"),
    (reference(reference=lambda a: {"uot": a}), r"returned \['uot'\]; the outputs are \['out'\]"),
    (reference(outputs=lambda n: {"out": (1.5, "float32")}), r"output 'out' has shape 1\.5: "),
    (reference(reference=type), "<class 'type'> does not tell its parameters: wrap it in a lambda"),
    (reference(outputs=lambda n: [n]), "outputs returned list; it must return a dict by name"),
    (reference(reference=lambda a: a.sum()), r"reference of 'out' has shape \(\), declared is \(3,\)"),
    (reference(reference=lambda a: a[:2]), r"reference of 'out' has shape \(2,\), declared is \(3,\)"),
    (tolerance(1e-6), "1e-06 is not a Tolerance; write Tolerance"),
    (tolerance({"oot": TIGHT}), r"tolerance names 'oot', which is not an output: \['out'\]"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_with_what_can_and_where_it_stands(make, message):
    with pytest.raises(ProblemError, match=message) as error:
        make()
    of_a_problem = make.__qualname__.startswith(("declared.", "variant."))
    assert not of_a_problem or re.match(r".*(fakes|test_problem)\.py:\d+: ", error.value.located)


# inputs


def test_inputs_are_the_same_for_the_same_offset_and_point_and_others_otherwise():
    problem = doubling()
    first = problem.inputs({"n": 8})["a"]
    assert np.array_equal(first, problem.inputs({"n": 8}, 0)["a"])
    assert not np.array_equal(first, problem.inputs({"n": 8}, 1)["a"])
    assert not np.array_equal(first, problem.inputs({"n": 9})["a"][:8])
    assert not np.array_equal(first, problem.inputs({"n": 8}, seed=2)["a"])


def test_the_order_of_the_axes_does_not_change_the_inputs():
    problem = doubling(make_inputs=lambda rng: {"a": rng.random(4)})
    one, other = problem.inputs({"n": 1, "m": 2}), problem.inputs({"m": 2, "n": 1})
    assert np.array_equal(one["a"], other["a"])


def test_inputs_are_the_same_in_every_process_and_release():
    """Records hold bits of outputs, which are compared with those of other processes."""
    assert bits_of(doubling().inputs({"n": 1000}, 3)["a"]) == "crc32-16mib:b70676d587444c36"


def sized(**axes):
    """A problem with a swept variant on these axes, measured in all scopes."""
    problem = Problem(
        "sized", version=1, axes=axes, make_inputs=dict, outputs=dict, reference=dict, scopes=SCOPES
    )

    problem.variant("numba", block=(128, 256))(swept)
    return problem


def test_at_an_awkward_value_only_the_first_parameters_and_the_first_scope_are_measured():
    problem = sized(n=Axis(smoke=(7,), full=(64,), awkward=(61,)), k=Axis(smoke=(1,), full=(1, 2)))
    found = [
        (*case.point.values(), case.parameters["block"], case.scopes) for case in cases_of(problem, "full")
    ]
    assert found == [
        *[(64, k, block, SCOPES) for k in (1, 2) for block in (128, 256)],
        *[(61, k, 128, SCOPES[:1]) for k in (1, 2)],
    ]


@pytest.mark.parametrize(("size", "axes"), [("smoke", {}), ("full", {"n": (61,)})])
def test_an_awkward_value_that_was_asked_for_or_is_the_smoke_tests_own_is_like_any_other(size, axes):
    problem = sized(n=Axis(smoke=(61,), full=(64,), awkward=(61,)))
    assert [
        (case.point["n"], case.parameters["block"], case.scopes) for case in cases_of(problem, size, axes)
    ] == [
        (61, 128, SCOPES),
        (61, 256, SCOPES),
    ]


# reference, outputs and tolerance


@pytest.mark.parametrize(
    ("declared", "read"),
    [
        (([3, 2], "int8"), Output((3, 2), "int8")),
        (Output(3, "int8", order="any"), Output((3,), "int8", "any")),
    ],
)
def test_outputs_are_shape_dtype_and_order(declared, read):
    assert doubling(outputs=lambda n: {"out": declared}).output_specs({"n": 3}, {}) == {"out": read}


def reference_of(**changes):
    problem = doubling(n=3, **changes)
    return problem.reference({"n": 3}, problem.inputs({"n": 3}))


@pytest.mark.parametrize("shape", [3, np.int64(3), (3,), [np.int32(3)]])
def test_a_size_may_be_one_of_numpys_integers_and_a_reference_a_ufunc(shape):
    drawn = {"make_inputs": lambda rng: {"x": random_array(rng, shape)}}
    problem = Problem(
        "exp", version=1, axes={}, outputs=lambda: {"out": (shape, "float64")}, reference=np.exp, **drawn
    )
    inputs = problem.inputs({})
    assert problem.output_specs({}, inputs)["out"].shape == (3,)
    assert np.array_equal(problem.reference({}, inputs)["out"], np.exp(inputs["x"]))


def test_one_output_needs_no_name_in_the_reference():
    assert list(reference_of(reference=lambda a: a)) == ["out"]
    assert list(reference_of(reference=lambda a: {"out": a})) == ["out"]


def test_a_reference_that_changes_an_input_is_refused_and_one_that_returns_it_is_not():
    def doubles(a):
        a *= 2
        return a

    with pytest.raises(
        ProblemError, match=r"reference changes its input 'a'.*work on a copy, a = a\.copy\(\)"
    ):
        reference_of(reference=doubles)
    assert reference_of(reference=lambda a: a)["out"].shape == (3,)


def test_without_a_reference_there_is_nothing_expected():
    assert reference_of(reference=None, check=lambda runs: None) is None


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        (None, Tolerance(1e-3, 1e-5)),
        (TIGHT, TIGHT),
        ({"out": TIGHT}, TIGHT),
        (lambda n: Tolerance(0, n), Tolerance(0, 3)),
        (lambda n: {"out": Tolerance(0, n)}, Tolerance(0, 3)),
    ],
)
def test_a_tolerance_is_one_for_all_one_an_output_a_function_or_the_dtypes(given_as, expected):
    assert doubling(tolerance=given_as).tolerances({"out": SPEC}, {"n": 3}) == {"out": expected}


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf, True, np.False_, ""])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_bound_that_is_negative_not_finite_or_no_number_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}: must be a finite number ≥ 0"):
        Tolerance(**{name: value})


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    [
        ("float16", 1e-3, 1e-5),
        ("float32", 1.3e-6, 1e-5),
        ("float64", 1e-9, 1e-9),
        ("complex64", 1.3e-6, 1e-5),
        ("complex128", 1e-9, 1e-9),
        ("int32", 0, 0),
        ("bool", 0, 0),
    ],
)
def test_the_default_tolerance_is_near_that_of_pytorch_and_exact_for_what_is_no_float(dtype, rtol, atol):
    assert Tolerance.for_dtype(dtype) == Tolerance(rtol, atol)


def test_the_tolerance_of_a_sum_grows_with_the_root_of_its_terms():
    few, many = (Tolerance.for_sum(terms, "float32", magnitude=3) for terms in (100, 10_000))
    assert few.atol == pytest.approx(8 * 2**-23 * 3 * 10)
    assert many.atol == pytest.approx(10 * few.atol)
    assert many.rtol == few.rtol == pytest.approx(8 * 2**-23)


@pytest.mark.parametrize("terms", [1, 10, 300, 4096, 100_000])
@pytest.mark.parametrize("drawn", ["random", "standard_normal"])
def test_sums_in_any_order_are_within_their_tolerance_and_without_a_hundredth_of_the_terms_they_are_not(
    terms, drawn
):
    values = getattr(np.random.default_rng(terms), drawn)((40, terms), dtype=np.float32)
    expected, bounds = values.sum(axis=1, dtype=float), Tolerance.for_sum(terms, "float32")
    for found in (values.cumsum(axis=1, dtype=np.float32)[:, -1], values.sum(axis=1)):
        assert not compare(found, expected, bounds, poison=None).mismatches
    if terms > 1:
        most = values[:, : terms - terms // 100 - 1].sum(axis=1)
        assert compare(most, expected, bounds, poison=None).mismatches > 30


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("float16", 10), ("f4", 23), (float, 52), ("c8", 23), ("bfloat16", 7), ("float8_e5m2", 2)],
)
def test_units_in_the_last_place_sums_and_flushing_are_those_of_any_float(dtype, bits):
    if "_" in str(dtype) or dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    assert Tolerance.for_ulps(4, dtype) == Tolerance(rtol=4 * 2.0**-bits)
    assert Tolerance.for_sum(1, dtype).rtol == 8 * 2.0**-bits
    assert 0 < Tolerance().flushing(dtype).atol < 2.0**-13


@pytest.mark.parametrize("what", ["traffic_bytes", "flops", "transfer_bytes"])
def test_work_is_a_function_of_the_point_or_not_declared(what):
    declared = doubling(**{what: lambda n: 12 * n})
    assert getattr(declared, what)({"n": 3}) == 36.0
    assert getattr(doubling(**{what: None}), what)({"n": 3}) is None


# calling by name


def test_a_function_is_given_what_it_names_and_nothing_else():
    assert call_by_name(lambda b, a: (a, b), {"a": 1, "b": 2, "c": 3}) == (1, 2)
    assert call_by_name(lambda a, z=9: (a, z), {"a": 1}) == (1, 9)
    assert call_by_name(lambda **everything: everything, {"a": 1, "b": 2}) == {"a": 1, "b": 2}
