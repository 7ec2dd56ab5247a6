"""Shows what one execution of each case did, with the columns of nvprof's `--print-gpu-trace`."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, Line, hint_at, table, wrapped
from pytest_gpukern.values.result import DeviceActivity, Result, Trace

_DIGITS = 5
_SHORTEST_NAME = 24
_LEFT_OUT_FIRST = (
    *("Context", "Device", "DstMemType", "SrcMemType", "DSMem", "SSMem", "Regs", "Stream"),
    *("Throughput", "Size", "Block Size", "Grid Size"),
)
_LEGEND = (
    "Regs: registers of a thread. SSMem and DSMem: static and dynamic shared memory of a block.",
    "SrcMemType and DstMemType: kinds of memory that a copy reads and writes; a memset has only the first.",
)


def gpu_trace(results: Iterable[Result], width: int) -> list[Line]:
    """Returns a table for each case that has a trace, and what its columns mean; nothing if none has one."""
    lines, left_out = list[Line](), list[str]()
    for result in results:
        if result.trace is not None:
            rows, omitted = _rows(result, result.trace, width)
            left_out += omitted
            lines += wrapped(f"{result.case.id} · {result.trace.scope}", width, markup={"bold": True})
            lines += [*map(Line, rows), Line("")]
    legend = (line for text in _LEGEND for line in wrapped(text, width))
    return [*lines, *hint_at(left_out, width), *legend] if lines else []


def _rows(result: Result, trace: Trace, width: int) -> tuple[list[str], list[str]]:
    if not trace.activities:
        return ["  the device did nothing"], []
    cells = [_cells(activity, result) for activity in trace.activities]
    columns = [
        Column(
            title,
            tuple(row[title] for row in cells),
            numeric=title != "Name",
            narrowest=_SHORTEST_NAME if title == "Name" else None,
            dispensable=_LEFT_OUT_FIRST.index(title) if title in _LEFT_OUT_FIRST else None,
        )
        for title in cells[0]
    ]
    return table(columns, width)


def _cells(activity: DeviceActivity, result: Result) -> dict[str, str]:
    """Returns the title of each column and its text for an activity, in nvprof's order."""
    device = result.fingerprint.device_name
    took_ns = activity.end_ns - activity.start_ns
    copies = activity.kind != "kernel"
    return {
        "Start": units.time(activity.start_ns, digits=_DIGITS),
        "Duration": units.time(took_ns, digits=_DIGITS),
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
