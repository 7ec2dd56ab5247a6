"""Whether plain JSON has the shape of a dataclass, with the path of the first field that has not."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any

_MOST = 2**63


class ShapeError(Exception):
    """A field that is missing, unknown or of another type; `where` is its path, `problem` says what."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}")


def check_shape(value: object, kind: Any, where: str, *, null_floats: bool = True) -> None:
    """Checks a value against a type: a dataclass, an enum, str, int, float, bool, dict, tuple or a union.

    Fields with a default may be missing.

    Args:
        value: as read from JSON.
        kind: the type that it should become.
        where: path of the value, for the error.
        null_floats: whether a float may be null, which is how a `Result` writes infinity.

    Raises:
        ShapeError: it does not fit.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin in (types.UnionType, typing.Union):
        if value is not None:
            check_shape(
                value,
                next(part for part in arguments if part is not type(None)),
                where,
                null_floats=null_floats,
            )
    elif origin is dict:
        for name, item in _expect(value, dict, where).items():
            check_shape(item, arguments[1], f"{where}[{name!r}]", null_floats=null_floats)
    elif origin is tuple:
        items = _expect(value, list, where)
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise ShapeError(where, f"has {len(items)} entries instead of {len(arguments)}")
        for index, item in enumerate(items):
            check_shape(item, arguments[0], f"{where}[{index}]", null_floats=null_floats)
    elif dataclasses.is_dataclass(kind):
        _check_fields(_expect(value, dict, where), kind, where, null_floats)
    elif isinstance(kind, enum.EnumMeta):
        allowed = [member.value for member in kind]  # type: ignore[var-annotated]
        if value not in allowed:
            raise ShapeError(where, f"is {value!r}, none of {', '.join(map(str, allowed))}")
    elif kind is float:
        null = value is None and null_floats
        if not null and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ShapeError(where, f"is {value!r} instead of a number")
    elif kind is int and isinstance(value, int) and abs(value) > _MOST:
        raise ShapeError(where, "is a whole number of more than 64 bits")
    elif isinstance(value, bool) is not (kind is bool):
        raise ShapeError(where, f"is {value!r} instead of {kind.__name__}")
    else:
        _expect(value, kind, where)


def _check_fields(value: dict[str, Any], kind: Any, where: str, null_floats: bool) -> None:
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if name in value:
            check_shape(value[name], hints[name], f"{where}.{name}", null_floats=null_floats)
        elif required:
            raise ShapeError(f"{where}.{name}", "is missing")
    for name in value:
        if name not in fields:
            raise ShapeError(f"{where}.{name}", "is no known field")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(value: object, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise ShapeError(where, f"is {value!r:.60} instead of {kind.__name__}")
    return value
