"""Registers the variants of a problem, and refuses what they declare wrongly or twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_gpukern.problems.axes import Axes
from pytest_gpukern.problems.call_by_name import Names, ProblemError, takes_by_name, users_line
from pytest_gpukern.values.backend_table import BACKENDS
from pytest_gpukern.values.nearest import did_you_mean
from pytest_gpukern.values.note import NotRun
from pytest_gpukern.values.result import Determinism

SCOPES = ("kernel", "transfer", "end_to_end", "launch")
"""What we time: work on the device, copies in and out, both, or what the call costs the host."""
Prepare = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Variant:
    """Describes one implementation of a problem on one backend.

    `Problem.variant` and `Problem.wrong` explain what is not listed here.

    Attributes:
        name: unique within problem and backend.
        backend: one of `values.backend_table.BACKENDS`.
        prepare: the decorated function; None if the variant's file could not be imported.
        unavailable: why the file could not be imported, in words.
        declared_at: file and line of the decorator.
    """

    name: str = ""
    backend: str = ""
    prepare: Prepare | None = None
    parameters: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    max_size: dict[str, float] = field(default_factory=dict)
    min_size: dict[str, float] = field(default_factory=dict)
    allocates: bool = False
    needs_gpu: str | None = None
    scopes: tuple[str, ...] | None = None
    determinism: str | None = None
    host_data: bool = False
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    at: dict[str, Any] = field(default_factory=dict)
    expected_fault: str | None = None
    detected_by: str | None = None
    unavailable: str | None = None
    declared_at: str = field(default="", compare=False)

    @property
    def is_broken(self) -> bool:
        return self.expected_fault is not None or self.detected_by is not None

    @property
    def label(self) -> str:
        """`backend.name`, unique within the problem."""
        return f"{self.backend}.{self.name}"

    def limit_exceeded(self, point: Names) -> str | None:
        for axis, largest in self.max_size.items():
            if point[axis] > largest:
                return NotRun("too large", f"{axis}={point[axis]}, but its max_size is {largest:g}")
        for axis, smallest in self.min_size.items():
            if point[axis] < smallest:
                return NotRun("too small", f"{axis}={point[axis]}, but its min_size is {smallest:g}")
        return None


class Variants:
    """Holds the variants of a problem by label, and refuses those that name what it does not have.

    Attributes:
        right: label → variant.
        broken: label → variant that must be rejected.
    """

    def __init__(
        self, problem: str, axes: Axes, layouts: Mapping[str, tuple[str, ...]], dtypes: tuple[str, ...]
    ) -> None:
        self._problem, self._axes, self._layouts, self._dtypes = problem, axes, layouts, dtypes
        self.right: dict[str, Variant] = {}
        self.broken: dict[str, Variant] = {}

    def add(self, variant: Variant) -> None:
        """Adds a variant; raises ProblemError if its name is taken or it names what the problem lacks."""
        home = self.broken if variant.is_broken else self.right
        present = home.get(variant.label)
        # If the import of a file failed half-way, its unavailable variants replace the registered ones.
        if present is not None and present.prepare is not None and variant.prepare is not None:
            old, new = present.prepare.__code__, variant.prepare.__code__
            same_code = (new.co_filename, new.co_firstlineno) == (old.co_filename, old.co_firstlineno)
            if not same_code:  # the same file imported twice, under two names, is no clash
                raise ProblemError(f"problem {self._problem!r} has two variants named {variant.label!r}")
        self._refuse_unknown(variant)
        home[variant.label] = variant

    def _refuse_unknown(self, variant: Variant) -> None:
        whose = f"variant {variant.label!r}"
        for what, given, known in (
            ("backend", (variant.backend,), BACKENDS),
            ("determinism", filter(None, (variant.determinism,)), Determinism),
            ("further dtype", variant.dtypes, self._dtypes[1:]),
            ("layout", variant.layouts, self._layouts),
            ("scope", variant.scopes or (), SCOPES),
        ):
            refuse_unknown(whose, what, given, known)
        for name in variant.parameters:
            if name in self._axes or name == "stream" or (name == "dtype" and self._dtypes):
                raise ProblemError(
                    f"{whose}: the parameter {name!r} has the name of an axis, the stream or the dtype; "
                    "rename it"
                )
        at = {**self._axes.smoke_point, **variant.at}
        if at.keys() != self._axes.keys() or not self._axes.declare(at):
            raise ProblemError(f"{whose}: at={variant.at!r} is not on the axes: {self._axes}")


@dataclass(frozen=True)
class Registration:
    """Registers the function that it decorates as a variant."""

    decorator: Callable[..., Any]
    variants: Variants
    declared: Variant
    parameters: Mapping[str, Sequence[Any]]

    def __call__(self, prepare: Prepare) -> Prepare:
        if not (hasattr(prepare, "__code__") and hasattr(prepare, "__name__")):
            remedy = "decorate a function, and give it what differs as a parameter with values to try"
            raise ProblemError(f"{prepare!r:.60} is registered as a variant, but is no function: {remedy}")
        declared = self._named(prepare.__name__, takes_by_name(prepare))
        self.variants.add(replace(declared, prepare=prepare, declared_at=users_line()))
        return prepare

    def unavailable(self, name: str, takes: tuple[str, ...] | None, reason: str, place: str) -> None:
        self.variants.add(replace(self._named(name, takes), unavailable=reason, declared_at=place))

    def _named(self, name: str, takes: tuple[str, ...] | None) -> Variant:
        """Returns the variant of a function that takes these names, or any name; refuses other parameters."""
        for parameter, values in self.parameters.items():
            if not isinstance(values, (tuple, list, range)):
                raise ProblemError(
                    f"variant {name!r}: {parameter}={values!r} is neither an argument of a variant nor a "
                    f"parameter with values to try, such as {parameter}=(1, 2)"
                )
            if not values:
                raise ProblemError(
                    f"variant {name!r}: {parameter}={values!r} has no value to try, so it has no case: give "
                    "one, or drop the variant"
                )
            if takes is not None and parameter not in takes:
                known = inspect.signature(self.decorator).parameters.values()
                arguments = [argument.name for argument in known if argument.kind is argument.KEYWORD_ONLY]
                raise ProblemError(
                    f"variant {name!r}: {parameter}={values!r} is neither an argument of the decorator "
                    f"({', '.join(arguments)}) nor a parameter of {name} ({', '.join(takes) or 'none'})"
                    f"{did_you_mean(parameter, (*arguments, *takes))}"
                )
        parameters = {parameter: tuple(values) for parameter, values in self.parameters.items()}
        return replace(self.declared, name=name, parameters=parameters)


def refuse_unknown(whose: str, what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises ProblemError, which begins with `whose`, for a given name that is not known."""
    known = [*known]  # an enumeration of Python 3.11 refuses to be asked for other words
    for name in given:
        if name not in known:
            names = ", ".join(known) or "the problem's, which declares none"
            raise ProblemError(f"{whose}: {what} {name!r} is none of {names}{did_you_mean(name, known)}")
