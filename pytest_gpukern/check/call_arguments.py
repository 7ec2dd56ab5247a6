"""The arrays that a call is given or returns, by the names that a message calls them, and which it writes."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class Argument(NamedTuple):
    """One argument of a call.

    Attributes:
        place: where the call has it: `argument 2`, counted from 0, or the name that it is passed by.
        value: what is passed.
    """

    place: str
    value: Any


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Argument]:
    """Each argument of a call."""
    return [
        *(Argument(f"argument {n}", value) for n, value in enumerate(args)),
        *map(Argument._make, kwargs.items()),
    ]


def captured_by(function: Any) -> Iterator[Any]:
    """What a callable has at hand beside its arguments: variables that it closes over, globals that it names,
    what a partial or a method is bound to, and the attributes of that."""
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


def leaves(place: str, value: Any) -> Iterator[Argument]:
    """A value, or what the tuple, list or dict holds that it is, as a CuPy kernel's arguments; by place."""
    if isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            yield from leaves(f"{place}[{number}]", each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(f"{place}[{key!r}]", each)
    else:
        yield Argument(place, value)


def declared_outputs(
    outputs: Sequence[int | str],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    where: str,
) -> list[Argument]:
    """The arguments that a marker's `outputs` names, each once.

    Args:
        outputs: positions, counted from 0 or, negative, from the end, and names; one that is passed by
            position is found where the function tells its signature.
        function: what is called.
        args: its positional arguments.
        kwargs: its named arguments.
        where: the test.

    Raises:
        ValueError: the call has no such argument, or one is named twice.
    """
    found: list[Argument] = []
    for output in outputs:
        at = output if isinstance(output, int) else _position(function, output, len(args))
        if isinstance(output, str) and output in kwargs:
            argument = Argument(output, kwargs[output])
        elif at is not None and -len(args) <= at < len(args):
            argument = Argument(f"argument {at % len(args)}", args[at])
        else:
            raise ValueError(
                f"{where}: gpu_benchmark(outputs={output!r}): the call has no such argument; it has "
                f"{_what_there_is(args, kwargs)}: give a position, counted from 0, or the name that an array "
                "is passed by"
            )
        if any(argument.place == other.place for other in found):
            raise ValueError(
                f"{where}: gpu_benchmark(outputs={tuple(outputs)!r}): {argument.place} is named twice"
            )
        found.append(argument)
    return found


def _position(function: Callable[..., Any], name: str, given: int) -> int | None:
    """The position of a parameter that is passed by position, where that can be told."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # no Python function
        return None
    for position, parameter in enumerate(parameters[:given]):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return None
        if parameter.name == name:
            return position
    return None


def _what_there_is(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    last = f", 0 to {len(args) - 1}" if len(args) > 1 else ", 0" if args else ""
    positional = f"{len(args)} positional{last}"
    return f"{positional}, and {', '.join(kwargs)}" if kwargs else positional
