"""Reads JSON that anybody may have written, and raises one clear error, safe to print, if it is bad."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import io
import json
import math
import os
import re
import reprlib
import stat
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from pytest_gpukern.values.garbage import uncollected

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


_PACKED = b"\x1f\x8b"
"""How a file begins that gzip packed."""
MOST_BYTES = 2**28
"""Of a file, also once it is unpacked: a run of 25,000 cases, each with 10 kB."""
_MOST_TO_EXPLAIN = 2**25
"""Of a file whose damage we look for. Python's own objects take thirty times as much, and a second."""


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

    def of_file(self, path: Path, remedy: str) -> FileError:
        """Returns the error about a file; `remedy` is for any damage."""
        return FileError(path, self.problem, self.remedy or remedy, where=self.where or None)


def decoded(content: bytes) -> Any:
    """Returns the value of UTF-8 JSON with unique keys and numbers in a float's range; else ContentError."""
    if not content.strip():
        raise ContentError("is empty")
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=_members,
            parse_constant=_constant,
            parse_float=_fraction,
            parse_int=_whole,
        )
    except UnicodeDecodeError as error:
        raise ContentError(f"is not UTF-8 text: {error.reason}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ContentError(f"is not complete JSON: {error.msg} in {where}") from error
    except RecursionError as error:
        raise ContentError("is nested too deeply") from error
    if b"\\u" in content:
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError as error:  # an escaped half of a surrogate pair, which cannot be written
            raise ContentError(f"is not UTF-8 text: {error.reason}") from error
    return value


def _constant(token: str) -> NoReturn:
    raise ContentError(f"holds {token}, which is not a JSON number")


def _fraction(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        raise ContentError(f"holds the number {token}, which is out of range")
    return value


def _whole(token: str) -> int:
    # Python converts longer numbers not at all, or in a time that grows with the square of their digits.
    if len(token) > _MOST_DIGITS or not -(2**63) <= int(token) < 2**64:
        raise ContentError(f"holds the number {token}, which is out of range")
    return int(token)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ContentError(f"holds the key {twice!r} twice in one object")
    return result


def content_of(path: Path) -> bytes:
    """Returns the bytes of a regular file, unpacked if gzip packed it; raises FileError, as for a pipe."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(path, "cannot be read: Not a regular file", "Copy its content to a file")
            content = stream.read(MOST_BYTES + 1) if status.st_size <= MOST_BYTES else b""
        if content.startswith(_PACKED):
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileError(path, f"is not complete gzip: {error}", "Copy it again, or pack it again") from error
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise FileError(path, problem, "Check the path and its permissions") from error
    if max(status.st_size, len(content)) > MOST_BYTES:
        raise FileError(path, f"holds more than {MOST_BYTES >> 20} MiB", "Split what it holds")
    return content


def read(
    content: bytes, kind: Any, *, refuse: Callable[[Any], None], unfold: Callable[[Any], Any] | None = None
) -> Any:
    """Returns the content of a file as a value of `kind`, with every field checked.

    The model is the schema: msgspec's Structs, dataclasses and what else msgspec decodes. Fields with a
    default may be missing. Unknown ones are refused.

    msgspec takes a key that an object has twice, and passes over fields that a dataclass does not have. So we
    write again what it read. If both texts agree apart from spaces, nothing is hidden. If not, we read
    strictly: this takes longer, and says what is wrong.

    Args:
        refuse: raises an error for what is no such file at all; given the plain value.
        unfold: returns the plain value with what it holds once put to where it belongs.

    Raises:
        ContentError: it is no JSON that `decoded` takes, or does not fit. It names the first such field.
    """
    with uncollected():
        with contextlib.suppress(*_NO_FIT):
            if unfold is not None:
                raise ValueError  # read strictly
            value = msgspec.json.decode(content, type=kind)
            if _compact(msgspec.json.encode(value)) == _compact(content):
                return value
        if len(content) > _MOST_TO_EXPLAIN:
            raise ContentError(f"is damaged, and with {len(content) >> 20} MiB too large to say where")
        plain = decoded(content)
        refuse(plain)
        plain = plain if unfold is None else unfold(plain)
        try:
            value = msgspec.convert(plain, kind)
        except _NO_FIT as error:
            raise _located(str(error), plain, kind) from error
        for where in _passed_over(plain, value):
            raise ContentError("is not a known field", where=where)
        return value


_NO_FIT = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, TypeError)
"""What msgspec raises for values of other types."""


def _compact(content: bytes) -> bytes:
    return msgspec.json.format(content, indent=-1)


def of_schema(value: Any, schema: int) -> None:
    """Raises ContentError for a file of another version: none but ours was ever written."""
    if not isinstance(value, dict):
        return
    if "schema" not in value:
        raise ContentError("is missing", where="schema")
    version = value["schema"]
    if type(version) is int and version == schema:
        return
    newer = isinstance(version, int) and version > schema
    remedy = "Upgrade pytest-gpukern, or name another folder or file" if newer else ""
    problem = f"is {reprlib.repr(version)}, and this pytest-gpukern reads {schema}"
    raise ContentError(problem, where="schema", remedy=remedy)


def built(value: object, kind: Any) -> Any:
    """Returns plain JSON of our own processes as a value of `kind`; raises ContentError if it is none."""
    try:
        return msgspec.convert(value, kind)
    except _NO_FIT as error:
        raise ContentError(str(error)) from error


_AT = re.compile(r"(.*?)(?: - at (`key` in )?`\$(.*)`)?", re.DOTALL)
"""What msgspec says is wrong, and where: `$.records[...].epochs[0]`, without the keys of dicts."""
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)


def _located(text: str, plain: Any, kind: Any) -> ContentError:
    """Returns msgspec's error about plain JSON with the whole path to the value; takes the JSON apart."""
    key: Any
    problem, in_key, path = _AT.fullmatch(text).groups("")  # type: ignore[union-attr]
    place, where, key = plain, "", ""
    for step in _STEP.finditer(path + ("[...]" if in_key else "")):
        key = step[1] or (int(step[2]) if step[2] else _first_bad(place, text, plain, kind))
        place, where = place[key], where + (step[0] if step[1] or step[2] else f"[{key!r}]")
    field = _FIELD.fullmatch(problem)
    if field:
        where, problem = (
            f"{where}.{field[2]}",
            "is missing" if "missing" in field[1] else "is not a known field",
        )
    elif problem.startswith("Expected"):
        found = reprlib.repr(key if in_key else place)
        problem = f"e{problem.partition(', got ')[0][1:]}, found {found}"
    return ContentError(problem, where=where.removeprefix("."))


def _first_bad(place: dict[str, Any], text: str, plain: Any, kind: Any) -> str:
    """Returns the key of a dict, which is a part of `plain`, that msgspec's error is about."""
    for key, item in list(place.items()):
        place.clear()
        place[key] = item
        try:
            msgspec.convert(plain, kind)
        except _NO_FIT as error:
            if str(error) == text:
                break
    return key


@functools.cache
def _attributes(kind: Any) -> dict[str, str]:
    """Returns the name of each field of a Struct or dataclass in a file → its attribute."""
    model: Any = msgspec.inspect.type_info(kind)
    return {field.encode_name: field.name for field in model.fields}


def _passed_over(plain: Any, value: Any, where: str = "") -> Iterator[str]:
    """Yields the path of each field of plain JSON that msgspec passed over, since a dataclass lacks it."""
    parts: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(plain, list):
        # A NamedTuple may be longer: what a file leaves out at its end has a default.
        parts = ((f"[{i}]", *both) for i, both in enumerate(zip(plain, value, strict=False)))
    elif isinstance(plain, dict) and isinstance(value, Mapping):
        parts = ((f"[{key!r}]", item, value[key]) for key, item in plain.items())
    elif isinstance(plain, dict):
        kind: Any = type(value)
        known = _attributes(kind)
        parts = ((f".{key}", item, getattr(value, known[key])) for key, item in plain.items() if key in known)
        if dataclasses.is_dataclass(value):
            yield from (f"{where}.{key}".removeprefix(".") for key in plain if key not in known)
    for step, item, part in parts:
        yield from _passed_over(item, part, where + step)


_COMMAND = re.compile(r"^\s*:(?=:)|#(?=#\w*\[)")
_LONGEST_WHERE = 200
_LONGEST_PROBLEM = 400


class FileError(Exception):
    """Says that a file cannot be read or written, in one line that is safe to print.

    Attributes:
        where: the field inside it, such as `results[3].case.id`, or None.
        remedy: what to do about it.
    """

    def __init__(self, path: Path, problem: str, remedy: str, *, where: str | None = None) -> None:
        self.path, self.where, self.problem, self.remedy = path, where, problem, remedy
        field_text = f"{bounded(where, _LONGEST_WHERE)}: " if where else ""
        super().__init__(printable(f"{path}: {field_text}{bounded(problem, _LONGEST_PROBLEM)}. {remedy}."))


def printable(text: str) -> str:
    r"""Returns a line with unprintable characters escaped as in JSON, such as `\u001b`.

    Unprintable are control characters, ends of lines, marks that change the direction of writing, and halves
    of surrogate pairs. So is what a CI takes for a command: `::` behind spaces, `##[` or `##vso[` anywhere.
    """
    shown = text if text.isprintable() else "".join(map(_shown, text))
    return _COMMAND.sub(lambda sign: f"{sign[0][:-1]}\\u{ord(sign[0][-1]):04x}", shown)


def printable_lines(text: str) -> str:
    """Does the same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


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
