"""Runs `gpukern` by the table of its commands; loads the module of the command that is run."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from pytest_gpukern.package import __version__

COMMANDS = {
    "init": "prepare a project: an ini option, a first test, a CI workflow",
    "validate": "check and time the suites that come with the package on this machine",
    "fleet": "judge the cards of many hosts by run files: what is wrong, slow or silent",
    "report": "tell of stored runs and baselines: on the terminal, or as page, comment or table",
    "compare": "compare two runs, two baselines, or a run and a baseline",
    "baseline": "prune, rename and merge baseline files",
    "selftest": "test the timers on this machine: they read kernels of known time",
    "doctor": "list GPUs and libraries, and say what is wrong with this installation, "
    "and what to do about it",
}
"""Name of a command, and of its module in this folder → what `gpukern --help` says of it.

`declare` of the module is given the command's parser. It sets the description, adds options, and names by
`set_defaults(run=…)` what runs the command: a function of the parsed arguments that returns the exit status.
It may raise `FileError` and `RefusedError`. With `takes_pytest_options=True` the arguments that the parser
does not know are left in `rest`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    from pytest_gpukern.cli import exits
    from pytest_gpukern.report.layout import spell_out
    from pytest_gpukern.values.untrusted_json import FileError

    spell_out(sys.stdout)  # stderr escapes what it cannot write by itself
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="gpukern", description="Tells whether GPU kernels are still right and still fast."
    )
    parser.add_argument("--version", action="version", version=f"pytest-gpukern {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((argument for argument in given if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        own = commands.add_parser(name, help=summary, allow_abbrev=False)
        if name == chosen:
            own.set_defaults(takes_pytest_options=False)
            importlib.import_module(f"pytest_gpukern.cli.{name}").declare(own)
    known, rest = parser.parse_known_args(given)
    if rest and not known.takes_pytest_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    known.rest = rest
    try:
        status: int = known.run(known)
    except (FileError, exits.RefusedError) as error:
        exits.complain(known.command, error)
        return exits.UNREADABLE if isinstance(error, FileError) else error.status
    return status
