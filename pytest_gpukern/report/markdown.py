"""Writes a run as Markdown: the conclusion, what failed, then the rest folded, within a limit of length."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pytest_gpukern.report.conclusion import Card, Others, cards, context, headline, others
from pytest_gpukern.report.layout import tied
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.summary import outcomes, totals
from pytest_gpukern.values.untrusted_json import bounded, printable
from pytest_gpukern.values.verdict_table import STATES

MARKER = "<!-- gpukern -->"
"""The first line of a comment, by which a workflow finds the one that it wrote before."""
LONGEST_COMMENT = 65_536
"""Characters that GitHub takes in a comment."""

_LONGEST_NAME = 200
_LONGEST_TEXT = 500
_MOST_ROWS, _FEW = 10, 3
"""Failures in the first table, and those whose reasons stand below it unfolded: a screen of a comment."""
_HEAD = "| verdict | case | change | record → now | of limit |\n|---|---|---|---|---|"
_HEAD_OF_CHANGES = "| verdict | cases | change | cause |\n|---|---|---|---|"
_CUT = "More does not fit: `gpukern report` tells it."
_URL = re.compile(r"https?://[\w.:/-]+")
_MARKUP = re.compile(r"[!\"#$&'*:<>?@\[\\\]^_`{|}~]|(?<=www)\.", re.IGNORECASE)
"""What may mean something to Markdown or to GitHub."""


def comment(run: RunResults) -> str:
    """Returns a comment for a pull request, of at most 65,536 characters; its first line is `MARKER`."""
    return f"{MARKER}\n{summary(run, most=LONGEST_COMMENT - len(MARKER) - 1)}"


class _Section(NamedTuple):
    """Holds lines of a part of a comment, and what stands before and behind them."""

    before: str
    lines: Sequence[str]
    behind: str = ""


def summary(run: RunResults, *, most: int) -> str:
    """Returns the conclusion, a row a failure, and the rest folded, of at most `most` bytes in UTF-8.

    The headline and the counts are never cut; of the rest whole lines are left out from the end.
    """
    failed, changed = cards(run), others(run)
    title = f"### gpukern: {unmarked(str(headline(run, failed)))}"
    counted = [
        _links(run),
        *map(unmarked, (outcomes(run) if changed else totals(run), *context(run), *run.problems)),
    ]
    last = " · ".join(_fitting([text for text in counted if text], most // 4))
    since = [f"{unmarked(text)}\n" for text in run.since_record]
    changes = [_HEAD_OF_CHANGES, *map(_changed, changed)] if changed else []
    few, more = failed if len(failed) <= _FEW else [], failed[_MOST_ROWS:]
    sections = [
        _Section(_HEAD, [_row(card) for card in failed[:_MOST_ROWS]]),
        *(_Section("", [reason]) for card in few if (reason := _reason(card))),
        _folded(f"{len(more)} more failures", _HEAD, map(_row, more)),
        _folded("Evidence, commands to repeat and to accept", "", map(_evidence, failed)),
        _folded(_summary_of(run, changed) or "since the record", "", [*since, *changes]),
    ]
    room, parts, cut = most - len(f"{title}\n\n{last}\n\n{_CUT}\n\n".encode()), [title], False
    for before, lines, behind in sections:
        room -= len(f"{before}\n{behind}\n\n".encode())
        kept = _fitting(lines, room)
        room -= sum(len(line.encode()) + 1 for line in kept)
        cut = cut or len(kept) < len(lines)
        if kept:
            parts.append("\n".join([*filter(None, [before]), *kept, *filter(None, [behind])]))
    return "\n\n".join([*parts, *([_CUT] if cut else []), last]) + "\n"


def _fitting(texts: Sequence[str], most: int) -> list[str]:
    """Returns the first texts, as many as have at most so many bytes; of escaped characters each has many."""
    sizes = itertools.accumulate(len(text.encode()) + 3 for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= most]


def _row(card: Card) -> str:
    """Returns a row of the table; no number of it breaks, and no cell takes more than two lines."""
    change, cells = card.change, ("", "", "")
    if change is not None:
        interval = f"<br>{unmarked(change.interval)}" if change.interval else ""
        cells = (f"**{change.percent}**{interval}", change.times, change.of_limit.replace(" of ", "<br>of "))
    scope = f" {card.scope}" if card.scope not in ("", "kernel") else ""
    figures = " | ".join(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells)
    sizes = unmarked(f" {', '.join(card.sizes)}") if card.sizes else ""
    return f"| **{unmarked(card.kind)}** | {_code(card.name)}{sizes}{scope} | {figures} |"


def _reason(card: Card) -> str:
    texts = [*card.since, ", ".join(card.why)]
    texts = [card.headline, *texts] if card.change is None else texts
    words = ". ".join(text[0].upper() + text[1:] for text in texts if text)
    return f"**{unmarked(card.kind)}** {unmarked(words)}." if words else ""


def _evidence(card: Card) -> str:
    texts = [unmarked(line.strip()) for text in card.what for line in text.split("\n")]
    lines = "<br>\n".join([_code(card.title), *filter(None, (*texts, _reason(card)))])
    commands = "\n".join(printable(command) for command in (card.repeat, card.accept) if command)
    fence = "`" * (1 + max(2, *(len(run) for run in re.findall("`+", commands)), 2))
    return f"{lines}\n\n{fence}sh\n{commands}\n{fence}\n"


def _summary_of(run: RunResults, changed: Sequence[Others]) -> str:
    by_kind = Counter(other.kind for other in changed for _ in other.names)
    silent = {kind: run.kinds[kind] for kind in STATES if run.kinds[kind] and not STATES[kind].told}
    return ", ".join(f"{count} {kind.lower()}" for kind, count in (*by_kind.items(), *silent.items()))


def _changed(other: Others) -> str:
    cells = (unmarked(other.kind), unmarked(other.cases), tied(other.change), unmarked(other.cause))
    return f"| {' | '.join(cells)} |"


def _folded(title: str, before: str, lines: Iterable[str]) -> _Section:
    opened = f"<details><summary>{unmarked(title)}</summary>\n"
    return _Section("\n".join(filter(None, (opened, before))), [*lines], "\n</details>")


def _links(run: RunResults) -> str:
    urls = (result.provenance.ci_url or "" for result in run.results if result.provenance)
    url = next((url for url in urls if _URL.fullmatch(url)), "")
    return f"[run]({url})" if url else ""


def _code(name: str) -> str:
    """Returns a name as code: nothing in it is markup, and GitHub neither links nor notifies anybody.

    It may break behind its parts, or a long one would push the other columns out of sight.
    """
    return f"<code>{re.sub('(?<=[/,])', '<wbr>', _escaped(bounded(name, _LONGEST_NAME)))}</code>"


def unmarked(text: str) -> str:
    """Returns a text without markup, its numbers tied to their units.

    A joiner behind `@` and `#` keeps GitHub from notifying and linking.
    """
    return tied(re.sub("&#(64|35);", r"&#\1;&#8288;", _escaped(bounded(text, _LONGEST_TEXT))))


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))
