"""What a launch of an allocating variant returned: its type, form and memory, before any value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError, diagnose_aliasing, diagnose_form

if TYPE_CHECKING:
    from pytest_gpukern.arrays.memory import Span
    from pytest_gpukern.backends.backend import Workspace
    from pytest_gpukern.problems.problem import Output


def adopt_returned(
    workspace: Workspace, specs: Mapping[str, Output], returned: Any, *, backend: str
) -> dict[str, Span]:
    """Has the workspace take the arrays that a launch returned; returns the addresses of each.

    Args:
        workspace: of the case.
        specs: the declared outputs.
        returned: one array; a tuple in the order of the outputs; or name → array.
        backend: name of the variant's.

    Raises:
        IncorrectError: type, shape, dtype or order is not what is declared, or an array shares memory with an
            input or another one.
    """
    values = _by_name(specs, returned)
    for name, spec in specs.items():
        form = workspace.adopt(name, values.get(name))
        if form is None:
            raise IncorrectError(
                Diagnosis(
                    Fault.WRONG_TYPE,
                    f"{name}: {Fault.WRONG_TYPE}: the launch returned {_named(type(values.get(name)))}, "
                    f"which is no array of the backend {backend}: that is {_named(workspace.array_type)} "
                    "itself, computed, where the launch ran",
                )
            )
        diagnosis = diagnose_form(name, form.shape, form.dtype, spec, form.strides)
        if diagnosis is not None:
            raise IncorrectError(diagnosis)
    spans = {name: workspace.returned_span(name) for name in specs}
    diagnosis = diagnose_aliasing(spans, workspace.input_spans(), {})
    if diagnosis is not None:
        raise IncorrectError(diagnosis)
    return spans


def _by_name(specs: Mapping[str, Output], returned: Any) -> dict[str, Any]:
    """Name → array of what a launch returned."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if not (isinstance(returned, tuple) and len(specs) > 1):
        return dict.fromkeys(list(specs)[:1], returned)
    if len(returned) != len(specs):
        raise IncorrectError(
            Diagnosis(
                Fault.WRONG_TYPE,
                f"{Fault.WRONG_TYPE}: the launch returned {len(returned)} arrays for "
                f"{len(specs)} outputs: {', '.join(specs)}",
            )
        )
    return dict(zip(specs, returned, strict=True))


def _named(kind: type) -> str:
    """A type with its module, since several libraries have an `ndarray`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
