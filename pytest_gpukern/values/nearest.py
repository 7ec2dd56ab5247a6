"""Names what a wrong name was probably meant to be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_FEWEST_LETTERS = 3
"""Letters of a name from which we take it for the beginning of another."""


def nearest(name: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """Returns the known name that is most like a wrong one, or None if none is."""
    import difflib  # rarely needed, and this module is loaded in every run of pytest

    known = list(known)
    begun = [other for other in known if len(name) >= _FEWEST_LETTERS and other.startswith(name)]
    return next(iter([*begun, *difflib.get_close_matches(name, known, 1, alike)]), None)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns `; did you mean 'float32'?` to put behind a wrong name, or nothing."""
    near = nearest(str(name), known)
    return "" if near is None else f"; did you mean {near!r}?"


def refusing_unknown(
    error: type[Exception],
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Returns a decorator that raises this error for keywords that a function does not take.

    Python names the nearest from 3.13 on, and only of those that are spelled alike.
    """

    def decorate(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        takes = [name for name in inspect.signature(function).parameters if name != "self"]
        whose = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            __tracebackhide__ = True
            for name in kwargs:
                if name not in takes:
                    near = did_you_mean(name, takes) or f"; it takes {', '.join(takes)}"
                    raise error(f"{whose} has no argument {name!r}{near}")
            return function(*args, **kwargs)

        return checked

    return decorate
