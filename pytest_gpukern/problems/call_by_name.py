"""Calls a function with those of the values at hand that it names, as pytest does with fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Point = dict[str, Any]
Names = Mapping[str, Any]


class ProblemError(Exception):
    """Says that a problem, variant or axis was declared or selected in a way that cannot work."""


def call_by_name(function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
    """Calls `function` with those of `available` that it names.

    Raises:
        ProblemError: it names something that is not there; the message lists what is.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**available)
    arguments = {}
    for parameter in parameters:
        if parameter.name in available:
            arguments[parameter.name] = available[parameter.name]
        elif parameter.default is parameter.empty:
            raise ProblemError(
                f"{getattr(function, '__name__', function)} names {parameter.name!r}; "
                f"there is {', '.join(sorted(available))}"
            )
    return function(**arguments)
