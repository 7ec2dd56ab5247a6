"""Says what a run found in the words that every form of the report shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpukern.report import units
from pytest_gpukern.report.rows import Footnote, ResultRow, rows_of, shared_sizes
from pytest_gpukern.report.run import RunResults, Skip
from pytest_gpukern.report.units import SHOWN
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Correctness, Result
from pytest_gpukern.values.verdict_table import STATES, Tone

_FEW_REASONS = 3
_LEAST_SHARE = 0.01
_OFTEN, _MOST_RUNS = 0.1, 0.67
"""Chances of a false alarm in a run: from which a remedy is told, and from which runs are not counted."""
REST = "pytest and the tests' own code"
"""Time that is in no phase; the controller of workers adds it, for it knows how many there were."""
_FAILED = ("incorrect", "failed by the gate", "failed otherwise")
_TOLD_IN_ORDER = (Tone.BAD, Tone.DOUBTFUL, None, Tone.GOOD, Tone.PLAIN)
"""Tones in the order in which a report tells them; findings have none, and notes come last."""


@dataclass(frozen=True)
class ProblemTable:
    """Holds the results of one problem, ordered, the rows that they make, and the sizes that all share."""

    name: str
    results: list[Result]
    rows: list[ResultRow]
    shared: Mapping[str, str]


@dataclass(frozen=True)
class Remark:
    """Holds a verdict, finding or note, and who has it.

    Attributes:
        results: the results that have it.
        labels: their ids, each with the measurement that a verdict is about.
    """

    footnote: Footnote
    results: tuple[Result, ...]
    labels: tuple[str, ...]


def problems_of(run: RunResults) -> list[ProblemTable]:
    """Returns a table a problem, by point, then by variant, each as first come: parallel workers mix them."""
    problems = []
    for name, results in grouped((result.case.problem, result) for result in run.results).items():
        shared, rows = shared_sizes(results), list[ResultRow]()
        places = {label: n for n, label in enumerate(dict.fromkeys(of.case.label for of in results))}
        for peers in grouped((repr([*of.case.point.items()]), of) for of in results).values():
            for result in sorted(peers, key=lambda result: places[result.case.label]):
                rows += rows_of(result, run.own_failure(result), peers, shared)
        problems.append(ProblemTable(name, [row.result for row in rows if row.first], rows, shared))
    return problems


def remarks_on(rows: Iterable[ResultRow], *, quiet: bool = False) -> dict[str, list[Remark]]:
    """Returns kind → the verdicts, findings and notes that need a reader, each once, large changes first.

    What somebody must act on comes first, and what is merely good to know last: `quiet` ones, if asked for.
    """
    having = grouped(
        ((footnote.kind, footnote.text), (footnote, row.result))
        for row in rows
        for footnote in dict.fromkeys(row.footnotes)
        if quiet or not footnote.quiet
    )
    remarks = list[Remark]()
    for pairs in having.values():
        footnote, results = pairs[0][0], tuple(result for _, result in pairs)
        key = f" ({footnote.key})" if footnote.key else ""
        remarks.append(Remark(footnote, results, tuple(result.case.id + key for result in results)))
    remarks.sort(key=lambda of: (_rank(of.footnote.kind), -units.size_of_change(of.footnote.ratio)))
    return grouped((remark.footnote.kind, remark) for remark in remarks)


def _rank(kind: str) -> tuple[int, int, str]:
    """Returns by what kinds are sorted: what somebody must act on, findings by name, good news, notes."""
    if not kind:
        return len(_TOLD_IN_ORDER), 0, ""
    row = STATES.get(kind)
    return _TOLD_IN_ORDER.index(row.tone if row else None), row.severity if row else 0, kind


def totals(run: RunResults) -> str:
    """Returns `41 passed, 3 simulated, 5 skipped (no GPU) · of 33 times: 30 same, 1 slower, 2 new`.

    A case may have several times, so these are counted apart.
    """
    if run.is_record:
        return f"{units.counted(len(run.results), 'case')} on record"
    kinds = run.verdicts
    if not kinds:
        return outcomes(run)
    noun = "case" if any(result.code for result in run.results) else "time"
    counts = ", ".join(f"{count} {kind.lower()}" for kind, count in kinds.items())
    return f"{outcomes(run)} · of {units.counted(kinds.total(), noun)}: {counts}"


def outcomes(run: RunResults) -> str:
    """Returns `41 passed, 3 simulated, 5 skipped (no GPU)`.

    Each result is counted once, for the first that is true of it: incorrect, failed otherwise, failed by the
    gate, unchecked, simulated, passed. Rejected cases have none.
    """
    counts = Counter(_standing(result, run) for result in run.results)
    counts["failed otherwise"] += len(run.failures.keys() - {result.nodeid for result in run.results})
    rejected = f"broken case{'s' * (len(run.rejected) != 1)} rejected"
    counts[rejected] = len(run.rejected)
    counts["unchanged"] = len(run.unchanged.tests) if run.unchanged is not None else 0
    order = ("passed", "compiled", rejected, *_FAILED, "simulated", "unchecked", "unchanged")
    others = (counts[name] for name in ("compiled", "simulated", "unchecked", "unchanged"))
    right = any(others) or run.rejected  # none of these is a failure
    parts = [f"{counts[name]} {name}" for name in order if counts[name] or (name == "passed" and not right)]
    return ", ".join([*parts, *([_skipped(run.skips)] if run.skips else [])])


def skip_texts(skips: Sequence[Skip]) -> list[str]:
    """Returns a sentence for each distinct reason: how many, why, and up to three ids."""
    reasons = grouped((why(skip), skip.id) for skip in skips)
    return [f"{len(ids)} skipped: {reason} ({units.named(ids, SHOWN)})" for reason, ids in reasons.items()]


def why(skip: Skip) -> str:
    return " ".join(skip.reason.split()) or "no reason given"


def false_alarms(results: Sequence[Result]) -> str:
    """Says how many verdicts could fail a test, and how often they would do so for nothing."""
    verdicts = [verdict for result in results for verdict in result.verdicts.values()]
    gated = [verdict for verdict in verdicts if (verdict.false_alarm or 0.0) > 0]
    if not gated:
        return ""
    times = "its time" if len(gated) == 1 else f"one of {len(gated)} times"
    # The chance of at least one of many rare and independent alarms (Poisson).
    blamed = -math.expm1(-sum(verdict.false_alarm for verdict in gated))
    runs = f"1 run in {float(f'{1 / blamed:.1g}'):,.0f}" if blamed < _MOST_RUNS else "most runs"
    wider = f"{200 * max(verdict.threshold or 0.0 for verdict in gated):g}%"
    rarer = f"; --gpukern-threshold={wider} makes that rarer" if blamed >= _OFTEN else ""
    return f"if nothing had changed, {runs} would blame {times}{rarer}"


def time_spent(run: RunResults) -> str:
    """Returns `time: 193 s: checking 62 s, timing 36 s, …`, the longest phase first; empty where unknown.

    Phases below 1 % are left out. Where processes side by side spent more than the run took, it says so.
    """
    whole_s = run.duration_s
    if whole_s is None:
        return ""
    spent_s = {name: phase_s for name, phase_s in run.spent_s.items() if units.is_number(phase_s)}
    text, together_s = f"time: {_seconds(whole_s)}", sum(spent_s.values())
    if together_s > whole_s:
        text += f", of all processes side by side {_seconds(together_s)}"
    else:
        spent_s[REST] = whole_s - together_s
    least_s = _LEAST_SHARE * sum(spent_s.values())
    ordered = sorted(spent_s.items(), key=lambda phase: -phase[1])
    phases = ", ".join(f"{name} {_seconds(phase_s)}" for name, phase_s in ordered if phase_s >= least_s)
    return f"{text}: {phases}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 9.5 else units.time(seconds * 1e9)


def _standing(result: Result, run: RunResults) -> str:
    if result.correctness is Correctness.INCORRECT:
        return "incorrect"
    failure = run.failures.get(result.nodeid)
    if failure is not None:
        return "failed by the gate" if failure.by_the_gate else "failed otherwise"
    if result.code:
        return "compiled"
    if result.correctness is Correctness.UNCHECKED:
        return "unchecked"
    return "simulated" if result.simulated else "passed"


def _skipped(skips: Sequence[Skip]) -> str:
    kinds = Counter(skip.kind or why(skip) for skip in skips)
    counts = [f"{count} {kind}" for kind, count in kinds.items()] if len(kinds) > 1 else [*kinds]
    return f"{len(skips)} skipped" + (f" ({', '.join(counts)})" if len(kinds) <= _FEW_REASONS else "")
