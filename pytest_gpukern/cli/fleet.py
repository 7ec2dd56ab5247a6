"""Runs `gpukern fleet`: judges run files of many cards, as `gpukern validate` writes them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from pytest_gpukern.cli import exits
from pytest_gpukern.findings.fleet import changed, judged, split_sessions
from pytest_gpukern.report import units
from pytest_gpukern.report.fleet import FORMS, FleetReport, terminal
from pytest_gpukern.report.fleet_files import host_and_index, read_figures
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.untrusted_json import FileError, content_of, printable

_SHOWN = 8
"""Hosts that are named; more are counted."""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges run files of many cards: wrong outputs, bits and times that differ from those of the other "
        "cards, and what did not report. HOST-INDEX.json is of that host and card; a file without an index "
        "is of the host that its folder is named after. Exit status: 0 nothing stands out, 1 something does, "
        "2 a wrong command line, 3 a file cannot be read."
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
        "-o", "--output", metavar="FILE", type=Path, help=f"write all that was found: {forms}"
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
    figures, unreadable = read_figures(known.files)
    raising, confirming = split_sessions(figures)
    unread = [(host, index) for host, index in (host_and_index(error.path) for error in unreadable) if index]
    reported = {each.card.host for each in figures} | {host for host, _ in unread}
    listed = {} if known.expect is None else _hosts(known.expect, reported)
    findings, change = judged(raising, confirming, expected=listed or None, unreadable=unread), None
    if known.before is not None:
        before, damaged = read_figures([known.before])
        unreadable += damaged
        change = changed(before, raising, confirming)
        if change is None:
            no_card = "holds none of the cards measured later; a card is known by its UUID"
            unreadable.append(FileError(known.before, no_card, "Compare run files of the same cards"))
    report = FleetReport(findings, unreadable, change, listed)
    if form is not None:
        write_named(known.output, form(report), "-o")
    if known.drain:
        if report.drain:
            exits.show(report.drain)
        else:
            exits.complain("fleet", f"{report.headline or 'no file names a host'}; {report.counts}")
        for error in unreadable:
            exits.complain("fleet", error)
    else:
        exits.show([*terminal(report, exits.width()), *[f"wrote {known.output}"] * (form is not None)])
        if unlisted := sorted(reported - listed.keys()) if listed else []:
            exits.show([f"not in {known.expect}: {units.named(map(printable, unlisted), _SHOWN)}"])
    if findings.bad or (change is not None and change.moved.confirmed):
        return exits.BAD
    return exits.UNREADABLE if unreadable else exits.FINE


def _hosts(path: Path, reported: Iterable[str]) -> dict[str, str]:
    """Returns name of a host in the run files, or the listed one if it did not report → listed name.

    What follows a `#` is a remark. Upper and lower case are alike. A name without a domain stands for the
    only host that begins with it. A name with a domain stands for a host without one.
    """
    remedy = "Name one host a line, as in: scontrol show hostnames > hosts.txt"
    try:
        lines = content_of(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FileError(path, f"cannot be read: {error}", remedy) from error
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names:
        raise FileError(path, "names no host", remedy)
    hosts = {host.casefold(): host for host in reported}
    begins = grouped((folded.partition(".")[0], host) for folded, host in hosts.items())
    only = {short: of[0] for short, of in begins.items() if len(of) == 1}
    listed = {}
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name):
            raise FileError(path, f"{printable(name)!r} is no name of a host", remedy)
        folded = name.casefold()
        short, dot, _ = folded.partition(".")
        alike = hosts.get(short) if dot else only.get(short)
        listed[hosts.get(folded) or alike or name] = name
    return listed
