"""Writes what `-v` adds to a table: what was checked, what the device did in a call, what observers saw.

What the device did is shown as nvprof did: copies, memsets and kernels with their share of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.findings.explain import dimensions
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.measure.observers import OBSERVERS, Figure, ObserverRow
from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, Line, table, wrapped
from pytest_gpukern.report.rows import scope_times
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpukern.report.rows import ScopeTime
    from pytest_gpukern.values.result import DeviceWork, KernelFacts, Measurement, Result, Value

_UNKNOWN = ObserverRow("", "")
_INDENT = "  "
_GAP = 2
_SHORTEST_NAME = 24
_OVERLAP = 1.01
"""Work that adds up to more than its span, clocks' steps aside, ran at the same time."""
_IDLE = 0.005
"""Share of the time without any work from which it has a line of its own."""


WORK_TITLES = ("Time(%)", "Time", "Calls", "Avg", "Size", "Throughput")
LAUNCH_TITLES = ("Grid Size", "Block Size", "Regs", "Shared", "Local", "Occupancy", "limited by", "code")


@dataclass(frozen=True)
class BreakdownLine:
    """Holds a line of a breakdown; without `work`, the time in which the device did nothing.

    `kernel` has what its launch needs, with the occupancy if that is known.
    """

    name: str
    time_ns: float
    work: DeviceWork | None = None
    kernel: KernelFacts | None = None


@dataclass(frozen=True)
class Breakdown:
    """Says what the device did in a call, and how that fills the call's time.

    Attributes:
        title: the scope, its time, and by which timers.
        whole_ns: the call's time.
        entries: work, the longest first, and the time without any.
        notes: what else there is to know.
    """

    title: str
    whole_ns: float
    entries: tuple[BreakdownLine, ...]
    notes: tuple[str, ...]

    @property
    def columns(self) -> list[Column]:
        """nvprof's columns, as `WORK_TITLES` names them; names come beside them."""
        works = [entry.work for entry in self.entries]
        cells = (
            [_share(entry.time_ns, self.whole_ns) for entry in self.entries],
            [units.time(entry.time_ns) for entry in self.entries],
            [units.count(work.count) if work else "" for work in works],
            [_average(work) for work in works],
            [_size(work) for work in works],
            [_throughput(work) for work in works],
        )
        return [
            Column(title, tuple(each), numeric=True) for title, each in zip(WORK_TITLES, cells, strict=True)
        ]


def device_work(result: Result, *, width: int) -> list[Line]:
    """Returns a breakdown for each scope whose device work a timer saw, each followed by an empty line."""
    lines = []
    for time in scope_times(result):
        found = breakdown(result, time)
        lines += [*_breakdown_lines(result, found, width), Line("")] if found is not None else []
    return lines


def breakdown(result: Result, time: ScopeTime) -> Breakdown | None:
    """Returns what the device did in the calls of a scope; None if no timer saw it."""
    seen = time.seen
    if seen is None or result.simulated or result.correctness is Correctness.INCORRECT:
        return None
    facts = {fact.launch: fact for fact in result.kernels}
    # A kernel's own time is what saw it; a host's clock sees what is between the pieces too.
    whole = time.shown if not timer_row(time.shown.timer).device_timed else seen
    whole_ns, span_ns = whole.summary.median_ns, seen.summary.median_ns
    work = sorted(seen.work, key=lambda entry: -(entry.time_ns or 0.0))
    work_ns = sum(entry.time_ns or 0.0 for entry in work)
    entries = [
        BreakdownLine(each.kernel.name, each.time_ns, each, facts.get(each.kernel.launch, each.kernel))
        if each.kernel
        else BreakdownLine(each.name, each.time_ns, each)
        for each in work
    ]
    idle = _idle(whole, whole_ns, min(work_ns, span_ns) if units.is_number(span_ns) else work_ns)
    title = f"{whole.scope} · {units.time(whole_ns)} by {whole.timer}"
    if whole is not seen:
        title += f", what the device did by {seen.timer}"
    notes = []
    if units.is_number(span_ns) and work_ns > _OVERLAP * span_ns:
        notes.append(f"work overlaps: {units.time(work_ns)} of it within {units.time(span_ns)}")
    if result.compile_ns is not None:
        notes.append(f"compiling and loading took {units.time(result.compile_ns)}")
    return Breakdown(title, whole_ns, (*entries, *([idle] if idle else [])), tuple(notes))


def _breakdown_lines(result: Result, found: Breakdown, width: int) -> list[Line]:
    columns = [column for column in found.columns if any(column.cells)]
    room = width - len(_INDENT) - sum(column.width + _GAP for column in columns)
    names = tuple(fitted(entry.name, max(room, _SHORTEST_NAME)) for entry in found.entries)
    columns.append(Column("Name", names, narrowest=_SHORTEST_NAME))
    rows, _ = table(columns, width, indent=_INDENT, gap=_GAP)
    lines = [*wrapped(f"{result.case_name} · {found.title}", width, markup={"bold": True}), Line(rows[0])]
    for row, entry in zip(rows[1:], found.entries, strict=True):
        lines.append(Line(row))
        if entry.kernel is not None:
            lines += wrapped(_launch_text(entry.kernel), width, indent=3 * _INDENT)
    return lines + [line for note in found.notes for line in wrapped(note, width, indent=_INDENT)]


