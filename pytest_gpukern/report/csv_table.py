"""Writes runs as a table for spreadsheets and data frames: one row a measurement."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence

from pytest_gpukern.measure.observers import OBSERVERS
from pytest_gpukern.report.rows import ScopeTime, judged
from pytest_gpukern.report.run import EmptyReportError, RunResults
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

    Raises:
        EmptyReportError: nothing was measured.
    """
    rows = [row for run in runs for row in rows_of_run(run)]
    if not rows:
        raise EmptyReportError("no measurement in it: run pytest with --gpu-benchmark", "")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow([_harmless(cell) if isinstance(cell, str) else cell for cell in row.values()])
    return stream.getvalue()


def _harmless(text: str) -> str:
    return _FORMULA.sub(r"\1'\2", printable(text))


def rows_of_run(run: RunResults) -> Iterator[dict[str, Cell]]:
    """Yields a row for each measurement of a run, also of its further and confirming sessions.

    What is not known is None.
    """
    for reported in run.results:
        for result in (reported, *run.sessions_of(reported)):
            failure = run.own_failure(reported) if result is reported else None
            for measurement in result.measurements:
                row = _row(result, measurement, failure)
                yield {"run": run.name, "created": run.created.isoformat(), **row}


def _row(result: Result, measurement: Measurement, failure: str | None) -> dict[str, Cell]:
    """Returns the cells of a measurement. Times are never the simulator's.

    `failure` is why the test failed by itself, or None.
    """
    case, summary, fingerprint = result.case, measurement.summary, result.fingerprint
    timed = not result.simulated
    return {
        "case": case.id,
        "test": result.nodeid,
        "problem": case.problem,
        "problem_version": case.problem_version,
        "backend": case.backend,
        "variant": case.variant,
        "size": sizes_text(case.sizes),
        "device": fingerprint.hardware(on_gpu=case.on_gpu),
        "device_uuid": fingerprint.device_uuid if case.on_gpu else None,
        "driver": fingerprint.driver_version,
        "session": result.session,
        "role": result.role.value,
        "simulated": "true" if result.simulated else "false",
        "scope": measurement.scope,
        "timer": measurement.timer,
        "cache": measurement.cache,
        "beside": "true" if measurement.beside else "false",
        "median_ns": summary.median_ns if timed else None,
        "low_ns": summary.low_ns if timed else None,
        "high_ns": summary.high_ns if timed else None,
        "samples": summary.n,
        "iterations": measurement.iterations,
        "first_call_ns": result.first_call_ns if timed else None,
        "fixed_cost_ns": measurement.fixed_cost_ns,
        "traffic_bytes": measurement.traffic_bytes,
        "flops": measurement.flops,
        **_kernel(result, measurement),
        **_errors(result),
        **_verdict(result, measurement, failure),
        **_observed(result, measurement),
    }


def _kernel(result: Result, measurement: Measurement) -> dict[str, Cell]:
    """Returns the number of kernels that a call launches, and the facts of the one that takes longest."""
    facts = {kernel.launch: kernel for kernel in result.kernels} if measurement.scope != "transfer" else {}
    longest: KernelFacts | None = None
    if facts:
        work = (
            entry for measured in result.measurements for entry in measured.work if entry.kernel is not None
        )
        first = max(work, key=lambda entry: entry.time_ns or 0.0, default=None)
        launch = first.kernel.launch if first is not None and first.kernel is not None else None
        longest = facts.get(launch or (), next(iter(facts.values())))
    return {
        "kernels": len(facts) or None,
        "kernel": longest.name if longest else None,
        "registers": longest.registers if longest else None,
        "shared_bytes": longest.shared_bytes if longest else None,
        "local_bytes": longest.local_bytes if longest else None,
        "occupancy": longest.occupancy if longest else None,
    }


def _errors(result: Result) -> dict[str, Cell]:
    """Returns whether the outputs were right, and their largest errors."""
    cells: dict[str, Cell] = {"correctness": result.correctness.value}
    for name in ("max_abs", "max_rel", "max_ulp"):
        values = [getattr(error, name) for error in result.errors.values()]
        cells[name] = max((value for value in values if value is not None), default=None)
    return cells


def _verdict(result: Result, measurement: Measurement, failure: str | None) -> dict[str, Cell]:
    """Returns what the measurement came to; a wrong output or an INVALID time has no ratio."""
    kind, reason, verdict = judged(result, ScopeTime(measurement), failure)
    return {
        "verdict": kind or None,
        "ratio": verdict.ratio if verdict else None,
        "ratio_low": verdict.ratio_low if verdict else None,
        "ratio_high": verdict.ratio_high if verdict else None,
        "threshold": verdict.threshold if verdict else None,
        "reason": reason.partition("\n")[0] or None,
    }


def _observed(result: Result, measurement: Measurement) -> dict[str, Cell]:
    """Returns each figure of each observer, of the measurement or of its test."""
    cells: dict[str, Cell] = {}
    for observer, row in OBSERVERS.items():
        seen = result.observations.get(observer, {}) | measurement.observations.get(observer, {})
        cells |= {f"{observer}.{name}": _cell(seen.get(name)) for name in row.figures}
    return cells


def _cell(value: Value) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(value) if isinstance(value, tuple) else value
