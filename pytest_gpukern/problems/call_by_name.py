"""Calls a function with the values that its parameters name, as pytest does with fixtures."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Point = dict[str, Any]
Names = Mapping[str, Any]


class ProblemError(Exception):
    """Says that a problem, variant or axis is declared or selected in a way that cannot work.

    Attributes:
        place: file and line of the mistake; by default the user's line that is running.
    """

    def __init__(self, message: str, place: str | None = None) -> None:
        super().__init__(message)
        self.place = place or users_line()

    @property
    def located(self) -> str:
        """The message with its place in front."""
        return f"{self.place}: {self}"


def users_line(*, in_module: bool = False) -> str:
    """Returns file and line of the innermost frame of neither this package nor pytest-benchmark, such as
    `test_exp.py:12`.

    With `in_module`, of the innermost that is no function's: the same however often a module is imported.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith(("pytest_gpukern.", "pytest_benchmark."))
        or (in_module and frame.f_code.co_name != "<module>")
    ):
        frame = frame.f_back
    return place_of(frame.f_code.co_filename, frame.f_lineno)


def place_of(path: str, line: int) -> str:
    """Returns a file and line as messages show them, relative to the working folder if it is inside."""
    shown = os.path.relpath(path)
    return f"{path if shown.startswith('..') else shown}:{line}"


def takes_by_name(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Returns the names of a function's parameters; None if it takes any name.

    Raises:
        ProblemError: nobody can say what the function takes, as of some that are compiled.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ProblemError(f"{function!r:.60} does not tell its parameters: wrap it in a lambda") from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


def call_by_name(function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
    """Calls `function` with each `available` value that it names.

    Raises:
        ProblemError: a parameter is not available; the message lists what is.
    """
    if takes_by_name(function) is None:
        return function(**available)
    positional, named = [], {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in available and parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(available[parameter.name])
        elif parameter.name in available:
            named[parameter.name] = available[parameter.name]
        elif parameter.default is parameter.empty:
            code = getattr(function, "__code__", None)
            raise ProblemError(
                f"{getattr(function, '__name__', function)} takes {parameter.name!r}, which is not "
                f"available; it may take {', '.join(sorted(available))}",
                code and place_of(code.co_filename, code.co_firstlineno),
            )
    return function(*positional, **named)
