"""Writes the terminal report: what needs a reader, the table of a small run, and a summary."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pytest_gpukern.report import units
from pytest_gpukern.report.details import checks, device_work, observed_lines
from pytest_gpukern.report.forms import RunReport
from pytest_gpukern.report.layout import Column, Line, hint_at, in_encoding, shorten, table, wrapped
from pytest_gpukern.report.records import some_of
from pytest_gpukern.report.rows import Footnote, ResultRow, Timing, markup_of, shared_sizes
from pytest_gpukern.report.run import RunResults, Skip
from pytest_gpukern.report.summary import (
    ProblemTable,
    Remark,
    false_alarms,
    needs_a_reader,
    other_failures,
    problems_of,
    skip_texts,
    time_spent,
    totals,
    why,
)
from pytest_gpukern.values.result import sizes_text
from pytest_gpukern.values.untrusted_json import printable_lines
from pytest_gpukern.values.verdict_table import FAILED, INCORRECT, STATES, Tone, severity

_MOST_ROWS = 20
"""Rows that are shown without `-v`."""
_MOST_LINES, _COMMANDS = 20, 3
"""Lines of the summary, and those of them that are left for commands."""
_SHORT_S = 20.0
"""Nobody asks where the time of a shorter run went."""
_MOST_TOLD = 5
"""Verdicts, findings or notes of a kind that are told without `-v`."""

_INDENT = "  "
_BOLD = {"bold": True}
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def write(report: RunReport, config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    wrote = [f"wrote {path}" for path in report.files]
    report = dataclasses.replace(report, closing=(*wrote, *report.closing))
    lines = render(
        report,
        width=reporter._tw.fullwidth,
        verbose=config.get_verbosity() > 0,
        failures_shown=config.getoption("tbstyle", "auto") not in ("no", "line"),
    )
    encoding = getattr(reporter._tw._file, "encoding", None) or "utf-8"
    for line in lines:
        reporter.write_line(in_encoding(printable_lines(line.text), encoding), **line.markup)


def render(
    run: RunResults, *, width: int, verbose: bool = False, failures_shown: bool = False, details: str = "-v"
) -> list[Line]:
    """Returns what needs a reader, the tables of a small or `verbose` run, and the summary.

    The lines of the run itself stand above and below. Why a test failed is not said again where
    `failures_shown` says that pytest did. `details` is the option that tells what is left out.
    """
    body = _told_of(run, width, verbose, failures_shown, details) if run.ran or run.skips else []
    heading = [Line(f"gpukern: {line}" if line is run.heading[0] else line) for line in run.heading]
    closing = [Line(f"gpukern: {line}") for line in run.closing]
    problems = (Line(f"gpukern: {problem}", {"red": True}) for problem in run.problems)
    return [*heading, *body, *closing, *problems]


def _told_of(run: RunResults, width: int, verbose: bool, failures_shown: bool, details: str) -> list[Line]:
    problems = problems_of(run)
    if failures_shown:
        problems = [_without_failures(problem, run) for problem in problems]
    rows = [row for problem in problems for row in problem.rows]
    failures = [] if failures_shown else other_failures(run, rows)
    lines = _needs_a_reader(rows, failures, width, None if verbose else details)
    small = len(rows) <= _MOST_ROWS
    if small or verbose:
        lines += _tables(problems, width, verbose=verbose)
    above = [] if small else _by_backend(rows, width)
    spent = time_spent(run) if (run.duration_s or 0.0) > _SHORT_S else ""
    texts = [*run.since_record, false_alarms(run.results), spent]
    below = [line for text in texts for line in wrapped(text, width)]
    below += [] if verbose else _quiet(rows, width, details)
    below.append(Line(f"gpukern: {totals(run)}", _BOLD))
    room = None if verbose else max(1, _MOST_LINES - _COMMANDS - len(above) - len(below))
    return [*lines, *above, *skip_lines(run.skips, width=width, room=room, details=details), *below]


def _without_failures(problem: ProblemTable, run: RunResults) -> ProblemTable:
    """Returns the problem without what the failures of its tests said."""

    def said(row: ResultRow, footnote: Footnote) -> bool:
        failure = run.failures.get(row.result.nodeid)
        of_test = footnote.kind in (INCORRECT, FAILED)
        return failure is not None and (of_test or any(map(footnote.tells, failure.reasons)))

    left = [tuple(footnote for footnote in row.footnotes if not said(row, footnote)) for row in problem.rows]
    rows = [dataclasses.replace(row, footnotes=of) for row, of in zip(problem.rows, left, strict=True)]
    return dataclasses.replace(problem, rows=rows)


def _needs_a_reader(
    rows: Iterable[ResultRow], failures: Sequence[Remark], width: int, details: str | None
) -> list[Line]:
    """Tells what needs a reader, of each kind the first few where `details` tells the others, else all."""
    lines = []
    for kind, remarks in needs_a_reader(rows, failures).items():
        most = 1 if _is_good(kind) and len(remarks) > _MOST_TOLD else _MOST_TOLD
        most = len(remarks) if details is None else most
        for remark in remarks[:most]:
            lines += _told(remark, width, whole=details is None)
        more = sum(len(remark.labels) for remark in remarks[most:])
        lines += [Line(f"{kind or 'note'}: {more} more; {details} tells each")] if more else []
    return [*lines, Line("")] if lines else []


def _is_good(kind: str) -> bool:
    return kind in STATES and STATES[kind].tone is Tone.GOOD


def _told(remark: Remark, width: int, *, whole: bool) -> list[Line]:
    """Tells all of a remark, or what happened and what to do.

    What became faster takes one line then, since it needs no explanation.
    """
    footnote, labels = remark.footnote, remark.labels
    who = labels[0]
    if len(labels) > 1:
        who = f"{len(labels)} cases ({some_of(labels) if whole else f'{labels[0]}, …'})"
    subject = f"{footnote.kind or 'note'} {who}"
    if not whole and _is_good(footnote.kind) and units.is_number(footnote.ratio):
        change = units.change(footnote.ratio)
        return [Line(f"{shorten(subject, width - len(change) - 2)}: {change}", markup_of(footnote.kind))]
    first, *others = footnote.text.split("\n")
    markup = markup_of(footnote.kind)
    rest = (line for text in others for line in wrapped(text, width, indent=_INDENT, markup=markup))
    return [*wrapped(f"{subject}: {first}", width, markup=markup), *(rest if whole else ())]


def _by_backend(rows: Sequence[ResultRow], width: int) -> list[Line]:
    """Returns a table of how many cases each backend has of each verdict or state."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.state, Counter())[row.result.case.backend or "tests"] += 1
    states = sorted(counts, key=severity)
    columns = [Column("", tuple(states))]
    for backend, _ in sum(counts.values(), Counter[str]()).most_common():
        cells = tuple(str(counts[state][backend] or "") for state in states)
        columns.append(Column(backend, cells, numeric=True))
    texts, _ = table(columns, width)
    return [*map(Line, texts, [_BOLD, *map(markup_of, states)])]


