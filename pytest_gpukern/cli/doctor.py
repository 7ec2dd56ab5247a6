"""Runs `gpukern doctor`: lists the GPUs of a machine, and says what is wrong with an installation."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Sequence

from pytest_gpukern.cli.exits import BAD, FINE, show
from pytest_gpukern.doctor.checks import Advice, Severity, advise
from pytest_gpukern.doctor.machine import Gpu, Machine, examine
from pytest_gpukern.report.layout import wrapped
from pytest_gpukern.values.backend_table import BACKENDS

_WIDTH = 100


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists every GPU and MIG instance with the UUID that --gpukern-device takes. Checks driver, GPUs, "
        "libraries and environment, and what the project in the current folder lacks. Says what to do, and "
        "changes nothing. Exit status: 0 nothing is broken, 1 something is."
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.set_defaults(run=_doctor)


def _doctor(known: argparse.Namespace) -> int:
    machine = examine()
    advice = advise(machine)
    lines = [*facts(machine), "", *spoken(advice)]
    show(json.dumps(_described(machine, advice), indent=1).split("\n") if known.json else lines)
    return BAD if any(item.level is Severity.ERROR for item in advice) else FINE


def facts(machine: Machine) -> list[str]:
    cuda = f", CUDA {machine.cuda[0]}.{machine.cuda[1]}" if machine.cuda else ""
    nvcc = ".".join(map(str, machine.nvcc)) if machine.nvcc else "none on PATH"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    opens = "opens" if machine.no_gpu is None else "imports"
    opened = ", ".join(
        f"{name} {'does not' if problem else opens if BACKENDS[name].needs else 'works'}"
        for name, problem in machine.backends.items()
    )
    lines = [
        f"driver     {machine.driver or 'none'}{cuda}; nvcc {nvcc}; Python {machine.python}",
        *(line for gpu in machine.gpus for line in _gpu_lines(gpu)),
        f"libraries  {versions or 'none'}",
        f"backends   {opened}",
        *([f"sanitizer  compute-sanitizer {machine.sanitizer}"] if machine.sanitizer else []),
    ]
    # A UUID in pieces could not be copied.
    wrapper = textwrap.TextWrapper(_WIDTH, subsequent_indent=" " * 11, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line)]


def spoken(advice: Sequence[Advice]) -> list[str]:
    lines = []
    for item in advice:
        lines += wrapped(f"{item.level.upper()}  {item.subject}: {item.text}", _WIDTH)
        lines += wrapped(f"→ {item.remedy}", _WIDTH, indent="  ") if item.remedy else []
    counts = Counter(item.level for item in advice)
    totals = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
    return [*(line.text for line in lines), f"gpukern doctor: {totals or 'nothing to complain of'}"]


def _described(machine: Machine, advice: Sequence[Advice]) -> dict[str, object]:
    """Returns facts and advice as plain JSON; of the environment, only what the advice names."""
    known = dataclasses.asdict(machine)
    del known["environ"]
    return {**known, "advice": [dataclasses.asdict(item) for item in advice]}


def _gpu_lines(gpu: Gpu) -> list[str]:
    record = gpu.record
    major, minor = record.compute_capability
    gib = record.memory_total_bytes / 2**30
    hidden = "" if gpu.visible else ", hidden by CUDA_VISIBLE_DEVICES"
    lines = [f"GPU {record.index:<6} {record.name}, {record.uuid}, {major}.{minor}, {gib:.0f} GiB{hidden}"]
    lines += [f"  instance {instance.name}, {instance.uuid}" for instance in record.mig_instances]
    return lines