def _idle(whole: Measurement, whole_ns: float, covered_ns: float) -> BreakdownLine | None:
    """Returns the part of a time in which the device did nothing for the call."""
    if not units.is_number(whole_ns) or whole_ns - covered_ns < _IDLE * whole_ns:
        return None
    name = "host and launch" if not timer_row(whole.timer).device_timed else "between kernels and copies"
    return BreakdownLine(name, whole_ns - covered_ns)


def _size(work: DeviceWork | None) -> str:
    return units.size(work.size_bytes) if work is not None and work.size_bytes else ""


def _throughput(work: DeviceWork | None) -> str:
    return units.bandwidth(work.size_bytes, work.time_ns) if work is not None and work.size_bytes else ""


def _share(part_ns: float, whole_ns: float) -> str:
    known = units.is_number(part_ns) and units.is_number(whole_ns) and whole_ns > 0
    return f"{100 * part_ns / whole_ns:.1f} %" if known else units.NOTHING


def _average(work: DeviceWork | None) -> str:
    if work is None:
        return ""
    return units.time(work.time_ns / work.count) if work.count and work.time_ns else units.NOTHING


def launch_cells(kernel: KernelFacts) -> tuple[str, ...]:
    """Returns how a kernel was launched and what it needs, as `LAUNCH_TITLES` names it."""
    return (
        dimensions(kernel.grid or ()),
        dimensions(kernel.block or ()),
        str(kernel.registers),
        units.size(kernel.shared_bytes),
        units.size(kernel.local_bytes),
        units.share(kernel.occupancy) if kernel.occupancy is not None else "",
        kernel.limited_by or "",
        _code(kernel),
    )


def _code(kernel: KernelFacts) -> str:
    return (kernel.machine_code_sha256 or "").rpartition(":")[2][:12]


def _launch_text(kernel: KernelFacts) -> str:
    """Returns `grid 63, block 64, 40 registers, 8 B local, occupancy 75 % (40 registers a thread)`."""
    parts = [
        f"grid {dimensions(kernel.grid or ())}, block {dimensions(kernel.block or ())}",
        f"{kernel.registers} registers",
        f"{units.size(kernel.shared_bytes)} shared" if kernel.shared_bytes else "",
        f"{units.size(kernel.local_bytes)} local" if kernel.local_bytes else "",
    ]
    if kernel.occupancy is not None:
        limit = f" ({kernel.limited_by})" if kernel.limited_by else ""
        parts.append(f"occupancy {units.share(kernel.occupancy)}{limit}")
    if kernel.machine_code_sha256:
        parts.append(f"machine code {_code(kernel)}")
    return ", ".join(part for part in parts if part)


def checks(results: Sequence[Result], *, width: int) -> list[Line]:
    """Tells once what the same cases have in common, and then an empty line; nothing where none has any."""
    checked = [result for result in results if result.correctness is not Correctness.INCORRECT]
    cases: dict[str, list[str]] = {}
    for result in checked:
        for text in _told(result):
            cases.setdefault(text, []).append(result.case_name)
    texts: dict[tuple[str, ...], list[str]] = {}
    for text, ids in cases.items():
        texts.setdefault(tuple(ids), []).append(text)
    lines = []
    for who_has, told in texts.items():
        several = 1 < len(who_has) == len(checked)
        who = f"all {len(who_has)} cases" if several else ", ".join(who_has)
        lines += wrapped(f"{who} · {'; '.join(told)}", width, indent="  ")
    return [*lines, Line("")] if lines else []


def _told(result: Result) -> list[str]:
    by_kind: dict[str, list[str]] = {}
    for name, error in result.errors.items():
        if error.determinism is not None:
            by_kind.setdefault(error.determinism, []).append(name)
    told = [f"{', '.join(names)} {kind}" for kind, names in by_kind.items()]
    if result.corners:
        told.append(f"checked at {', '.join(result.corners)} too")
    if result.seed is not None:
        told.append(f"seed {result.seed}")
    return told


def observed(result: Result) -> list[tuple[str, str, str]]:
    """Returns (measurement's key or nothing, observer's label, its figures) of all that observers saw."""
    seen = [] if result.simulated else [(each.key, each.observations) for each in result.measurements]
    return [
        (key, row.label or name, ", ".join(texts))
        for key, observations in (*seen, ("", result.observations))
        for name, values in observations.items()
        if (texts := list(_figures(values, row := OBSERVERS.get(name, _UNKNOWN))))
    ]


def _figures(values: Mapping[str, Value], row: ObserverRow) -> Iterator[str]:
    """Yields figures in the order of their row; a run of others may have some that no row declares."""
    for name in (*row.figures, *(name for name in values if name not in row.figures)):
        figure = row.figures.get(name, Figure(name))
        if values.get(name) not in (None, ()):
            yield f"{figure.label} {units.quantity(values[name], figure.unit)}"


def observed_lines(results: Sequence[Result], *, width: int) -> list[Line]:
    """Returns a line for each observer of each measurement and test, and then an empty line."""
    lines = [
        line
        for result in results
        for key, label, text in observed(result)
        for line in wrapped(" · ".join(filter(None, (result.case_name, key, f"{label}: {text}"))), width)
    ]
    return [*lines, Line("")] if lines else []
