"""JSON for review in a diff: sorted keys, and lines that stay as they are when others are added."""

from __future__ import annotations

import json
from typing import Any

_LINE = 240
_OPENED = frozenset({"epochs", "fingerprints", "kernels", "records", "sessions", "times"})
"""Containers that are never put on one line, however short, so that what joins them changes no other line."""


def laid_out(value: Any, *, name: str = "", within: str = "", indent: str = "") -> str:
    """A JSON value as text: a session a block, a measurement, a kernel or an output a line.

    Args:
        value: plain JSON, finite.
        name: the key that it stands under.
        within: the key that the list or object around it stands under.
        indent: of its first line.
    """
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    if not value or not isinstance(value, (dict, list)) or _on_one_line(value, flat, name, within):
        return flat
    inner = indent + " "
    if isinstance(value, list):
        lines = [laid_out(item, within=name, indent=inner) for item in value]
    else:
        lines = _members(value, name, inner)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"


def _on_one_line(value: Any, flat: str, name: str, within: str) -> bool:
    if within in ("kernels", "times"):
        return True
    if name in _OPENED or (not within and not name):
        return False
    if isinstance(value, dict) and not _OPENED.isdisjoint(value):
        return False
    return len(flat) <= _LINE or (isinstance(value, list) and not _nested(value))


def _members(value: dict[str, Any], name: str, indent: str) -> list[str]:
    """The members of an object, a line each; those that are no containers share one where they fit."""
    lines: list[str] = []
    run: list[str] = []
    for key in [*sorted(value), None]:
        if key is not None and not isinstance(value[key], (dict, list)):
            run.append(f"{_quoted(key)}: {laid_out(value[key])}")
            continue
        together = ", ".join(run)
        lines += [together] if run and len(together) <= _LINE else run
        run = []
        if key is not None:
            lines.append(f"{_quoted(key)}: {laid_out(value[key], name=key, within=name, indent=indent)}")
    return lines


def _nested(value: list[Any]) -> bool:
    return any(isinstance(item, (dict, list)) for item in value)


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
