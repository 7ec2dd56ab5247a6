"""`gpukern doctor`: what is wrong with an installation, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.cli.exits import BAD, FINE, add_json, show, show_json

if TYPE_CHECKING:
    import argparse

SUMMARY = "say what is wrong with this installation, and what to do about it"
DESCRIPTION = (
    "Looks at driver, GPUs, libraries and environment, opens each installed library in a process of its own, "
    "and says what is wrong. Changes nothing. Ends with status 0 where nothing is broken, 1 where something "
    "is (with --strict, also for warnings)."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    add_json(parser)
    parser.add_argument("--strict", action="store_true", help="status 1 for warnings too")


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Runs the command as it was parsed, and returns its exit status."""
    from pytest_gpukern.doctor.checks import Level, advise
    from pytest_gpukern.doctor.machine import examine
    from pytest_gpukern.doctor.rendering import described, facts, spoken

    machine = examine()
    advice = advise(machine)
    if known.json:
        show_json(described(machine, advice))
    else:
        show((*facts(machine), "", *spoken(advice)))
    bad = {Level.ERROR, Level.WARNING} if known.strict else {Level.ERROR}
    return BAD if any(each.level in bad for each in advice) else FINE
