"""Calls a function with those of the values at hand that it names, as pytest does with fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Point = dict[str, Any]
Names = Mapping[str, Any]


class ProblemError(Exception):
    """A problem, variant or axis was declared or selected in a way that cannot work."""


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


@dataclass(frozen=True)
class CallAt:
    """Calls what a problem declares with what it names of a point.

    Attributes:
        dtypes: of the problem; the first is that of a point which names none.
    """

    dtypes: tuple[str, ...] = ()

    def named(self, point: Point) -> Point:
        """What is there by name at a point: its axes, and `dtype` where there are several."""
        return {"dtype": self.dtypes[0], **point} if self.dtypes else dict(point)

    def __call__(self, point: Point, function: Callable[..., Any], more: Names | None = None) -> Any:
        """Calls `function` with those that it names of the point and of what there is `more`.

        Raises:
            ProblemError: it names something that is not there.
        """
        return call_by_name(function, {**self.named(point), **(more or {})})
