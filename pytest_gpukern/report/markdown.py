"""Writes a run as Markdown: the conclusion, what failed, then the rest folded, within a limit of length."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_gpukern.findings.weaker import WEAKER
from pytest_gpukern.report import units
from pytest_gpukern.report.conclusion import FailureCard, Others, cards, context, headline, others
from pytest_gpukern.report.layout import tied
from pytest_gpukern.report.records import accept
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.summary import totals
from pytest_gpukern.values.untrusted_json import bounded, printable
from pytest_gpukern.values.verdict_table import STATES

MARKER = "<!-- gpukern -->"
"""The first line of a comment, by which a workflow finds the one that it wrote before."""
LONGEST_COMMENT = 65_536 - 1_000
"""Characters that GitHub takes in a comment, without those that a workflow may add below."""

_LONGEST_NAME = 200
_LONGEST_TEXT = 500
_MOST_ROWS = 10
"""Failures in the first table, and commands below it: a screen of a comment."""
_HEAD = "| verdict | case | change | {before} → now | of limit | reason |\n|---|---|---|---|---|---|"
_HEAD_OF_CHANGES = "| verdict | cases | change | reason |\n|---|---|---|---|"
_ACCEPTED_BY = {
    "slower on purpose": "`--gpukern-fail-on=none`",
    "weaker on purpose": "no `weaker` in `--gpukern-fail-on`",
}
"""Label of a pull request that the workflow of `gpukern init` reads → what does the same elsewhere."""
_CUT = "More does not fit: `gpukern report` tells it."
_URL = re.compile(r"https?://[\w.:/-]+")
_MARKUP = re.compile(r"[!\"#$&'*:<>?@\[\\\]^_`{|}~]|(?<=www)\.", re.IGNORECASE)
"""What may mean something to Markdown or to GitHub."""


def comment(run: RunResults) -> str:
    """Returns a pull request's comment, of at most `LONGEST_COMMENT` characters; it begins with `MARKER`."""
    return f"{MARKER}\n{summary(run, most=LONGEST_COMMENT - len(MARKER) - 1)}"


class _Part(NamedTuple):
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
    since = [f"{unmarked(text)}\n" for text in run.since_record]
    changes = [_HEAD_OF_CHANGES, *map(_changed, changed)] if changed else []
    counted = [_links(run), *map(unmarked, (totals(run), *context(run), *run.problems))]
    last = " · ".join(_fitting([text for text in counted if text], most // 4))
    head, more = _HEAD.format(before="base" if run.base else "record"), failed[_MOST_ROWS:]
    sections = [
        _Part(head, [_row(card) for card in failed[:_MOST_ROWS]]),
        _commands("To repeat", [card.repeat for card in failed[:_MOST_ROWS]]),
        *_to_accept(run, failed),
        _folded(f"{len(more)} more failures", head, map(_row, more)),
        _folded("Evidence", "", map(_evidence, failed)),
        _folded("What else changed", "", [*since, *changes]),
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


def _row(card: FailureCard) -> str:
    """Returns a row of the table; no number of it breaks."""
    change, cells = card.change, ("", "", "")
    if change is not None:
        interval = f"<br>{unmarked(change.interval)}" if change.interval else ""
        cells = (f"**{change.percent}**{interval}", change.times, change.of_limit.replace(" of ", "<br>of "))
    scope = f" {card.scope}" if card.scope not in ("", "kernel") else ""
    figures = " | ".join(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells)
    sizes = unmarked(f" {', '.join(card.sizes)}") if card.sizes else ""
    return f"| **{unmarked(card.kind)}** | {_code(card.name)}{sizes}{scope} | {figures} | {_reason(card)} |"


def _reason(card: FailureCard) -> str:
    """Returns why it failed: what is wrong, since when, and what else changed; else the limit it passed."""
    texts = [card.headline.rstrip(":") if card.change is None else "", *card.since, ", ".join(card.why)]
    beyond = f"above the threshold of {units.share(card.threshold)}" if card.threshold else ""
    return unmarked("; ".join(filter(None, texts)) or beyond)


def _commands(title: str, commands: Iterable[str]) -> _Part:
    """Returns lines of a shell below a title; a backtick in a name does not end them."""
    lines = [printable(command) for command in dict.fromkeys(commands) if command]
    fence = "`" * (1 + max(map(len, ("``", *re.findall("`+", "".join(lines))))))
    return _Part(f"**{title}**\n\n{fence}sh", lines, fence)


def _to_accept(run: RunResults, failed: Sequence[FailureCard]) -> Iterator[_Part]:
    """Yields how to accept what is no mistake: a command, the label where revisions were compared."""
    acceptable = [card for card in failed if card.accept]
    if acceptable:
        results = {result.nodeid: result for card in acceptable for result in card.results if result}
        yield _commands("To accept what is meant", [accept(run, [*results.values()])])
    elif run.base:
        kinds = {card.kind for card in failed if card.kind not in STATES or STATES[card.kind].fail_on}
        labels = sorted({f"{'weaker' if kind == WEAKER.upper() else 'slower'} on purpose" for kind in kinds})
        begin = "In the workflow of `gpukern init`: give the pull request the label"
        lines = [f"{begin} `{label}`. Elsewhere: {_ACCEPTED_BY[label]}." for label in labels]
        yield _Part("**To accept what is meant**\n", lines)
    if advice := next((card.advice for card in failed if card.advice), ""):
        yield _Part("", [f"{unmarked(advice[:1].upper() + advice[1:])}."])


def _evidence(card: FailureCard) -> str:
    texts = [unmarked(line.strip()) for text in card.what for line in text.split("\n")]
    texts += map(unmarked, (*card.since, ", ".join(card.why)))
    return "<br>\n".join([_code(card.title), *filter(None, texts)]) + "\n"


def _changed(other: Others) -> str:
    cells = (unmarked(other.kind), unmarked(other.cases), tied(other.change), unmarked(other.cause))
    return f"| {' | '.join(cells)} |"


def _folded(title: str, before: str, lines: Iterable[str]) -> _Part:
    opened = f"<details><summary>{unmarked(title)}</summary>\n"
    return _Part("\n".join(filter(None, (opened, before))), [*lines], "\n</details>")


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
