"""Finds the arrays of a call: arguments that a marker names, items of containers, captured variables."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from pytest_gpukern.backends.foreign_array import Argument, leaves, may_be_array, users_array
from pytest_gpukern.values.nearest import did_you_mean

_PACKAGE = __name__.partition(".")[0]


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


_MOST_REACHED = 1000
"""We look into so many objects at most, and into no container with more items: it holds a program's data."""


def captured_by(value: Any, place: str = "") -> Iterator[Argument]:
    """Yields what a callable or another object can reach, each with its place.

    We look into containers, functions and objects that it reaches, but not into what a library defines.
    """
    todo, seen = [Argument(place, value)], {id(value)}
    for one in todo:  # which grows
        for reached in held_by(*one):
            if id(reached.value) not in seen and len(seen) < _MOST_REACHED:
                seen.add(id(reached.value))
                todo += [] if _is_opaque(reached.value) else [reached]
                yield reached


def returned_by(returned: Any) -> Iterator[Argument]:
    """Yields what a call returned, and what attributes hold where it is an object of the user's own class."""
    for leaf in leaves("returned", returned):
        value, kind = leaf.value, type(leaf.value)
        yield leaf
        if kind is SimpleNamespace or not (callable(value) or may_be_array(value) or _is_of_a_library(kind)):
            slots = (name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))
            held = {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}
            for name, attribute in held.items():
                yield from leaves(f"{leaf.place}.{name}", attribute)


def held_by(place: str, value: Any) -> Iterator[Argument]:
    """Yields what an object holds itself: items, attributes, also of its class and of a method's object; the
    arguments of a partial; a function's closure, defaults, attributes, and the globals that it names."""
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (Argument(f"{place}[{key!r}]", item) for key, item in items)
    if isinstance(value, functools.partial):
        yield from (Argument(f"partial argument {n}", held) for n, held in enumerate(value.args))
        yield from map(Argument._make, value.keywords.items())
        value = value.func
    value = _python_function(value, inspect.getattr_static)
    if inspect.ismethod(value):
        yield Argument(place or "self", value.__self__)
        yield from held_by(place or "self", value.__self__)
        value = value.__func__
    named = dict(getattr(value, "__dict__", {}))
    for kind in () if inspect.isfunction(value) or _is_of_a_library(type(value)) else type(value).__mro__:
        named = {**({} if _is_of_a_library(kind) else vars(kind)), **named}
    for name, held in named.items():
        if inspect.ismemberdescriptor(held) and hasattr(value, name):
            held = getattr(value, name)
        yield Argument(f"{place}.{name}".removeprefix("."), getattr(held, "__func__", held))
    if inspect.isfunction(value):
        yield from _named_in(value)


def _python_function(value: Any, look_up: Callable[..., Any]) -> Any:
    """Returns the Python function of a kernel of Numba, or of what launches it; any other value as it is."""
    for launched in ("dispatcher", "_dispatcher"):  # the second is numba-cuda-mlir's
        value = look_up(look_up(value, launched, None), "py_func", value)
    return look_up(value, "py_func", value)


def _named_in(function: Any) -> Iterator[Argument]:
    names = function.__globals__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            yield Argument(name, cell.cell_contents)
    codes = [function.__code__]
    for code in codes:  # a lambda within is reached, too
        codes += filter(inspect.iscode, code.co_consts)
        for name in filter(names.__contains__, code.co_names):
            yield Argument(name, names[name])
            if inspect.ismodule(names[name]):
                there = vars(names[name])
                yield from (
                    Argument(f"{name}.{each}", there[each]) for each in code.co_names if each in there
                )
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from (Argument("default", held) for held in defaults)


def _is_opaque(value: Any) -> bool:
    """Says whether we look into nothing of a value: a module, an array, what a library defines."""
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        return len(value) > _MOST_REACHED
    if isinstance(value, (functools.partial, SimpleNamespace)):
        return False
    if inspect.isfunction(inspect.getattr_static(value, "py_func", None)):
        return False
    if inspect.ismodule(value) or may_be_array(value):
        return True
    return _is_of_a_library(value if inspect.isroutine(value) or inspect.isclass(value) else type(value))


