"""Reads JSON that anybody may have written, and raises one clear error, safe to print, if it is bad."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib.util
import itertools
import json
import math
import sys
import types
import typing
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from pytest_gpukern.values.garbage import uncollected


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

if TYPE_CHECKING:
    Figure = float
    Json = Any
else:
    Figure = float | None
    """A number; None where it was not finite, for which JSON has no word."""
    Json = bool | int | float | str | None
    """A value that a user chose, such as that of an axis, up to six levels deep."""
    for _ in range(6):
        Json = bool | int | float | str | list[Json] | dict[str, Json] | None


_MOST_DIGITS = 20
"""Of a whole number of 64 bits, with its sign."""


class ContentError(ValueError):
    """Says what is wrong with the content of a file.

    Attributes:
        problem: what is wrong, as the end of a sentence about the field or the file.
        where: path of the field; empty where it is about the whole content.
        remedy: what to do about it, where that is another than for any damage.
    """

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        self.problem, self.where, self.remedy = problem, where, remedy
        super().__init__(f"{where}: {problem}" if where else problem)

    def inside(self, step: str) -> ContentError:
        """Returns the same error with `step` in front of its path."""
        dot = "." if self.where and not self.where.startswith("[") else ""
        return ContentError(self.problem, where=f"{step}{dot}{self.where}", remedy=self.remedy)

    def of_file(self, path: Path, remedy: str) -> FileError:
        """Returns the error about a file; `remedy` is for any damage."""
        return FileError(path, self.problem, self.remedy or remedy, where=self.where or None)


def decoded(content: bytes) -> Any:
    """Returns the value in UTF-8 JSON with unique keys, finite numbers in a float's range, bounded nesting.

    Raises:
        ContentError: it is anything else.
    """
    if not content.strip():
        raise ContentError("is empty")
    try:
        value = own_json.loads(
            content.decode(),
            object_pairs_hook=_members,
            parse_constant=_constant,
            parse_float=_fraction,
            parse_int=_whole,
        )
    except UnicodeDecodeError as error:
        raise ContentError(f"is not UTF-8 text: {error.reason}") from error
    except _INCOMPLETE as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ContentError(f"is not complete JSON: {error.msg} in {where}") from error
    except RecursionError as error:
        raise ContentError("is nested too deeply") from error
    if _deep(value, DEEPEST):
        raise ContentError("is nested too deeply")
    if b"\\u" in content:
        try:
            own_json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # an escaped half of a surrogate pair, which cannot be written
            raise ContentError(f"is not UTF-8 text: {error.reason}") from error
    return value


def _constant(token: str) -> NoReturn:
    raise ContentError(f"holds {token}, which is not a JSON number")


def _fraction(token: str) -> float:
    value = float(token)
    return value if math.isfinite(value) else _out_of_range(token)


def _whole(token: str) -> int:
    # Python converts longer numbers not at all, or in a time that grows with the square of their digits.
    value = int(token) if len(token) <= _MOST_DIGITS else math.inf
    return int(value) if -(2**63) <= value < 2**64 else _out_of_range(token)


def _out_of_range(token: str) -> NoReturn:
    raise ContentError(f"holds the number {token}, which is out of range")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ContentError(f"holds the key {twice!r} twice in one object")
    return result


def _deep(value: Any, levels: int) -> bool:
    """Returns whether a value has more levels of nesting than that."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 1 or _deep(part, levels - 1) for part in parts)


def content_of(path: Path) -> bytes:
    """Returns the bytes of a file; raises FileError."""
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise FileError(path, problem, "Check the path and its permissions") from error


def read(content: bytes, kind: Any, *, refuse: Callable[[Any], None]) -> Any:
    """Returns the content of a file as a value of `kind`, with every field checked.

    The model is the schema: msgspec's Structs, dataclasses and what else msgspec decodes. Fields with a
    default may be missing. Unknown ones are refused.

    msgspec takes a key that an object has twice, and passes over fields that a dataclass does not have. So we
    write again what it read. If both texts agree apart from spaces, nothing is hidden. If not, we read
    strictly: this takes longer, and says what is wrong.

    Args:
        content: of the file.
        kind: of the value.
        refuse: raises an error for what is no such file at all; given the plain value.

    Raises:
        ContentError: it is no JSON that `decoded` takes, or does not fit. It names the first such field.
    """
    with uncollected():
        with contextlib.suppress(*_NO_FIT):
            value = msgspec.json.decode(content, type=kind)
            if _compact(msgspec.json.encode(value)) == _compact(content):
                return value
        value = decoded(content)
        refuse(value)
        problem = _problem(value, kind)
        if problem is not None:
            raise problem
        return msgspec.convert(value, kind)


