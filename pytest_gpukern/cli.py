"""The `gpukern` command."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `gpukern` and returns its exit status.

    `gpukern validate [PYTEST OPTIONS]` runs the suites that come with the package: on the GPU where there is
    one, else host variants, with the CUDA simulator for correctness.
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
    known, rest = parser.parse_known_args(arguments)
    assert known.command == "validate"
    return validate(rest)


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
