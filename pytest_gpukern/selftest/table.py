"""The self-test's table as lines of text."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.selftest.targets import (
    CASE_S,
    DEFAULT_SHARE,
    EVENT_SHARE,
    REPEAT_SHARE,
    REPEAT_TICKS,
    SUITES_S,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpukern.selftest.recording import Recording
    from pytest_gpukern.selftest.targets import Conclusions, RepeatRow, RivalRow, TruthRow, WallRow

_INDENT = "  "
_REACHED = {True: "reached", False: "MISSED", None: ""}
_NARROWEST = 24


def render(recording: Recording, conclusions: Conclusions, *, width: int) -> list[str]:
    """The whole table, for a terminal of `width` columns."""
    return [
        *_header(recording, conclusions, width),
        *_truth(recording, conclusions, width),
        *_repeats(conclusions.repeats, width),
        *_walls(recording, conclusions.walls, width),
        *_suites(conclusions),
        *_rivals(conclusions.rivals, conclusions.default_timer, width),
        *_summary(conclusions, width),
    ]


def _header(recording: Recording, conclusions: Conclusions, width: int) -> Iterator[str]:
    found = recording.fingerprint
    parts = [
        f"{found.get('device_name')}",
        f"driver {found.get('driver_version')}, CUDA {found.get('cuda_driver_version')}",
        recording.created,
        f"pytest-gpukern {recording.gpukern}",
    ]
    yield f"gpukern selftest: {' · '.join(parts)}"
    libraries = {**found.get("libraries", {}), **recording.rivals, "Python": found.get("python_version")}
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items())
    yield from _sentence(f"{found.get('cpu_model')}; {versions}", width)
    sessions = [session for session in recording.sessions if session.problem is None]
    ticks = {name: ns for session in sessions for name, ns in session.ticks_ns.items()}
    words = ", ".join(f"{name} {ns:.0f} ns" for name, ns in ticks.items())
    steps = [session.truth_step_ns for session in sessions if session.truth_step_ns is not None]
    if steps:
        words += f", the global timer {min(steps):.0f} ns"
    yield from _sentence(
        f"default timer: {conclusions.default_timer or 'none'}; ticks: {words or 'unknown'}; "
        f"{len(recording.sessions)} sessions in {units.duration(recording.elapsed_s)}",
        width,
    )
    for fallback in dict.fromkeys(session.fallback for session in sessions if session.fallback):
        yield from _sentence(f"not timed by CUPTI: {fallback}", width)
    for warning in recording.warnings:
        yield from _sentence(warning, width)


def _truth(recording: Recording, conclusions: Conclusions, width: int) -> Iterator[str]:
    yield ""
    yield (
        f"truth that is not our own timer: default within {units.uncertainty(DEFAULT_SHARE)} or one tick, "
        f"event less its stated cost within {units.uncertainty(EVENT_SHARE)} from 20 µs on"
    )
    rows = conclusions.truth
    yield from _table(
        [
            Column("what", tuple(row.subject for row in rows), narrowest=_NARROWEST),
            Column("truth", tuple(row.against for row in rows)),
            Column("timer", tuple(row.timer for row in rows)),
            _number("true", (units.time(row.truth_ns, 0.0) for row in rows)),
            _number("error", (_signed(row.error_ns) for row in rows)),
            _number("", (_percent(row) for row in rows)),
            _number("worst", (_signed(row.worst_ns) for row in rows)),
            _number(
                "allowed", ("" if row.allowed_ns is None else units.time(row.allowed_ns) for row in rows)
            ),
            Column("target", tuple(_REACHED[row.reached] for row in rows)),
        ],
        width,
    )
    beyond: dict[str, list[float]] = {}
    for session in recording.sessions:
        for spin in session.spins:
            beyond.setdefault(spin.timer, []).append(spin.beyond_ns)
    for timer, values in beyond.items():
        yield from _sentence(
            f"{timer} read {_between(values)} more than the spinning kernels' own time, which begins after "
            "they start and stops before they end",
            width,
        )
    costs = [cost for each in recording.sessions if (cost := each.fixed_costs_ns.get("event")) is not None]
    if costs:
        yield from _sentence(f"event states a fixed cost of {_between(costs)}", width)


def _between(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{low} ns" if low == high else f"{low} to {high} ns"


def _percent(row: TruthRow) -> str:
    return f"{100 * row.error_ns / row.truth_ns:+.2f} %".replace("-", "−") if row.truth_ns else ""


def _signed(ns: float) -> str:
    text = units.time(abs(ns))
    return text if not ns else f"{'−' if ns < 0 else '+'}{text}"


def _repeats(rows: Sequence[RepeatRow], width: int) -> Iterator[str]:
    yield ""
    yield (
        "A/A: range (max / min − 1) of the sessions' medians, default timer "
        f"≤ {units.uncertainty(REPEAT_SHARE)} or {REPEAT_TICKS} ticks"
    )
    yield from _table(
        [
            Column("kernel", tuple(row.kernel for row in rows)),
            Column("cache", tuple(row.cache for row in rows)),
            Column("timer", tuple(row.timer for row in rows)),
            _number("median", (units.time(row.median_ns, 0.0) for row in rows)),
            _number("range", (f"{100 * row.range:.2f} %" for row in rows)),
            _number("high − low", (units.time(row.high_ns - row.low_ns) for row in rows)),
            _number("sessions", (f"{row.sessions}" for row in rows)),
            Column("target", tuple(_REACHED[row.reached] for row in rows)),
        ],
        width,
    )
    for row in rows:
        if row.invalid is not None:
            yield from _sentence(
                f"{row.kernel}, {row.cache}, {row.timer}: {row.asked_sessions - row.sessions} sessions "
                f"INVALID: {row.invalid}",
                width,
            )


def _walls(recording: Recording, rows: Sequence[WallRow], width: int) -> Iterator[str]:
    yield ""
    yield f"wall time to measure a case, all timers together ≤ {CASE_S:g} s; verified and compiled before"
    preparations = [each for session in recording.sessions for each in session.preparations]

    def median(kernel: str, name: str) -> str:
        values = [getattr(each, name) for each in preparations if each.kernel == kernel]
        known = [value for value in values if value is not None]
        return _seconds(statistics.median(known)) if known else ""

    yield from _table(
        [
            Column("kernel", tuple(row.kernel for row in rows)),
            Column("cache", tuple(row.cache for row in rows)),
            _number("median", (_seconds(row.median_s) for row in rows)),
            _number("worst", (_seconds(row.worst_s) for row in rows)),
            Column("target", tuple(_REACHED[row.reached] for row in rows)),
            _number("data, check", (median(row.kernel, "seconds") for row in rows)),
            _number("of it first call", (median(row.kernel, "first_call_s") for row in rows)),
            _number("check after", (median(row.kernel, "recheck_s") for row in rows)),
        ],
        width,
    )
    setups = [session.setup_s for session in recording.sessions if session.setup_s is not None]
    if setups:
        yield from _sentence(
            f"once a process, to make the timers: {_seconds(statistics.median(setups))}", width
        )


def _suites(conclusions: Conclusions) -> Iterator[str]:
    suites = conclusions.suites
    if suites is None:
        return
    yield ""
    failed = "" if suites.exit_status == 0 else f", but they failed with status {suites.exit_status}"
    yield (
        f"the suites whole, compilation included: {suites.wall_s:.0f} s{failed}; "
        f"≤ {SUITES_S:.0f} s: {_REACHED[suites.reached]}"
    )


def _rivals(rows: Sequence[RivalRow], default: str, width: int) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield "other tools on the same kernels, in the same processes"
    measured = [row for row in rows if row.median_ns is not None]
    yield from _table(
        [
            Column("tool", tuple(row.tool for row in measured), narrowest=_NARROWEST),
            Column("kernel", tuple(row.kernel for row in measured)),
            Column("cache", tuple(row.cache for row in measured)),
            _number("median", (units.time(row.median_ns, 0.0) for row in measured)),
            _number(f"of {default}", (_off(row.of_default) for row in measured)),
            _number("of graph slope, hot", (_off(row.of_slope) for row in measured)),
            _number("A/A range", (_range(row) for row in measured)),
            _number("sessions", (f"{row.sessions}" for row in measured)),
        ],
        width,
    )
    for row in rows:
        if row.problem is not None:
            subject = f"{row.tool}, {row.kernel}" if row.kernel else row.tool
            yield from _sentence(f"{subject}: {row.problem}", width)


def _summary(conclusions: Conclusions, width: int) -> Iterator[str]:
    yield ""
    for missing in conclusions.missing:
        yield from _sentence(f"MISSED: {missing}", width)
    verdicts = conclusions.verdicts
    yield f"{sum(verdicts)} of {len(verdicts)} targets reached"


def _range(row: RivalRow) -> str:
    return "" if row.range is None else f"{100 * row.range:.2f} %"


def _off(ratio: float | None) -> str:
    return "" if ratio is None else units.change(ratio)


def _seconds(seconds: float) -> str:
    return units.time(seconds * 1e9)


def _number(title: str, cells: Iterable[str]) -> Column:
    return Column(title, tuple(cells), numeric=True)


def _table(columns: list[Column], width: int) -> list[str]:
    lines, _ = table(columns, width, indent=_INDENT)
    return lines if columns[0].cells else [f"{_INDENT}nothing was measured"]


def _sentence(text: str, width: int) -> list[str]:
    return [line.text for line in wrapped(text, width, indent=_INDENT)]
