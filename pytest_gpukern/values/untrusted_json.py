"""Reads JSON that anybody may have written, and raises one clear error, safe to print, if it is bad."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib.util
import json
import math
import re
import sys
import types
import typing
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

if TYPE_CHECKING:
    from pathlib import Path


def _copied(package: types.ModuleType) -> Any:
    """Returns a copy of a package, in which nothing changes if somebody patches the original."""
    name = f"_gpukern_{package.__name__}"
    spec = importlib.util.spec_from_file_location(
        name, package.__file__, submodule_search_locations=list(package.__path__)
    )
    assert spec is not None
    assert spec.loader is not None
    copy = sys.modules[name] = importlib.util.module_from_spec(spec)  # where its parts look for each other
    spec.loader.exec_module(copy)
    return copy


own_json = _copied(json)
"""A copy of the standard library's `json` that no test can patch; our processes talk in it."""
_INCOMPLETE = json.JSONDecodeError, own_json.JSONDecodeError
"""The scanner in C raises the original's error, the rest of the copy its own."""

DEEPEST = 50
"""Most levels of nesting; our files need twelve at most, and code that walks them is recursive."""


class JsonError(ValueError):
    """Says what is wrong with a file's content, as the end of a sentence about the file."""


def decoded(content: bytes) -> Any:
    """Returns the value in UTF-8 JSON with unique keys, finite numbers in a float's range, bounded nesting.

    Raises:
        JsonError: it is anything else.
    """
    if not content.strip():
        raise JsonError("is empty")
    try:
        value = own_json.loads(
            content.decode(),
            object_pairs_hook=_members,
            parse_constant=_constant,
            parse_float=_fraction,
            parse_int=_whole,
        )
    except UnicodeDecodeError as error:
        raise JsonError(f"is not UTF-8 text: {error.reason}") from error
    except _INCOMPLETE as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"is not complete JSON: {error.msg} in {where}") from error
    except RecursionError as error:
        raise JsonError("is nested too deeply") from error
    if deep(value):
        raise JsonError("is nested too deeply")
    return value


def _constant(token: str) -> NoReturn:
    raise JsonError(f"holds {token}, which is not a JSON number")


def _fraction(token: str) -> float:
    value = float(token)
    return value if math.isfinite(value) else _out_of_range(token)


def _whole(token: str) -> int:
    # Python converts longer numbers not at all, or in a time that grows with the square of their digits.
    return int(token) if math.isfinite(float(token)) else _out_of_range(token)


def _out_of_range(token: str) -> NoReturn:
    raise JsonError(f"holds the number {token}, which is out of range")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise JsonError(f"holds the key {twice!r} twice in one object")
    return result


def deep(value: Any) -> bool:
    """Returns whether a value is nested too deeply for recursive code."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


class ShapeError(ValueError):
    """Says that a field is missing, unknown or of a wrong type; `where` is its path."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}" if where else problem)

    def inside(self, step: str) -> ShapeError:
        """Returns the same error with `step` in front of its path."""
        dot = "." if self.where and not self.where.startswith("[") else ""
        return ShapeError(f"{step}{dot}{self.where}", self.problem)


def built(value: object, kind: Any, *, null_floats: bool = True) -> Any:
    """Returns plain JSON as a value of `kind`, with every field checked.

    The model is the schema: dataclasses, msgspec's Structs, named tuples (a list in a file), enums, str, int,
    float, bool, dict, tuple, unions with None, and `Annotated` with a `msgspec.Meta`. Fields with a default
    may be missing. Unknown fields go into the field `extra`; if there is none, we refuse them.

    Args:
        value: a value as read from JSON.
        kind: the type that it should become.
        null_floats: whether any float may be null, as which a `Result` writes infinity.

    Raises:
        ShapeError: it does not fit.
    """
    return _reader(kind, null_floats)(value)


_MOST = 2**64
_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_Reader = Callable[[Any], Any]


def unexpected(wanted: str, found: object) -> ShapeError:
    """Returns the error for a value that is not what it should be."""
    return ShapeError("", f"expected {wanted}, found {bounded(repr(found), 60)}")


