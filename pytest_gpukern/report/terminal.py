"""Writes the terminal report: a table a problem, what was skipped, and a last line that counts."""

from __future__ import annotations

import math
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gate.judge import expected_false_alarms
from pytest_gpukern.report import units
from pytest_gpukern.report.details import checks, device_memory, device_work
from pytest_gpukern.report.head import head
from pytest_gpukern.report.layout import Column, Line, shorten, table, wrapped
from pytest_gpukern.report.records import record_lines, some_of
from pytest_gpukern.report.rows import rows_of, scope_times, shared_sizes, variant_label, verdict_of
from pytest_gpukern.values.options import try_the_simulator
from pytest_gpukern.values.result import Correctness, VerdictKind, sizes_text
from pytest_gpukern.values.untrusted_json import printable_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pytest

    from pytest_gpukern.report.forms import RunReport, Skip
    from pytest_gpukern.report.rows import Footnote, Row
    from pytest_gpukern.values.result import Result

_INDENT = "  "
_SHORTEST = 0.8  # of a name that is shortened: less could be any of several
_FEW = 3
_BOLD = {"bold": True}
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_ORDER = (
    VerdictKind.SAME,
    VerdictKind.FASTER,
    VerdictKind.SLOWER,
    VerdictKind.UNDECIDED,
    VerdictKind.UNCOMPARABLE,
    VerdictKind.INVALID,
    VerdictKind.NEW,
)

Timing = tuple[str, str]
"""Timer and cache policy of a measurement."""


