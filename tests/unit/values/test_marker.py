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


NO_NUMBERS = [0, -1, float("nan"), float("inf"), "12", True, [12], 1j]
NO_OUTPUTS = [True, 1.5, (), "", ("out", 2.0), (1, 1), {"out"}, ((1, 2),)]
RULES = [
    (("group",), [3], "must be a string"),
    (("timeout",), [0], "seconds are a number above 0"),
    (("bytes", "flops"), NO_NUMBERS, "must be a positive number"),
    (("timer",), ["nonsense", 1, ["cold"]], "must be one of auto, cupti, event, graph, host"),
    (("cache",), ["nonsense", 1, ["cold"]], "must be one of cold, hot"),
    (("determinism",), ["nonsense", 1, ["cold"]], "must be one of bitwise, run-to-run, tolerant"),
    (("threshold",), [0, "x", True], "a threshold is more than 0"),
    (("outputs", "inout"), NO_OUTPUTS, "must be positions, counted"),
    (("written",), [slice(1, 2)], "must map an output to the index"),
]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [(name, value, rule) for names, values, rule in RULES for name in names for value in values],
)
def test_what_no_test_can_mean_is_refused_with_the_rule(name, value, rule):
    assert f"gpu_benchmark({name}={value!r}): {rule}" in refused(**{name: value})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((12,), {}, "no positional arguments, found (12,)"),
        ((), {"byte": 12}, "has no argument 'byte'"),
    ],
)
def test_an_argument_that_is_none_is_refused_with_the_names_there_are(args, kwargs, said):
    message = refused(*args, **kwargs)
    assert said in message
    assert all(name in message for name in KNOWN)


@pytest.mark.parametrize("value", [np.int64(12), np.float32(12), np.prod((3, 4))])
def test_work_may_be_a_numpy_number_and_becomes_a_plain_one(value):
    found = read(bytes=value)
    assert found.bytes == 12
    assert type(found.bytes) is float


def test_a_threshold_is_a_percentage_or_a_fraction():
    assert read(threshold="2%").threshold == read(threshold=0.02).threshold == 0.02


@pytest.mark.parametrize(("value", "expected"), [(300, 300.0), ("2.5", 2.5), ("off", float("inf"))])
def test_a_test_may_take_as_long_as_its_marker_says(value, expected):
    assert read(timeout=value).timeout == expected


@pytest.mark.parametrize(
    ("given", "read_as"),
    [(3, (3,)), (-1, (-1,)), ("out", ("out",)), ((2, "out"), (2, "out")), ([0, 1], (0, 1)), (None, ())],
)
def test_outputs_are_one_position_or_name_or_several(given, read_as):
    assert read(outputs=given).outputs == read(inout=given).inout == read_as


def test_what_is_written_of_an_output_is_said_by_output():
    assert read(written={"out": slice(1, -1)}).written == {"out": slice(1, -1)}