_NO_FIT = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, TypeError)
"""What msgspec raises for values of other types."""


def _compact(content: bytes) -> bytes:
    return msgspec.json.format(content, indent=-1)


def of_schema(value: Any, schema: int) -> None:
    """Raises ContentError for a file of another version: none but ours was ever written."""
    version = value.get("schema", schema) if isinstance(value, dict) else schema
    if type(version) is int and version == schema:
        return
    newer = isinstance(version, int) and version > schema
    remedy = "Upgrade pytest-gpukern, or name another folder or file" if newer else ""
    problem = f"is {bounded(repr(version), 60)}, and this pytest-gpukern reads {schema}"
    raise ContentError(problem, where="schema", remedy=remedy)


def built(value: object, kind: Any) -> Any:
    """Returns plain JSON of our own processes as a value of `kind`; raises ContentError if it is none."""
    try:
        return msgspec.convert(value, kind)
    except _NO_FIT as error:
        raise ContentError(str(error)) from error


def unexpected(wanted: str, value: object) -> ContentError:
    """Returns the error for a value that is not what it should be."""
    return ContentError(f"expected {wanted}, found {bounded(repr(value), 60)}")


def _problem(value: Any, kind: Any, *, fits: bool = False) -> ContentError | None:
    """Returns the first thing that is wrong with a value, or None; `fits` if msgspec is known to take it."""
    fits = fits or _fits(value, kind)
    if fits and not _passes_over(kind):
        return None
    plain = _bare(kind, value)
    fields = _fields(plain)
    if fields and isinstance(value, dict):
        for name, (_, required) in fields.items():
            if required and name not in value:
                return ContentError("is missing", where=name)
        for name in value:
            if name not in fields:
                return ContentError("is not a known field", where=name)
    for step, item, part in _parts(value, plain, fields):
        problem = _problem(item, part, fits=fits)
        if problem is not None:
            return problem.inside(step)
    return None if fits else unexpected(_wanted(kind), value)


def _fits(value: object, kind: Any) -> bool:
    with contextlib.suppress(*_NO_FIT):
        msgspec.convert(value, kind)
        return True
    return False


@functools.cache
def _passes_over(kind: Any) -> bool:
    """Returns whether a type holds a dataclass, of which msgspec passes over unknown fields."""
    parts = [*typing.get_args(kind), *(part for part, _ in _fields(kind).values())]
    return dataclasses.is_dataclass(kind) or any(map(_passes_over, parts))


def _bare(kind: Any, value: object) -> Any:
    """Returns a type without its bounds, and without None if there is a value."""
    known = _known(kind) if value is not None else kind
    return _bare(known.__origin__, value) if typing.get_origin(known) is Annotated else known


def _known(kind: Any) -> Any:
    """Returns a type that may be None without that."""
    kinds = [part for part in typing.get_args(kind) if part is not types.NoneType]
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return kinds[0] if is_union and len(kinds) == 1 else kind


def _parts(value: Any, kind: Any, fields: Mapping[str, tuple[Any, bool]]) -> Iterator[tuple[str, Any, Any]]:
    """Yields each part of a value: the step that leads to it, the part, and its type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, dict) and fields:
        yield from ((name, item, fields[name][0]) for name, item in value.items())
    elif isinstance(value, dict) and origin in (dict, Mapping):
        for name, item in value.items():
            yield f"[{name!r}]", name, arguments[0]
            yield f"[{name!r}]", item, arguments[1]
    elif isinstance(value, list) and origin is tuple:
        kinds = itertools.repeat(arguments[0]) if arguments[-1] is Ellipsis else arguments
        yield from ((f"[{i}]", item, part) for i, (item, part) in enumerate(zip(value, kinds, strict=False)))


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Returns field → its type and whether a file must have it, of a dataclass or Struct; else nothing."""
    config = getattr(kind, "__struct_config__", None)
    if config is None and not dataclasses.is_dataclass(kind):
        return {}
    model: Any = msgspec.inspect.type_info(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    tag = {config.tag_field: (Any, True)} if config and config.tag_field else {}
    return {**tag, **{field.encode_name: (hints[field.name], field.required) for field in model.fields}}


_WANTED = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _wanted(kind: Any) -> str:
    """Returns what a file should have for a type, in words."""
    for meta in getattr(_known(kind), "__metadata__", ()):
        return str(meta.description)
    plain = _bare(kind, ...)
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if isinstance(plain, enum.EnumMeta):
        return f"one of {', '.join(plain)}"
    if origin is tuple:
        return "a list" if arguments[-1] is Ellipsis else f"a list of {len(arguments)}"
    if origin in (dict, Mapping) or _fields(plain):
        return "an object"
    return _WANTED.get(plain, "another kind of value")


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
