"""Names what a wrong name was probably meant to be."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

Taken = ParamSpec("Taken")
Returned = TypeVar("Returned")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns `; did you mean 'float32'?` to put behind a wrong name, or nothing where no name is like it."""
    names, wrong = list(known), str(name)
    begun = [other for other in names if len(wrong) > 2 and other.startswith(wrong)]
    near = [*begun, *difflib.get_close_matches(wrong, names, 1, cutoff=0.75)]
    return f"; did you mean {near[0]!r}?" if near else ""


def refusing_unknown(function: Callable[Taken, Returned]) -> Callable[Taken, Returned]:
    """Makes a function refuse a keyword that it does not take with the nearest; Python does from 3.13 on."""
    takes = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*args: Taken.args, **kwargs: Taken.kwargs) -> Returned:
        __tracebackhide__ = True
        for name in kwargs:
            if name not in takes:
                near = did_you_mean(name, takes) or f"; it takes {', '.join(takes).removeprefix('self, ')}"
                raise TypeError(f"{function.__qualname__} has no argument {name!r}{near}")
        return function(*args, **kwargs)

    return checked