def _is_of_a_library(owner: Any) -> bool:
    """Says whether a class or a function is not the user's."""
    name = getattr(owner, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top == _PACKAGE or "-packages" in file


_STEP = re.compile(r"\[([^\[\]]+)\]|\.([^\W\d]\w*)")
_PLACE = re.compile(rf"(-?\d+|[^\W\d]\w*)((?:{_STEP.pattern})*)")


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
    may follow, or an attribute; without one, all arrays in a container or a dataclass are meant.

    Raises:
        DeclarationError: the call has no such argument, or one is named twice.
    """
    there, arguments = arguments_of(function, args, kwargs), list[Argument]()
    for name in declared:
        argument = _argument(name, there, len(args), _bound(function) | _launched(there))
        if argument is None:
            why = _why_not_there(name, function, there, option)
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
    name: int | str, there: Sequence[Argument], positional: int, others: Mapping[str, Argument]
) -> Argument | None:
    """Returns the argument of a position or name, or the item at a place in it; None if there is none.

    The first arguments of a call are the `positional` ones. By name, `others` may be meant, too.
    """
    parts = _PLACE.fullmatch(str(name))
    if parts is None:
        return None
    base, steps = parts.group(1, 2)
    try:
        if base.removeprefix("-").isdecimal():
            argument = there[:positional][int(base)]
        else:
            argument = {**others, **{each.place: each for each in reversed(there)}}[base]
    except LookupError:
        return None
    for text, attribute in _STEP.findall(steps):
        place, value = argument
        try:
            if attribute:
                argument = Argument(f"{place}{_step_to(value, attribute)}", getattr(value, attribute))
                continue
            step = ast.literal_eval(text)
            if isinstance(value, (tuple, list)):
                step = range(len(value))[step]
            elif not isinstance(value, dict):
                return None
            argument = Argument(f"{place}[{step!r}]", value[step])
        except (AttributeError, ValueError, SyntaxError, LookupError, TypeError):
            return None
    return argument


def _step_to(value: Any, attribute: str) -> str:
    """Returns the step to what an attribute holds; of a named tuple or a dict it is that of `leaves`."""
    if isinstance(value, tuple) and attribute in (fields := getattr(value, "_fields", ())):
        return f"[{fields.index(attribute)}]"
    return f"[{attribute!r}]" if isinstance(value, dict) and attribute in value else f".{attribute}"


def _bound(function: Any) -> dict[str, Argument]:
    """Returns what is bound to a callable: the user's object as `self`, and keywords of a partial."""
    if isinstance(function, functools.partial):
        named = {name: Argument(name, held) for name, held in function.keywords.items()}
        return _bound(function.func) | named
    owner = getattr(function, "__self__", function)
    opaque = inspect.isroutine(owner) or inspect.ismodule(owner) or _is_of_a_library(type(owner))
    return {} if opaque else {"self": Argument("self", owner)}


def _launched(there: Sequence[Argument]) -> dict[str, Argument]:
    """Returns what Warp's `launch(kernel, inputs=…, outputs=…)` hands over, by the kernel's parameters."""
    given = dict(there)
    function = getattr(given.get("kernel"), "func", None)
    names = inspect.signature(function).parameters if inspect.isfunction(function) else ()
    handed = (item for place in ("inputs", "outputs") for item in held_by(place, given.get(place)))
    return dict(zip(names, handed, strict=False))


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
    function = _python_function(function, getattr)
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # no Python function
        return []


def _why_not_there(
    name: int | str, function: Callable[..., Any], there: Sequence[Argument], option: str
) -> str:
    """Says why a call has no such argument, and what to write instead."""
    code = getattr(function, "__code__", None)
    if not there or (code and name in (*code.co_freevars, *code.co_names)):
        whose = "a lambda" if getattr(code, "co_name", "") == "<lambda>" else "a call without arguments"
        return f"{whose} hides its arrays: gpu_benchmark(kernel[grid, block], x, out)"
    inside = [leaf.place for each in there for leaf in leaves(*each) if users_array(leaf.value) is not None]
    places = dict.fromkeys((*(place for place, _ in there), *inside, *_bound(function), *_launched(there)))
    near = did_you_mean(name, places)
    if inside and not near:
        last = inside[-1].removeprefix("argument ")
        near = f", such as {option}={int(last) if last.isdecimal() else last!r}"
    remedy = f"give one, or a position from 0 on{near}"
    return f"the call has no such argument; it has {', '.join(places)}: {remedy}"
