"""Runs `gpukern report`: writes a report of stored runs, in the form that the file's suffix names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.report.html import page
from pytest_gpukern.report.markdown import comment
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.atomic_file import write_named

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpukern.report.run import Run

OF_RUNS: Mapping[str, Callable[[Sequence[Run]], str]] = {".html": page}
"""Suffix of a file → what makes its text of runs."""
OF_A_RUN: Mapping[str, Callable[[Run], str]] = {".md": comment}
"""Suffix of a file → what makes its text of a single run."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern report`."""
    parser.description = (
        "Writes a report of runs that --gpukern-output wrote. FILE.html is a page with tables and plots, "
        "which loads nothing; it shows the newest run first. FILE.md, of one run, is a comment for a pull "
        "request: what failed, then what changed, then counts, in at most 65,536 characters. "
        + exits.STATUSES
    )
    exits.add_run(parser, several=True)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the report; its suffix says the form",
    )
    parser.set_defaults(run=_run)


def _run(known: argparse.Namespace) -> int:
    suffix = known.output.suffix.lower()
    if suffix not in OF_RUNS and suffix not in OF_A_RUN:
        suffixes = " or ".join((*OF_RUNS, *OF_A_RUN))
        exits.complain("report", f"{known.output} names no form of a report: end it in {suffixes}")
        return exits.USAGE
    if suffix in OF_A_RUN and len(known.files) > 1:
        exits.complain("report", f"{suffix} is a report of one run, and {len(known.files)} are given")
        return exits.USAGE
    runs = [read_run(path) for path in known.files]
    text = OF_RUNS[suffix](runs) if suffix in OF_RUNS else OF_A_RUN[suffix](runs[0])
    write_named(known.output, text, "-o", makes_folders=False)
    return exits.FINE
