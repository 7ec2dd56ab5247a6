"""Writes what `-v` adds to a table: what was checked, what the device did in a call, what observers saw.

What the device did is shown as nvprof did: copies, memsets and kernels with their share of the time, and with
`gpukern report -k` each activity of one execution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpukern.baseline.record import Record
from pytest_gpukern.findings.explain import dimensions
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.measure.observers import OBSERVERS, Figure, ObserverRow
from pytest_gpukern.report import units
from pytest_gpukern.report.layout import GAP, NARROWEST, Column, Line, table, wrapped
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import (
    Correctness,
    DeviceActivity,
    DeviceWork,
    KernelFacts,
    Measurement,
    Result,
    Value,
)
from pytest_gpukern.values.timer_table import timer_row

_UNKNOWN = ObserverRow("")
_BITS = {"bitwise": "the same bits in every launch", "tolerant": "bits that differ between launches"}
_INDENT = "  "
_OVERLAP = 1.01
"""Work that adds up to more than its span, clocks' steps aside, ran at the same time."""
_IDLE = 0.005
"""Share of the time without any work from which it has a line of its own."""
_SEEN_BY = "cupti"
"""The timer that tells what the device does in a call that the host times."""
WORK_TITLES = ("Time(%)", "Time", "Calls", "Avg", "Size", "Throughput")
_TRACE_DIGITS = 5
_UNLIMITED = 10_000
"""Width of a trace, which is read sideways."""
LAUNCH_TITLES = ("Grid Size", "Block Size", "Regs", "Shared", "Local", "Occupancy", "limited by", "code")


@dataclass(frozen=True)
class BreakdownLine:
    """Holds a line of a breakdown: a kernel, a copy, or the time in which the device did nothing.

    `cells` are nvprof's figures, as `WORK_TITLES` names them.
    """

    name: str
    cells: tuple[str, ...]
    kernel: KernelFacts | None = None


@dataclass(frozen=True)
class Breakdown:
    """Says what the device did in a call, the longest first, and how that fills the call's time."""

    title: str
    lines: tuple[BreakdownLine, ...]
    notes: tuple[str, ...]


def device_work(result: Result, *, width: int) -> list[Line]:
    """Returns a breakdown for each scope whose device work a timer saw, each followed by an empty line."""
    breakdowns = filter(None, (breakdown(result, time) for time in result.measurements))
    lines = [line for work in breakdowns for line in (*_breakdown_lines(result, work, width), Line(""))]
    for name, kernel in compiled(result):
        lines += wrapped(f"{result.case.id} · {name}", width, markup={"bold": True})
        lines += [*wrapped(_launch_text(kernel), width, indent=_INDENT), Line("")]
    return lines


def compiled(result: Result) -> list[tuple[str, KernelFacts]]:
    """Returns each kernel that was compiled and did not run, by its name and architecture."""
    return [
        (f"{kernel.name} {name}", kernel) for name, code in result.code.items() for kernel in code.kernels
    ]


def breakdown(result: Result, time: Measurement) -> Breakdown | None:
    """Returns what the device did in the timed calls; None if that was not seen."""
    if not time.work or result.simulated or result.correctness is Correctness.INCORRECT:
        return None
    facts = {fact.launch: fact for fact in result.kernels}
    # A kernel's own time is what saw it; a host's clock sees what is between the pieces too.
    by_host, whole_ns = not timer_row(time.timer).device_timed, time.summary.median_ns
    span_ns = time.device_ns if by_host else whole_ns
    lines = []
    for work in sorted(time.work, key=lambda work: -(work.time_ns or 0.0)):
        kernel = facts.get(work.kernel.launch, work.kernel) if work.kernel else None
        name = work.kernel.name if work.kernel else work.name
        longest_ns = max(whole_ns, work.time_ns or 0.0) if units.is_number(whole_ns) else whole_ns
        lines.append(BreakdownLine(name, _cells(work, longest_ns), kernel))
    work_ns = sum(work.time_ns or 0.0 for work in time.work)
    covered_ns = min(work_ns, span_ns) if units.is_number(span_ns) else work_ns
    if units.is_number(whole_ns) and whole_ns - covered_ns >= _IDLE * whole_ns:
        idle_ns = whole_ns - covered_ns
        name = "host and launch" if by_host else "between kernels and copies"
        lines.append(BreakdownLine(name, (_share(idle_ns, whole_ns), units.time(idle_ns), "", "", "", "")))
    title = f"{time.scope} · {units.time(whole_ns)} by {time.timer}"
    if by_host:
        title += f", what the device did by {_SEEN_BY}"
    notes = []
    if units.is_number(span_ns) and work_ns > _OVERLAP * span_ns:
        notes.append(f"work overlaps: {units.time(work_ns)} of it within {units.time(span_ns)}")
    if by_host and units.is_number(whole_ns) and units.is_number(span_ns) and span_ns > whole_ns:
        notes.append(f"{_SEEN_BY} saw other calls than {time.timer} timed, of {units.time(span_ns)}")
    if result.compile_ns is not None:
        notes.append(f"compiling and loading took {units.time(result.compile_ns)}")
    return Breakdown(title, tuple(lines), tuple(notes))


