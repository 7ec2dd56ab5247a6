"""What two sessions declare of their checks → which of these are weaker now; whole runs hold each by name."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_past import accuracy, now, session
from msgspec import structs

from pytest_gpukern.arrays.compare import contents_of
from pytest_gpukern.findings.weaker import weaker
from pytest_gpukern.values.result import Correctness, Declaration, Determinism

RNG = np.random.default_rng(1)
DATA = RNG.normal(size=100_000)
X = {"x": contents_of(DATA)}


def found(own, *past, **changes):
    """What is weaker where `own` and `past` are either errors of outputs or declarations."""

    def fields(of):
        return {"declared": None, "errors": of} if isinstance(of, dict) else {"declared": of, "errors": {}}

    sessions = [structs.replace(session().session, **fields(of)) for of in past]
    result = structs.replace(now(errors={}), **fields(own), **changes)
    return [finding.text for finding in weaker(result, sessions, 0.02)]


def of_reference(values, **more):
    return {"y": structs.replace(accuracy(), reference=contents_of(values), **more)}


@pytest.mark.parametrize(
    ("values", "differ"),
    [
        (DATA * (1 + 1e-13 * RNG.normal(size=DATA.size)), False),
        (DATA * (1 + 1e-6 * RNG.normal(size=DATA.size)), True),
        (DATA * (1 + 1e-6), True),
        (DATA.astype("float32"), False),
        (DATA[::-1], True),
        *((np.where(np.arange(DATA.size) == at % DATA.size, 9.0, DATA), True) for at in (0, 63, -64, -1)),
    ],
    ids=["rounding", "noise", "factor", "dtype", "order", *("one at an end",) * 4],
)
def test_a_reference_is_another_beyond_what_rounding_makes_of_it(values, differ):
    texts = [text for text in found(of_reference(values), *[of_reference(DATA)] * 2) if "values" in text]
    assert texts == ["y: other values of the reference"] * differ


@pytest.mark.parametrize(
    "values",
    [
        np.arange(12).reshape(3, 4).T,
        np.array([1 + 2j, np.nan, np.inf]),
        np.array([True, False]),
        np.zeros(0),
        np.full(3, 1e300),
        np.zeros(2, [("a", "f8")]),
        np.array(5.0),
    ],
    ids=lambda values: str(values.dtype),
)
def test_every_array_equals_itself(values):
    assert found(of_reference(values), *[of_reference(values.copy())] * 2) == []


def test_what_a_plain_test_compares_with_counts_only_if_it_was_the_same_each_time():
    other, last = of_reference(DATA + 1), of_reference(DATA + 2)
    assert found(last, of_reference(DATA)) == []
    assert found(last, of_reference(DATA), other) == []
    assert len(found(last, other, other)) == 1


@pytest.mark.parametrize("scale", [1, 1.1, 1.5, 0])
def test_what_is_drawn_anew_each_time_is_held_by_its_norm(scale):
    one, other, own = (of_reference(RNG.normal(size=100_000) * by) for by in (1, 1, scale))
    texts = ["y: other values of the reference"]
    assert found(own, one, other) == texts * (scale in (1.5, 0))
    assert found(own, one) == texts * (scale == 0)


GONE = "y: elements compared with a reference 1,000 → 0"
OF_ANOTHER = f"{GONE} of what the call left"


def of_outputs(**rtols):
    """Outputs, all compared with `DATA` but those called `z`, that a call left but for the `copy`."""
    held = {}
    for name, rtol in rtols.items():
        of_call = {"determinism": None if "copy" in name else "bitwise", "dtype": "float64"}
        held |= {name: of_reference(DATA * (1 + ("z" in name)), rtol=rtol, **of_call)["y"]}
    return held


@pytest.mark.parametrize(
    ("was", "now", "texts"),
    [
        ({"output": 1e-6}, {"y": 1e-6}, []),
        ({"output": 1e-6}, {"y": 1e-2}, ["output: rtol 1e-06 → 0.01"]),
        ({"y": 1e-6, "z": 1e-3}, {"out": 1e-6, "another_z": 1e-3}, []),
        ({"y": 1e-6, "z": 1e-3}, {"another_z": 1e-3, "y": 1e-6}, []),
        ({"y": 1e-6}, {"y": 1e-6, "z": 1e-2}, []),
        ({"y": 1e-6}, {"copy": 1e-6, "out": 1e-2}, [GONE]),
        ({"y": 1e-6, "z": 1e-6}, {"z": 1e-6}, [GONE]),
    ],
)
def test_outputs_are_known_again_by_their_order_if_as_many_have_new_names(was, now, texts):
    assert found(of_outputs(**now), *[of_outputs(**was)] * 2) == texts


STRICT = Declaration({"y": 8}, X, 3, guarded=2, in_order=1, determinism=Determinism.RUN_TO_RUN)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"input_sets": 1}, "different inputs timed in turn 3 → 1"),
        ({"input_sets": 0}, None),
        ({"determinism": Determinism.TOLERANT}, "determinism run-to-run → tolerant"),
        ({"determinism": Determinism.BITWISE}, None),
        ({"outputs": {}}, "y: elements that a launch must write 8 → 0"),
        ({"outputs": {"z": 8}}, None),
        ({"outputs": {"z": 4}}, "y: elements that a launch must write 8 → 4"),
        ({"guarded": 1}, "guarded arrays 2 → 1"),
        ({"in_order": 0}, "outputs whose order is checked 1 → 0"),
        ({"inputs": {"values": structs.replace(X["x"], size=9)}}, "input x: elements 100,000 → 9"),
        ({"inputs": {"values": X["x"]}}, None),
    ],
)
def test_a_declaration_is_held_against_the_strictest_before(changes, text):
    weak = structs.replace(STRICT, **changes)
    assert found(weak, weak, STRICT) == [text] * (text is not None)


@pytest.mark.parametrize(
    ("atol", "size", "texts"),
    [
        (7.9e-9, 241, []),  # as bounds by the largest of drawn values, and a drawn number of results
        (9e-9, 500, ["y: atol 3e-09 → 9e-09"]),
        (3e-9, 200, ["y: elements compared with a reference 500 → 200"]),
    ],
)
def test_what_differs_a_little_from_session_to_session_may_be_half_as_strict(atol, size, texts):
    past = [of_reference(DATA, atol=of, size=count) for of, count in ((3e-9, 500), (4e-9, 480))]
    assert found(of_reference(DATA, atol=atol, size=size), *past) == texts


@pytest.mark.parametrize(("first_call_ns", "texts"), [(1e6, [OF_ANOTHER]), (2e9, [])])
def test_what_is_no_longer_what_the_calls_left_is_not_compared(first_call_ns, texts):
    """A call that takes long is made once, so nothing is known of its determinism."""
    ours, another = (of_reference(DATA, determinism=of) for of in (Determinism.BITWISE, None))
    assert found(another, ours, ours, first_call_ns=first_call_ns) == texts
    assert found(another, another, first_call_ns=1e6) == []


def test_simulated_sessions_are_compared_with_simulated_ones_alone():
    loose, strict = (of_reference(DATA, rtol=rtol) for rtol in (1e-2, 1e-6))
    assert found(loose, strict, simulated=True) == []
    (sessions,) = ([structs.replace(session().session, errors=strict, simulated=True)],)
    result = structs.replace(now(errors={}), errors=loose, simulated=True)
    assert [of.text for of in weaker(result, sessions, 0.02)] == ["y: rtol 1e-06 → 0.01"]


def test_as_many_bits_with_fewer_digits_are_weaker():
    half, brain = (
        structs.replace(STRICT, inputs={"x": structs.replace(X["x"], dtype=of)})
        for of in ("float16", "bfloat16")
    )
    assert found(brain, half) == ["input x: dtype float16 → bfloat16"]
    assert found(half, brain) == []


def test_what_was_not_known_before_and_what_is_no_measurement_is_not_held_against_anything():
    weak = Declaration(lower_precision=True)
    assert found(weak, None) == []
    assert found(weak, Declaration()) == ["allow_lower_precision False → True"]
    assert found(weak, Declaration(), simulated=True) == []
    assert found(weak, Declaration(), correctness=Correctness.INCORRECT) == []
