"""`gpukern baseline list`: which files there are, and what they rest on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.cli import exits
from pytest_gpukern.cli.find import baseline_files

if TYPE_CHECKING:
    import argparse

    from pytest_gpukern.baseline.record import Baseline

SUMMARY = "list baseline files: device, cases, epochs, sessions, newest date, driver"
DESCRIPTION = (
    "Lists baseline files: of each the device, how many cases it has, how many epochs a case has at most, "
    "how many sessions its newest epochs hold, when the newest was recorded, and with which driver."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="FOLDER|FILE", help="where to look; this folder by default"
    )
    exits.add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Prints a line a file."""
    from pytest_gpukern.baseline.schema import load
    from pytest_gpukern.values.untrusted_json import FileError

    paths = known.paths or [Path()]
    status, rows = exits.FINE, []
    for file in dict.fromkeys(file for path in paths for file in baseline_files(path)):
        try:
            rows.append(_row(file, load(file)))
        except FileError as error:
            exits.complain("baseline list", error)
            status = exits.UNREADABLE
    if known.json:
        exits.show_json(rows)
    elif rows:
        exits.show(_table(rows))
    if rows or status != exits.FINE:
        return status
    exits.complain("baseline list", f"no baseline files in {', '.join(map(str, paths))}")
    return exits.BAD


def _row(file: Path, baseline: Baseline) -> dict[str, Any]:
    records = baseline.cases.values()
    newest = [record.epochs[-1] for record in records]
    sessions = [session for record in records for epoch in record.epochs for session in epoch.sessions]
    last = max(sessions, key=lambda session: session.recorded, default=None)
    return {
        "file": str(file),
        "device": baseline.device_model,
        "cases": len(baseline.cases),
        "epochs": max((len(record.epochs) for record in records), default=0),
        "sessions": sorted({len(epoch.sessions) for epoch in newest}),
        "newest": last.recorded if last else None,
        "driver": baseline.fingerprints.get(last.fingerprint, {}).get("driver_version") if last else None,
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    from pytest_gpukern.report.layout import Column, table

    def cells(name: str) -> tuple[str, ...]:
        return tuple("–" if row[name] is None else str(row[name]) for row in rows)

    counts = tuple(" … ".join(map(str, dict.fromkeys(_ends(row["sessions"])))) for row in rows)
    columns = [
        Column("file", cells("file"), narrowest=20),
        Column("device", cells("device")),
        Column("cases", cells("cases"), numeric=True),
        Column("epochs", cells("epochs"), numeric=True),
        Column("sessions", counts, numeric=True),
        Column("newest", tuple(text[:10] for text in cells("newest"))),
        Column("driver", cells("driver")),
    ]
    return table(columns, exits.width())[0]


def _ends(counts: list[int]) -> list[int]:
    return [counts[0], counts[-1]] if counts else []
