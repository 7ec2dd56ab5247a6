"""Writes a run as Markdown: the conclusion, what failed, then the rest folded, within a limit of length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pytest_gpukern.report.conclusion import Card, Others, cards, context, counts, headline, others
from pytest_gpukern.report.layout import tied
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.summary import totals
from pytest_gpukern.values.untrusted_json import bounded, printable

MARKER = "<!-- gpukern -->"
"""The first line of a comment, by which a workflow finds the one that it wrote before."""
LONGEST_COMMENT = 65_536
"""Characters that GitHub takes in a comment."""

_LONGEST_NAME = 200
_LONGEST_TEXT = 500
_MOST_ROWS, _FEW = 10, 3
"""Failures in the first table, and those whose reasons stand below it unfolded: a screen of a comment."""
_HEAD = "| verdict | case | change | record → now | of limit |\n|---|---|---|---|---|"
_CUT = "More does not fit: `gpukern report` tells it."
_URL = re.compile(r"https?://[\w.:/-]+")
_MARKUP = re.compile(r"[!\"#$&'*:<>?@\[\\\]^_`{|}~]|(?<=www)\.", re.IGNORECASE)
"""What may mean something to Markdown or to GitHub."""


def comment(run: RunResults) -> str:
    """Returns a comment for a pull request, of at most 65,536 characters; its first line is `MARKER`."""
    return f"{MARKER}\n{summary(run, most=LONGEST_COMMENT - len(MARKER) - 1)}"


def summary(run: RunResults, *, most: int) -> str:
    """Returns the conclusion, a row a failure, and the rest folded, of at most `most` bytes in UTF-8.

    What does not fit is left out from the end, whole parts of it, and the last line says so.
    """
    failed = cards(run)
    parts = [f"### gpukern: {_text(headline(run))}"]
    parts += [_table(failed[:_MOST_ROWS])] if failed else []
    if len(failed) <= _FEW:
        parts += [reason for card in failed if (reason := _reason(card))]
    evidence = [_evidence(card) for card in failed]
    commands = [line for card in failed for line in (card.repeat, card.accept) if line]
    parts += [_folded(f"{len(failed) - _MOST_ROWS} more failures", _table(failed[_MOST_ROWS:]))] * (
        len(failed) > _MOST_ROWS
    )
    parts += [_folded("Evidence", "\n\n".join(evidence))] if failed else []
    parts += [_folded("Repeat, accept", _shell(commands))] if commands else []
    changed = others(run)
    parts += [_folded(_summary_of(run, changed), _changes(changed))] if changed else []
    last = [_links(run), _text(totals(run)), *map(_text, context(run)), *map(_text, run.since_record)]
    parts += [*map(_text, run.problems), " · ".join(filter(None, last))]
    return _fitting(parts, most)


def _fitting(parts: Sequence[str], most: int) -> str:
    """Returns the parts that fit, each whole; of escaped characters each has many bytes."""
    kept, room = list[str](), most - len(_CUT.encode()) - 2
    for part in parts:
        size = len(part.encode()) + 2
        if size <= room:
            kept.append(part)
            room -= size
    return "\n\n".join([*kept, *([_CUT] if len(kept) < len(parts) else [])]) + "\n"


def _table(failed: Sequence[Card]) -> str:
    rows = []
    for card in failed:
        change = card.change
        cells = ("", "", "")
        if change is not None:
            cells = (f"**{change.percent}** {change.interval}", change.times, change.of_limit)
        elif card.what:
            cells = (_text(_first_line(card.what[0])), "", "")
        scope = f" {card.scope}" if card.scope not in ("", "kernel") else ""
        case = _code(card.name) + _text("".join(f" {size}," for size in card.sizes)).removesuffix(",") + scope
        rows.append(f"| **{_text(card.kind)}** | {case} | {' | '.join(map(tied, cells))} |")
    return "\n".join([_HEAD, *rows])


def _reason(card: Card) -> str:
    texts = [*card.since, ", ".join(card.why)]
    words = ". ".join(text[0].upper() + text[1:] for text in texts if text)
    return f"**{_text(card.kind)}** {_text(words)}." if words else ""


def _evidence(card: Card) -> str:
    texts = "<br>".join(_text(line.strip()) for text in card.what for line in text.split("\n"))
    told = _reason(card)
    return f"{_code(card.title)}<br>{texts}" + (f"<br>{told}" if told else "")


def _summary_of(run: RunResults, changed: Sequence[Others]) -> str:
    by_kind = Counter[str]()
    for other in changed:
        by_kind[other.kind] += len(other.names)
    return ", ".join(f"{count} {kind.lower()}" for kind, count in (*by_kind.items(), *counts(run).items()))


def _changes(changed: Sequence[Others]) -> str:
    rows = [
        f"| {_text(other.kind)} | {_text(other.cases)} | {tied(other.change)} | {_text(other.cause)} |"
        for other in changed
    ]
    return "\n".join(["| verdict | cases | change | cause |\n|---|---|--:|---|", *rows])


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{_text(title)}</summary>\n\n{content}\n\n</details>"


def _shell(commands: Sequence[str]) -> str:
    """Returns commands as a block of code, which a name of theirs cannot end."""
    text = "\n".join(printable(command) for command in dict.fromkeys(commands))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}sh\n{text}\n{fence}"


def _links(run: RunResults) -> str:
    urls = (result.provenance.ci_url or "" for result in run.results if result.provenance)
    url = next((url for url in urls if _URL.fullmatch(url)), "")
    return f"[run]({url})" if url else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _code(name: str) -> str:
    """Returns a name as code: nothing in it is markup, and GitHub neither links nor notifies anybody.

    It may break behind its parts, or a long one would push the other columns out of sight.
    """
    return f"<code>{re.sub('(?<=[/,])', '<wbr>', _escaped(bounded(name, _LONGEST_NAME)))}</code>"


def _text(text: str) -> str:
    """Returns a text without markup, its numbers tied to their units.

    A joiner behind `@` and `#` keeps GitHub from notifying and linking.
    """
    return tied(re.sub("&#(64|35);", r"&#\1;&#8288;", _escaped(bounded(text, _LONGEST_TEXT))))


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))
