"""Runs `gpukern export`: writes stored runs as a CSV table, one row a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.report.csv_table import csv_text, rows_of_run
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.atomic_file import write_named

if TYPE_CHECKING:
    import argparse


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern export`."""
    parser.description = (
        "Writes runs that --gpukern-output wrote as one CSV table, one row a measurement. Units are in the "
        "names of the columns. A text that would be a formula gets an apostrophe in front. " + exits.STATUSES
    )
    exits.add_run(parser, several=True)
    parser.add_argument(
        "-o", "--output", metavar="FILE.csv", type=Path, required=True, help="the table to write"
    )
    parser.set_defaults(run=_run)


def _run(known: argparse.Namespace) -> int:
    if known.output.suffix.lower() != ".csv":
        exits.complain("export", f"{known.output} is no table: -o takes a name that ends in .csv")
        return exits.USAGE
    rows = [row for path in known.files for row in rows_of_run(read_run(path), path.name)]
    if not rows:
        named = ", ".join(map(str, known.files))
        exits.complain("export", f"no measurement in {named}: run pytest with --gpu-benchmark")
        return exits.BAD
    write_named(known.output, csv_text(rows), "-o", makes_folders=False)
    exits.show([f"{len(rows)} rows in {known.output}"])
    return exits.FINE
