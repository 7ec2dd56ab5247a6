"""Results travel as plain JSON and come back the same."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.values.result import (
    CaseInfo,
    Correctness,
    DeviceWork,
    KernelFacts,
    Measurement,
    OutputError,
    Result,
    Summary,
    Verdict,
    VerdictKind,
    sizes_text,
)
from pytest_gpukern.values.untrusted_json import ShapeError

numbers = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | numbers
whole = st.integers(-(2**63), 2**63)
words = st.text(max_size=8)
plain = st.none() | st.booleans() | whole | numbers | words
mappings = st.dictionaries(words, plain, max_size=3)
cases = st.builds(
    CaseInfo,
    id=words,
    problem=words,
    problem_version=whole,
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
    n=whole,
    warnings=st.lists(words, max_size=2).map(tuple),
)
counts = st.integers(0, 2**31)
triples = st.tuples(counts, counts, counts)
kernels = st.builds(
    KernelFacts,
    name=words,
    registers=counts,
    local_bytes=counts,
    shared_bytes=counts,
    machine_code_sha256=st.none() | words,
    grid=st.none() | triples,
    block=st.none() | triples,
    symbol=st.none() | words,
    blocks_per_sm=st.none() | whole,
    occupancy=maybe,
    limited_by=st.none() | words,
)
works = st.builds(
    DeviceWork,
    kind=st.sampled_from(["kernel", "memcpy", "memset"]),
    name=words,
    count=numbers,
    time_ns=numbers,
    size_bytes=numbers,
    kernel=st.none() | kernels,
)
measurement_fields = {
    "scope": words,
    "timer": words,
    "measures": words,
    "cache": words,
    "samples_ns": st.lists(numbers, max_size=4).map(tuple),
    "iterations": whole,
    "summary": summaries,
    "stopped": words,
    "jitter_ns": numbers,
    "fixed_cost_ns": maybe,
    "busy_ns": maybe,
    "work": st.lists(works, max_size=2).map(tuple),
    "buffer_sets": whole,
    "observations": st.dictionaries(words, st.dictionaries(words, words, max_size=1), max_size=1),
    "invalid_samples": whole,
    "state": mappings,
    "energy_mj": maybe,
    "mean_power_w": maybe,
    "energy_untold": st.none() | words,
    "beside": st.booleans(),
    "traffic_bytes": maybe,
    "flops": maybe,
    "invalid": st.none() | words,
}
measurements = st.builds(Measurement, **measurement_fields)
errors = st.builds(OutputError, whole, whole, maybe, maybe, maybe)
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
    compile_ns=maybe,
    measurements=st.lists(measurements, max_size=2).map(tuple),
    kernels=st.lists(kernels, max_size=2).map(tuple),
    dtype=st.none() | words,
    ceilings=st.dictionaries(words, maybe, max_size=2),
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


def test_a_result_of_an_older_release_lacks_fields_and_is_read_with_their_defaults():
    data = made(measurements=(measured(),)).to_json()
    for name in ("compile_ns", "kernels", "dtype", "ceilings"):
        del data[name]
    newer = ("fixed_cost_ns", "busy_ns", "work", "buffer_sets", "invalid_samples", "state", "beside")
    for name in newer:
        del data["measurements"][0][name]
    assert Result.from_json(data) == made(measurements=(measured(),))


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


def test_every_field_of_a_measurement_is_tried_above():
    """A field that is added later may hold what JSON brings back as something else."""
    assert set(measurement_fields) == {field.name for field in dataclasses.fields(Measurement)}


def test_the_work_of_a_call_comes_back_as_the_same_values_and_types():
    kernel = KernelFacts("add(float*)", 32, 8, 1024, grid=(4, 1, 1), block=(256, 1, 1))
    work = (
        DeviceWork("kernel", "_Z3addPf", 2.0, 1500.0, kernel=kernel),
        DeviceWork("memset", "memset", 1, 900.0, 64),
    )
    found = through_json(made(measurements=(measured(work=work),)))
    assert found.measurements[0].work == work
    assert hash(found.measurements[0].work[0].kernel) == hash(kernel), "tuples, not lists"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("case"),
        lambda data: data["case"].pop("id"),
        lambda data: data.update(surprise=1),
        lambda data: data["measurements"][0].pop("summary"),
        lambda data: data["measurements"][0]["summary"].update(surprise=1),
        lambda data: data["measurements"][0]["work"][0].pop("name"),
        lambda data: data["measurements"][0]["work"][0].update(surprise=1),
        lambda data: data["measurements"][0]["work"][0]["kernel"].pop("name"),
    ],
)
def test_anything_else_than_a_result_is_refused(damage):
    kernel = KernelFacts("k", 1, 0, 0)
    work = (DeviceWork("kernel", "k", 1.0, 1.0, kernel=kernel),)
    data = made(measurements=(measured(work=work),)).to_json()
    damage(data)
    with pytest.raises(ShapeError):
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
