"""Reads JSON that anybody may have written, and raises one clear error, safe to print, if it is bad."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import reprlib
import stat
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpukern.values.garbage import gc_paused

if TYPE_CHECKING:
    Figure = float
    Json = Any
else:
    Figure = float | None
    """A number; None where it was not finite, for which JSON has no word."""
    Json = bool | int | float | str | None
    """A value that a user chose, such as a point on an axis, up to six levels deep."""
    for _ in range(6):
        Json = bool | int | float | str | list[Json] | dict[str, Json] | None


_PACKED = b"\x1f\x8b"
"""How a file begins that gzip packed."""
MOST_BYTES = 2**28
"""Of a file, also once it is unpacked: a run of 25,000 cases, each with 10 kB."""


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


def content_of(path: Path) -> bytes:
    """Returns the bytes of a regular file, unpacked if gzip packed it; raises FileError, as for a pipe."""
    try:  # without O_NONBLOCK, a pipe that nobody writes to would block for ever
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(path, "cannot be read: Not a regular file", "Copy its content to a file")
            content = stream.read(MOST_BYTES + 1) if status.st_size <= MOST_BYTES else b""
        if content.startswith(_PACKED):
            # Bounded: a byte of gzip may unpack to a thousand.
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
    content: bytes,
    kind: Any,
    *,
    refuse: Callable[[Mapping[str, msgspec.Raw]], None],
    unfold: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Returns the content of a file as a value of `kind`, with every field checked.

    The model is the schema: msgspec's Structs, dataclasses and what else msgspec decodes. Fields with a
    default may be missing. Unknown ones are refused, and so is a key that an object has twice.

    Args:
        refuse: raises an error for what is no such file at all; given the fields of the outermost object.
        unfold: returns plain JSON with what it holds once put to where it belongs.

    Raises:
        ContentError: it is no JSON, or does not fit. It says so in msgspec's words, which name the place.
    """
    with gc_paused():
        try:
            refuse(msgspec.json.decode(content, type=dict[str, msgspec.Raw]))
            decoded = msgspec.json.decode(content)
            # What we wrote comes out as it went in: 6 ms for 3 MB, where looking at each key takes 40.
            if msgspec.json.format(content, indent=-1) != msgspec.json.encode(decoded):
                json.loads(content, object_pairs_hook=_members)
            return msgspec.convert(unfold(decoded), kind)
        except RecursionError as error:
            raise ContentError("is nested too deeply") from error
        except ContentError:
            raise
        except _NO_FIT as error:
            raise ContentError(f"cannot be read: {error}") from error


_NO_FIT = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, TypeError)
"""What msgspec raises for values of other types."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; msgspec would take the last of two values of a key."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ContentError(f"holds the key {twice!r} twice in one object")
    return result


def of_schema(fields: Mapping[str, msgspec.Raw], schema: int) -> None:
    """Raises ContentError for a file of another version: none but ours was ever written."""
    if "schema" not in fields:
        raise ContentError("is missing", where="schema")
    version = msgspec.json.decode(fields["schema"])
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
        field_text = f"{bounded(printable(where), _LONGEST_WHERE)}: " if where else ""
        shown = bounded(printable(problem), _LONGEST_PROBLEM)
        super().__init__(printable(f"{path}: {field_text}{shown}. {remedy}."))


def printable(text: str) -> str:
    r"""Returns a line with unprintable characters escaped as in JSON, such as `\u001b`.

    Unprintable are control characters, ends of lines, marks that change the direction of writing, and halves
    of surrogate pairs. So is what a CI takes for a command: `::` behind spaces, `##[` or `##vso[` anywhere.
    """
    shown = text if text.isprintable() else "".join(map(_shown, text))
    return _COMMAND.sub(lambda sign: f"{sign[0][:-1]}\\u{ord(sign[0][-1]):04x}", shown)


def printable_lines(text: str) -> str:
    """Returns a text of several lines with the unprintable characters of each escaped."""
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


def first_line(text: str) -> str:
    """Returns the first line that says something: behind what ends with a colon, such as a name, the next."""
    lines = list(filter(None, map(str.strip, text.split("\n"))))
    return " ".join(lines[: 1 + text.strip().partition("\n")[0].rstrip().endswith(":")])