@functools.cache
def _reader(kind: Any, null_floats: bool) -> _Reader:
    """Returns the function that turns plain JSON into a type; we make it once for each type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        scalar = typing.get_origin(arguments[0]) is None
        return _constrained(_reader(arguments[0], null_floats), arguments[1], scalar=scalar)
    if origin in (types.UnionType, typing.Union):
        inner = [_reader(part, null_floats) for part in arguments if part is not type(None)]
        read = inner[0] if len(inner) == 1 else _of_several(inner)
        return lambda value: None if value is None else read(value)
    if origin in (dict, Mapping):
        return _of_object(*(_reader(part, null_floats) for part in arguments))
    if origin is tuple:
        size = None if arguments[-1] is Ellipsis else len(arguments)
        return _of_list(_reader(arguments[0], null_floats), size)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        return _of_fields(kind, null_floats)
    if hasattr(kind, "_fields"):
        return _of_named_tuple(kind, null_floats)
    if isinstance(kind, enum.EnumMeta):
        return _of_enum(kind)
    return _of_scalar(kind, nullable=kind is float and null_floats)


def _of_several(readers: Sequence[_Reader]) -> _Reader:
    """Returns a reader of what the first reader that takes a value makes of it."""

    def read(value: Any) -> Any:
        for reader in readers:
            with contextlib.suppress(ShapeError):
                return reader(value)
        raise unexpected("another kind of value", value)

    return read


def _of_scalar(kind: type, *, nullable: bool) -> _Reader:
    taken: Any = (int, float) if kind is float else kind

    def read(value: Any) -> Any:
        if value is None and nullable:
            return None
        if not isinstance(value, taken) or isinstance(value, bool) is not (kind is bool):
            raise unexpected(_SCALARS[kind], value)
        if kind is int and abs(value) >= _MOST:
            raise unexpected("a whole number of 64 bits", value)
        if kind is str:
            return sys.intern(value)  # thousands of results hold the same names and notes
        return float(value) if kind is float else value

    return read


def _of_enum(kind: enum.EnumMeta) -> _Reader:
    members: dict[Any, Any] = {member.value: member for member in kind}  # type: ignore[var-annotated]

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in members:
            raise unexpected(f"one of {', '.join(members)}", value)
        return members[value]

    return read


def _constrained(inner: _Reader, meta: Any, *, scalar: bool) -> _Reader:
    """Returns a reader that also holds a value to `ge`, `gt`, `min_length` and `pattern`."""

    def read(value: Any) -> Any:
        try:
            found = inner(value)
        except ShapeError as error:
            raise unexpected(meta.description, value) if scalar else error from None
        fits = (
            (meta.ge is None or found >= meta.ge)
            and (meta.gt is None or found > meta.gt)
            and (meta.min_length is None or len(found) >= meta.min_length)
            and (meta.pattern is None or re.search(meta.pattern, found) is not None)
        )
        if not fits:
            raise unexpected(meta.description, value)
        return found

    return read


def _of_object(name_of: _Reader, item_of: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise unexpected("an object", value)
        found = {}
        for name, item in value.items():
            try:
                known = name_of(name)
                found[known] = item_of(item)
            except ShapeError as error:
                raise error.inside(f"[{name!r}]") from None
        return found

    return read


def _of_list(item_of: _Reader, size: int | None) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or (size is not None and len(value) != size):
            raise unexpected("a list" if size is None else f"a list of {size}", value)
        found = []
        for index, item in enumerate(value):
            try:
                found.append(item_of(item))
            except ShapeError as error:
                raise error.inside(f"[{index}]") from None
        return tuple(found)

    return read


def _of_named_tuple(kind: Any, null_floats: bool) -> _Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = [_reader(hints[field], null_floats) for field in kind._fields]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise unexpected(f"a list of {len(readers)}", value)
        found = []
        for index, (item_of, item) in enumerate(zip(readers, value, strict=True)):
            try:
                found.append(item_of(item))
            except ShapeError as error:
                raise error.inside(f"[{index}]") from None
        return kind(*found)

    return read


def _of_fields(kind: Any, null_floats: bool) -> _Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        stored = {field.name: field.name for field in dataclasses.fields(kind)}
        missing = dataclasses.MISSING
        required = {
            field.name
            for field in dataclasses.fields(kind)
            if field.default is missing and field.default_factory is missing
        }
    else:
        names = kind.__struct_fields__
        stored = dict(zip(kind.__struct_encode_fields__, names, strict=True))
        required = set(names[: len(names) - len(kind.__struct_defaults__)])
    known = {
        name: (field, _reader(hints[field], null_floats)) for name, field in stored.items() if field != EXTRA
    }
    needed = {name for name, (field, _) in known.items() if field in required}
    keeps = EXTRA in stored.values()

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise unexpected("an object", value)
        found, unknown = {}, {}
        for name, item in value.items():
            if name in known:
                field, item_of = known[name]
                try:
                    found[field] = item_of(item)
                except ShapeError as error:
                    raise error.inside(name) from None
            elif keeps:
                unknown[name] = item
            else:
                raise ShapeError(name, "is not a known field")
        for name in known:
            if name in needed and name not in value:
                raise ShapeError(name, "is missing")
        if unknown:
            found[EXTRA] = unknown
        return kind(**found)

    return read


EXTRA = "extra"
"""The field of a model that takes unknown fields of a file."""


_LONGEST_WHERE = 200
_LONGEST_PROBLEM = 400


class FileError(Exception):
    """Says that a file cannot be read or written, in one line that is safe to print.

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
    r"""Returns a line with unprintable characters escaped as in JSON, such as `\u001b`.

    Unprintable are control characters, ends of lines, marks that change the direction of writing, and halves
    of surrogate pairs.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Does the same for a text of several lines, which stay lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def bounded(text: str, longest: int) -> str:
    """Returns a text of at most `longest` characters; a longer one loses its middle."""
    if len(text) <= longest:
        return text
    kept = (longest - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"


def _shown(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
