"""Writes the terminal report: what needs a reader, the table of a small run, and a summary."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pytest_gpukern.report import units
from pytest_gpukern.report.conclusion import FailureCard, cards, context, headline, others
from pytest_gpukern.report.details import checks, device_work, observed_lines
from pytest_gpukern.report.layout import SUPERSCRIPTS, Column, Line, table, wrapped
from pytest_gpukern.report.rows import COLUMNS, ResultRow, Timing, markup_of
from pytest_gpukern.report.run import RunResults, Skip
from pytest_gpukern.report.summary import (
    ProblemTable,
    Remark,
    false_alarms,
    problems_of,
    remarks_on,
    skip_texts,
    time_spent,
    totals,
    why,
)
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import sizes_text
from pytest_gpukern.values.untrusted_json import printable_lines
from pytest_gpukern.values.verdict_table import FAILED

_MOST_ROWS = 20
"""Rows that are shown without `-v`."""
_SHORT_S = 20.0
"""Nobody asks where the time of a shorter run went."""
_MOST_TOLD, _MOST_CARDS = 5, 10
"""Findings or notes of a kind, and failures or kinds of reasons to skip, that are told without `-v`."""
_FEW_REASONS = 3
"""Reasons to skip that are told with ids without `-v`."""
_LABEL, _KIND = 10, 12
"""Width of what stands before a line of a failure, and before other lines."""
_LINES_OF_A_DIAGNOSIS = 2

_INDENT = "  "
_BOLD = {"bold": True}


def write(report: RunResults, config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    wrote = [f"wrote {path}" for path in report.files]
    report = dataclasses.replace(report, closing=(*wrote, *report.closing))
    width, verbose = reporter._tw.fullwidth, config.get_verbosity() > 0
    lines = render(report, width=width, verbose=verbose, told_above=config.option.tbstyle != "no")
    if report.failures:  # which pytest has just shown
        reporter.write_sep("=", "gpukern")
    for line in lines:
        for text, markup in line.parts():
            reporter.write(printable_lines(text), **markup)
        reporter.write_line("")


def render(
    run: RunResults, *, width: int, verbose: bool = False, details: str = "-v", told_above: bool = False
) -> list[Line]:
    """Returns the conclusion, the failures, the tables of a small or `verbose` run, and the rest.

    The lines of the run itself stand above and below. `details` is the option that tells what is left out.
    Of a failure that pytest has `told_above` the first line is enough.
    """
    tells = run.ran or run.skips or run.unchanged
    body = _told_of(run, width, verbose, details, told_above=told_above) if tells else []
    heading = [Line(f"gpukern: {line}" if line is run.heading[0] else line) for line in run.heading]
    closing = [Line(f"gpukern: {line}") for line in run.closing]
    problems = (Line(f"gpukern: {problem}", {"red": True}) for problem in run.problems)
    return [*heading, *body, *closing, *problems]


def _told_of(run: RunResults, width: int, verbose: bool, details: str, *, told_above: bool) -> list[Line]:
    problems = problems_of(run)
    rows = [row for problem in problems for row in problem.rows]
    failed = cards(run)
    conclusion = headline(run, failed)
    word = conclusion.outcome
    lines = [Line(str(conclusion), markup_of(word) or _BOLD, (word,))]
    lines += [part for line in context(run) for part in wrapped(line, width)]
    lines += [Line("")] if failed or len(lines) > 1 else []
    most = 1 if told_above else None if verbose else _LINES_OF_A_DIAGNOSIS
    for card in failed if verbose else failed[:_MOST_CARDS]:
        lines += [*_card(card, width, most), Line("")]
    left = len(failed) - _MOST_CARDS
    if left > 0 and not verbose:
        lines += [Line(f"{left} more failures; {details} tells each"), Line("")]
    if len(rows) <= _MOST_ROWS or verbose:
        lines += _tables(problems, width, verbose=verbose)
    spent = time_spent(run) if (run.duration_s or 0.0) > _SHORT_S else ""
    texts = [*run.since_record, false_alarms(run.results), spent]
    lines += [] if verbose else _others(run, width, details)
    for kind, remarks in remarks_on(rows, quiet=verbose).items():
        if verbose or not kind:
            lines += _remarks(kind, remarks, width, None if verbose else details)
    lines += [line for text in texts for line in wrapped(text, width)]
    lines += skip_lines(run.skips, width, None if verbose else details)
    return [*lines, Line(f"gpukern: {totals(run)}", _BOLD)]


def _card(card: FailureCard, width: int, most: int | None) -> list[Line]:
    """Returns what failed, in `most` lines, from what to what, since when, why, and what to do."""
    markup = markup_of(card.kind) or markup_of(FAILED)
    lines = [Line(f"{card.kind}  {card.title}", markup, (card.kind,))]

    def say(label: str, texts: Iterable[str]) -> None:
        for text in filter(None, texts):
            for number, part in enumerate(wrapped(text, width - len(_INDENT) - _LABEL)):
                lines.append(Line(f"{_INDENT}{'' if number else label:<{_LABEL}}{part.text}"))
            label = ""

    if card.change is not None:
        threshold = f", threshold {units.share(card.threshold)}" if card.threshold else ""
        text = f"{_INDENT}{card.scope:<{_LABEL - 1}} {card.change}{threshold}"
        lines.append(Line(text, markup, (card.change.percent,)))
        say("", [card.change.of_limit])
    else:
        for text in card.what:
            lines_of_it = [line.strip() for line in text.split("\n")]
            say("what", lines_of_it[:most])
    say("since", card.since)
    say("why", [", ".join(card.why)])
    for label, command in (("repeat", card.repeat), ("accept", card.accept)):
        lines += [Line(f"{_INDENT}{label:<{_LABEL}}{command}")] if command else []  # to be copied whole
    say("accept", [card.advice])
    return lines


def _others(run: RunResults, width: int, details: str) -> list[Line]:
    """Returns `faster  10 timings of discount: −22.9 % to −41.0 %: CPUs 16 → 32: the machine, not …`."""
    lines = []
    for kind, of_kind in grouped((other.kind, other) for other in others(run)).items():
        for other in of_kind[:_MOST_TOLD]:
            words = ": ".join(filter(None, (other.cases, other.change, other.cause)))
            lines += wrapped(f"{kind.lower():<{_KIND}} {words}", width)
        more = sum(len(other.names) for other in of_kind[_MOST_TOLD:])
        lines += [Line(f"{kind.lower():<{_KIND}} {more} more; {details} tells each")] if more else []
    return lines


def _remarks(kind: str, remarks: Sequence[Remark], width: int, details: str | None) -> list[Line]:
    """Tells remarks of a kind, of many the first few where `details` tells the others."""
    most = len(remarks) if details is None else _MOST_TOLD
    lines = []
    for remark in remarks[:most]:
        whole = details is None
        who = units.named(remark.labels, units.SHOWN if whole else 1)
        first, *rest = remark.footnote.text.split("\n")
        subject = wrapped(f"{kind or 'note'} {who}: {first}", width)
        lines += [Line(line.text, markup_of(kind), (kind,)) for line in subject]
        lines += [line for text in rest for line in wrapped(text, width, indent=_INDENT)] if whole else []
    more = sum(len(remark.labels) for remark in remarks[most:])
    return lines + ([Line(f"{kind or 'note'}: {more} more; {details} tells each")] if more else [])


def _tables(problems: Iterable[ProblemTable], width: int, *, verbose: bool) -> list[Line]:
    """Returns a table a problem, each followed by an empty line.

    Where `verbose`, what was checked, what the device did in each case, as far as a timer saw it, and what
    observers saw follow.
    """
    lines, left_out = list[Line](), list[str]()
    for problem in problems:
        lines += _table(problem, width, left_out)
        if verbose:
            lines += checks(problem.results, width=width)
            for result in problem.results:
                lines += device_work(result, width=width)
            lines += observed_lines(problem.results, width=width)
    if left_out:
        titles = ", ".join(dict.fromkeys(left_out))
        hint = f"columns left out: {titles}; widen the terminal or set COLUMNS"
        lines += [*wrapped(hint, width), Line("")]
    return lines


def skip_lines(skips: Sequence[Skip], width: int, details: str | None) -> list[Line]:
    """Returns a line a distinct reason; of many, the commonest kinds where `details` tells each."""
    texts = skip_texts(skips)
    if details is not None and len(texts) > _FEW_REASONS:
        kinds = Counter(skip.kind or why(skip) for skip in skips).most_common()
        texts = [f"{count} skipped: {kind}" for kind, count in kinds[:_MOST_CARDS]]
        if more := sum(count for _, count in kinds[_MOST_CARDS:]):
            texts.append(f"{more} skipped for other reasons; {details} tells each")
    return [line for text in texts for line in wrapped(text, width)]


def _table(problem: ProblemTable, width: int, left_out: list[str]) -> list[Line]:
    rows, timings = problem.rows, _timings(problem.rows)
    parts = [problem.name, sizes_text(problem.shared), *map(_timing_words, timings[:1])]
    against = dict.fromkeys(r.speedup_against for r in problem.results if r.speedup_against)
    columns = _columns(rows, timings)
    texts, omitted = table(columns, width, indent=_INDENT)
    if "speed-up" in texts[0]:
        parts.append(f"speed-up against {' or '.join(against)}")
    left_out += omitted
    legend = "  ".join(f"{_mark(i)} {_timing_words(t)}" for i, t in enumerate(timings[1:], 1))
    return [
        Line(" · ".join(filter(None, parts)), _BOLD),
        Line(texts[0]),
        *(
            Line(text, markup_of(row.state), (verdict,))
            for text, row, verdict in zip(texts[1:], rows, columns[-1].cells, strict=True)
        ),
        *wrapped(legend, width, indent=_INDENT),
        *_fixed_costs(rows, width),
        Line(""),
    ]


def _timings(rows: Iterable[ResultRow]) -> list[Timing]:
    """Returns how the times of a table were taken: the commonest way, then the others as they come."""
    counts = Counter(row.timing for row in rows if row.timing)
    common = [timing for timing, _ in counts.most_common(1)]
    return [*dict.fromkeys((*common, *counts))]


def _timing_words(timing: Timing) -> str:
    scope, timer, cache = timing
    # on the host there is no L2 to flush, and all is hot
    return f"{scope} by {timer}, {cache} L2" if cache == "cold" else f"{scope} by {timer}, {cache}"


def _mark(index: int) -> str:
    """Returns a superscript number, or nothing for the commonest timing."""
    return "".join(SUPERSCRIPTS[int(digit)] for digit in str(index)) if index else ""


def _columns(rows: Sequence[ResultRow], timings: Sequence[Timing]) -> list[Column]:
    """Returns the columns; behind a time stands how it was taken, where that is not the commonest way."""
    marks = [_mark(timings.index(row.timing)) if row.timing else "" for row in rows]
    broadest = max(map(len, marks), default=0)
    columns = []
    for name, of in COLUMNS.items():
        title, cells = of.title, tuple(map(of.text, rows))
        if name == "time":
            title += " " * broadest
            cells = tuple(cell + mark.ljust(broadest) for cell, mark in zip(cells, marks, strict=True))
        columns.append(Column(title, cells, of.numeric, of.shortens, of.dispensable))
    return columns


def _fixed_costs(rows: list[ResultRow], width: int) -> list[Line]:
    """Returns what timers read for nothing, once for all rows: it is in their numbers."""
    measured = (row.measurement for row in rows if row.measurement and not row.result.simulated)
    costs = grouped((of.timer, of.fixed_cost_ns) for of in measured if units.is_number(of.fixed_cost_ns))
    texts = (
        f"by {timer} an empty kernel reads {units.time_range(min(ns), max(ns))} more than it takes; "
        "not subtracted"
        for timer, ns in costs.items()
    )
    return [line for text in texts for line in wrapped(text, width, indent=_INDENT)]
