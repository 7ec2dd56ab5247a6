"""Arguments of the `gpu_benchmark` marker."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.options import SettingsError
from pytest_gpukern.values.result import Determinism

WHERE = "test_saxpy.py::test_saxpy"
KNOWN = ("bytes", "flops", "threshold", "timer", "cache", "group")


def read(*args, **kwargs):
    return MarkerOptions.from_mark(args, kwargs, WHERE)


def refused(*args, **kwargs):
    with pytest.raises(SettingsError) as error:
        read(*args, **kwargs)
    message = str(error.value)
    assert message.startswith(f"{WHERE}: "), "the message names the test"
    return message


def test_all_arguments_together_are_read():
    found = read(bytes=12 * 10, flops=2.5e9, threshold="5%", timer="host", cache="hot", group="blas")
    assert found == MarkerOptions(120, 2.5e9, 0.05, "host", "hot", "blas")
    assert read(determinism="bitwise").determinism is Determinism.BITWISE


def test_every_argument_is_optional_and_none_means_not_given():
    assert read() == read(**dict.fromkeys(KNOWN)) == MarkerOptions()


@pytest.mark.parametrize(
    ("given", "rule"), [({"group": 3}, "must be a string"), ({"timeout": 0}, "seconds are a number above 0")]
)
def test_what_no_test_can_mean_is_refused_with_the_rule(given, rule):
    ((name, value),) = given.items()
    assert f"gpu_benchmark({name}={value!r}): {rule}" in refused(**given)


def test_a_positional_argument_is_refused_with_the_names_there_are():
    message = refused(12)
    assert "no positional arguments, found (12,)" in message
    assert all(name in message for name in KNOWN)


def test_an_unknown_argument_is_refused_with_the_names_there_are():
    message = refused(byte=12)
    assert "has no argument 'byte'" in message
    assert all(name in message for name in KNOWN)


@pytest.mark.parametrize("name", ["bytes", "flops"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "12", True, [12], 1j])
def test_work_that_is_no_positive_number_is_refused(name, value):
    assert f"gpu_benchmark({name}={value!r}): must be a positive number" in refused(**{name: value})


@pytest.mark.parametrize("value", [np.int64(12), np.float32(12), np.prod((3, 4))])
def test_work_may_be_a_numpy_number_and_becomes_a_plain_one(value):
    found = read(bytes=value)
    assert found.bytes == 12
    assert type(found.bytes) is float


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("timer", "auto, cupti, event, graph, host"),
        ("cache", "cold, hot"),
        ("determinism", "bitwise, run-to-run, tolerant"),
    ],
)
@pytest.mark.parametrize("value", ["nonsense", 1, ["cold"]])
def test_a_value_that_is_no_choice_is_refused_with_the_choices(name, choices, value):
    assert f"gpu_benchmark({name}={value!r}): must be one of {choices}" in refused(**{name: value})


@pytest.mark.parametrize("value", [0, "x", True])
def test_a_threshold_is_a_percentage_or_a_fraction(value):
    assert read(threshold="2%").threshold == read(threshold=0.02).threshold == 0.02
    assert f"gpu_benchmark(threshold={value!r}): a threshold is more than 0" in refused(threshold=value)


@pytest.mark.parametrize(("value", "expected"), [(300, 300.0), ("2.5", 2.5), ("off", float("inf"))])
def test_a_test_may_take_as_long_as_its_marker_says(value, expected):
    assert read(timeout=value).timeout == expected


@pytest.mark.parametrize(
    ("given", "read_as"),
    [(3, (3,)), (-1, (-1,)), ("out", ("out",)), ((2, "out"), (2, "out")), ([0, 1], (0, 1)), (None, ())],
)
def test_outputs_are_one_position_or_name_or_several(given, read_as):
    assert read(outputs=given).outputs == read(inout=given).inout == read_as


@pytest.mark.parametrize("value", [True, 1.5, (), "", ("out", 2.0), (1, 1), {"out"}, ((1, 2),)])
def test_outputs_that_are_no_positions_and_names_are_refused(value):
    assert f"gpu_benchmark(outputs={value!r}): must be positions, counted" in refused(outputs=value)
    assert f"gpu_benchmark(inout={value!r}): must be positions, counted" in refused(inout=value)


def test_what_is_written_of_an_output_is_said_by_output():
    assert read(written={"out": slice(1, -1)}).written == {"out": slice(1, -1)}
    assert "gpu_benchmark(written=slice(1, 2, None)): must map an output to the index" in refused(
        written=slice(1, 2)
    )
