"""Texts of other people's files on a terminal: what would steer it is shown and not sent."""

from __future__ import annotations

import unicodedata


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
