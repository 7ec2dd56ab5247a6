"""Writes runs as a table for spreadsheets and data frames: one row a measurement."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpukern.measure.observers import OBSERVERS
from pytest_gpukern.report.rows import ResultRow
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.result import KernelFacts, Measurement, Result, Value, sizes_text
from pytest_gpukern.values.untrusted_json import printable

Cell = str | float | int | None

# Spreadsheets take the wide signs of East Asian keyboards too.
_FORMULA = re.compile(r"(^|;)([\s\"]*[=+\-@＝＋－＠])")


def csv_text(runs: Sequence[RunResults]) -> str:
    """Returns a row for each measurement of runs as CSV with a header, and with `.` in numbers.

    Names come from whoever wrote a run file, and a spreadsheet computes a text that begins with `=`, `+`, `-`
    or `@` (https://owasp.org/www-community/attacks/CSV_Injection). Such a text gets an apostrophe in front,
    also behind a `;`, which separates cells in some countries. Control characters are escaped. Numbers stay.
    Where nothing was measured, it returns nothing.
    """
    return written([row for run in runs for row in rows_of_run(run)])


def written(rows: Sequence[Mapping[str, Cell]]) -> str:
    """Returns rows of equal columns as CSV with a header, harmless as above; nothing without a row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows((*rows[:1], *(map(_harmless, row.values()) for row in rows)))
    return stream.getvalue()


def _harmless(cell: Cell) -> Cell:
    return _FORMULA.sub(r"\1'\2", printable(cell)) if isinstance(cell, str) else cell


def rows_of_run(run: RunResults) -> Iterator[dict[str, Cell]]:
    """Yields a row for each measurement of a run, also of its further and confirming sessions.

    What is not known is None.
    """
    for reported in run.results:
        for result in (reported, *run.sessions_of(reported)):
            failure = run.own_failure(reported) if result is reported else None
            for measurement in result.measurements:
                facts = facts_of(ResultRow(result, measurement, failure), measurement)
                yield {"run": run.name, "created": run.created.isoformat(), **facts}


def facts_of(row: ResultRow, measurement: Measurement) -> dict[str, Cell]:
    """Returns what is known of a measurement, for programs. Times are never the simulator's."""
    result, timed = row.result, row.timed
    case, fingerprint = result.case, result.fingerprint
    return {
        "case": case.id,
        "test": result.nodeid,
        **_fields(case, "problem", "problem_version", "backend", "variant"),
        "size": sizes_text(case.sizes),
        "device": fingerprint.hardware(on_gpu=case.on_gpu),
        "device_uuid": result.device,
        "driver": fingerprint.driver_version,
        "session": result.session,
        "role": result.role.value,
        **_fields(result, "simulated"),
        **_fields(measurement, "scope", "timer", "cache"),
        **_fields(timed.summary if timed else None, "median_ns", "low_ns", "high_ns"),
        "samples": measurement.summary.n,
        **_fields(measurement, "iterations"),
        **_fields(result if timed else None, "first_call_ns"),
        **_fields(measurement, "fixed_cost_ns", "traffic_bytes", "flops"),
        **_kernel(result, measurement),
        **_errors(result),
        **_verdict(row),
        **_observed(result, measurement),
        "findings": "; ".join(f"{found.kind}: {found.text}" for found in result.findings) or None,
    }


def _fields(of: object, *names: str) -> dict[str, Cell]:
    """Returns these attributes as cells; None of what is not there."""
    return {name: _cell(getattr(of, name, None)) for name in names}


def _kernel(result: Result, measurement: Measurement) -> dict[str, Cell]:
    """Returns the number of kernels that a call launches, and the facts of the one that takes longest."""
    facts = {kernel.launch: kernel for kernel in result.kernels} if measurement.scope != "transfer" else {}
    longest: KernelFacts | None = None
    if facts:
        work = (entry for measured in result.measurements for entry in measured.work)
        launches = [(entry.time_ns or 0.0, entry.kernel.launch) for entry in work if entry.kernel]
        _, launch = max(launches, key=lambda launch: launch[0], default=(0.0, ()))
        longest = facts.get(launch, next(iter(facts.values())))
    return {
        "kernels": len(facts) or None,
        "kernel": longest.name if longest else None,
        **_fields(longest, "registers", "shared_bytes", "local_bytes", "occupancy"),
    }


def _errors(result: Result) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"correctness": result.correctness.value}
    for name in ("max_abs", "max_rel", "max_ulp"):
        values = [getattr(error, name) for error in result.errors.values()]
        cells[name] = max((value for value in values if value is not None), default=None)
    return cells


def _verdict(row: ResultRow) -> dict[str, Cell]:
    kind, _, verdict = row.standing
    reason = row.standing.line
    if verdict is not None and kind == verdict.kind and reason[:1] in "+-−=@":  # as a change in percent does
        reason = f"time {reason}"
    return {
        "verdict": kind or None,
        **_fields(verdict, "ratio", "ratio_low", "ratio_high", "threshold"),
        "reason": reason or None,
    }


def _observed(result: Result, measurement: Measurement) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for observer, row in ((name, row) for name, row in OBSERVERS.items() if row.in_reports):
        seen = result.observations.get(observer, {}) | measurement.observations.get(observer, {})
        cells |= {f"{observer}.{name}": _cell(seen.get(name)) for name in row.figures}
    return cells


def _cell(value: Value) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(value) if isinstance(value, tuple) else value
