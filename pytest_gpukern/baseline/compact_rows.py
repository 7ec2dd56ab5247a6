"""A baseline as its file holds it: what sessions share is stored once, and a measurement is a row of numbers.

The rows follow the file's `columns`. A field that an epoch's sessions have in common, their correctness and
kernels, is stored with the epoch; a session has its own where it differs from the epoch's first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.baseline.record import as_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpukern.baseline.record import Baseline, Epoch, Record, RecordedSession, RecordedTime
    from pytest_gpukern.values.result import JsonDict

QUANTILE_COLUMNS = ("q05_ns", "q25_ns", "q50_ns", "q75_ns", "q95_ns")
"""The columns of `RecordedTime.quantiles_ns`; the middle one is stored only where it is not the median."""

COLUMNS = (
    *("n", "median_ns", "low_ns", "high_ns", "q05_ns", "q25_ns", "q75_ns", "q95_ns"),
    *("sm_mhz", "memory_mhz", "invalid_samples", "fixed_cost_ns", "jitter_ns", "q50_ns"),
)
"""What a row holds, in order. Only append to it: a row ends with its last value that is not a default."""

_EXACT_WHOLE = 1e15  # up to there every whole number of a float is written and read as itself


def to_file(baseline: Baseline) -> JsonDict:
    """The content of a baseline's file, without the schema's version."""
    columns = (*COLUMNS, *sorted({name for time in _times(baseline) for name in time.extra}))
    return {
        **baseline.extra,
        "problem": baseline.problem,
        "device_model": baseline.device_model,
        "columns": list(columns),
        "fingerprints": baseline.fingerprints,
        "sessions": {name: _short(entry.to_json()) for name, entry in baseline.sessions.items()},
        "records": {name: _record(record, baseline, columns) for name, record in baseline.cases.items()},
    }


def _times(baseline: Baseline) -> Iterator[RecordedTime]:
    for record in baseline.cases.values():
        for epoch in record.epochs:
            for session in epoch.sessions:
                yield from session.measurements.values()


def _record(record: Record, baseline: Baseline, columns: Sequence[str]) -> JsonDict:
    epochs = [_epoch(epoch, record, baseline, columns) for epoch in record.epochs]
    return {**record.extra, "point": record.point, "epochs": epochs}


def _epoch(epoch: Epoch, record: Record, baseline: Baseline, columns: Sequence[str]) -> JsonDict:
    shared = _shared(epoch.sessions[0])
    content: JsonDict = {
        **epoch.extra,
        "opened": epoch.opened,
        "problem_version": epoch.problem_version,
        "sessions": [_session(session, shared, baseline, columns) for session in epoch.sessions],
        **{name: value for name, value in shared.items() if value},
    }
    if epoch.reason is not None:
        content["reason"] = epoch.reason
    if epoch.measured_point != record.point:
        content["measured_point"] = epoch.measured_point
    return content


def _shared(session: RecordedSession) -> JsonDict:
    """What the sessions of an epoch mostly have in common, as one of them has it."""
    return {
        "correctness": {name: _short(output.to_json()) for name, output in session.correctness.items()},
        "kernels": [as_json(kernel) for kernel in session.kernels],
    }


def _session(
    session: RecordedSession, shared: JsonDict, baseline: Baseline, columns: Sequence[str]
) -> JsonDict:
    content = {
        **session.extra,
        **{name: value for name, value in _shared(session).items() if value != shared[name]},
        "times": {key: _row(time, columns) for key, time in session.measurements.items()},
    }
    for name in ("first_call_ns", "compile_ns", "session"):
        value = getattr(session, name)
        if value is not None:
            content[name] = _whole(value)
    entry = baseline.sessions.get(session.session or "")
    for name in ("recorded", "fingerprint"):
        if entry is None or getattr(session, name) != getattr(entry, name):
            content[name] = getattr(session, name)
    return content


def _row(time: RecordedTime, columns: Sequence[str]) -> list[Any]:
    values = as_json(time)
    values.update(zip(QUANTILE_COLUMNS, values.pop("quantiles_ns"), strict=True))
    if values["q50_ns"] == time.median_ns:
        del values["q50_ns"]
    row = [_whole(values.get(name)) if name in COLUMNS else values.get(name) for name in columns]
    while row[-1] is None:
        row.pop()
    return row


def _short(values: JsonDict) -> JsonDict:
    return {name: _whole(value) for name, value in values.items()}


def _whole(value: Any) -> Any:
    """A whole number without its `.0`, also in a dict of numbers."""
    if isinstance(value, dict):
        return _short(value)
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_WHOLE
    return int(value) if whole else value
