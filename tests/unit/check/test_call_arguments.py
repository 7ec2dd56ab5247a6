"""Which arguments of a call a marker's `outputs` names."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from pytest_gpukern.backends.foreign_array import leaves
from pytest_gpukern.check.call_arguments import arguments_of, declared_arguments, held_by, takes_keyword


class Names(dict):
    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)


ONE, TWO, THREE = (np.zeros(number) for number in (1, 2, 3))


def launch(a, x, y, out):
    """Takes what a kernel takes."""


def places(outputs, *args, function=launch, **kwargs):
    found = declared_arguments("outputs", outputs, function, args, kwargs, "test_it")
    return [place for place, _ in found]


def test_arguments_are_called_by_their_names_and_by_their_positions_if_these_are_not_known():
    assert arguments_of(launch, (1,), {"out": 2}) == [("a", 1), ("out", 2)]
    assert arguments_of(print, (1,), {"out": 2}) == [("argument 0", 1), ("out", 2)]
    assert arguments_of(lambda a, *rest: None, (1, 2), {}) == [("a", 1), ("argument 1", 2)]


@pytest.mark.parametrize(
    ("outputs", "found"), [((1,), ["x"]), ((-1,), ["y"]), (("out",), ["out"]), ((2, "out"), ["y", "out"])]
)
def test_an_output_is_named_by_position_from_either_end_or_by_name(outputs, found):
    assert places(outputs, 2.0, "x", "y", out="out") == found


@pytest.mark.parametrize(
    ("function", "args", "output", "remedy"),
    [
        (lambda: launch(1, 2, 3, ONE), (), "out", "a lambda hides its arrays: gpu_benchmark("),
        (lambda x: launch(1, 2, x, ONE), (0,), "ONE", "a lambda hides its arrays: gpu_benchmark(kernel"),
        (print, (1, 2), "out", "it has argument 0, argument 1: give one, or a position from 0 on"),
        (launch, (1, 2, 3, 4), 4, "it has a, x, y, out: give one, or a position from 0 on"),
        (launch, (1, 2, 3, 4), -5, "it has a, x, y, out: give one, or a position from 0 on"),
        (launch, (1, 2, 3, 4), "oout", "from 0 on; did you mean 'out'?"),
        (print, (1, ONE), "out", "from 0 on, such as outputs=1"),
        (print, (1, (7, ONE)), "out", "from 0 on, such as outputs='1[1]'"),
        # no name is guessed where a callable takes any number or tells no signature
        (lambda *args: None, (1,), "out", "no such argument; it has argument 0:"),
        (dict.update, (1,), "out", "no such argument; it has argument 0:"),
    ],
)
def test_an_argument_that_is_not_there_is_refused_with_what_to_write(function, args, output, remedy):
    begins = re.escape(f"test_it: gpu_benchmark(outputs={output!r}): ")
    with pytest.raises(ValueError, match=f"^{begins}.*{re.escape(remedy)}"):
        places((output,), *args, function=function)


@pytest.mark.parametrize("holder", ["dispatcher", "_dispatcher"])
def test_a_name_finds_a_parameter_of_a_configured_kernel_of_numbas(holder):
    """`kernel[grid, block]` is called with any number of arguments; its dispatcher holds the function."""

    def kernel(x, out):
        out[0] = x[0]

    class Configured:
        def __call__(self, *args):
            kernel(*args)

    setattr(Configured, holder, SimpleNamespace(py_func=kernel))
    x, out = np.zeros(2), np.zeros(2)
    (found,) = declared_arguments("outputs", ["out"], Configured(), (x, out), {}, "test_it")
    assert found.value is out


def test_a_name_finds_what_warps_launch_hands_to_a_parameter_of_its_kernel():
    kernel = SimpleNamespace(func=lambda x, n, out: None)
    given = {"kernel": kernel, "dim": 8, "inputs": [ONE, 7], "outputs": [TWO]}
    (found,) = declared_arguments("outputs", ["out"], print, (), given, "test_it")
    assert found.value is TWO
    with pytest.raises(ValueError, match=r"outputs\[0\], x, n, out: .*; did you mean 'out'"):
        places(("outt",), *given.values(), function=lambda kernel, dim, inputs, outputs: None)


def test_a_dispatcher_that_is_no_kernels_hides_nothing_of_the_users_object():
    captured = SimpleNamespace(_dispatcher=SimpleNamespace(), x=np.zeros(2))
    assert "x" in [place for place, _ in held_by("", captured)]


GRID = ((2,), (64,), (ONE, {"x": TWO, "steps": [THREE, 7]}))


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("2[0]", ["argument 2[0]"]),
        ("-1[-2]", ["argument 2[0]"]),
        ("2[1]['x']", ["argument 2[1]['x']"]),
        ("2[1]['steps']", ["argument 2[1]['steps'][0]"]),
        (2, ["argument 2[0]", "argument 2[1]['x']", "argument 2[1]['steps'][0]"]),
        ("params[1]", ["params[1]"]),
        ("arrays[0]", ["arrays[0]"]),
    ],
)
def test_an_array_in_a_tuple_list_or_dict_is_named_by_its_place(output, found):
    if str(output).startswith(("params", "arrays")):
        assert places((output,), [ONE, TWO], function=lambda arrays: None, params=(ONE, TWO)) == found
    else:
        assert places((output,), *GRID, function=print) == found


@pytest.mark.parametrize("output", ["2[2]", "2[0][0][0]", "2['x']", "2[1][y]", "2[", "2[1]['z']", "0[0][0]"])
def test_a_place_that_is_not_there_is_refused_with_those_that_are(output):
    with pytest.raises(ValueError, match=r"no such argument; it has argument 0, ") as error:
        places((output,), *GRID, function=print)
    assert "argument 2[0], argument 2[1]['x'], argument 2[1]['steps'][0]: give one" in str(error.value)


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (launch, {"out"}),
        (lambda x, **rest: None, {"out", "outputs"}),
        (lambda *args: None, set()),
        (dict.update, {"out", "outputs"}),  # nobody knows
    ],
)
def test_a_keyword_is_taken_by_name_or_with_all_others(function, taken):
    assert {name for name in ("out", "outputs") if takes_keyword(function, name)} == taken


class Pair(NamedTuple):
    x: np.ndarray
    out: np.ndarray


@pytest.mark.parametrize(("pair", "place"), [(Pair(ONE, TWO), "x[1]"), (Names(x=ONE, out=TWO), "x['out']")])
def test_an_attribute_of_a_named_tuple_or_a_dict_is_called_as_its_place(pair, place):
    (found,) = declared_arguments("outputs", ["x.out"], launch, (1, pair), {}, "test_it")
    assert found == (place, TWO)
    assert place in dict(leaves("x", pair))


def test_one_argument_under_two_names_is_refused():
    for again in ("out", -1):
        with pytest.raises(ValueError, match=r"out is named twice"):
            places((3, again), 2.0, "x", "y", "out")
    with pytest.raises(ValueError, match=r"argument 2\[0\] is named twice"):
        places((2, "2[0]"), *GRID, function=print)
