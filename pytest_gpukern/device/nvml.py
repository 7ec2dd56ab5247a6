"""What this package asks of NVML, NVIDIA's management library, which needs no CUDA context."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .live import DeviceState

CLOCK_EVENTS: Mapping[int, str] = MappingProxyType(
    {
        0x001: "gpu_idle",
        0x002: "applications_clocks_setting",
        0x004: "sw_power_cap",
        0x008: "hw_slowdown",
        0x010: "sync_boost",
        0x020: "sw_thermal_slowdown",
        0x040: "hw_thermal_slowdown",
        0x080: "hw_power_brake_slowdown",
        0x100: "display_clock_setting",
        0x200: "board_limit",
        0x400: "reliability",
    }
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (…ThrottleReasons until R535): why clocks are not higher.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html; the last two are of older drivers.
"""


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
    `name` and `used_mib` are None where NVML does not tell. `sm_percent` is the share of time in which its
    kernels ran lately, None where that was not asked or is not told.
    """

    pid: int
    name: str | None
    used_mib: int | None
    sm_percent: int | None = None

    def __str__(self) -> str:
        pid = f"pid {self.pid}" if self.pid else "unknown pid"
        name = self.name or "name unknown"
        used = "memory unknown" if self.used_mib is None else f"{self.used_mib} MiB"
        busy = "" if self.sm_percent is None else f", kernels {self.sm_percent} % of the time"
        return f"{pid} ({name}, {used}{busy})"


@dataclass(frozen=True)
class Utilization:
    """How busy one process kept a GPU's multiprocessors over a sampling period that ended at `time_us`.

    The period is the driver's, 1/6 s to 1 s; `time_us` is in microseconds of the driver's own clock.
    """

    pid: int
    time_us: int
    sm_percent: int


@dataclass(frozen=True)
class PowerLimits:
    """The limits a GPU runs under: watts and MHz, None where NVML does not tell."""

    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


@dataclass(frozen=True)
class Configuration:
    """How a GPU is set up, for whoever looks after the machine; None where NVML does not tell.

    Attributes:
        persistence: whether the driver keeps the GPU initialised while nobody uses it.
        ecc: whether memory errors are corrected now.
        ecc_pending: whether they will be after the next reset.
        mig_pending: whether the GPU will be split by MIG after the next reset.
        compute_mode: how many processes may use it: `default`, `exclusive_thread`, `prohibited` or
            `exclusive_process`.
        uncorrected_errors: memory errors since the driver was loaded that ECC could not correct.
        row_remap_pending: whether broken memory rows are replaced at the next reset.
        row_remap_failed: whether there were too many of them to be replaced.
        default_power_w: the power limit that it comes with.
    """

    persistence: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    mig_pending: bool | None = None
    compute_mode: str | None = None
    uncorrected_errors: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    default_power_w: float | None = None


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

    def configuration(self, uuid: str) -> Configuration:
        """Return how a GPU is set up; for a MIG instance, the GPU that it is part of."""

    def memory_bus_width_bits(self, uuid: str) -> int | None:
        """Return the width of a GPU's memory bus, that of the whole GPU for a MIG instance."""

    def state(self, uuid: str) -> DeviceState:
        """Return clocks, limiters, temperatures, power, energy and memory as they are now."""

    def utilization(self, uuid: str, since_us: int) -> tuple[Utilization, ...]:
        """Return what the driver sampled of each process after `since_us`; empty where it does not tell."""

    def close(self) -> None:
        """Hand NVML back; nothing may be asked afterwards."""
