"""`gpukern baseline prune`: removes records of cases, or epochs between the first and the current ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.cli.find import NoMatchError, matching

if TYPE_CHECKING:
    import argparse

    from pytest_gpukern.baseline.record import Baseline

SUMMARY = "remove records of cases, or epochs that nothing is judged by"
DESCRIPTION = (
    "Removes from a baseline file the records of cases (--case), or the epochs that are neither the first "
    "nor the current one of any measurement (--epochs). A file without records is deleted."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a baseline file")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--case", nargs="+", metavar="ID|GLOB", help="cases to remove, such as 'exp/cupy.*'")
    what.add_argument("--epochs", action="store_true", help="remove the epochs that nothing is judged by")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    exits.add_write_in_ci(parser)
    exits.add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Removes what was named, and says what that was."""
    from pytest_gpukern.baseline.schema import load
    from pytest_gpukern.baseline.store import rewrite
    from pytest_gpukern.values.untrusted_json import FileError

    if not known.dry_run and not exits.may_write("baseline prune", known):
        return exits.BAD

    def change(baseline: Baseline) -> Baseline:
        if known.case:
            return baseline.without(matching(baseline.cases, known.case))
        cases = {name: record.with_newest(0) for name, record in baseline.cases.items()}
        return dataclasses.replace(baseline, cases=cases)

    try:
        before = load(known.file)
        after = change(before) if known.dry_run else rewrite(known.file, change)
    except FileError as error:
        exits.complain("baseline prune", error)
        return exits.UNREADABLE
    except NoMatchError as error:
        exits.complain("baseline prune", f"{known.file}: {error}")
        return exits.BAD
    removed = sorted(before.cases.keys() - after.cases.keys())
    epochs = _dropped_epochs(before, after)
    if known.json:
        told = {"file": str(known.file), "dry_run": known.dry_run, "cases": removed, "epochs": epochs}
        exits.show_json(told)
    else:
        exits.show(_lines(removed, epochs, dry_run=known.dry_run))
    return exits.FINE


def _dropped_epochs(before: Baseline, after: Baseline) -> dict[str, int]:
    """Case id → how many of its epochs are gone, where any are."""
    counts = {
        name: len(record.epochs) - len(after.cases[name].epochs)
        for name, record in before.cases.items()
        if name in after.cases
    }
    return {name: count for name, count in counts.items() if count > 0}


def _lines(removed: list[str], epochs: dict[str, int], *, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {name}" for name in removed]
    for name, count in epochs.items():
        lines.append(f"{verb} {count} {'epoch' if count == 1 else 'epochs'} of {name}")
    return lines or ["nothing to remove"]
