"""Finds the processes that use the GPU, and tells ours from others'."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import Configuration, DeviceState, GpuProcess, Nvml, PowerLimits

FAMILY = "GPUKERN_FAMILY"
"""Variable in which a process gives its child sessions our process ids, as NVML numbers them."""


def foreign_processes(
    nvml: Nvml, device: Device, environ: Mapping[str, str] = os.environ
) -> tuple[GpuProcess, ...]:
    """Returns the processes with a CUDA context on `device`, except us, our ancestors and our children.

    Call it before this process creates a CUDA context: in a container NVML gives the host's process ids, so
    afterwards we could not tell our own context from a stranger's. Empty for the simulator, and if the driver
    does not list processes (WSL, some containers).
    """
    if device.is_simulated:
        return ()
    family = map(process_id, environ.get(FAMILY, "").split(","))
    own = {os.getpid(), *ancestors(), *family}
    return tuple(
        process
        for process in nvml.compute_processes(device.uuid)
        if process.pid not in own and (process.pid <= 0 or os.getpid() not in ancestors(process.pid))
    )


def foreign_process_warning(device: Device, processes: Sequence[GpuProcess]) -> str | None:
    if not processes:
        return None
    others = "another process" if len(processes) == 1 else f"{len(processes)} other processes"
    named = ", ".join(str(process) for process in processes)
    return f"{others} used {device} when this run began, so its times are unreliable: {named}"


_PROC = Path("/proc")


def process_id(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else None


def ancestors(pid: int | None = None) -> tuple[int, ...]:
    """Returns parent, grandparent, … of a process (this one by default), as far as /proc shows them."""
    line: list[int] = []
    current = os.getppid() if pid is None else parent(pid)
    while current and current not in line:
        line.append(current)
        current = parent(current)
    return tuple(line)


def parent(pid: int) -> int:
    """Returns a process's parent, 0 if unknown."""
    fields = stat_of(_PROC / str(pid))
    return int(fields[1]) if fields else 0


def stat_of(process: Path) -> list[str]:
    """Returns a process's state, parent, group, … as Linux tells them; empty if there is no such process."""
    try:
        # "pid (name) state ppid …": the name may hold spaces and parentheses.
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Returns whether a process of this PID namespace exists; a zombie counts as dead."""
    if pid <= 0:
        return False
    if fields := stat_of(_PROC / str(pid)):
        return fields[0] != "Z"
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def group_is_alive(group: int) -> bool:
    """Returns whether a process of a process group runs; zombies that nobody has waited for count as dead."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False  # as mostly; a look at all processes takes milliseconds
    except PermissionError:
        return True
    processes = map(stat_of, _PROC.glob("[0-9]*"))  # GitHub's containers reap none: 20 s per end
    return any(fields and fields[0] != "Z" and int(fields[2]) == group for fields in processes)


class DeviceWatch:
    """Takes states of one device and tells others' processes on it from ours.

    A state takes ten NVML calls, about two milliseconds; time nothing meanwhile. Make the watch once this
    process has its CUDA context. In a container NVML gives the host's process ids, so we count a process as
    ours if it is there now and was not among the `strangers` found before.
    """

    def __init__(self, nvml: Nvml, device: Device, strangers: Sequence[GpuProcess] = ()) -> None:
        self._nvml = nvml
        self._uuid = device.uuid
        listed = {process.pid for process in nvml.compute_processes(self._uuid)}
        self._same_namespace = os.getpid() in listed
        came = set() if self._same_namespace else listed - {stranger.pid for stranger in strangers}
        self.ours = frozenset({os.getpid(), *ancestors(), *came})
        """The ids, as NVML numbers them, of this process and its ancestors."""
        self._seen_us = 0
        self._busy()  # discards samples from before

    def state(self) -> DeviceState:
        """Asks NVML now, first for what changes fastest. This process must have no work on the device."""
        pcie_before, began_ns = self._nvml.pcie_bytes(self._uuid), time.monotonic_ns()
        state = self._nvml.state(self._uuid)
        busy = self._busy()
        foreign = tuple(
            dataclasses.replace(process, sm_percent=busy.get(process.pid))
            for process in self._nvml.compute_processes(self._uuid)
            if process.pid not in self.ours
            and not (self._same_namespace and os.getpid() in ancestors(process.pid))
        )
        copied = self._nvml.pcie_bytes_since(self._uuid, pcie_before)
        passed_ns = max(1, time.monotonic_ns() - began_ns)
        bytes_per_s = None if copied is None else 1e9 * copied / passed_ns
        return dataclasses.replace(state, foreign=foreign, pcie_bytes_per_s=bytes_per_s)

    def setup(self) -> tuple[Configuration, dict[str, int | None], PowerLimits]:
        """Asks NVML how the device is set up, linked to its host and limited, in some fifteen calls."""
        nvml, uuid = self._nvml, self._uuid
        return nvml.configuration(uuid), nvml.pcie_link(uuid), nvml.limits(uuid)

    def _busy(self) -> dict[int, int]:
        """Returns process id → the largest share of time, in percent, sampled since the last call."""
        busiest: dict[int, int] = {}
        for sample in self._nvml.utilization(self._uuid, self._seen_us):
            self._seen_us = max(self._seen_us, sample.time_us)
            busiest[sample.pid] = max(busiest.get(sample.pid, 0), sample.sm_percent)
        return busiest