def _cells(work: DeviceWork, whole_ns: float) -> tuple[str, ...]:
    return (
        _share(work.time_ns, whole_ns),
        units.time(work.time_ns),
        units.quantity(work.count, ""),
        units.time(work.time_ns / work.count) if work.count and work.time_ns else units.NOTHING,
        units.size(work.size_bytes) if work.size_bytes else "",
        units.bandwidth(work.size_bytes, work.time_ns) if work.size_bytes else "",
    )


def spent(result: Result, time: Measurement) -> str:
    """Says on what a whole call to a GPU spends its time: `copies 71 %, host 21 %, kernel 8 %`.

    What overlaps counts as if it did not. Where no timer saw the copies, the kernel's time tells its part.
    """
    whole_ns = time.summary.median_ns
    parts = {"kernel": 0.0, "copies": 0.0}
    for work in time.work:
        parts["kernel" if work.kind == "kernel" else "copies"] += work.time_ns or 0.0
    if not time.work:
        kernels = (of.summary.median_ns for of in result.measurements if of.scope == "kernel")
        parts["kernel"] = next(kernels, None) or 0.0
    known = time.scope == "end_to_end" and units.is_number(whole_ns) and 0 < sum(parts.values()) < math.inf
    if not known or result.simulated:
        return ""
    parts["host" if time.work else "copies and host"] = max(0.0, whole_ns - sum(parts.values()))
    whole_ns = sum(parts.values())
    longest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {units.share(ns / whole_ns)}" for name, ns in longest if ns)


def _share(part_ns: float, whole_ns: float) -> str:
    known = units.is_number(part_ns) and units.is_number(whole_ns) and whole_ns > 0
    return f"{100 * part_ns / whole_ns:.1f} %" if known else units.NOTHING


def _breakdown_lines(result: Result, work: Breakdown, width: int) -> list[Line]:
    cells = zip(*(line.cells for line in work.lines), strict=True)
    columns = [Column(title, texts, numeric=True) for title, texts in zip(WORK_TITLES, cells, strict=True)]
    columns = [column for column in columns if any(column.cells)]
    room = width - len(_INDENT) - sum(column.width + len(GAP) for column in columns)
    names = tuple(fitted(line.name, max(room, NARROWEST)) for line in work.lines)
    columns.append(Column("Name", names, shortens=True))
    (header, *rows), _ = table(columns, width, indent=_INDENT)
    lines = [*wrapped(f"{result.case.id} · {work.title}", width, markup={"bold": True}), Line(header)]
    for row, entry in zip(rows, work.lines, strict=True):
        launch = _launch_text(entry.kernel) if entry.kernel else ""
        lines += [Line(row), *wrapped(launch, width, indent=3 * _INDENT)]
    return lines + [line for note in work.notes for line in wrapped(note, width, indent=_INDENT)]


def launch_cells(kernel: KernelFacts | None) -> tuple[str, ...]:
    """Returns how a kernel was launched and what it needs, as `LAUNCH_TITLES` names it; nothing of none."""
    if kernel is None:
        return ()
    return (
        dimensions(kernel.grid or ()),
        dimensions(kernel.block or ()),
        str(kernel.registers),
        units.size(kernel.shared_bytes),
        units.size(kernel.local_bytes),
        units.share(kernel.occupancy) if kernel.occupancy is not None else "",
        kernel.limited_by or "",
        (kernel.machine_code_sha256 or "").rpartition(":")[2][:12],  # without the method of the hash
    )


def _launch_text(kernel: KernelFacts) -> str:
    """Returns `grid 63, block 64, 40 registers, 8 B local, occupancy 75 % (40 registers a thread)`."""
    grid, block, registers, shared, local, occupancy, limit, code = launch_cells(kernel)
    parts = [
        f"grid {grid}, block {block}, {registers} registers",
        f"{shared} shared" if kernel.shared_bytes else "",
        f"{local} local" if kernel.local_bytes else "",
        f"{units.size(kernel.spill_bytes)} spilled" if kernel.spill_bytes else "",
        f"occupancy {occupancy}{f' ({limit})' if limit else ''}" if occupancy else "",
        f"machine code {code}" if code else "",
        *(f"{count} {kind}" for kind, count in kernel.instructions),
    ]
    return ", ".join(filter(None, parts))


def epochs(record: Record) -> list[Line]:
    """Returns `2026-11-20, 5 sessions, kernel/cupti/cold 1.11 µs: more exact` for each of several epochs."""
    if len(record.epochs) < 2 and not any(epoch.reason for epoch in record.epochs):
        return []
    lines = [Line(""), Line(record.case)]
    for epoch in record.epochs:
        words = [epoch.opened[:10], units.counted(len(epoch.sessions), "session")]
        for key in sorted(epoch.keys):
            times = [time.summary.median_ns for of in epoch.sessions if (time := of.time(key))]
            known = [ns for ns in times if ns is not None]  # a damaged file of a run may lack some
            words.append(f"{key} {units.time(statistics.median(known) if known else None)}")
        lines.append(Line(f"{_INDENT}{', '.join(words)}" + (f": {epoch.reason}" if epoch.reason else "")))
    return lines


