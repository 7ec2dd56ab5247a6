"""What this package asks of NVML, NVIDIA's management library, which needs no CUDA context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class MigRecord:
    """One MIG compute instance as NVML lists it; memory in bytes."""

    uuid: str
    name: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    memory_total_bytes: int


@dataclass(frozen=True)
class GpuRecord:
    """One physical GPU as NVML lists it, at its NVML index; memory in bytes."""

    index: int
    name: str
    uuid: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    pci_bus_id: str
    mig_enabled: bool = False
    mig_instances: tuple[MigRecord, ...] = ()


@dataclass(frozen=True)
class GpuProcess:
    """A process with a CUDA context on a GPU.

    `pid` is 0 where NVML does not know it, and belongs to the host's process table even inside a container;
    `name` and `used_mib` are None where NVML does not tell.
    """

    pid: int
    name: str | None
    used_mib: int | None

    def __str__(self) -> str:
        pid = f"pid {self.pid}" if self.pid else "unknown pid"
        name = self.name or "name unknown"
        used = "memory unknown" if self.used_mib is None else f"{self.used_mib} MiB"
        return f"{pid} ({name}, {used})"


@dataclass(frozen=True)
class PowerLimits:
    """The limits a GPU runs under: watts and MHz, None where NVML does not tell."""

    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


class Nvml(Protocol):
    """The questions asked of NVML, by UUID; every answer may be "not told" (None or empty)."""

    def gpus(self) -> tuple[GpuRecord, ...]:
        """Every GPU this process may use, in NVML's order, with its MIG instances."""

    def driver_version(self) -> str | None:
        """Return the driver's version, as "580.159.03"."""

    def cuda_version(self) -> tuple[int, int] | None:
        """Return the newest CUDA version that the driver supports, as (13, 0)."""

    def memory_free_bytes(self, uuid: str) -> int:
        """Return the memory free on a GPU or MIG instance now, in bytes."""

    def compute_processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return the processes that hold a CUDA context on a GPU or MIG instance."""

    def peer_access(self, uuid: str, other_uuid: str) -> bool | None:
        """Return whether each of two GPUs can read and write the other's memory directly."""

    def limits(self, uuid: str) -> PowerLimits:
        """Return a GPU's enforced power limit and highest clocks."""

    def close(self) -> None:
        """Hand NVML back; nothing may be asked afterwards."""
