"""Shows what one execution of each case did: nvprof's table of activities, and Chrome's trace events.

The table has the columns of nvprof's `--print-gpu-trace`. Perfetto (https://ui.perfetto.dev) and Chrome's
`about:tracing` open the events:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, Line, hint_at, table, wrapped
from pytest_gpukern.report.run import EmptyReportError, RunResults
from pytest_gpukern.values.result import DeviceActivity, HostCall, JsonDict, Result, Trace

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
            lines += wrapped(f"{result.case_name} · {result.trace.scope}", width, markup={"bold": True})
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


def timeline(runs: Sequence[RunResults]) -> str:
    """Returns the traces of runs as Chrome's trace events, which Perfetto opens; times are in microseconds.

    A case is a process. Its threads are the host's threads and the device's streams. Arrows lead from the
    host's call to what it put on the device. Each case begins at 0, so that variants stand one below another.

    Raises:
        EmptyReportError: no case has a trace.
    """
    numbers = itertools.count(1)
    traced = ((result, result.trace) for run in runs for result in run.results if result.trace is not None)
    events = [event for result, trace in traced for event in _events(result, trace, numbers)]
    # Perfetto shows escapes, such as that of µ, as they are written.
    made = {"displayTimeUnit": "ns", "traceEvents": events}
    text = json.dumps(made, ensure_ascii=False, allow_nan=False)
    if not events:
        raise EmptyReportError("no case has a trace: run pytest with --gpukern-trace", text)
    return text


def _events(result: Result, trace: Trace, numbers: Iterator[int]) -> list[JsonDict]:
    process = next(numbers)
    events = _names("process", f"{result.case_name} · {trace.scope}", process, process, order=process)
    rows: dict[str, int] = {}
    callers: dict[int, JsonDict] = {}
    for call in trace.calls:
        if call.thread not in rows:
            rows[call.thread] = next(numbers)
            events += _names("thread", f"host: {call.thread}", process, rows[call.thread], order=len(rows))
        event = _slice(call, call.name, f"{call.api} API", process, rows[call.thread])
        callers.setdefault(call.correlation, event)  # a call comes before those that it makes itself
        events.append(event)
    for order, (name, activities) in enumerate(_streams(trace), start=len(rows) + 1):
        row = next(numbers)
        events += _names("thread", name, process, row, order=order)
        for activity in activities:
            cells = _cells(activity, result)
            event = _slice(activity, cells["Name"], activity.kind, process, row)
            event["args"] |= {title: text for title, text in cells.items() if text != units.NOTHING}
            events.append(event)
            if activity.correlation in callers:
                events += _arrow(callers[activity.correlation], event, next(numbers))
    return events


def _slice(what: HostCall | DeviceActivity, name: str, kind: str, process: int, row: int) -> JsonDict:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": process,
        "tid": row,
        "ts": what.start_ns / 1e3,
        "dur": (what.end_ns - what.start_ns) / 1e3,
        "args": {"correlation": what.correlation},
    }


def _arrow(begin: JsonDict, end: JsonDict, number: int) -> list[JsonDict]:
    """Returns the events of an arrow between two slices; `bp` ends it in the slice that has begun there."""
    common = {"name": "launch", "cat": "launch", "id": number}
    ends = ({"ph": "s"}, begin), ({"ph": "f", "bp": "e"}, end)
    return [{**common, **phase, **{key: at[key] for key in ("pid", "tid", "ts")}} for phase, at in ends]


def _names(of: str, name: str, process: int, row: int, *, order: int) -> list[JsonDict]:
    whose = {"ph": "M", "pid": process, "tid": row}
    return [
        {**whose, "name": f"{of}_name", "args": {"name": name}},
        {**whose, "name": f"{of}_sort_index", "args": {"sort_index": order}},
    ]


def _streams(trace: Trace) -> list[tuple[str, list[DeviceActivity]]]:
    """Returns the rows of the device: their names and activities.

    Slices of a row may not overlap, as kernels of a CUDA graph do, so a stream gets the rows that it needs.
    """
    streams: dict[tuple[int, int, int], list[list[DeviceActivity]]] = {}
    for activity in trace.activities:
        rows = streams.setdefault((activity.device, activity.context, activity.stream), [])
        free = next((row for row in rows if row[-1].end_ns <= activity.start_ns), None)
        if free is None:
            rows.append(free := [])
        free.append(activity)
    several = len({(device, context) for device, context, _ in streams}) > 1
    named = []
    for (device, context, stream), rows in sorted(streams.items()):
        name = f"stream {stream}" + (f" of context {context}, device {device}" if several else "")
        named += [(f"{name}, at the same time" if again else name, row) for again, row in enumerate(rows)]
    return named
