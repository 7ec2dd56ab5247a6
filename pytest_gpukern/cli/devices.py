"""`gpukern devices`: the GPUs of a machine, as --gpukern-device takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.cli.exits import BAD, FINE, add_json, show, show_json

if TYPE_CHECKING:
    import argparse

SUMMARY = "list the GPUs of this machine"
DESCRIPTION = (
    "Lists every GPU and MIG instance with its UUID, as --gpukern-device takes it. Ends with status 0, or 1 "
    "where there is none."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Runs the command as it was parsed, and returns its exit status."""
    from pytest_gpukern.doctor.machine import examine
    from pytest_gpukern.doctor.rendering import gpu_json, gpu_lines

    machine = examine(probe=lambda _: None)
    if known.json:
        show_json([gpu_json(gpu) for gpu in machine.gpus])
    elif machine.gpus:
        show(line for gpu in machine.gpus for line in gpu_lines(gpu))
    else:
        show([f"no GPU: {machine.no_gpu}"])
    return FINE if machine.gpus else BAD
