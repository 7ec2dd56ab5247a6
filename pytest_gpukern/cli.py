"""The `gpukern` command."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern import __version__
from pytest_gpukern.doctor import command as doctor_command
from pytest_gpukern.selftest import command as selftest_command

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH = 120
"""Of what is printed into a file or a pipe; a terminal has its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `gpukern` and returns its exit status.

    `gpukern validate [PYTEST OPTIONS]` runs the suites that come with the package: on the GPU where there is
    one, else host variants, with the CUDA simulator for correctness. `gpukern show RUN.json [TEXT]` prints
    what a run stored. `gpukern selftest` says what this machine can resolve, `gpukern doctor` what is wrong
    with the installation, and `gpukern devices` which GPUs there are.
    """
    parser = argparse.ArgumentParser(
        prog="gpukern", description="Tells whether GPU kernels are still right and still fast."
    )
    parser.add_argument("--version", action="version", version=f"pytest-gpukern {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "validate",
        help="check and time the suites that come with the package on this machine",
        usage="%(prog)s [-h] [PYTEST OPTIONS]",
        description="Runs pytest on the packaged suites with --gpu-benchmark; further options go to pytest, "
        "for example: gpukern validate -k vector_exp --gpukern-baseline-dir baselines. "
        "See pytest --help for all of them.",
        allow_abbrev=False,
    )
    shown = commands.add_parser(
        "show",
        help="print the tables of a stored run, and what the device did in each case",
        description="Prints the tables of a run that --gpukern-output wrote and, where CUPTI could be used, "
        "what the device did in a call of each case: copies, memsets, kernels and their share of the time.",
    )
    shown.add_argument("run", metavar="RUN.json", type=Path, help="a file that --gpukern-output wrote")
    shown.add_argument("text", nargs="?", default="", help="only cases whose id holds this text")
    tested = commands.add_parser(
        "selftest",
        help=selftest_command.SUMMARY,
        description=selftest_command.DESCRIPTION,
        allow_abbrev=False,
    )
    selftest_command.add_options(tested)
    examined = commands.add_parser(
        "doctor", help=doctor_command.SUMMARY, description=doctor_command.DESCRIPTION, allow_abbrev=False
    )
    doctor_command.add_options(examined)
    listed = commands.add_parser(
        "devices",
        help=doctor_command.DEVICES_SUMMARY,
        description=doctor_command.DEVICES_DESCRIPTION,
        allow_abbrev=False,
    )
    doctor_command.add_device_options(listed)
    known, rest = parser.parse_known_args(arguments)
    if known.command == "validate":
        return validate(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if known.command == "selftest":
        return selftest_command.run(tested, known)
    if known.command == "doctor":
        return doctor_command.run(known)
    if known.command == "devices":
        return doctor_command.run_devices(known)
    return show(known.run, known.text)


def validate(options: Sequence[str] = ()) -> int:
    """Runs the packaged suites in a pytest of their own; returns its exit status.

    Args:
        options: of pytest, after our own.
    """
    folder = suites_folder()
    if folder.parent == Path(__file__).parent and _writes_beside_the_suites(options):
        sys.stderr.write(
            "gpukern validate: baselines beside the installed suites would go with the next installation; "
            "add --gpukern-baseline-dir=FOLDER\n"
        )
        return 4  # pytest's own status for a usage error
    ours = [str(folder), f"--rootdir={folder.parent}", "--gpu-benchmark", "-p", "no:cacheprovider"]
    # Numba's own, of a vectorize on the host; a checkout's configuration is quiet about it.
    ours += ["-W", "ignore:The keyword argument 'nopython=False':DeprecationWarning"]
    registered = importlib.metadata.entry_points(group="pytest11", name="gpukern")
    if not registered:  # run from a checkout that nobody installed
        ours += ["-p", "pytest_gpukern.plugin"]
    return subprocess.call([sys.executable, "-m", "pytest", *ours, *options])


def show(run: Path, text: str = "") -> int:
    """Prints what a run stored; returns 0, or 1 for a file that cannot be read or holds no such case.

    Args:
        run: the file.
        text: only cases whose id holds it.
    """
    from pytest_gpukern.report.run_file import RunFileError, read_run_file
    from pytest_gpukern.report.terminal import tables

    try:
        stored = read_run_file(run)
    except RunFileError as error:
        sys.stderr.write(f"gpukern show: {error}\n")
        return 1
    results = [result for result in stored if text in result.case.id]
    if not results:
        sys.stderr.write(f"gpukern show: {run} holds {_cases(len(stored), text)}\n")
        return 1
    lines = tables(results, width=shutil.get_terminal_size((_WIDTH, 24)).columns, verbose=True)
    try:
        print("\n".join(line.text for line in lines).rstrip(), flush=True)
    except BrokenPipeError:  # a pager that was left; Python would complain again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _cases(count: int, text: str) -> str:
    if not count:
        return "no results"
    return f"no case with {text!r} in its id; it has {count} others: gpukern show without it lists them"


def _writes_beside_the_suites(options: Sequence[str]) -> bool:
    """Whether options of pytest ask for a baseline to be written without saying where."""
    words = " ".join(options).replace("=", " ").split()
    writes = any(
        word == "--gpukern-baseline" and following in ("create", "update")
        for word, following in itertools.pairwise(words)
    )
    return writes and "--gpukern-baseline-dir" not in words


def suites_folder() -> Path:
    """The suites: inside the installed package, or beside it in a checkout.

    Raises:
        FileNotFoundError: they are in neither place.
    """
    package = Path(__file__).parent
    for folder in (package / "suites", package.parent / "suites"):
        if (folder / "__init__.py").is_file():
            return folder
    raise FileNotFoundError(f"the suites are neither in {package} nor beside it: install the package anew")
