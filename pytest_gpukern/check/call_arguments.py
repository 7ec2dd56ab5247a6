"""Finds the arrays of a call: arguments that a marker names, items of containers, captured variables."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_gpukern.backends.foreign_array import Argument, leaves, users_array
from pytest_gpukern.values.nearest import did_you_mean


class DeclarationError(ValueError):
    """Says that a test's call does not fit what its marker declares, or cannot be called at all."""


def arguments_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Argument]:
    """Returns each argument of a call, by the name of its parameter as far as that is known."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    leading = itertools.takewhile(lambda parameter: parameter.kind in by_position, _parameters(function))
    names = [parameter.name for parameter in leading][: len(args)]
    places = (*names, *(f"argument {n}" for n in range(len(names), len(args))))
    return [*map(Argument, places, args), *map(Argument._make, kwargs.items())]


def captured_by(function: Any) -> Iterator[Any]:
    """Yields what a callable can reach: closure variables, globals that it names, the arguments of a partial,
    and the object of a method with its attributes."""
    if isinstance(function, functools.partial):
        yield from function.args
        yield from function.keywords.values()
        yield from captured_by(function.func)
        return
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield owner
        yield from getattr(owner, "__dict__", {}).values()
    function = getattr(function, "__func__", function)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in code.co_names if code is not None else ():
        if name in names:
            yield names[name]


_PLACE = re.compile(r"(-?\d+|[^\W\d]\w*)((?:\[[^\[\]]+\])*)")


def declared_arguments(
    option: str,
    declared: Sequence[int | str],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    where: str,
) -> list[Argument]:
    """Returns the arguments that a marker's option names, by position from either end or by name.

    The name of a positional argument works if the function has a signature. A place in a tuple, list or dict
    may follow; without one, all arrays in the container are meant.

    Raises:
        DeclarationError: the call has no such argument, or one is named twice.
    """
    arguments: list[Argument] = []
    for name in declared:
        argument = _argument(name, function, args, kwargs)
        if argument is None:
            why = _why_not_there(option, name, function, args, kwargs)
            raise DeclarationError(f"{where}: gpu_benchmark({option}={name!r}): {why}")
        inside = [leaf for leaf in leaves(*argument) if users_array(leaf.value) is not None]
        for named in inside or [argument]:
            if any(named.place == other.place for other in arguments):
                raise DeclarationError(
                    f"{where}: gpu_benchmark({option}={tuple(declared)!r}): {named.place} is named twice"
                )
            arguments.append(named)
    return arguments


def _argument(
    name: int | str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Argument | None:
    """Returns the argument of a position or name, or the item at a place in it; None if there is none."""
    parts = _PLACE.fullmatch(str(name))
    if parts is None:
        return None
    base, steps = parts.groups()
    there = arguments_of(function, args, kwargs)
    if base.removeprefix("-").isdecimal():
        if not -len(args) <= int(base) < len(args):
            return None
        argument = there[int(base) % len(args)]
    else:
        named = next((argument for argument in there if argument.place == base), None)
        if named is None:
            return None
        argument = named
    for text in re.findall(r"\[([^\[\]]+)\]", steps):
        place, value = argument
        try:
            step = ast.literal_eval(text)
            if isinstance(value, (tuple, list)):
                argument = Argument(f"{place}[{range(len(value))[step]}]", value[step])
            elif isinstance(value, dict):
                argument = Argument(f"{place}[{step!r}]", value[step])
            else:
                return None
        except (ValueError, SyntaxError, LookupError, TypeError):
            return None
    return argument


def takes_keyword(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a call may be given this keyword, as far as the signature is known."""
    parameters = _parameters(function)
    return not parameters or any(
        parameter.name == name or parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns a callable's parameters; none if it has no signature.

    For Numba's `kernel[grid, block]` we read the signature of its Python function. Triton's `kernel[grid]` is
    a closure over the kernel, or, in its interpreter, an object; both know the names.
    """
    if (getattr(function, "__module__", None) or "").startswith("triton."):
        cells = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
        kernels = (owner for owner in (function, *cells) if hasattr(owner, "arg_names"))
        for kernel in kernels:
            options = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
            positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
            return [*(inspect.Parameter(name, positional) for name in kernel.arg_names), options]
    dispatcher = getattr(function, "dispatcher", function)
    function = getattr(dispatcher, "py_func", function)
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # no Python function
        return []


def _why_not_there(
    option: str, name: int | str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Says why a call has no such argument, and what to write instead."""
    code, inputs = getattr(function, "__code__", None), getattr(function, "nin", None)  # of a ufunc
    if not (args or kwargs) or (code and name in (*code.co_freevars, *code.co_names)):
        whose = "a lambda" if getattr(code, "co_name", "") == "<lambda>" else "a call without arguments"
        return f"{whose} hides its arrays: gpu_benchmark(kernel[grid, block], x, out)"
    arguments = arguments_of(function, args, kwargs)
    names = [place for place, _ in arguments if place.isidentifier()]
    remedy = f"give a position, counted from 0, or a name{did_you_mean(name, names)}"
    if str(name).isidentifier() and (inputs or not names):
        remedy = "pass it behind the inputs and " * (len(args) == inputs)
        remedy += f"write {option}={inputs or len(args) - 1}"
    last = f" (0 to {len(args) - 1})" if len(args) > 1 else " (0)" if args else ""
    there = f"{len(args)} positional{last}"
    if names:
        there += f", and the names {', '.join(names)}"
    inside = [
        leaf.place
        for place, value in arguments
        for leaf in leaves(place, value)
        if leaf.place != place and users_array(leaf.value) is not None
    ]
    if inside:
        there += f", with {', '.join(inside)}"
    return f"the call has no such argument; it has {there}: {remedy}"
