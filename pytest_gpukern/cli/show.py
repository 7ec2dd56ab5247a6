"""`gpukern show`: the tables of a stored run, and what the device did in each case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits

if TYPE_CHECKING:
    import argparse

    from pytest_gpukern.values.result import JsonDict, Result

SUMMARY = "print the tables of a stored run, and what the device did in each case"
DESCRIPTION = (
    "Prints the tables of a run that --gpukern-output wrote and, where CUPTI could be used, "
    "what the device did in a call of each case: copies, memsets, kernels and their share of the time. "
    + exits.STATUSES
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    parser.add_argument("run", metavar="RUN.json", type=Path, help="a file that --gpukern-output wrote")
    parser.add_argument("text", nargs="?", default="", help="only cases whose id holds this text")
    exits.add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Prints what a run stored."""
    from pytest_gpukern.report.run_file import read_run_file
    from pytest_gpukern.report.terminal import tables
    from pytest_gpukern.values.untrusted_json import FileError

    try:
        stored = read_run_file(known.run)
    except FileError as error:
        exits.complain("show", error)
        return exits.UNREADABLE
    results = [result for result in stored if known.text in result.case.id]
    if not results:
        exits.complain("show", f"{known.run} holds {_cases(len(stored), known.text)}")
        return exits.BAD
    if known.json:
        exits.show_json([_plain(result) for result in results])
        return exits.FINE
    lines = [line.text for line in tables(results, width=exits.width(), verbose=True)]
    exits.show("\n".join(lines).rstrip().split("\n"))
    return exits.FINE


def _plain(result: Result) -> JsonDict:
    """A result as in the run file, less its samples."""
    plain = result.to_json()
    for measurement in plain["measurements"]:
        del measurement["samples_ns"]
    return plain


def _cases(count: int, text: str) -> str:
    if not count:
        return "no results"
    return f"no case with {text!r} in its id; it has {count} others: gpukern show without it lists them"
