"""The table of `gpukern selftest --gate` as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.selftest.gate_targets import FRESH, IN_ORDER, RECORDED, RUNS_WITH_FALSE_ALARM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpukern.selftest.gate_recording import GateRecording
    from pytest_gpukern.selftest.gate_targets import (
        CaseRow,
        ClockRow,
        GateConclusions,
        PlantedRow,
        RuleRow,
        SameRow,
        Share,
    )

_INDENT = "  "
_REACHED = {True: "reached", False: "MISSED", None: ""}
_NARROWEST = 16


def render_gate(recording: GateRecording, conclusions: GateConclusions, *, width: int) -> list[str]:
    """The whole table, for a terminal of `width` columns."""
    return [
        *_header(recording, width),
        *_same(conclusions.same, width),
        *_planted(conclusions.planted, width),
        *_clocks(conclusions.clocks, width),
        *_rules(conclusions.rules, recording, width),
        *_cases(conclusions.cases, width),
        *_simulation(conclusions, width),
        *_summary(conclusions, width),
    ]


def _header(recording: GateRecording, width: int) -> Iterator[str]:
    if recording.no_gpu is not None:
        yield f"gpukern selftest --gate: pytest-gpukern {recording.gpukern}"
        yield from _sentence(f"no GPU: {recording.no_gpu}; only the simulation is shown", width)
        return
    found = recording.fingerprint
    parts = [
        f"{found.get('device_name')}",
        f"driver {found.get('driver_version')}, CUDA {found.get('cuda_driver_version')}",
        recording.created,
        f"pytest-gpukern {recording.gpukern}",
    ]
    yield f"gpukern selftest --gate: {' · '.join(parts)}"
    timers = " and ".join(dict.fromkeys(s.default_timer for s in recording.sessions if s.default_timer))
    yield from _sentence(
        f"{len(recording.sessions)} sessions, each a fresh process, in "
        f"{units.duration(recording.elapsed_s)}; timer: {timers or 'none'}; {RECORDED} are the record, one "
        f"is judged, {FRESH} fresh ones confirm",
        width,
    )
    said = [session.fallback for session in recording.sessions if session.fallback]
    for fallback in dict.fromkeys(said):
        yield from _sentence(f"not timed by CUPTI: {fallback}", width)
    for warning in recording.warnings:
        yield from _sentence(warning, width)
    left_out = {f"{case}: {why}" for session in recording.sessions for case, why in session.left_out.items()}
    for line in sorted(left_out):
        yield from _sentence(f"left out: {line}", width)


def _same(rows: Sequence[SameRow], width: int) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield "kernels that stay as they are: SLOWER, once confirmed, is a false alarm"
    yield from _table(
        [
            Column("trials", tuple(row.trials for row in rows)),
            _number("threshold", (_percent(row.threshold) for row in rows)),
            _number("judged", (str(row.judged) for row in rows)),
            _number("suspected", (str(row.suspected) for row in rows)),
            _number("SLOWER", (str(row.slower) for row in rows)),
            _number("at most", (_at_most(row) for row in rows)),
            _number("UNDECIDED", (str(row.undecided) for row in rows)),
            _number("SAME", (str(row.same) for row in rows)),
            _number("FASTER", (str(row.faster) for row in rows)),
            _number("INVALID", (str(row.invalid) for row in rows)),
            Column("target: none", tuple(_said(row) for row in rows)),
        ],
        width,
    )
    for row in rows:
        if row.alarms:
            cases = ", ".join(f"{case} {count}×" for case, count in row.alarms.items())
            yield from _sentence(f"{row.trials}, {_percent(row.threshold)}, SLOWER: {cases}", width)


def _at_most(row: SameRow) -> str:
    """The upper end of the interval, where trials are not drawn again and again."""
    return _percent(row.share.interval[1]) if row.trials == IN_ORDER else ""


def _said(row: SameRow) -> str:
    if row.required and row.reached is None:
        return "too few to tell"
    return _REACHED[row.reached]


def _planted(rows: Sequence[PlantedRow], width: int) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield "kernels that do more than recorded: SLOWER is right"
    yield from _table(
        [
            Column("kernel", tuple(_short(row.base) for row in rows), narrowest=_NARROWEST),
            _number("work", (_signed(row.share) for row in rows)),
            _number("reads", (_signed(row.reads, 2) for row in rows)),
            _number("threshold", (_percent(row.threshold) for row in rows)),
            _number("in order", (_count(row.ordered) for row in rows)),
            _number("apart", (_interval(row.apart) for row in rows)),
            _number("drawn", (_count(row.drawn) for row in rows)),
            _number("seen from", (_signed(row.detectable, 2) for row in rows)),
            _number("target", ("" if row.target is None else f"≥ {_percent(row.target)}" for row in rows)),
            Column("", tuple(_outcome(row) for row in rows)),
        ],
        width,
    )
    yield from _sentence(
        "in order: each session behind the record; apart: those that share none but the record, with the "
        "95 % interval; drawn: sessions drawn for each part, which overlap; seen from: the smallest slowdown "
        "that is caught with 95 %",
        width,
    )


def _outcome(row: PlantedRow) -> str:
    if row.target is not None and row.reached is None:
        return "not resolvable here"
    return _REACHED[row.reached]


def _clocks(rows: Sequence[ClockRow], width: int) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield "the same kernels as if the clock were lower: their times are SLOWER, their cycles are not"
    yield from _table(
        [
            Column("kernel", tuple(_short(row.case) for row in rows), narrowest=_NARROWEST),
            _number("clock", (_signed(-row.lower) for row in rows)),
            _number("threshold", (_percent(row.threshold) for row in rows)),
            _number("by time", (_count(row.times) for row in rows)),
            _number("by cycles", (_count(row.cycles) for row in rows)),
            Column("", tuple(_REACHED[row.reached] or "not resolvable here" for row in rows)),
        ],
        width,
    )


def _rules(rows: Sequence[RuleRow], recording: GateRecording, width: int) -> Iterator[str]:
    """One line a tool and threshold: false alarms, and what it caught of each base."""
    if not rows:
        return
    shares = {case.id: (case.base, case.share) for case in recording.cases if case.base}
    bases = list(dict.fromkeys(base for base, _ in shares.values()))
    lines: dict[tuple[str, float | None, float], dict[str, Share]] = {}
    for row in rows:
        if row.planted:
            base, share = shares[row.subject]
            lines.setdefault((row.tool, row.threshold, share), {})[base] = row.slower
    alarms = {(row.tool, row.threshold): row.slower for row in rows if not row.planted}
    yield ""
    yield "the same sessions judged by each tool on its own data: what it caught, and its false alarms"
    yield from _table(
        [
            Column("tool", tuple(tool for tool, _, _ in lines)),
            _number("threshold", ("its own" if each is None else _percent(each) for _, each, _ in lines)),
            _number("work", (_signed(share) for _, _, share in lines)),
            *(_number(_short(base), (_count(found.get(base)) for found in lines.values())) for base in bases),
            _number("false alarms", (_alarms(alarms.get((tool, each))) for tool, each, _ in lines)),
        ],
        width,
    )
    yield from _sentence(
        "pytest-benchmark: --benchmark-compare-fail=median:THRESHOLD on wall times, against the newest "
        "recorded session; NVBench: its compare script's SLOW, every session that ran it against every "
        "earlier one",
        width,
    )
    problems = {f"{tool}: {why}" for session in recording.sessions for tool, why in session.rivals.items()}
    for line in sorted(problems):
        yield from _sentence(line, width)


def _alarms(share: Share | None) -> str:
    if share is None or share.value is None:
        return units.NOTHING
    return f"{share.count} of {share.trials}, {_percent(share.value)}"


def _cases(rows: Sequence[CaseRow], width: int) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield "what can be seen of each kernel that stays as it is, at the default threshold"
    yield from _table(
        [
            Column("kernel", tuple(row.case for row in rows), narrowest=_NARROWEST),
            _number("median", (units.time(row.median_ns, 0.0) for row in rows)),
            _number("spread", (f"{100 * row.spread:.3f} %" for row in rows)),
            _number("seen from", (_signed(row.detectable, 2) for row in rows)),
            _number("sessions", (str(row.sessions) for row in rows)),
        ],
        width,
    )


def _simulation(conclusions: GateConclusions, width: int) -> Iterator[str]:
    if not conclusions.simulation:
        return
    from pytest_gpukern.selftest.gate_simulation import render

    yield ""
    yield "simulated suites of noisy cases that stay as they are, and the same with all of them slower"
    yield from (f"{_INDENT}{line}" for line in render(conclusions.simulation, width=width - len(_INDENT)))
    for row in conclusions.simulated:
        yield from _sentence(
            f"a false alarm in at most {_percent(RUNS_WITH_FALSE_ALARM)} of runs of {row.cases} cases with "
            f"{row.sessions} recorded sessions: {_count(row.runs)}, "
            f"{_REACHED[row.reached] or 'too few to tell'}",
            width,
        )


def _summary(conclusions: GateConclusions, width: int) -> Iterator[str]:
    yield ""
    for missing in conclusions.missing:
        yield from _sentence(f"MISSED: {missing}", width)
    verdicts = conclusions.verdicts
    yield f"{sum(verdicts)} of {len(verdicts)} targets reached"


def _short(case: str) -> str:
    """Planted cases and their bases are all cold."""
    return case.removesuffix(", cold")


def _count(share: Share | None) -> str:
    if share is None or not share.trials:
        return units.NOTHING
    return f"{share.count}/{share.trials}"


def _interval(share: Share) -> str:
    if not share.trials:
        return units.NOTHING
    low, high = share.interval
    return f"{_count(share)}: {100 * low:.0f} … {100 * high:.0f} %"


def _signed(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return units.NOTHING
    text = f"{100 * value:+g}" if digits is None else f"{100 * value:+.{digits}f}"
    return f"{text} %".replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _number(title: str, cells: Iterable[str]) -> Column:
    return Column(title, tuple(cells), numeric=True)


def _table(columns: list[Column], width: int) -> list[str]:
    lines, _ = table(columns, width, indent=_INDENT)
    return lines


def _sentence(text: str, width: int) -> list[str]:
    return [line.text for line in wrapped(text, width, indent=_INDENT)]