def _quiet(rows: Iterable[ResultRow], width: int, details: str) -> list[Line]:
    """Counts what needs no action: `told with -v: 41 host times UNDECIDED, noise in 12 cases`."""
    verdicts: Counter[tuple[str, str]] = Counter()
    cases: dict[str, set[str]] = {}
    for row in rows:
        for footnote in row.footnotes:
            if footnote.kind in STATES and footnote.quiet:
                verdicts["GPU" if row.result.case.on_gpu else "host", footnote.kind] += 1
            elif footnote.quiet:
                cases.setdefault(footnote.quiet, set()).add(row.result.nodeid)
    parts = [f"{count} {where} time{'s' * (count > 1)} {kind}" for (where, kind), count in verdicts.items()]
    parts += [f"{about} in {len(having)} case{'s' * (len(having) > 1)}" for about, having in cases.items()]
    return wrapped(f"told with {details}: {', '.join(parts)}", width) if parts else []


def _tables(problems: Iterable[ProblemTable], width: int, *, verbose: bool) -> list[Line]:
    """Returns a table a problem, each followed by an empty line.

    Where `verbose`, quiet footnotes, what was checked, what the device did in each case, as far as a timer
    saw it, and what observers saw follow.
    """
    lines, left_out = list[Line](), list[str]()
    for problem in problems:
        lines += _table(problem, width, left_out, verbose=verbose)
        if verbose:
            lines += checks(problem.results, width=width)
            for result in problem.results:
                lines += device_work(result, width=width)
            lines += observed_lines(problem.results, width=width)
    hint = hint_at(left_out, width)
    return [*lines, *hint, Line("")] if hint else lines


def skip_lines(
    skips: Sequence[Skip], *, width: int, room: int | None = None, details: str = "-v"
) -> list[Line]:
    """Returns a line a distinct reason.

    Where that takes more than `room` lines, reasons that begin alike share one without ids, and the rarest
    are counted.
    """
    lines = [line for text in skip_texts(skips) for line in wrapped(text, width)]
    if room is None or len(lines) <= room:
        return lines
    counts = Counter(skip.kind or why(skip) for skip in skips).most_common()
    lines = []
    for number, (kind, count) in enumerate(counts):
        reasons = {why(skip) for skip in skips if (skip.kind or why(skip)) == kind}
        reason = f"{kind} ({len(reasons)} reasons)" if len(reasons) > 1 else reasons.pop()
        wrapped_line, rest = wrapped(f"{count} skipped: {reason}", width), counts[number:]
        if len(lines) + len(wrapped_line) > room - (len(rest) > 1):
            others = f"{len(rest)} {'other ' * bool(lines)}reason{'s' * (len(rest) > 1)}"
            left = sum(count for _, count in rest)
            return [*lines, Line(f"{left} skipped for {others}; {details} tells each")]
        lines += wrapped_line
    return lines