def write(report: RunReport, config: pytest.Config) -> None:
    """Writes what the machine and all cases did, the tables, skips, what was written, and the last line."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    width = reporter._tw.fullwidth
    shown_above = config.option.tbstyle not in ("no", "line")  # why the gate failed a test
    lines = [Line(text) for text in report.heading]
    lines += head(report.compared, report.shift, width=width)
    lines += render(
        report,
        width=width,
        verbose=config.get_verbosity() > 0,
        told=report.failed_by_the_gate if shown_above else (),
    )
    lines += [Line(text) for text in (*report.closing, *record_lines(report, config))]
    if not report.settings.asked and any(reason.startswith("no GPU") for _, reason in report.skips):
        lines.append(Line(f"gpukern: {try_the_simulator(config)}"))
    lines += [Line(f"gpukern: {problem}", {"red": True}) for problem in report.problems]
    for line in lines:
        reporter.write_line(printable_lines(line.text), **line.markup)


def render(report: RunReport, *, width: int, verbose: bool = False, told: Collection[str] = ()) -> list[Line]:
    """Returns tables, skips and the last line; nothing for a run without any."""
    if not report.results and not report.skips:
        return []
    failures = report.failed_by_themselves
    shown = tables(report.results, width=width, verbose=verbose, told=told, failures=failures)
    alarms = [line for text in false_alarms(report.results) for line in wrapped(text, width)]
    return [*shown, *skip_lines(report.skips, width=width), *alarms, Line(totals(report), dict(_BOLD))]


def tables(
    results: Sequence[Result],
    *,
    width: int,
    verbose: bool = False,
    told: Collection[str] = (),
    failures: Mapping[str, str] = MappingProxyType({}),
) -> list[Line]:
    """Returns a table a problem, in order of arrival, each followed by its footnotes and an empty line.

    Where `verbose`, what was checked, what the device did in each case, as far as a timer saw it, and its
    memory follow. Why a test that is among those `told` failed at the gate is not said again. Tests that
    failed by themselves are shown with the first line of their failure.
    """
    problems: dict[str, list[Result]] = {}
    for result in results:
        problems.setdefault(result.case.problem, []).append(result)
    lines = []
    for name, members in problems.items():
        lines += _problem(name, members, width, told, failures)
        lines += checks(_ordered(members), width=width) if verbose else []
        for result in _ordered(members) if verbose else ():
            lines += device_work(result, width=width)
        memory = [line for each in _ordered(members) for line in device_memory(each, width=width)]
        lines += [*memory, Line("")] if verbose and memory else []
    return lines


def totals(report: RunReport) -> str:
    """Returns `gpukern: 41 passed, 3 simulated, 5 skipped (no GPU) · baseline: 30 same, 1 slower, 2 new`.

    Each result is counted once, for the first that is true of it: incorrect, failed otherwise, failed by the
    gate, unchecked, simulated, passed. Verdicts are counted by scope.
    """
    counts = Counter(_standing(result, report) for result in report.results)
    otherwise = len(report.failed) - counts["incorrect"] - counts["failed by the gate"]
    counts["failed otherwise"] = max(0, otherwise)
    order = ("passed", "incorrect", "failed by the gate", "failed otherwise", "simulated", "unchecked")
    told = {name for name in order if counts[name]} | ({"passed"} if not counts["simulated"] else set())
    parts = [f"{counts[name]} {name}" for name in order if name in told]
    if report.skips:
        parts.append(_skipped(report.skips))
    line = f"gpukern: {', '.join(parts)}"
    verdicts = Counter(
        verdict_of(result, time)[0]
        for result in report.results
        if result.correctness is not Correctness.INCORRECT
        for time in scope_times(result)
    )
    compared = [f"{verdicts[kind.value]} {kind.value.lower()}" for kind in _ORDER if verdicts[kind.value]]
    return f"{line} · {report.compared_with}: {', '.join(compared)}" if compared else line


def skip_lines(skips: Sequence[Skip], *, width: int) -> list[Line]:
    """Returns a line a distinct reason: how many, why, and up to three ids."""
    reasons: dict[str, list[str]] = {}
    for identifier, reason in skips:
        reasons.setdefault(reason.strip() or "no reason given", []).append(identifier)
    lines = [
        line
        for reason, identifiers in reasons.items()
        for line in wrapped(f"{len(identifiers)} skipped: {reason} ({some_of(identifiers)})", width)
    ]
    return [*lines, Line("")] if lines else []


def _problem(
    name: str, results: list[Result], width: int, told: Collection[str], failures: Mapping[str, str]
) -> list[Line]:
    shared = shared_sizes(results)
    rows = [
        row
        for result in _ordered(results)
        for row in rows_of(
            result, results, shared, told=result.nodeid in told, failure=failures.get(result.nodeid)
        )
    ]
    timings = _timings(rows)
    against = dict.fromkeys(r.speedup_against for r in results if r.speedup_against)
    if not any(row.speedup for row in rows):
        against = {}
    sizes = [sizes_text(shared)] if shared else []
    parts = [name, *sizes, *(_timing_words(timing) for timing in timings[:1])]
    if against:
        parts.append(f"speed-up against {' or '.join(against)}")
    body = _flat(rows, timings, width) or _stacked(rows, timings, width)
    legend = [f"{_mark(i)} timed by {_timing_words(t)}" for i, t in enumerate(timings[1:], 1)]
    if legend:
        body.append(Line(_INDENT + "  ".join(legend)))
    title = Line(" · ".join(parts), dict(_BOLD))
    return [
        title,
        *body,
        *_fixed_costs(rows, width),
        *_metered(rows, width),
        *_footnotes(rows, width),
        Line(""),
    ]


def false_alarms(results: Sequence[Result]) -> list[str]:
    """Says how many verdicts could fail a test, and how often they would do so for nothing."""
    gated = [verdict for result in results for verdict in result.verdicts.values() if verdict.false_alarm > 0]
    if not gated:
        return []
    times = "1 time was" if len(gated) == 1 else f"{len(gated)} times were"
    return [f"{times} gated: {expected_false_alarms(gated):.1g} false SLOWER to be expected in such a run"]


def _flat(rows: list[Row], timings: list[Timing], width: int) -> list[Line]:
    """Lays a table out with a row a line; returns nothing where that does not fit."""

    def named(title: str, cells: tuple[str, ...]) -> Column:
        return Column(title, cells, narrowest=math.ceil(_SHORTEST * Column(title, cells).width))

    case = [
        named("variant", tuple(row.variant for row in rows)),
        named("size", tuple(row.size for row in rows)),
        Column("first call", tuple(row.first_call for row in rows), numeric=True),
    ]
    texts, left_out = table([*case, *_columns(rows, timings)], width, indent=_INDENT)
    if left_out or max(map(len, texts)) > width:
        return []
    return [Line(texts[0]), *(Line(t, dict(row.markup)) for t, row in zip(texts[1:], rows, strict=True))]


def _stacked(rows: list[Row], timings: list[Timing], width: int) -> list[Line]:
    """Lays a table out for narrow terminals: variant and size on a line, the measurements under it."""
    columns = _columns(rows, timings)
    texts, left_out = table(columns, width, indent=2 * _INDENT)
    if left_out:
        texts, left_out = table(columns, width, indent=2 * _INDENT, gap=1)
    lines = [Line(texts[0])]
    for text, row in zip(texts[1:], rows, strict=True):
        if row.variant:
            first_call = f" · first call {row.first_call}" if row.first_call else ""
            case = shorten(f"{row.variant} {row.size}".rstrip(), width - len(_INDENT + first_call))
            lines.append(Line(_INDENT + case + first_call))
        lines.append(Line(text, dict(row.markup)))
    if left_out:
        hint = f"left out for want of width: {', '.join(left_out)}; widen the terminal or set COLUMNS"
        lines += wrapped(hint, width, indent=_INDENT)
    return lines


def _ordered(results: list[Result]) -> list[Result]:
    """Sorts by point, then by variant, each in order of its first arrival: parallel workers mix them."""
    points: dict[str, int] = {}
    variants: dict[str, int] = {}
    for result in results:
        points.setdefault(_point(result), len(points))
        variants.setdefault(variant_label(result), len(variants))
    return sorted(results, key=lambda r: (points[_point(r)], variants[variant_label(r)]))


def _point(result: Result) -> str:
    return repr(list(result.case.point.items()))


def _timings(rows: Iterable[Row]) -> list[Timing]:
    """Returns the (timer, cache policy) pairs of a table: the commonest, then the others as they come."""
    counts = Counter(row.timing for row in rows if row.timing)
    if not counts:
        return []
    common = max(counts, key=lambda timing: counts[timing])
    return [common, *(timing for timing in counts if timing != common)]


def _timing_words(timing: Timing) -> str:
    timer, cache = timing
    return f"{timer}, {cache} L2" if cache == "cold" else f"{timer}, {cache}"  # on the host, only hot


def _mark(index: int) -> str:
    """Returns a superscript number, or nothing for the commonest timing."""
    return str(index).translate(_SUPERSCRIPTS) if index else ""


def _columns(rows: list[Row], timings: list[Timing]) -> list[Column]:
    def cells(name: str) -> tuple[str, ...]:
        return tuple(getattr(row, name) for row in rows)

    scopes = tuple(row.scope + (_mark(timings.index(row.timing)) if row.timing else "") for row in rows)
    return [
        Column("scope", scopes),
        Column("time", cells("time"), numeric=True),
        Column("±", cells("uncertainty"), numeric=True),
        Column("other timer", cells("other_timer"), numeric=True, dispensable=1),
        Column("rate", cells("rate"), numeric=True, dispensable=5),
        Column("of ceiling", cells("ceiling"), numeric=True, dispensable=4),
        Column("speed-up", cells("speedup"), numeric=True, dispensable=2),
        Column("energy", cells("energy"), numeric=True, dispensable=6),
        Column("power", cells("power"), numeric=True, dispensable=0),
        Column("error", cells("error"), numeric=True, dispensable=3),
        Column("verdict", cells("verdict")),
    ]


def _fixed_costs(rows: list[Row], width: int) -> list[Line]:
    """Returns what timers read for nothing, once for all rows: it is in their numbers."""
    costs: dict[str, list[float]] = {}
    for timer, cost_ns in (cost for row in rows for cost in row.fixed_costs):
        costs.setdefault(timer, []).append(cost_ns)
    lines = []
    for timer, found in costs.items():
        cost = units.time_range(min(found), max(found))
        text = f"by {timer} an empty kernel reads {cost} more than it takes; not subtracted"
        lines += wrapped(text, width, indent=_INDENT)
    return lines


def _metered(rows: list[Row], width: int) -> list[Line]:
    """Returns what an energy is of, once for all rows that have one."""
    if all(row.energy in ("", units.NOTHING) for row in rows):
        return []
    text = (
        "energy is the whole board's for a call, and power its average, calls back to back, nothing flushed"
    )
    return wrapped(text, width, indent=_INDENT)


def _footnotes(rows: list[Row], width: int) -> list[Line]:
    """Writes the footnotes of rows; rows with the same ones share a line, as do many undecided ones."""
    subjects: dict[Footnote, list[str]] = {}
    for row in rows:
        for footnote in dict.fromkeys(row.footnotes):
            subjects.setdefault(footnote, []).append(row.label)
    undecided = [footnote for footnote in subjects if footnote.detectable is not None]
    lines = []
    if len(undecided) > _FEW:
        lines = wrapped(_of_many(undecided, subjects), width, indent=_INDENT, markup=undecided[0].markup)
        subjects = {footnote: labels for footnote, labels in subjects.items() if footnote not in undecided}
    for footnote, labels in subjects.items():
        who = labels[0] if len(labels) == 1 else f"{len(labels)} rows"
        kind = f"{footnote.kind}: " if footnote.kind else ""
        text = f"{who}: {kind}{footnote.text}"
        lines += wrapped(text, width, indent=_INDENT, markup=footnote.markup)
    return lines


def _of_many(undecided: list[Footnote], subjects: dict[Footnote, list[str]]) -> str:
    """Returns one sentence for all undecided rows, with the smallest slowdowns that would have been seen."""
    seen = sorted(footnote.detectable for footnote in undecided if footnote.detectable is not None)
    count = sum(len(subjects[footnote]) for footnote in undecided)
    span = f"{units.change(seen[0])} to {units.change(seen[-1])}"
    return (
        f"{count} rows: {undecided[0].kind}: a slowdown is caught from {span} on, depending on the row "
        "(--gpukern-output has each reason)"
    )


def _standing(result: Result, report: RunReport) -> str:
    if result.correctness is Correctness.INCORRECT:
        return "incorrect"
    if result.nodeid in report.failed_by_themselves:
        return "failed otherwise"
    if result.nodeid in report.failed_by_the_gate:
        return "failed by the gate"
    if result.correctness is Correctness.UNCHECKED:
        return "unchecked"
    return "simulated" if result.simulated else "passed"


def _skipped(skips: Sequence[Skip]) -> str:
    leading = Counter(reason.partition(":")[0].strip() or "no reason given" for _, reason in skips)
    if len(leading) == 1:
        return f"{len(skips)} skipped ({next(iter(leading))})"
    return f"{len(skips)} skipped ({', '.join(f'{count} {reason}' for reason, count in leading.items())})"
