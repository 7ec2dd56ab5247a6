"""A machine and what is wrong with it, as text and as plain values."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.doctor.checks import Advice
    from pytest_gpukern.doctor.machine import Gpu, Machine

_WIDTH = 100


def facts(machine: Machine) -> list[str]:
    """What there is, a line each."""
    cuda = f", CUDA {machine.cuda[0]}.{machine.cuda[1]}" if machine.cuda else ""
    nvcc = ".".join(map(str, machine.nvcc)) if machine.nvcc else "none on PATH"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    good = "opens" if machine.no_gpu is None else "imports"
    opened = "".join(
        f", {name} {good if problem is None else 'does not'}" for name, problem in machine.backends.items()
    )
    lines = [
        f"driver     {machine.driver or 'none'}{cuda}; nvcc {nvcc}; Python {machine.python}",
        *(line for gpu in machine.gpus for line in gpu_lines(gpu)),
        f"libraries  {versions or 'none'}",
        f"backends   host works{opened}",
        *([f"sanitizer  compute-sanitizer {machine.sanitizer}"] if machine.sanitizer else []),
    ]
    return [part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent=" " * 11)]


def spoken(advice: Sequence[Advice]) -> list[str]:
    """What is wrong, a paragraph each, or that nothing is."""
    lines = []
    for each in advice:
        text = f"{each.level.upper()}  {each.subject}: {each.text}"
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        if each.remedy:
            lines += textwrap.wrap(f"→ {each.remedy}", _WIDTH, initial_indent="  ", subsequent_indent="    ")
    counts = Counter(each.level for each in advice)
    found = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
    return [*lines, f"gpukern doctor: {found or 'nothing to complain of'}"]


def described(machine: Machine, advice: Sequence[Advice]) -> dict[str, object]:
    """Facts and advice as plain JSON; of the environment, only what the advice names."""
    return {
        "driver": machine.driver,
        "cuda": machine.cuda,
        "nvcc": machine.nvcc,
        "python": machine.python,
        "no_gpu": machine.no_gpu,
        "gpus": [gpu_json(gpu) for gpu in machine.gpus],
        "versions": dict(machine.versions),
        "backends": dict(machine.backends),
        "sanitizer": machine.sanitizer,
        "advice": [dataclasses.asdict(each) for each in advice],
    }


def gpu_json(gpu: Gpu) -> dict[str, object]:
    """One GPU as plain values."""
    return {
        **dataclasses.asdict(gpu.record),
        "visible": gpu.visible,
        "setup": dataclasses.asdict(gpu.setup),
        "power_limit_w": gpu.limits.power_w,
        "max_sm_clock_mhz": gpu.limits.sm_clock_mhz,
        "max_memory_clock_mhz": gpu.limits.memory_clock_mhz,
        "memory_used_bytes": gpu.state.memory_used_bytes,
        "temperature_c": gpu.state.temperature_c,
        "processes": [dataclasses.asdict(process) for process in gpu.processes],
    }


def gpu_lines(gpu: Gpu) -> list[str]:
    """One GPU and its MIG instances, a line each."""
    record = gpu.record
    major, minor = record.compute_capability
    gib = record.memory_total_bytes / 2**30
    hidden = "" if gpu.visible else ", hidden by CUDA_VISIBLE_DEVICES"
    lines = [f"GPU {record.index:<6} {record.name}, {record.uuid}, {major}.{minor}, {gib:.0f} GiB{hidden}"]
    lines += [f"  instance {each.name}, {each.uuid}" for each in record.mig_instances]
    return lines
