"""`gpukern baseline show`: the records of a file, and how far their sessions and epochs lie apart."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.cli import exits

if TYPE_CHECKING:
    import argparse

    from pytest_gpukern.baseline.record import Baseline, Epoch, Record

SUMMARY = "show the records of a baseline file: sessions, median, spread, epochs, anchor"
DESCRIPTION = (
    "Shows, for each case and measurement of a baseline file, the sessions of its current epoch, their "
    "median, the standard deviation between them, and the time relative to the first epoch, the anchor; then "
    "the epochs of cases that have several, with their reasons."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a baseline file")
    parser.add_argument("text", nargs="?", default="", help="only cases whose id holds this text")
    exits.add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Prints the records."""
    from pytest_gpukern.baseline.schema import load
    from pytest_gpukern.values.untrusted_json import FileError

    try:
        baseline = load(known.file)
    except FileError as error:
        exits.complain("baseline show", error)
        return exits.UNREADABLE
    shown = {name: record for name, record in sorted(baseline.cases.items()) if known.text in name}
    if not shown:
        number = len(baseline.cases)
        exits.complain("baseline show", f"no case with {known.text!r} in its id among {number}")
        return exits.BAD
    rows = [_row(name, key, record) for name, record in shown.items() for key in sorted(record.keys)]
    epochs = {name: [_epoch(epoch) for epoch in record.epochs] for name, record in shown.items()}
    if known.json:
        exits.show_json(_json(baseline, rows, epochs))
    else:
        exits.show([*_table(rows), *_epoch_lines(epochs)])
    return exits.FINE


def _json(baseline: Baseline, rows: list[dict[str, Any]], epochs: dict[str, Any]) -> dict[str, Any]:
    return {
        "problem": baseline.problem,
        "device": baseline.device_model,
        "measurements": rows,
        "epochs": epochs,
    }


def _row(case_id: str, key: str, record: Record) -> dict[str, Any]:
    current, anchor = record.current(key), record.anchor(key)
    now, first = _medians(current, key), _medians(anchor, key)
    spread = statistics.stdev(map(math.log, now)) if len(now) > 1 else None
    return {
        "case": case_id,
        "key": key,
        "sessions": len(now),
        "median_ns": statistics.median(now),
        "spread": spread,
        "epochs": sum(key in epoch.keys for epoch in record.epochs),
        "anchor": statistics.median(now) / statistics.median(first) if anchor is not current else None,
    }


def _medians(epoch: Epoch | None, key: str) -> list[float]:
    return [session.measurements[key].median_ns for session in epoch.holding(key)] if epoch else []


def _epoch(epoch: Epoch) -> dict[str, Any]:
    return {
        "opened": epoch.opened,
        "reason": epoch.reason,
        "sessions": len(epoch.sessions),
        "problem_version": epoch.problem_version,
        "measured": sorted(epoch.keys),
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    from pytest_gpukern.report import units
    from pytest_gpukern.report.layout import Column, table

    names = [row["case"] for row in rows]
    cases = tuple("" if i and names[i - 1] == name else name for i, name in enumerate(names))
    columns = [
        Column("case", cases, narrowest=20),
        Column("measured", tuple(row["key"] for row in rows)),
        Column("sessions", tuple(str(row["sessions"]) for row in rows), numeric=True),
        Column("median", tuple(units.time(row["median_ns"]) for row in rows), numeric=True),
        Column("between them", tuple(units.uncertainty(row["spread"]) for row in rows), numeric=True),
        Column("epochs", tuple(str(row["epochs"]) for row in rows), numeric=True),
        Column("since the first", tuple(units.change(row["anchor"]) for row in rows), numeric=True),
    ]
    return table(columns, exits.width())[0]


def _epoch_lines(epochs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The epochs of the cases that have several, or a reason."""
    lines = []
    for name, listed in epochs.items():
        if len(listed) < 2 and not any(epoch["reason"] for epoch in listed):
            continue
        lines += ["", name]
        for epoch in listed:
            number = epoch["sessions"]
            text = f"  {epoch['opened'][:10]}, {number} {'session' if number == 1 else 'sessions'}"
            text += f", problem version {epoch['problem_version']}"
            lines.append(text + (f": {epoch['reason']}" if epoch["reason"] else ""))
    return lines
