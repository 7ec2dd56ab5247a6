"""The `gpukern` command: which commands there are. Each is a module of its own in `commands/`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

from pytest_gpukern.cli import baseline, compare, devices, doctor, show, validate
from pytest_gpukern.package import __version__
from pytest_gpukern.selftest import command as selftest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Command(Protocol):
    """A module that is a command."""

    SUMMARY: str
    DESCRIPTION: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Gives the command's parser its options."""

    def run(self, parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:
        """Runs the command as it was parsed, and returns its exit status."""


COMMANDS: Mapping[str, Command] = {
    "validate": validate,
    "show": show,
    "compare": compare,
    "baseline": baseline,
    "selftest": selftest,
    "doctor": doctor,
    "devices": devices,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `gpukern` and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="gpukern", description="Tells whether GPU kernels are still right and still fast."
    )
    parser.add_argument("--version", action="version", version=f"pytest-gpukern {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {}
    for name, command in COMMANDS.items():
        parsers[name] = commands.add_parser(
            name, help=command.SUMMARY, description=command.DESCRIPTION, allow_abbrev=False
        )
        command.add_options(parsers[name])
    known, rest = parser.parse_known_args(arguments)
    known.rest = rest
    command = COMMANDS[known.command]
    if rest and not getattr(command, "TAKES_OPTIONS_OF_PYTEST", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return command.run(parsers[known.command], known)
