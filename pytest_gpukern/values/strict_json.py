"""JSON that anybody may have written: one value that can be worked with, or one reason why not."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

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
