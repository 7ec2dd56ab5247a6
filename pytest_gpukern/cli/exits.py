"""Ends commands: exit status, output for people or machines, complaints."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable

from pytest_gpukern.values.settings import in_ci
from pytest_gpukern.values.untrusted_json import printable

FINE = 0
BAD = 1
"""Something is slower, incorrect, invalid, refused or missing."""
USAGE = 2
"""The command line is wrong; argparse uses the same number."""
UNREADABLE = 3
"""A file cannot be read or written; the message names file and field."""

STATUSES = (
    "Exit status: 0 fine, 1 something is wrong, refused or missing, 2 a wrong command line, 3 a file that "
    "cannot be read or written."
)


class RefusedError(Exception):
    """Ends a command with what is wrong, refused or missing, and its exit status."""

    def __init__(self, problem: object, status: int = BAD) -> None:
        super().__init__(str(problem))
        self.status = status


_WIDTH = 120
"""The width of text in a file or a pipe; a terminal has its own."""


def width() -> int:
    """Returns the width of the terminal in columns; COLUMNS, or 120, in a file or a pipe."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def add_write_in_ci(parser: argparse.ArgumentParser, *, dry_run: str = "") -> None:
    """Declares what `refuse_in_ci` reads; `dry_run` is the help of that option, where a command has it."""
    parser.set_defaults(dry_run=False)
    if dry_run:
        parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument("--write-in-ci", action="store_true", help="write although CI is set")


def refuse_in_ci(known: argparse.Namespace) -> None:
    if in_ci() and not (known.write_in_ci or known.dry_run):
        why = "CI is set in the environment, and CI may not write baselines; add --write-in-ci to allow it"
        raise RefusedError(why)


def show(lines: Iterable[str]) -> None:
    """Prints lines with control characters escaped; a reader that leaves early is no error."""
    try:
        print("\n".join(map(printable, lines)), flush=True)
    except BrokenPipeError:  # Python would complain again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(command: str, problem: object) -> None:
    sys.stderr.write(f"gpukern {command}: {printable(str(problem))}\n")
