"""Reads JSON that anybody may have written: it can be worked with, or is one clear error, safe to print."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pathlib import Path


DEEPEST = 50
"""Levels of nesting; no file of this package needs more than twelve, and what follows them is recursive."""


class JsonError(ValueError):
    """What is wrong with a file's content, as the end of a sentence about the file."""


def decoded(content: bytes) -> Any:
    """The value in a file of UTF-8: keys are unique, numbers finite and in a float's range, nesting bounded.

    Raises:
        JsonError: it is anything else.
    """
    if not content.strip():
        raise JsonError("is empty")
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=_members,
            parse_constant=_constant,
            parse_float=_fraction,
            parse_int=_whole,
        )
    except UnicodeDecodeError as error:
        raise JsonError(f"is not UTF-8 text: {error.reason}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"is no complete JSON: {error.msg} in {where}") from error
    except RecursionError as error:
        raise JsonError("is nested too deeply") from error
    if _deep(value):
        raise JsonError("is nested too deeply")
    return value


def _constant(token: str) -> NoReturn:
    raise JsonError(f"holds {token}, which is no JSON number")


def _fraction(token: str) -> float:
    value = float(token)
    return value if math.isfinite(value) else _out_of_range(token)


def _whole(token: str) -> int:
    # Of more digits Python converts none, or in a time that grows with their square.
    return int(token) if math.isfinite(float(token)) else _out_of_range(token)


def _out_of_range(token: str) -> NoReturn:
    raise JsonError(f"holds the number {token}, which is out of range")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise JsonError(f"holds the key {twice!r} twice in one object")
    return result


def _deep(value: Any) -> bool:
    """Whether a value is nested deeper than what is recursive should have to follow."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


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


_LONGEST_WHERE = 200
_LONGEST_PROBLEM = 400


class FileError(Exception):
    """A file that cannot be read or written; its message is one line that a terminal can be sent.

    Attributes:
        path: the file.
        where: the field inside it, such as `results[3].case.id`, or None.
        problem: what is wrong.
        remedy: what to do about it.
    """

    def __init__(self, path: Path, problem: str, remedy: str, *, where: str | None = None) -> None:
        self.path, self.where, self.problem, self.remedy = path, where, problem, remedy
        field_text = f"{bounded(where, _LONGEST_WHERE)}: " if where else ""
        super().__init__(printable(f"{path}: {field_text}{bounded(problem, _LONGEST_PROBLEM)}. {remedy}."))


def printable(text: str) -> str:
    r"""A line whose unprintable characters are escaped as JSON does it: `\u001b` begins an escape sequence.

    Those are control characters, ends of lines, marks that turn the direction of writing, and halves of
    surrogate pairs.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def bounded(text: str, longest: int) -> str:
    """A text of so many characters at most: of a longer one the beginning and the end."""
    if len(text) <= longest:
        return text
    kept = (longest - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"


def _shown(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
