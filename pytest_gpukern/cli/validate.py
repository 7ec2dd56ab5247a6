"""Runs `gpukern validate`: the suites that come with the package, on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpukern.package import FOLDER, SUITES
from pytest_gpukern.values.backend_table import select_the_host_only
from pytest_gpukern.values.failure_table import NOTHING


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs the suites of this package with pytest --gpu-benchmark. All other options go to pytest, for "
        "example: gpukern validate -k vector_exp --gpukern-baseline-dir baselines. The exit status is "
        "pytest's: 1 also if nothing was measured on a GPU, unless --gpukern-simulator=auto or "
        "--gpukern-backend=host asks for that here, or if a case on record did not run. With --all-gpus it "
        "is also 1 if a GPU is confirmed to be slower than the others."
    )
    parser.usage = "%(prog)s [-h] [--all-gpus] [PYTEST OPTIONS]"
    parser.add_argument(
        "--all-gpus",
        action="store_true",
        help="run on every visible GPU of one model side by side, kernels only, and compare the GPUs; with "
        "--gpukern-baseline=append, record each",
    )
    parser.set_defaults(
        run=lambda known: validate(known.rest, all_gpus=known.all_gpus), takes_pytest_options=True
    )


def validate(options: Sequence[str] = (), *, all_gpus: bool = False) -> int:
    """Runs the packaged suites in a pytest of their own, or in several; returns the exit status."""
    given = _values(options)
    writes = given.get("--gpukern-baseline") in ("create", "append", "update")
    if writes and "--gpukern-baseline-dir" not in given and suites_folder().parent == FOLDER:
        sys.stderr.write(
            "gpukern validate: the next installation would delete baselines beside the installed suites; "
            "add --gpukern-baseline-dir=FOLDER\n"
        )
        return 4  # pytest's own status for a usage error
    options = _failing_without_gpu_or_library(options)
    if all_gpus:
        from pytest_gpukern.cli.all_gpus import validate_all_gpus

        return validate_all_gpus(options, command)
    return subprocess.call(command(options))


def _failing_without_gpu_or_library(options: Sequence[str]) -> Sequence[str]:
    """Returns options of pytest with the default of `--gpukern-fail-on` here; pytest heeds the last one.

    A driver may vanish with an upgrade. So `auto` for the simulator counts only if it is among these options.
    """
    given = _values(options)
    needs_gpu = given.get("--gpukern-simulator") not in ("auto", "always")
    backends = given.get("--gpukern-backend")
    needs_gpu = needs_gpu and not select_the_host_only(backends and backends.split(","))
    usual = ["no-gpu"] * needs_gpu + ["missing"] * (given.get("--gpukern-baseline") != "off")
    kinds = given.get("--gpukern-fail-on")
    if kinds == NOTHING or not usual:
        return options
    return [*options, f"--gpukern-fail-on={','.join([kinds, *usual] if kinds else usual)}"]


def command(options: Sequence[str], tests: Sequence[str] = ()) -> list[str]:
    """Returns the command that runs the packaged suites, or only those of their tests, with these options."""
    folder = suites_folder()
    chosen = [f"{folder.parent}/{test}" for test in tests] or [str(folder)]
    ours = [*chosen, f"--rootdir={folder.parent}", "--gpu-benchmark", "-p", "no:cacheprovider"]
    # Numba's own, of a vectorize on the host; a checkout's configuration is quiet about it.
    ours += ["-W", "ignore:The keyword argument 'nopython=False':DeprecationWarning"]
    if not importlib.metadata.entry_points(group="pytest11", name="gpukern"):  # an uninstalled checkout
        ours += ["-p", "pytest_gpukern.plugin"]
    return [sys.executable, "-m", "pytest", *ours, *options]


def _values(options: Sequence[str]) -> dict[str, str]:
    """Returns the options of pytest with their values, and other words with those that follow them."""
    return dict(itertools.pairwise(" ".join(options).replace("=", " ").split()))


def suites_folder() -> Path:
    """Returns the folder of the suites: inside the installed package, or beside it in a checkout."""
    for folder in SUITES:
        if (folder / "__init__.py").is_file():
            return folder
    raise FileNotFoundError(f"the suites are neither in {FOLDER} nor beside it: install the package anew")