def checks(results: Sequence[Result], *, width: int) -> list[Line]:
    """Tells once what the same cases have in common, and then an empty line; nothing where none has any."""
    checked = [result for result in results if result.correctness is not Correctness.INCORRECT]
    texts_of = {result.case.id: _checks_of(result) for result in checked}
    distinct = dict.fromkeys(text for texts in texts_of.values() for text in texts)
    shared = grouped((tuple(case for case in texts_of if text in texts_of[case]), text) for text in distinct)
    lines = []
    for cases, texts in shared.items():
        who = f"all {len(cases)} cases" if 1 < len(cases) == len(checked) else ", ".join(cases)
        lines += wrapped(f"{who} · {'; '.join(texts)}", width, indent=_INDENT)
    return [*lines, Line("")] if lines else []


def _checks_of(result: Result) -> list[str]:
    by_kind = grouped((error.determinism, name) for name, error in result.errors.items())
    texts = [f"{', '.join(names)}: {_BITS.get(kind, kind)}" for kind, names in by_kind.items() if kind]
    texts += [f"checked at {', '.join(result.corners)} too"] if result.corners else []
    return texts + ([f"seed {result.seed}"] if result.seed is not None else [])


def observed(result: Result) -> list[tuple[str, str, str]]:
    """Returns (measurement's key or nothing, observer's label, its figures) of all that observers saw."""
    seen = [] if result.simulated else [(m.key, m.observations) for m in result.measurements]
    return [
        (key, row.label or name, ", ".join(texts))
        for key, observations in (*seen, ("", result.observations))
        for name, values in observations.items()
        if (row := OBSERVERS.get(name, _UNKNOWN)).in_reports and (texts := list(_figures(values, row)))
    ]


def _figures(values: Mapping[str, Value], row: ObserverRow) -> Iterator[str]:
    """Yields figures in the order of their row; a run of others may have some that no row declares."""
    for name, value in {**dict.fromkeys(row.figures), **values}.items():
        if value not in (None, ()):
            figure = row.figures.get(name) or Figure(name)
            yield f"{figure.label} {units.quantity(value, figure.unit)}"


def observed_lines(results: Sequence[Result], *, width: int) -> list[Line]:
    """Tells what observers saw, the same once: mostly, that libraries kept no memory."""
    seen = [
        (" · ".join(filter(None, (key, f"{label}: {text}"))), result.case.id)
        for result in results
        for key, label, text in observed(result)
    ]
    rows = (f"{units.named(cases, units.SHOWN)} · {text}" for text, cases in grouped(seen).items())
    lines = [line for row in rows for line in wrapped(row, width)]
    return [*lines, Line("")] if lines else []


def gpu_trace(results: Iterable[Result]) -> list[Line]:
    """Returns a table for each case that has a trace, as wide as it is."""
    lines = list[Line]()
    for result in results:
        if result.trace is not None:
            rows = [_cells_of(activity, result) for activity in result.trace.activities]
            columns = [
                Column(title, tuple(row[title] for row in rows), numeric=title != "Name")
                for title in (rows[0] if rows else ())
            ]
            texts = table(columns, _UNLIMITED)[0] if rows else ["  the device did nothing"]
            heading = Line(f"{result.case.id} · {result.trace.scope}", {"bold": True})
            lines += [heading, *map(Line, texts), Line("")]
    return lines


def _cells_of(activity: DeviceActivity, result: Result) -> dict[str, str]:
    """Returns the title of each column and its text for an activity, in nvprof's order."""
    device = result.fingerprint.device_name
    took_ns = activity.end_ns - activity.start_ns
    copies = activity.kind != "kernel"
    return {
        "Start": units.time(activity.start_ns, digits=_TRACE_DIGITS),
        "Duration": units.time(took_ns, digits=_TRACE_DIGITS),
        "Grid Size": _dimensions(activity.grid),
        "Block Size": _dimensions(activity.block),
        "Regs": units.NOTHING if activity.registers is None else str(activity.registers),
        "SSMem": units.size(activity.static_shared_bytes),
        "DSMem": units.size(activity.dynamic_shared_bytes),
        "Size": units.size(activity.size_bytes) if copies else units.NOTHING,
        "Throughput": units.bandwidth(activity.size_bytes, took_ns) if copies else units.NOTHING,
        "SrcMemType": activity.source or units.NOTHING,
        "DstMemType": activity.target or units.NOTHING,
        "Device": f"{device} ({activity.device})" if device else str(activity.device),
        "Context": str(activity.context),
        "Stream": str(activity.stream),
        "Name": f"[CUDA {activity.name}]" if copies else activity.name,
    }


def _dimensions(sizes: tuple[int, int, int] | None) -> str:
    return units.NOTHING if sizes is None else f"({' '.join(map(str, sizes))})"
