"""Lays out lines and aligned columns for a terminal of a given width."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

_ELLIPSIS = "…"
_UNITS = r"%|ns|µs|ms|s|min|h|ULP|[µm]?J|W|[KMGT]i?B|[kMGTP]?(?:B|FLOP)/s"
_NUMBER_AND_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))| (?=± )|(?<=±) (?=\d)")
_TIED = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Line:
    """Holds one line of a report.

    Attributes:
        text: without a line end.
        markup: keyword arguments for pytest's `TerminalReporter.write_line`, such as `{"red": True}`.
    """

    text: str
    markup: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """Holds one column of a table: its cells and what may happen to it where the table is too wide.

    Attributes:
        title: of the column, in the table's header.
        cells: one text a row.
        numeric: aligned to the right, and never shortened.
        narrowest: width to which its cells may be shortened; None where they may not.
        dispensable: in what order columns are left out when shortening is not enough; None for never.
    """

    title: str
    cells: tuple[str, ...]
    numeric: bool = False
    narrowest: int | None = None
    dispensable: int | None = None

    @property
    def width(self) -> int:
        """Width of the widest cell, the title included."""
        return max(map(len, (self.title, *self.cells)))


def shorten(text: str, width: int) -> str:
    """Returns the text, or its beginning and end around an ellipsis where it is longer than `width`."""
    if len(text) <= width:
        return text
    kept = max(width - 1, 0)
    return (text[: (kept + 1) // 2] + _ELLIPSIS + text[len(text) - kept // 2 :])[: max(width, 0)]


def wrapped(text: str, width: int, *, indent: str = "", markup: dict[str, bool] | None = None) -> list[Line]:
    """Wraps a sentence; continuation lines are indented, and numbers keep their units."""
    tied = _NUMBER_AND_UNIT.sub(_TIED, text)
    lines = textwrap.wrap(
        tied,
        max(width, len(indent) + 20),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Line(line.replace(_TIED, " "), dict(markup or {})) for line in lines]


def table(
    columns: list[Column], width: int, *, indent: str = "", gap: int = 2
) -> tuple[list[str], list[str]]:
    """Returns the header and rows of a table that fits `width`, and the titles of columns left out.

    First the columns that may be are shortened, the widest most; then dispensable ones are left out, until
    it fits. A terminal too narrow even then gets lines that are too long rather than numbers that are cut.
    Columns without any text are not shown.
    """
    kept = [column for column in columns if any(column.cells)]
    room = width - len(indent)
    left_out: list[str] = []
    while _least(kept, gap) > room:
        candidates = [column for column in kept if column.dispensable is not None]
        if not candidates:
            break
        first = min(candidates, key=lambda column: column.dispensable or 0)
        kept.remove(first)
        left_out.append(first.title)
    widths = _widths(kept, room, gap)
    rows = [tuple(column.title for column in kept), *zip(*(column.cells for column in kept), strict=True)]
    return [indent + _row(kept, widths, row, " " * gap) for row in rows], left_out


def _least(columns: list[Column], gap: int) -> int:
    gaps = gap * (len(columns) - 1)
    return gaps + sum(min(column.width, column.narrowest or column.width) for column in columns)


def _widths(columns: list[Column], room: int, gap: int) -> list[int]:
    widths = [column.width for column in columns]
    excess = sum(widths) + gap * (len(columns) - 1) - room
    while excess > 0:
        spare = [
            (widths[index] - column.narrowest, index)
            for index, column in enumerate(columns)
            if column.narrowest is not None and widths[index] > column.narrowest
        ]
        if not spare:
            break
        widths[max(spare)[1]] -= 1
        excess -= 1
    return widths


def _row(columns: list[Column], widths: list[int], cells: tuple[str, ...], gap: str) -> str:
    parts = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        text = cell if column.numeric else shorten(cell, width)
        padding = " " * (width - len(text))
        parts.append(padding + text if column.numeric else text + padding)
    return gap.join(parts).rstrip()
