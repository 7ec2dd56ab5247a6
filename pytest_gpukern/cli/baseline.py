"""`gpukern baseline`: what is recorded, and changes to it without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits, list_baselines, merge_run, prune_baseline, show_baseline

if TYPE_CHECKING:
    import argparse

SUMMARY = "list, show, prune and merge records"
DESCRIPTION = "Works on baseline files, on any machine. " + exits.STATUSES
_COMMANDS = {
    "list": list_baselines,
    "show": show_baseline,
    "prune": prune_baseline,
    "merge": merge_run,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its commands."""
    commands = parser.add_subparsers(dest="baseline_command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        described = f"{command.DESCRIPTION} {exits.STATUSES}"
        own = commands.add_parser(name, help=command.SUMMARY, description=described, allow_abbrev=False)
        command.add_options(own)
        own.set_defaults(baseline_parser=own)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Runs the command as it was parsed, and returns its exit status."""
    status: int = _COMMANDS[known.baseline_command].run(known.baseline_parser, known)
    return status
