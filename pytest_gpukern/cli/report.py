"""Runs `gpukern report`: writes a report of a stored run, in the form that the file's suffix names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.report.markdown import comment
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.untrusted_json import FileError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from pytest_gpukern.report.run import Run

FORMS: Mapping[str, Callable[[Run], str]] = {".md": comment}
"""Suffix of a file → what makes its text of a run."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern report`."""
    parser.description = (
        "Writes a report of a run that --gpukern-output wrote. FILE.md is a comment for a pull request: what "
        "failed, then what changed, then counts, in at most 65,536 characters. " + exits.STATUSES
    )
    parser.add_argument("file", metavar="RUN.json", type=Path, help="a file that --gpukern-output wrote")
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
    form = FORMS.get(known.output.suffix.lower())
    if form is None:
        suffixes = " or ".join(FORMS)
        exits.complain("report", f"{known.output} names no form of a report: end it in {suffixes}")
        return exits.USAGE
    try:
        exits.write_file(known.output, form(read_run(known.file)))
    except FileError as error:
        exits.complain("report", error)
        return exits.UNREADABLE
    return exits.FINE
