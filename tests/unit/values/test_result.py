"""Results travel as plain JSON and come back the same."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from any_value import values_of
from hypothesis import given

from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import (
    CaseInfo,
    Correctness,
    DeviceWork,
    KernelFacts,
    Measurement,
    OutputError,
    Result,
    Summary,
    sizes_text,
)
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import ContentError, built

results = values_of(Result)


def through_json(result):
    return built(json.loads(json.dumps(plain(result), allow_nan=False)), Result)


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
    assert all(type(part) in EXACT for part in everything_in(plain(result)))


def made(**changes):
    case = CaseInfo("p/host.v/n=1", "p", 1, "v", "host", {"n": 1}, {}, "baselines", "p")
    return Result(
        **{"case": case, "nodeid": "t.py::t", "fingerprint": Fingerprint(), "simulated": False, **changes}
    )


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
    case = CaseInfo("i", "p", 1, "v", "host", {"n": value}, {"block": value}, "b", "p")
    found = plain(made(case=case))["case"]
    assert (found["point"], found["parameters"]) == ({"n": expected}, {"block": expected})
    assert all(type(part) in EXACT for part in everything_in(found))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("case"),
        lambda data: data["case"].pop("id"),
        lambda data: data["measurements"][0].pop("summary"),
        lambda data: data["measurements"][0]["work"][0].pop("name"),
        lambda data: data["measurements"][0]["work"][0]["kernel"].pop("name"),
    ],
)
def test_anything_else_than_a_result_is_refused(damage):
    kernel = KernelFacts("k", 1, 0, 0)
    work = (DeviceWork("kernel", "k", 1.0, 1.0, kernel=kernel),)
    data = plain(made(measurements=(measured(work=work),)))
    damage(data)
    with pytest.raises(ContentError):
        built(data, Result)


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


def test_half_width_is_relative_to_the_median_and_none_of_a_single_sample():
    assert Summary(10.0, 9.0, 12.0, 3).half_width == pytest.approx(0.15)
    assert Summary(0.0, 0.0, 1.0, 3).half_width == math.inf
    assert Summary(10.0, 9.0, 12.0, 1).half_width is Summary(10.0, 9.0, None, 3).half_width is None


def test_the_size_in_words_has_axes_and_parameters():
    case = CaseInfo("i", "p", 1, "v", "host", {"n": 8, "m": 2}, {"block": 64}, "b", "p")
    assert sizes_text(case.sizes) == "n=8 m=2 block=64"
