"""Results travel as plain JSON and come back the same."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.result import (
    CaseInfo,
    Correctness,
    Measurement,
    OutputError,
    Result,
    Summary,
    Verdict,
    VerdictKind,
    sizes_text,
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | numbers
words = st.text(max_size=8)
plain = st.none() | st.booleans() | st.integers() | numbers | words
mappings = st.dictionaries(words, plain, max_size=3)
cases = st.builds(
    CaseInfo,
    id=words,
    problem=words,
    problem_version=st.integers(),
    variant=words,
    backend=st.none() | words,
    point=mappings,
    measured_point=mappings,
    parameters=mappings,
    baseline_dir=words,
    baseline_name=words,
)
summaries = st.builds(
    Summary,
    median_ns=numbers,
    low_ns=numbers,
    high_ns=numbers,
    n=st.integers(),
    warnings=st.lists(words, max_size=2).map(tuple),
)
measurements = st.builds(
    Measurement,
    scope=words,
    timer=words,
    measures=words,
    cache=words,
    samples_ns=st.lists(numbers, max_size=4).map(tuple),
    iterations=st.integers(),
    summary=summaries,
    stopped=words,
    traffic_bytes=maybe,
    flops=maybe,
    invalid=st.none() | words,
)
errors = st.builds(OutputError, st.integers(), st.integers(), maybe, maybe, maybe)
verdicts = st.builds(Verdict, st.sampled_from(VerdictKind), words, maybe, maybe, maybe)
results = st.builds(
    Result,
    case=cases,
    nodeid=words,
    fingerprint=st.dictionaries(words, plain | st.lists(plain, max_size=2) | mappings, max_size=3),
    simulated=st.booleans(),
    correctness=st.sampled_from(Correctness),
    diagnosis=st.none() | words,
    errors=st.dictionaries(words, errors, max_size=2),
    first_call_ns=maybe,
    measurements=st.lists(measurements, max_size=2).map(tuple),
    verdicts=st.dictionaries(words, verdicts, max_size=2),
    speedup_against=st.none() | words,
    notes=st.lists(words, max_size=2).map(tuple),
)


def through_json(result):
    return Result.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))


@given(results)
def test_a_result_comes_back_from_json_as_it_was(result):
    assert through_json(result) == result


EXACT = (dict, list, str, float, int, bool, type(None))


def everything_in(value):
    yield value
    if isinstance(value, dict):
        yield from value.keys()
        for item in value.values():
            yield from everything_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from everything_in(item)


@given(results)
def test_json_holds_exact_builtin_types_only(result):
    """execnet, which carries reports for xdist, refuses subclasses such as enums of strings."""
    assert all(type(part) in EXACT for part in everything_in(result.to_json()))


def made(**changes):
    case = CaseInfo("p/host.v/n=1", "p", 1, "v", "host", {"n": 1}, {"n": 1}, {}, "baselines", "p")
    return Result(**{"case": case, "nodeid": "t.py::t", "fingerprint": {}, "simulated": False, **changes})


def measured(**changes):
    summary = Summary(10.0, 9.0, 12.0, 3)
    values = {"scope": "kernel", "timer": "event", "measures": "", "cache": "cold", "iterations": 1}
    return Measurement(
        **{**values, "samples_ns": (9.0, 10.0, 12.0), "summary": summary, "stopped": "", **changes}
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
def test_numbers_that_json_lacks_become_none(value):
    result = made(errors={"out": OutputError(1, 1, value, 0.5, value)}, first_call_ns=value)
    found = through_json(result)
    assert found.errors["out"] == OutputError(1, 1, None, 0.5, None)
    assert found.first_call_ns is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([1, 2]), [1, 2]),
        ((1, (2, 3)), [1, [2, 3]]),
    ],
)
def test_values_of_numpy_and_tuples_in_a_point_become_plain_ones(value, expected):
    case = CaseInfo("i", "p", 1, "v", "host", {"n": value}, {"n": value}, {"block": value}, "b", "p")
    found = made(case=case).to_json()["case"]
    assert found["point"] == found["measured_point"] == {"n": expected}
    assert all(type(part) in EXACT for part in everything_in(found))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("case"),
        lambda data: data["case"].pop("id"),
        lambda data: data.update(surprise=1),
        lambda data: data["measurements"][0].pop("summary"),
        lambda data: data["measurements"][0]["summary"].update(surprise=1),
    ],
)
def test_anything_else_than_a_result_is_refused(damage):
    data = made(measurements=(measured(),)).to_json()
    damage(data)
    with pytest.raises((KeyError, TypeError)):
        Result.from_json(data)


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"correctness": Correctness.PASSED}, True),
        ({"correctness": Correctness.INCORRECT}, False),
        ({"simulated": True}, False),
        ({"measurements": ()}, False),
        ({"measurements": (measured(), measured(invalid="escaped"))}, False),
    ],
)
def test_only_a_correct_clean_measurement_on_real_hardware_may_be_recorded(changes, valid):
    assert made(**{"measurements": (measured(),), **changes}).valid is valid


def test_a_measurement_is_keyed_by_scope_timer_and_cache():
    assert measured(scope="transfer", timer="host", cache="hot").key == "transfer/host/hot"


def test_half_width_is_relative_to_the_median_and_infinite_without_one():
    assert Summary(10.0, 9.0, 12.0, 3).half_width == pytest.approx(0.15)
    assert Summary(0.0, 0.0, 1.0, 3).half_width == math.inf


def test_the_size_in_words_shows_what_ran_where_it_is_not_what_was_asked():
    case = CaseInfo("i", "p", 1, "v", "host", {"n": 8, "m": 2}, {"n": 4, "m": 2}, {"block": 64}, "b", "p")
    assert sizes_text(case.sizes) == "n=8→4 m=2 block=64"
