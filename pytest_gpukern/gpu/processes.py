"""Other programs on the GPU, which share its clocks, caches and memory with a measurement."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.process_tree import ancestors, process_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.gpu.nvml import GpuProcess, Nvml


_TO_LEAVE_S = 5.0
_LOOK_S = 0.1
FAMILY = "GPUKERN_FAMILY"
"""Variable by which a process tells its child sessions the process ids, as NVML gives them, of its own."""


def foreign_processes(
    nvml: Nvml, device: Device, environ: Mapping[str, str] = os.environ
) -> tuple[GpuProcess, ...]:
    """Return the processes with a CUDA context on `device` other than us, our ancestors and children.

    Ask before the first CUDA context of this process: in a container NVML gives process ids of the host, so
    that our own context could not be told from a stranger's afterwards. Empty for the simulator, and where
    the driver does not list processes (WSL, some containers).
    """
    if device.is_simulated:
        return ()
    family = map(process_id, environ.get(FAMILY, "").split(","))
    own = {os.getpid(), *ancestors(), *family}
    return tuple(
        process
        for process in nvml.compute_processes(device.uuid)
        if process.pid not in own and not _is_child(process.pid)
    )


def foreign_process_warning(device: Device, processes: Sequence[GpuProcess]) -> str | None:
    """Say who else is on the device, or None when nobody is."""
    if not processes:
        return None
    others = "another process" if len(processes) == 1 else f"{len(processes)} other processes"
    named = ", ".join(str(process) for process in processes)
    return f"{others} used {device} before this run, which makes its times unreliable: {named}"


def remaining(
    nvml: Nvml, device: Device, pids: Set[int], *, within_s: float = _TO_LEAVE_S
) -> tuple[GpuProcess, ...]:
    """Return which of these processes have a CUDA context on `device` even after some seconds.

    The driver takes a moment to clear up behind a process that was killed.
    """
    give_up_s = time.monotonic() + within_s
    while True:
        left = tuple(process for process in nvml.compute_processes(device.uuid) if process.pid in pids)
        if not left or time.monotonic() >= give_up_s:
            return left
        time.sleep(_LOOK_S)


def _is_child(pid: int) -> bool:
    return pid > 0 and os.getpid() in ancestors(pid)
