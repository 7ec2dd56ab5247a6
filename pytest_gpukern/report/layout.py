"""Lays out lines and aligned columns for a terminal of a given width."""

from __future__ import annotations

import codecs
import io
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpukern.values.untrusted_json import bounded

GAP = "  "
_UNITS = r"%|ns|µs|ms|s|min|h|ULP|[µm]?J|W|[KMGT]i?B|[kMGTP]?(?:B|FLOP)/s"
_NUMBER_AND_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))| (?=± )|(?<=±) (?=\d)")
NARROWEST = 24
_TIED = "\N{NO-BREAK SPACE}"
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SPELT = {**dict(zip("µ×–−·…", "ux--|~", strict=True)), "±": "+-", "→": "->", "≥": ">="}
_SPELT |= {sign: f"^{digit}" for digit, sign in enumerate(SUPERSCRIPTS)}
"""Sign → what stands for it in a terminal that knows ASCII only."""


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
        numeric: aligned to the right.
        shortens: whether its cells are names, which may lose their middle down to `NARROWEST` characters.
        dispensable: in what order columns are left out when shortening is not enough; None for never.
    """

    title: str
    cells: tuple[str, ...]
    numeric: bool = False
    shortens: bool = False
    dispensable: int | None = None

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))

    @property
    def least(self) -> int:
        """The width to which its cells can be shortened."""
        return min(self.width, NARROWEST) if self.shortens else self.width


def spell_out(stream: object) -> None:
    """Lets a stream write `us` for `µs` if its encoding has no µ, and likewise our other signs."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=__name__)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Returns what stands for the signs, and where to go on: columns behind a longer one stay aligned."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    text = "".join(_SPELT.get(sign) or ascii(sign)[1:-1] for sign in signs)
    behind = error.object[error.end :]
    gap = len(behind) - len(behind.lstrip(" "))
    return text, error.end + min(len(text) - len(signs), max(0, gap - 1))


codecs.register_error(__name__, _spelt)


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

    Dispensable columns are left out until the others fit with names as short as may be. Then names lose their
    middle where they must, the widest column first. A terminal too narrow even then gets lines that are too
    long: no number is cut. Columns without any text are not shown.
    """
    kept = [column for column in columns if any(column.cells)]
    left_out: list[str] = []
    for column in sorted(kept, key=lambda column: column.dispensable or 0):
        needed = len(indent) + sum(of.least + len(GAP) for of in kept) - len(GAP)
        if needed > width and column.dispensable is not None:
            kept.remove(column)
            left_out.append(column.title)
    widths = {column: column.width for column in kept}
    for _ in range(len(indent) + sum(widths.values()) + len(GAP) * (len(kept) - 1) - width):
        if longer := [column for column in kept if widths[column] > column.least]:
            widths[max(longer, key=widths.__getitem__)] -= 1
    rows = [tuple(column.title for column in kept), *zip(*(column.cells for column in kept), strict=True)]
    return [indent + _row(widths, row) for row in rows], left_out


def _row(widths: Mapping[Column, int], cells: tuple[str, ...]) -> str:
    parts = []
    for (column, width), cell in zip(widths.items(), cells, strict=True):
        text = bounded(cell, width)
        parts.append(text.rjust(width) if column.numeric else text.ljust(width))
    return GAP.join(parts).rstrip()
