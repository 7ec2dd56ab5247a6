"""Asks an installation for its driver, GPUs, libraries and environment."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpukern.gpu import nvml
from pytest_gpukern.gpu.errors import DeviceError, DeviceLockTimeout, NvmlUnavailable
from pytest_gpukern.gpu.fingerprint import library_versions
from pytest_gpukern.gpu.lock import DeviceLock
from pytest_gpukern.gpu.selection import missing_gpu_reason, visible_devices
from pytest_gpukern.sanitizer.self_check import missed_fault
from pytest_gpukern.sanitizer.tool import ToolMissingError, find_tool
from pytest_gpukern.values.backend_table import BACKENDS, library_distributions, missing_library
from pytest_gpukern.values.project import backends_in
from pytest_gpukern.values.timer_table import auto_timers

DISTRIBUTIONS = (
    "pytest",
    "pytest-benchmark",
    "pytest-xdist",
    "gpucheck",
    "numpy",
    *library_distributions(),
    "mako",
    "cuda-core",
    "cuda-bindings",
    "cupti-python",
    "nvidia-cuda-sanitizer-api",
    "nvidia-ml-py",
    "pynvml",
    "threadpoolctl",
)
"""Distributions whose versions doctor tells, by their names in package indexes."""

_PROBE_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Gpu:
    """Holds one physical GPU as it is now, and who holds a CUDA context on it.

    It is visible where CUDA_VISIBLE_DEVICES leaves it, or an instance of it, to this process.
    """

    record: nvml.GpuRecord
    setup: nvml.Configuration
    state: nvml.DeviceState
    limits: nvml.PowerLimits
    processes: tuple[nvml.GpuProcess, ...] = ()
    visible: bool = True


@dataclass(frozen=True)
class Machine:
    """Holds what an installation tells without being changed.

    Attributes:
        no_gpu: why no kernel can run on a GPU here, in words, or None.
        driver_there: whether there is any part of an NVIDIA driver, so that `no_gpu` is a fault.
        cuda: newest CUDA version that the driver supports, or None.
        nvcc: version of the nvcc on PATH, or None.
        versions: distribution → installed version, of `DISTRIBUTIONS`.
        lacks: backend that the Python files below the current folder use → its file, and what is missing.
        backends: backend whose library is installed, or that needs none → why it cannot be opened, or None.
        timer: why CUPTI cannot time here, in words; None where it can, or where there is no GPU.
        lock: why measurements cannot be kept apart, in words, or None.
        sanitizer: version of compute-sanitizer; None where there is none, or no GPU.
        sanitizer_problem: why it is not there or does not work here, in words, or None.
    """

    gpus: tuple[Gpu, ...] = ()
    no_gpu: str | None = None
    driver_there: bool = False
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    nvcc: tuple[int, int] | None = None
    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    backends: Mapping[str, str | None] = field(default_factory=dict)
    timer: str | None = None
    lock: str | None = None
    sanitizer: str | None = None
    sanitizer_problem: str | None = None


def examine() -> Machine:
    """Asks this machine; opens libraries in processes of their own, where they may crash."""
    try:
        no_gpu = missing_gpu_reason(os.environ)
    except DeviceError as error:
        no_gpu = str(error)
    driver = cuda = None
    gpus: tuple[Gpu, ...] = ()
    driver_there = os.path.exists("/proc/driver/nvidia/version")  # noqa: PTH110 - no file of ours
    with contextlib.suppress(NvmlUnavailable), contextlib.closing(nvml.open_nvml()) as library:
        driver_there, driver, cuda = True, library.driver_version(), library.cuda_version()
        gpus = _gpus(library)
    how = "gpu" if no_gpu is None else IMPORT_ONLY
    sanitizer, sanitizer_problem = _sanitizer() if no_gpu is None else (None, None)
    used, installed = backends_in(Path()), [name for name in BACKENDS if not missing_library(name)]
    return Machine(
        gpus=gpus,
        no_gpu=no_gpu,
        driver_there=driver_there,
        driver=driver,
        cuda=cuda,
        nvcc=_nvcc(),
        python=".".join(map(str, sys.version_info[:3])),
        versions=library_versions(DISTRIBUTIONS),
        environ=dict(os.environ),
        lacks={name: (str(of), why) for name, of in used.items() if (why := missing_library(name))},
        backends={name: _probe(name, how) if BACKENDS[name].needs else None for name in installed},
        timer=_probe(FIRST_TIMER, how) if no_gpu is None else None,
        lock=next((why for gpu in gpus if (why := _lock_problem(gpu.record.uuid)) is not None), None),
        sanitizer=sanitizer,
        sanitizer_problem=sanitizer_problem,
    )


def _sanitizer() -> tuple[str | None, str | None]:
    """Returns compute-sanitizer's version, and why it cannot be used, or None; we give it a fault to find."""
    try:
        program = find_tool(os.environ)
    except ToolMissingError as error:
        return None, str(error)
    return program.version, missed_fault(program, "memcheck")


