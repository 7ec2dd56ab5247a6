"""Runs `gpukern selftest`: the tests of the timers that come with the suites, on this machine's GPU."""

from __future__ import annotations

import argparse
import os
import subprocess

from pytest_gpukern.cli.exits import RefusedError
from pytest_gpukern.cli.suites import command
from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.selection import missing_gpu_reason


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tests the timers with pytest, by kernels of known time. Each test prints that time, how far the "
        "timer is off, and how far it may be. All options go to pytest, such as --gpukern-device=1. The exit "
        "status is pytest's, or 1 without a GPU."
    )
    parser.usage = "%(prog)s [-h] [PYTEST OPTIONS]"
    parser.set_defaults(run=lambda known: selftest(known.rest), takes_pytest_options=True)


def selftest(options: list[str]) -> int:
    try:
        missing_gpu = missing_gpu_reason(os.environ)
    except DeviceError as error:
        missing_gpu = str(error)
    if missing_gpu is not None:
        raise RefusedError(f"no GPU: {missing_gpu}; without one no timer can be tested")
    # -rP prints what tests that pass have printed. The simulator would skip them all, which passes.
    ours = ["-rP", "--gpukern-simulator=never"]
    return subprocess.call(command([*options, *ours], ["suites/selftest.py"]))
