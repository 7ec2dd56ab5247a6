"""Lays out lines and aligned columns for a terminal of a given width."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

_ELLIPSIS = "…"
GAP = "  "
_UNITS = r"%|ns|µs|ms|s|min|h|ULP|[µm]?J|W|[KMGT]i?B|[kMGTP]?(?:B|FLOP)/s"
_NUMBER_AND_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))| (?=± )|(?<=±) (?=\d)")
_TIED = "\N{NO-BREAK SPACE}"
_NAME = re.compile(r"([^\d\s=]{4,})")
_SHORTEST_NAME = 3
_READABLE_NAME = 6


@dataclass(frozen=True)
class Line:
    """Holds one line of a report.

    Attributes:
        text: without a line end.
        markup: keyword arguments for pytest's `TerminalWriter.write`, such as `{"red": True}`.
        only: the parts of the text that take it; empty for all.
    """

    text: str
    markup: dict[str, bool] = field(default_factory=dict)
    only: tuple[str, ...] = ()

    def parts(self) -> list[tuple[str, dict[str, bool]]]:
        """Returns the text in pieces, each with its markup."""
        if not (self.only and self.markup):
            return [(self.text, self.markup)]
        pieces = re.split(f"({'|'.join(map(re.escape, self.only))})", self.text)
        return [(piece, self.markup if piece in self.only else {}) for piece in pieces if piece]


@dataclass(frozen=True)
class Column:
    """Holds one column of a table: its cells and what may happen to it where the table is too wide.

    Attributes:
        numeric: aligned to the right, and never shortened.
        narrowest: width to which the names in its cells may be shortened; None where they may not.
        dispensable: in what order columns are left out when shortening is not enough; None for never.
    """

    title: str
    cells: tuple[str, ...]
    numeric: bool = False
    narrowest: int | None = None
    dispensable: int | None = None

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))

    @functools.cached_property
    def least(self) -> int:
        """The width to which its cells can be shortened."""
        if self.narrowest is None:
            return self.width
        shortest = (len(shorten(cell, self.narrowest)) for cell in self.cells)
        return min(self.width, max(self.narrowest, len(self.title), *shortest))

    @functools.cached_property
    def distinct(self) -> int:
        """The width to which its cells can be shortened so that those that differ still do."""
        different, width = set(self.cells), self.width
        while width > self.least and len({shorten(cell, width - 1) for cell in different}) == len(different):
            width -= 1
        return width

    @functools.cached_property
    def readable(self) -> int:
        """The width below which we rather leave out another column than shorten names further."""
        if self.narrowest is None:
            return self.width
        return max(self.distinct, *(len(shorten(cell, 0, shortest=_READABLE_NAME)) for cell in self.cells))


def shorten(text: str, width: int, *, shortest: int = _SHORTEST_NAME) -> str:
    """Returns the text, its longest names shortened in the middle where it is longer than `width`.

    No number is cut, and `shortest` characters of each name remain, so that the text may stay too long.
    """
    parts = _NAME.split(text)  # every second one is a name
    lengths = [len(name) for name in parts[1::2]]
    for _ in range(len(text) - width):
        longest = max(lengths, default=0)
        if longest <= shortest:
            break
        lengths[lengths.index(longest)] -= 1
    parts[1::2] = map(_shortened, parts[1::2], lengths)
    return "".join(parts)


def _shortened(name: str, width: int) -> str:
    kept = width - 1
    return name if len(name) <= width else name[: (kept + 1) // 2] + _ELLIPSIS + name[len(name) - kept // 2 :]


def tied(text: str) -> str:
    """Returns the text with no-break spaces between numbers and their units."""
    return _NUMBER_AND_UNIT.sub(_TIED, text)


def wrapped(text: str, width: int, *, indent: str = "", markup: dict[str, bool] | None = None) -> list[Line]:
    """Wraps a sentence; continuation lines are indented, and numbers keep their units."""
    lines = textwrap.wrap(
        tied(text),
        max(width, len(indent) + 20),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Line(line.replace(_TIED, " "), markup or {}) for line in lines]


def table(columns: list[Column], width: int, *, indent: str = "") -> tuple[list[str], list[str]]:
    """Returns the header and rows of a table that fits `width`, and the titles of columns left out.

    First names are shortened as long as they stay distinct and readable, the widest column most. Then
    dispensable columns are left out. Then names are shortened further. A terminal too narrow even then gets
    lines that are too long: no number is cut. Columns without any text are not shown.
    """
    kept = [column for column in columns if any(column.cells)]
    room = width - len(indent)
    left_out: list[str] = []
    for column in sorted(columns, key=lambda column: column.dispensable or 0):
        # What comes first is left out before any name is shortened.
        first = column.dispensable == 0
        needed = ((other.width if first else other.readable) + len(GAP) for other in kept)
        too_wide = sum(needed) - len(GAP) > room
        if too_wide and column.dispensable is not None and column in kept:
            kept.remove(column)
            left_out.append(column.title)
    widths = _widths(kept, room)
    rows = [tuple(column.title for column in kept), *zip(*(column.cells for column in kept), strict=True)]
    return [indent + _row(kept, widths, row) for row in rows], left_out


def hint_at(left_out: Iterable[str], width: int) -> list[Line]:
    titles = ", ".join(dict.fromkeys(left_out))
    hint = f"columns left out: {titles}; widen the terminal or set COLUMNS"
    return wrapped(hint, width) if titles else []


def _widths(columns: list[Column], room: int) -> list[int]:
    widths = [column.width for column in columns]
    excess = sum(widths) + len(GAP) * (len(columns) - 1) - room
    for floors in ([column.distinct for column in columns], [column.least for column in columns]):
        spare = sum(widths) - sum(floors)
        for _ in range(min(excess, spare)):
            widths[max(range(len(widths)), key=lambda i: (widths[i] - floors[i], i))] -= 1
        excess -= spare
    return widths


def _row(columns: list[Column], widths: list[int], cells: tuple[str, ...]) -> str:
    parts = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        text = cell if column.narrowest is None else shorten(cell, width)
        parts.append(text.rjust(width) if column.numeric else text.ljust(width))
    return GAP.join(parts).rstrip()