def _table(problem: ProblemTable, width: int, left_out: list[str], *, verbose: bool) -> list[Line]:
    rows, timings = problem.rows, _timings(problem.rows)
    parts = [problem.name, sizes_text(shared_sizes(problem.results)), *map(_timing_words, timings[:1])]
    against = dict.fromkeys(r.speedup_against for r in problem.results if r.speedup_against)
    texts, omitted = table(_columns(rows, timings), width, indent=_INDENT)
    if any(row.speedup for row in rows) and "speed-up" not in omitted:
        parts.append(f"speed-up against {' or '.join(against)}")
    left_out += omitted
    legend = "  ".join(f"{_mark(i)} {_timing_words(t)}" for i, t in enumerate(timings[1:], 1))
    return [
        Line(" · ".join(filter(None, parts)), _BOLD),
        Line(texts[0]),
        *(Line(text, markup_of(row.state)) for text, row in zip(texts[1:], rows, strict=True)),
        *wrapped(legend, width, indent=_INDENT),
        *_fixed_costs(rows, width),
        *(_footnotes(rows, width) if verbose else ()),
        Line(""),
    ]


def _timings(rows: Iterable[ResultRow]) -> list[Timing]:
    """Returns how the times of a table were taken: the commonest way, then the others as they come."""
    counts = Counter(row.timing for row in rows if row.timing)
    common = counts.most_common(1)
    return [*(timing for timing, _ in common), *(timing for timing in counts if timing != common[0][0])]


def _timing_words(timing: Timing) -> str:
    scope, timer, cache = timing
    # on the host there is no L2 to flush, and all is hot
    return f"{scope} by {timer}, {cache} L2" if cache == "cold" else f"{scope} by {timer}, {cache}"


def _mark(index: int) -> str:
    """Returns a superscript number, or nothing for the commonest timing."""
    return str(index).translate(_SUPERSCRIPTS) if index else ""


def _columns(rows: list[ResultRow], timings: list[Timing]) -> list[Column]:
    marks = [_mark(timings.index(row.timing)) if row.timing else "" for row in rows]
    broadest = max(map(len, marks), default=0)
    times = tuple(row.time + mark.ljust(broadest) for row, mark in zip(rows, marks, strict=True))
    return [
        Column("variant", tuple(row.variant for row in rows), narrowest=1),
        Column("size", tuple(row.size for row in rows), narrowest=1),
        Column("first call", tuple(row.first_call for row in rows), numeric=True, dispensable=0),
        Column("time" + " " * broadest, times, numeric=True),
        Column("±", tuple(row.uncertainty for row in rows), numeric=True, dispensable=6),
        Column("other timer", tuple(row.other_timer for row in rows), numeric=True, dispensable=1),
        Column("rate", tuple(row.rate for row in rows), numeric=True, dispensable=5),
        Column("of ceiling", tuple(row.ceiling for row in rows), numeric=True, dispensable=4),
        Column("speed-up", tuple(row.speedup for row in rows), numeric=True, dispensable=2),
        Column("error", tuple(row.error for row in rows), numeric=True, dispensable=3),
        Column("verdict", tuple(row.verdict for row in rows)),
    ]


def _fixed_costs(rows: list[ResultRow], width: int) -> list[Line]:
    """Returns what timers read for nothing, once for all rows: it is in their numbers."""
    costs: dict[str, list[float]] = {}
    scopes = [row.scope for row in rows if row.scope is not None and not row.result.simulated]
    for measurement in (measurement for scope in scopes for measurement in scope.all):
        if units.is_number(measurement.fixed_cost_ns):
            costs.setdefault(measurement.timer, []).append(measurement.fixed_cost_ns)
    lines = []
    for timer, costs_ns in costs.items():
        cost = units.time_range(min(costs_ns), max(costs_ns))
        text = f"by {timer} an empty kernel reads {cost} more than it takes; not subtracted"
        lines += wrapped(text, width, indent=_INDENT)
    return lines


def _footnotes(rows: list[ResultRow], width: int) -> list[Line]:
    """Writes the quiet footnotes of rows; rows with the same ones share a line."""
    subjects: dict[Footnote, list[str]] = {}
    for row in rows:
        for footnote in dict.fromkeys(row.footnotes):
            if footnote.quiet:
                subjects.setdefault(footnote, []).append(row.label)
    lines = []
    for footnote, labels in subjects.items():
        who = labels[0] if len(labels) == 1 else f"{len(labels)} rows"
        kind = f"{footnote.kind}: " if footnote.kind else ""
        lines += wrapped(
            f"{who}: {kind}{footnote.text}", width, indent=_INDENT, markup=markup_of(footnote.kind)
        )
    return lines
