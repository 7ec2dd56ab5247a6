"""Renders the tables of both self-tests as lines of text."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.selftest.gate_results import FRESH, RECORDED, RUNS_WITH_FALSE_ALARM, Share
from pytest_gpukern.selftest.recording import SUITES_S
from pytest_gpukern.selftest.timer_results import (
    CASE_S,
    DEFAULT_SHARE,
    EVENT_SHARE,
    REPEAT_SHARE,
    REPEAT_TICKS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from pytest_gpukern.selftest.gate_results import GateConclusions, PlantedRow, RuleRow
    from pytest_gpukern.selftest.recording import Conclusions, GateRecording, Recording, TimerRecording
    from pytest_gpukern.selftest.timer_results import TimerConclusions

    _Column: TypeAlias = Callable[[Sequence[Any]], Column]

_INDENT = "  "
_REACHED = {True: "reached", False: "MISSED", None: ""}
_UNRESOLVED = "not resolvable here"


def _text(title: str, cell: Callable[[Any], str], narrowest: int | None = None) -> _Column:
    return lambda rows: Column(title, tuple(map(cell, rows)), narrowest=narrowest)


def _number(title: str, cell: Callable[[Any], str]) -> _Column:
    return lambda rows: Column(title, tuple(map(cell, rows)), numeric=True)


def _section(title: str, rows: Sequence[Any], width: int, *columns: _Column) -> list[str]:
    """Puts rows below a title, or a line if there are none."""
    shown = table([column(rows) for column in columns], width, indent=_INDENT)[0] if rows else []
    return ["", title, *(shown or [f"{_INDENT}nothing was measured"])]


def _sentence(text: str, width: int) -> list[str]:
    return [line.text for line in wrapped(text, width, indent=_INDENT)]


def _device(recording: Recording) -> str:
    found = recording.fingerprint
    driver = f"driver {found.get('driver_version')}, CUDA {found.get('cuda_driver_version')}"
    made = f"{recording.created} · pytest-gpukern {recording.gpukern}"
    return f"{found.get('device_name')} · {driver} · {made}"


def _remarks(recording: Recording, width: int) -> Iterator[str]:
    """Says why CUPTI did not time, and what was odd about the device."""
    fallbacks = dict.fromkeys(session.fallback for session in recording.sessions if session.fallback)
    for remark in (*(f"not timed by CUPTI: {each}" for each in fallbacks), *recording.warnings):
        yield from _sentence(remark, width)


def _summary(conclusions: Conclusions, width: int) -> Iterator[str]:
    yield ""
    for missing in conclusions.missing:
        yield from _sentence(f"MISSED: {missing}", width)
    verdicts = conclusions.verdicts
    yield f"{sum(verdicts)} of {len(verdicts)} targets reached"


# the timers


def render_timers(recording: TimerRecording, conclusions: TimerConclusions, *, width: int) -> list[str]:
    """Returns the timers' table for a terminal of `width` columns."""
    return [
        *_timers_header(recording, conclusions, width),
        *_truth(recording, conclusions, width),
        *_repeats(conclusions, width),
        *_walls(recording, conclusions, width),
        *_suites(conclusions),
        *_rivals(conclusions, width),
        *_summary(conclusions, width),
    ]


def _timers_header(recording: TimerRecording, conclusions: TimerConclusions, width: int) -> Iterator[str]:
    found = recording.fingerprint
    yield f"gpukern selftest: {_device(recording)}"
    libraries = {**found.get("libraries", {}), **recording.rivals, "Python": found.get("python_version")}
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items())
    yield from _sentence(f"{found.get('cpu_model')}; {versions}", width)
    sessions = recording.sessions
    ticks = {name: ns for session in sessions for name, ns in session.ticks_ns.items()}
    words = ", ".join(f"{name} {ns:.0f} ns" for name, ns in ticks.items())
    steps = [session.truth_step_ns for session in sessions if session.truth_step_ns is not None]
    if steps:
        words += f", the global timer {min(steps):.0f} ns"
    yield from _sentence(
        f"default timer: {conclusions.default_timer or 'none'}; ticks: {words or 'unknown'}; "
        f"{len(sessions)} sessions in {units.duration(recording.elapsed_s)}",
        width,
    )
    yield from _remarks(recording, width)


