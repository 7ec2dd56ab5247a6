"""Writes what `-v` adds to a table: what was checked, what the device did in a call, and its memory.

What the device did is shown as nvprof did: copies, memsets and kernels with their share of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.findings.explain import dimensions
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, Line, table, wrapped
from pytest_gpukern.report.rows import scope_times
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpukern.report.rows import ScopeTime
    from pytest_gpukern.values.result import DeviceWork, KernelFacts, Measurement, Result

    Facts = Mapping[tuple[object, ...], KernelFacts]


_INDENT = "  "
_GAP = 2
_SHORTEST_NAME = 24
_OVERLAP = 1.01
"""Work that adds up to more than its span, clocks' steps aside, ran at the same time."""
_IDLE = 0.005
"""Share of the time without any work from which it has a line of its own."""


def device_work(result: Result, *, width: int) -> list[Line]:
    """Returns a breakdown for each scope whose device work a timer saw, each followed by an empty line."""
    if result.simulated or result.correctness is Correctness.INCORRECT:
        return []
    facts: Facts = {fact.launch: fact for fact in result.kernels}
    lines = []
    for time in scope_times(result):
        if time.seen is not None:
            lines += [*_breakdown(result, time, time.seen, facts, width), Line("")]
    return lines


@dataclass(frozen=True)
class _Entry:
    """Holds a line of a breakdown; without `work`, the time in which the device did nothing."""

    name: str
    time_ns: float
    work: DeviceWork | None = None


def _breakdown(result: Result, time: ScopeTime, seen: Measurement, facts: Facts, width: int) -> list[Line]:
    # A kernel's own time is what saw it; a host's clock sees what is between the pieces too.
    whole = time.shown if not timer_row(time.shown.timer).device_timed else seen
    whole_ns, span_ns = whole.summary.median_ns, seen.summary.median_ns
    work = sorted(seen.work, key=lambda entry: -(entry.time_ns or 0.0))
    work_ns = sum(entry.time_ns or 0.0 for entry in work)
    entries = [
        _Entry(entry.kernel.name if entry.kernel else entry.name, entry.time_ns, entry) for entry in work
    ]
    idle = _idle(whole, whole_ns, min(work_ns, span_ns) if units.is_number(span_ns) else work_ns)
    if idle is not None:
        entries.append(idle)
    head = f"{result.case.id} · {whole.scope} · {units.time(whole_ns)} by {whole.timer}"
    if whole is not seen:
        head += f", what the device did by {seen.timer}"
    lines = wrapped(head, width, markup={"bold": True})
    rows, _ = table(_columns(entries, whole_ns, width), width, indent=_INDENT, gap=_GAP)
    lines.append(Line(rows[0]))
    for row, entry in zip(rows[1:], entries, strict=True):
        lines.append(Line(row))
        if entry.work is not None and entry.work.kernel is not None:
            text = _launch_text(facts.get(entry.work.kernel.launch, entry.work.kernel))
            lines += wrapped(text, width, indent=3 * _INDENT)
    if units.is_number(span_ns) and work_ns > _OVERLAP * span_ns:
        text = f"work overlaps: {units.time(work_ns)} of it within {units.time(span_ns)}"
        lines += wrapped(text, width, indent=_INDENT)
    if result.compile_ns is not None:
        lines += wrapped(f"compiling and loading took {units.time(result.compile_ns)}", width, indent=_INDENT)
    return lines


def _idle(whole: Measurement, whole_ns: float, covered_ns: float) -> _Entry | None:
    """Returns the part of a time in which the device did nothing for the call."""
    if not units.is_number(whole_ns) or whole_ns - covered_ns < _IDLE * whole_ns:
        return None
    name = "host and launch" if not timer_row(whole.timer).device_timed else "between kernels and copies"
    return _Entry(name, whole_ns - covered_ns)


def _columns(entries: Sequence[_Entry], whole_ns: float, width: int) -> list[Column]:
    works = [entry.work for entry in entries]
    columns = [
        Column("Time(%)", tuple(_share(entry.time_ns, whole_ns) for entry in entries), numeric=True),
        Column("Time", tuple(units.time(entry.time_ns) for entry in entries), numeric=True),
        Column("Calls", tuple(units.count(each.count) if each else "" for each in works), numeric=True),
        Column("Avg", tuple(_average(each) for each in works), numeric=True),
        Column("Size", tuple(_size(each) for each in works), numeric=True),
        Column("Throughput", tuple(_throughput(each) for each in works), numeric=True),
    ]
    shown = [column for column in columns if any(column.cells)]
    room = width - len(_INDENT) - sum(column.width + _GAP for column in shown)
    names = tuple(fitted(entry.name, max(room, _SHORTEST_NAME)) for entry in entries)
    return [*columns, Column("Name", names, narrowest=_SHORTEST_NAME)]


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
        parts.append(f"machine code {kernel.machine_code_sha256.rpartition(':')[2][:12]}")
    return ", ".join(part for part in parts if part)


def checks(results: Sequence[Result], *, width: int) -> list[Line]:
    """Returns a line a case that has something to tell, followed by an empty one; nothing where none has."""
    lines = []
    for result in results:
        text = _told(result)
        if text and result.correctness is not Correctness.INCORRECT:
            lines += wrapped(f"{result.case.id} · {text}", width, indent="  ")
    return [*lines, Line("")] if lines else []


def _told(result: Result) -> str:
    by_kind: dict[str, list[str]] = {}
    for name, error in result.errors.items():
        if error.determinism is not None:
            by_kind.setdefault(error.determinism, []).append(name)
    told = [f"{', '.join(names)} {kind}" for kind, names in by_kind.items()]
    if result.corners:
        told.append(f"checked at {', '.join(result.corners)} too")
    if result.seed is not None:
        told.append(f"seed {result.seed}")
    return "; ".join(told)


def device_memory(result: Result, *, width: int) -> list[Line]:
    """Says what was in use before, at most and after, and what the test keeps."""
    memory = result.memory
    if memory is None:
        return []
    text = (
        f"{result.case.id} · device memory of libraries: {units.size(memory.before_bytes)} before, "
        f"{units.size(memory.peak_bytes)} at most, {units.size(memory.after_bytes)} after"
    )
    kept = f", of which the test keeps {units.size(memory.kept_bytes)}" if memory.kept_bytes else ""
    return wrapped(text + kept, width)
