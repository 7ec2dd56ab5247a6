"""Runs `gpukern fleet`: judges run files of many cards, as `gpukern validate` writes them."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpukern.cli import exits
from pytest_gpukern.findings.fleet import changed, judged, sides
from pytest_gpukern.report.fleet import FORMS, Told, rows, terminal
from pytest_gpukern.report.fleet_files import host_and_index, read_sessions, run_files
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.untrusted_json import FileError


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges run files of many cards: wrong outputs, bits and times that differ from those of the other "
        "cards, and what did not report. HOST-INDEX.json is of that host and card, as gpukern validate "
        "--gpukern-report=FOLDER/ names files; one without an index is of the host that its folder is named "
        "after. Exit status: 0 nothing stands out, 1 something does, 2 a wrong command line, 3 a file that "
        "cannot be read."
    )
    parser.add_argument("files", metavar="DIR|RUN.json", type=Path, nargs="+", help="folders are searched")
    parser.add_argument(
        "--expect", metavar="FILE", type=Path, help="names of the hosts that should have reported, one a line"
    )
    parser.add_argument(
        "--before", metavar="DIR", type=Path, help="run files of an earlier time: tell what has changed"
    )
    forms = ", ".join(f"FILE{suffix}" for suffix in FORMS)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help=f"write a row for each card and finding: {forms}"
    )
    parser.add_argument(
        "--drain",
        action="store_true",
        help="print only the hosts with a card that is confirmed to be slow or wrong, one a line",
    )
    parser.set_defaults(run=_run)


def _run(known: argparse.Namespace) -> int:
    form = None if known.output is None else FORMS.get(known.output.suffix.lower())
    if known.output is not None and form is None:
        raise exits.RefusedError(f"{known.output} names no form: end it in {', '.join(FORMS)}", exits.USAGE)
    expected = None if known.expect is None else _hosts(known.expect)
    sessions, unreadable = read_sessions(file for path in known.files for file in run_files(path))
    if not sessions:
        raise unreadable[0]
    raising, confirming = sides(sessions)
    unread = [host_and_index(error.path) for error in unreadable]
    found, change = judged(raising, confirming, expected=expected, unreadable=unread), None
    if known.before is not None:
        before, damaged = read_sessions(run_files(known.before))
        unreadable += damaged
        change = changed(before, raising, confirming)
    told = Told(found, rows(found, unreadable, change), change)
    if form is not None:
        write_named(known.output, form(told), "-o")
    if known.drain:
        if found.to_drain:
            exits.show(found.to_drain)
        for error in unreadable:
            exits.complain("fleet", error)
    else:
        exits.show(terminal(told, exits.width()))
    if found.bad or (change is not None and change.bad):
        return exits.BAD
    return exits.UNREADABLE if unreadable else exits.FINE


def _hosts(path: Path) -> list[str]:
    """Returns the names in a file; what follows a `#` is a remark."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise FileError(path, problem, "Give a text file with the name of a host in each line") from error
    return [name for line in lines if (name := line.partition("#")[0].strip())]