def _truth(recording: TimerRecording, conclusions: TimerConclusions, width: int) -> Iterator[str]:
    yield from _section(
        f"timers against a known truth: default within {units.uncertainty(DEFAULT_SHARE)} or one tick, "
        f"event within {units.uncertainty(EVENT_SHARE)} from 20 µs on",
        conclusions.truth,
        width,
        _text("what", lambda row: row.subject, narrowest=24),
        _text("truth", lambda row: row.against),
        _text("timer", lambda row: row.timer),
        _number("true", lambda row: units.time(row.truth_ns, 0.0)),
        _number("error", lambda row: _signed_time(row.error_ns)),
        _number("", lambda row: _signed(row.error_ns / row.truth_ns, 2) if row.truth_ns else ""),
        _number("worst", lambda row: _signed_time(row.worst_ns)),
        _number("allowed", lambda row: "" if row.allowed_ns is None else units.time(row.allowed_ns)),
        _text("target", lambda row: _REACHED[row.reached]),
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


def _signed_time(ns: float) -> str:
    text = units.time(abs(ns))
    return text if not ns else f"{'−' if ns < 0 else '+'}{text}"


def _repeats(conclusions: TimerConclusions, width: int) -> Iterator[str]:
    yield from _section(
        "A/A: range (max / min − 1) of the sessions' medians, default timer "
        f"≤ {units.uncertainty(REPEAT_SHARE)}, {REPEAT_TICKS} ticks or what their intervals explain",
        conclusions.repeats,
        width,
        _text("kernel", lambda row: row.kernel),
        _text("cache", lambda row: row.cache),
        _text("timer", lambda row: row.timer),
        _number("median", lambda row: units.time(row.median_ns, 0.0)),
        _number("range", lambda row: f"{100 * row.range:.2f} %"),
        _number("high − low", lambda row: units.time(row.high_ns - row.low_ns)),
        _number("allowed", lambda row: f"{100 * row.allowed:.2f} %" if row.judged else ""),
        _number("SM clock", lambda row: "" if row.clock_range is None else f"{100 * row.clock_range:.2f} %"),
        _number("sessions", lambda row: f"{row.sessions}"),
        _text("target", lambda row: _REACHED[row.reached]),
    )
    for row in conclusions.repeats:
        if row.invalid is not None:
            yield from _sentence(
                f"{row.kernel}, {row.cache}, {row.timer}: {row.asked_sessions - row.sessions} sessions "
                f"INVALID: {row.invalid}",
                width,
            )


def _walls(recording: TimerRecording, conclusions: TimerConclusions, width: int) -> Iterator[str]:
    preparations = [each for session in recording.sessions for each in session.preparations]

    def median(kernel: str, name: str) -> str:
        values = [getattr(each, name) for each in preparations if each.kernel == kernel]
        known = [value for value in values if value is not None]
        return _seconds(statistics.median(known)) if known else ""

    yield from _section(
        f"wall time to measure a case, all timers together ≤ {CASE_S:g} s; verified and compiled before",
        conclusions.walls,
        width,
        _text("kernel", lambda row: row.kernel),
        _text("cache", lambda row: row.cache),
        _number("median", lambda row: _seconds(row.median_s)),
        _number("worst", lambda row: _seconds(row.worst_s)),
        _text("target", lambda row: _REACHED[row.reached]),
        _number("data, check", lambda row: median(row.kernel, "seconds")),
        _number("incl. first call", lambda row: median(row.kernel, "first_call_s")),
        _number("check after", lambda row: median(row.kernel, "recheck_s")),
    )
    setups = [session.setup_s for session in recording.sessions if session.setup_s is not None]
    if setups:
        setup = _seconds(statistics.median(setups))
        yield from _sentence(f"making the timers, once per process: {setup}", width)


def _suites(conclusions: TimerConclusions) -> Iterator[str]:
    suites = conclusions.suites
    if suites is None:
        return
    yield ""
    failed = "" if suites.exit_status == 0 else f", but they failed with status {suites.exit_status}"
    yield (
        f"all suites, compilation included: {suites.wall_s:.0f} s{failed}; "
        f"≤ {SUITES_S:.0f} s: {_REACHED[suites.reached]}"
    )


def _rivals(conclusions: TimerConclusions, width: int) -> Iterator[str]:
    if not conclusions.rivals:
        return

    def off(ratio: float | None) -> str:
        return "" if ratio is None else units.change(ratio)

    yield from _section(
        "other tools on the same kernels, in the same processes",
        [row for row in conclusions.rivals if row.median_ns is not None],
        width,
        _text("tool", lambda row: row.tool, narrowest=24),
        _text("kernel", lambda row: row.kernel),
        _text("cache", lambda row: row.cache),
        _number("median", lambda row: units.time(row.median_ns, 0.0)),
        _number(f"of {conclusions.default_timer}", lambda row: off(row.of_default)),
        _number("of graph slope, hot", lambda row: off(row.of_slope)),
        _number("A/A range", lambda row: "" if row.range is None else f"{100 * row.range:.2f} %"),
        _number("sessions", lambda row: f"{row.sessions}"),
    )
    for row in conclusions.rivals:
        if row.problem is not None:
            subject = f"{row.tool}, {row.kernel}" if row.kernel else row.tool
            yield from _sentence(f"{subject}: {row.problem}", width)


def _seconds(seconds: float) -> str:
    return units.time(seconds * 1e9)


# the gate


def render_gate(recording: GateRecording, conclusions: GateConclusions, *, width: int) -> list[str]:
    """Returns the gate's tables for a terminal of `width` columns."""
    return [
        *_gate_header(recording, width),
        *_same(conclusions, width),
        *_planted(conclusions, width),
        *_clocks(conclusions, width),
        *_rules(conclusions, recording, width),
        *_cases(conclusions, width),
        *_simulation(conclusions, width),
        *_summary(conclusions, width),
    ]


def _gate_header(recording: GateRecording, width: int) -> Iterator[str]:
    if recording.no_gpu is not None:
        yield f"gpukern selftest --gate: pytest-gpukern {recording.gpukern}"
        yield from _sentence(f"no GPU: {recording.no_gpu}; only the simulation is shown", width)
        return
    yield f"gpukern selftest --gate: {_device(recording)}"
    timers = " and ".join(dict.fromkeys(s.default_timer for s in recording.sessions if s.default_timer))
    yield from _sentence(
        f"{len(recording.sessions)} sessions, each a fresh process, in "
        f"{units.duration(recording.elapsed_s)}; timer: {timers or 'none'}; {RECORDED} are the record, one "
        f"is judged, {FRESH} fresh ones confirm",
        width,
    )
    yield from _remarks(recording, width)
    left_out = {f"{case}: {why}" for session in recording.sessions for case, why in session.left_out.items()}
    for line in sorted(left_out):
        yield from _sentence(f"left out: {line}", width)


def _same(conclusions: GateConclusions, width: int) -> Iterator[str]:
    if not conclusions.same:
        return
    yield from _section(
        "unchanged kernels: a confirmed SLOWER is a false alarm",
        conclusions.same,
        width,
        _number("threshold", lambda row: _percent(row.threshold)),
        _number("judged", lambda row: str(row.judged)),
        _number("suspected", lambda row: str(row.suspected)),
        _number("SLOWER", lambda row: str(row.slower)),
        _number("at most", lambda row: _percent(Share(row.slower, row.judged).interval[1])),
        _number("UNDECIDED", lambda row: str(row.undecided)),
        _number("SAME", lambda row: str(row.same)),
        _number("FASTER", lambda row: str(row.faster)),
        _number("INVALID", lambda row: str(row.invalid)),
        _text("target: none", lambda row: _said(row.reached, "too few to tell" if row.required else "")),
    )
    for row in conclusions.same:
        if row.alarms:
            cases = ", ".join(f"{case} {count}×" for case, count in row.alarms.items())
            yield from _sentence(f"SLOWER at {_percent(row.threshold)}: {cases}", width)


def _planted(conclusions: GateConclusions, width: int) -> Iterator[str]:
    if not conclusions.planted:
        return

    def apart(row: PlantedRow) -> str:
        low, high = row.apart.interval
        text = _count(row.apart)
        return f"{text}: {100 * low:.0f} … {100 * high:.0f} %" if row.apart.trials else text

    yield from _section(
        "kernels with more work than recorded: SLOWER is right",
        conclusions.planted,
        width,
        _text("kernel", lambda row: _short(row.base), narrowest=16),
        _number("work", lambda row: _signed(row.share)),
        _number("reads", lambda row: _signed(row.reads, 2)),
        _number("threshold", lambda row: _percent(row.threshold)),
        _number("in order", lambda row: _count(row.ordered)),
        _number("apart", apart),
        _number("drawn", lambda row: _count(row.drawn)),
        _number("detectable", lambda row: _signed(row.detectable, 2)),
        _number("target", lambda row: "" if row.target is None else f"≥ {_percent(row.target)}"),
        _text("", lambda row: _said(row.reached, _UNRESOLVED if row.target else "")),
    )
    yield from _sentence(
        "in order: each session after the record; apart: trials that share only the record, with the 95 % "
        "interval; drawn: trials of random sessions, which overlap; detectable: the smallest slowdown that "
        "is caught with 95 %",
        width,
    )


def _clocks(conclusions: GateConclusions, width: int) -> Iterator[str]:
    if not conclusions.clocks:
        return
    yield from _section(
        "the same kernels as if the clock were lower: their times are SLOWER, their cycles are not",
        conclusions.clocks,
        width,
        _text("kernel", lambda row: _short(row.case), narrowest=16),
        _number("clock", lambda row: _signed(-row.lower)),
        _number("threshold", lambda row: _percent(row.threshold)),
        _number("by time", lambda row: _count(row.times)),
        _number("by cycles", lambda row: _count(row.cycles)),
        _text("", lambda row: _said(row.reached, _UNRESOLVED)),
    )


def _rules(conclusions: GateConclusions, recording: GateRecording, width: int) -> Iterator[str]:
    if not conclusions.rules:
        return
    bases = dict.fromkeys(base for row in conclusions.rules for base in row.caught)

    def caught(base: str) -> _Column:
        return _number(_short(base), lambda row: _count(row.caught.get(base)))

    def false_alarms(row: RuleRow) -> str:
        found = row.alarms
        return units.NOTHING if found.value is None else f"{_count(found, ' of ')}, {_percent(found.value)}"

    yield from _section(
        "the same sessions judged by each tool on its own data: what it caught, and its false alarms",
        conclusions.rules,
        width,
        _text("tool", lambda row: row.tool),
        _number("threshold", lambda row: "its own" if row.threshold is None else _percent(row.threshold)),
        _number("work", lambda row: _signed(row.share)),
        *map(caught, bases),
        _number("false alarms", false_alarms),
    )
    yield from _sentence(
        "pytest-benchmark: --benchmark-compare-fail=median:THRESHOLD on wall times, against the newest "
        "recorded session; NVBench: SLOW by its compare script, each session that ran it against every "
        "earlier one",
        width,
    )
    problems = {f"{tool}: {why}" for session in recording.sessions for tool, why in session.rivals.items()}
    for problem in sorted(problems):
        yield from _sentence(problem, width)


def _cases(conclusions: GateConclusions, width: int) -> Iterator[str]:
    if not conclusions.cases:
        return
    yield from _section(
        "what the gate can detect in each unchanged kernel, at the default threshold",
        conclusions.cases,
        width,
        _text("kernel", lambda row: row.case, narrowest=16),
        _number("median", lambda row: units.time(row.median_ns, 0.0)),
        _number("spread", lambda row: f"{100 * row.spread:.3f} %"),
        _number("detectable", lambda row: _signed(row.detectable, 2)),
        _number("sessions", lambda row: str(row.sessions)),
    )


def _simulation(conclusions: GateConclusions, width: int) -> Iterator[str]:
    if not conclusions.simulation:
        return
    yield from _section(
        "simulated suites of noisy cases: all unchanged, and all slower",
        conclusions.simulation,
        width,
        _text("noise", lambda row: row.noise),
        _text("rule", lambda row: row.rule),
        _number("sessions", lambda row: str(row.sessions)),
        _number("threshold", lambda row: "" if row.threshold is None else f"{100 * row.threshold:g} %"),
        _number("false SLOWER", lambda row: _percent(row.false / row.judged)),
        _number("runs with one", lambda row: _percent(row.false_runs / row.runs)),
        _number("slowdown", lambda row: f"{100 * row.change:g} %"),
        _number("caught", lambda row: _percent(row.caught / row.slowed)),
    )
    for row in conclusions.simulated:
        yield from _sentence(
            f"a false alarm in at most {_percent(RUNS_WITH_FALSE_ALARM)} of runs of {row.cases} cases with "
            f"{row.sessions} recorded sessions: {_count(row.runs)}, "
            f"{_said(row.reached, 'too few to tell')}",
            width,
        )


def _short(case: str) -> str:
    """Leaves out the cache policy, since planted cases and their bases are all cold."""
    return case.removesuffix(", cold")


def _said(reached: bool | None, otherwise: str) -> str:
    return _REACHED[reached] or otherwise


def _count(share: Share | None, of: str = "/") -> str:
    return f"{share.count}{of}{share.trials}" if share and share.trials else units.NOTHING


def _signed(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return units.NOTHING
    text = f"{100 * value:+g}" if digits is None else f"{100 * value:+.{digits}f}"
    return f"{text} %".replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