def _gpus(library: nvml.Nvml) -> tuple[Gpu, ...]:
    try:
        visible = {device.uuid for device in visible_devices(library, os.environ)}
    except DeviceError:
        visible = set()
    return tuple(
        Gpu(
            record=record,
            setup=library.configuration(record.uuid),
            state=library.state(record.uuid),
            limits=library.limits(record.uuid),
            processes=library.compute_processes(record.uuid),
            visible=not visible.isdisjoint((record.uuid, *(part.uuid for part in record.mig_instances))),
        )
        for record in library.gpus()
    )


def _lock_problem(uuid: str) -> str | None:
    """Says why a GPU cannot be locked; returns None if it can, or if somebody holds it."""
    try:
        lock = DeviceLock(uuid)
        lock.acquire(timeout_s=0.0)
    except DeviceLockTimeout:
        return None
    except DeviceError as error:
        return str(error)
    lock.release()
    return None


def _probe(name: str, how: str) -> str | None:
    command = [sys.executable, "-m", "pytest_gpukern.doctor.machine", name, how]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_PROBE_TIMEOUT_S:g} s"
    return read_answer(done.returncode, done.stderr.decode(errors="replace"))


def read_answer(status: int, said: str) -> str | None:
    """Returns why a library cannot be used, by how a probe's process ended; None for status 0."""
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    if status < 0:
        return f"the process that opened it died of signal {-status}: {last}"
    return last if status else None


def _nvcc() -> tuple[int, int] | None:
    try:
        output = subprocess.run(
            ["nvcc", "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release (\d+)\.(\d+)", output)
    return (int(release[1]), int(release[2])) if release else None


FIRST_TIMER = auto_timers()[0]
IMPORT_ONLY = "import"


def problem_of(name: str, how: str) -> str | None:
    """Says why a backend, or CUPTI as a timer, cannot be used, or returns None.

    `how` is `gpu` to open it on the first visible device, `import` to import its library only.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if how == IMPORT_ONLY:
                for module, _ in BACKENDS[name].needs[:1]:
                    importlib.import_module(module)
                return None
            from pytest_gpukern.backends.backend import open_backend
            from pytest_gpukern.gpu.runtime import runtime
            from pytest_gpukern.gpu.selection import pin, select
            from pytest_gpukern.timers.timer import open_timer

            pin(select(None, visible_devices(nvml.open_nvml(), os.environ)), os.environ)
            if name == FIRST_TIMER:
                open_timer(name, runtime().device.default_stream)
            else:
                open_backend(name, simulated=False)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
        return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
    return None


if __name__ == "__main__":
    reason = problem_of(sys.argv[1], sys.argv[2])
    sys.stderr.write(f"\n{reason or ''}\n")
    sys.stderr.flush()
    os._exit(reason is not None)  # a library that works may still crash when Python ends
