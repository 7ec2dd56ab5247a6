"""A machine's GPUs in memory, in place of NVML and CUDA."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pynvml
from pynvml import NVMLError

from pytest_gpukern.gpu.libcuda import LibCuda
from pytest_gpukern.gpu.nvml import (
    Configuration,
    DeviceState,
    GpuProcess,
    GpuRecord,
    Nvml,
    PowerLimits,
    Utilization,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

UUIDS = (
    "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1",
    "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
    "GPU-e429a63e-c61c-4795-b757-5132caeb8e70",
)
MIG_UUIDS = ("MIG-5e53a5f8-5c4f-5d6e-8d8e-2f1f6b2d2a11", "MIG-6f64b609-6d50-6e7f-9e9f-302a7c3e3b22")


def gpu(index: int = 0, name: str = "NVIDIA H200", **changes: object) -> GpuRecord:
    values = {
        "index": index,
        "name": name,
        "uuid": UUIDS[index],
        "compute_capability": (9, 0),
        "memory_total_bytes": 140 * 2**30,
    }
    return GpuRecord(**(values | changes))  # type: ignore[arg-type]


def split_gpu(index: int = 0, instances: int = 2) -> GpuRecord:
    part = {"memory_total_bytes": 17 * 2**30, "mig_profile": "1g.18gb"}
    parts = (gpu(index, "NVIDIA H200 MIG 1g.18gb", uuid=uuid, **part) for uuid in MIG_UUIDS[:instances])
    return gpu(index, mig_enabled=True, mig_instances=tuple(parts))


def state(at_ms: float = 0.0, **changes: object) -> DeviceState:
    """A cool H200 under load: nothing that could be held against a measurement."""
    values = {
        "at_ns": round(at_ms * 1e6),
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "clock_events": (),
        "limited_ns": {
            "sw_power_cap": 7_000_000,
            "sw_thermal_slowdown": 0,
            "hw_thermal_slowdown": 0,
            "hw_power_brake_slowdown": 0,
        },
        "temperature_c": 41,
        "memory_temperature_c": 45,
        "power_w": 420.5,
        "memory_used_bytes": 2**30,
    }
    return DeviceState(**(values | changes))  # type: ignore[arg-type]


HEALTHY = Configuration(
    persistence=True,
    ecc=True,
    ecc_pending=True,
    mig_pending=False,
    compute_mode="default",
    corrected_errors=0,
    uncorrected_errors=0,
    remapped_rows=0,
    row_remap_pending=False,
    row_remap_failed=False,
    default_power_w=700.0,
)
"""How a GPU is set up that nothing is to be said about."""


@dataclass
class FakeNvml(Nvml):
    records: tuple[GpuRecord, ...] = (gpu(0),)
    processes: tuple[GpuProcess, ...] = ()
    free_bytes: list[int] = field(default_factory=lambda: [3, 2, 1])
    states: list[DeviceState] = field(default_factory=lambda: [state()])
    samples: tuple[Utilization, ...] = ()
    bus_bits: int | None = 6144
    max_clocks: tuple[int | None, int | None] = (1980, 3201)
    setup: Configuration = HEALTHY
    pcie_width: int = 16
    pcie: list[int] = field(default_factory=list)
    closed: bool = False

    def count(self) -> int:
        return len(self.records)

    def gpus(self) -> tuple[GpuRecord, ...]:
        return self.records

    def driver_version(self) -> str | None:
        return "580.159.03"

    def cuda_version(self) -> tuple[int, int] | None:
        return (13, 0)

    def memory_free_bytes(self, uuid: str) -> int:
        return self.free_bytes.pop(0)

    def compute_processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return self.processes

    def limits(self, uuid: str) -> PowerLimits:
        sm_mhz, memory_mhz = self.max_clocks
        return PowerLimits(power_w=700.0, sm_clock_mhz=sm_mhz, memory_clock_mhz=memory_mhz)

    def configuration(self, uuid: str) -> Configuration:
        return self.setup

    def pcie_link(self, uuid: str) -> dict[str, int | None]:
        return {"generation": 5, "width": self.pcie_width, "max_generation": 5, "max_width": 16}

    def memory_bus_width_bits(self, uuid: str) -> int | None:
        return self.bus_bits

    def state(self, uuid: str) -> DeviceState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def pcie_bytes(self, uuid: str) -> int | None:
        return self.pcie.pop(0) if self.pcie else None

    def utilization(self, uuid: str, since_us: int) -> tuple[Utilization, ...]:
        return tuple(sample for sample in self.samples if sample.time_us > since_us)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeCuda(LibCuda):
    """CUDA as this process sees it."""

    initialized: bool = False
    inside: tuple[str, ...] = ()

    def is_initialized(self) -> bool:
        return self.initialized

    def uuids(self) -> tuple[str, ...]:
        self.initialized = True
        return self.inside


FIELDS = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: 45,
    pynvml.NVML_FI_DEV_POWER_INSTANT: 420500,
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: 7,
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: 0,
}


def field_values(told: Mapping[int, int]) -> object:
    """As nvmlDeviceGetFieldValues on a device that tells these fields, as unsigned long long."""

    def call(handle: object, ids: list[int]) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                fieldId=number,
                valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                nvmlReturn=0 if number in told else 3,
                value=SimpleNamespace(ullVal=told.get(number, 0xDEAD)),
            )
            for number in ids
        ]

    return call


class FakePynvml(SimpleNamespace):
    """As the module pynvml on a machine with one GPU; calls named in `failing` raise the code given there."""

    NVMLError = NVMLError

    def __init__(self, failing: dict[str, int] | None = None, **answers: object) -> None:
        failing = failing or {}
        usual: dict[str, object] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": UUIDS[0],
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150754820096, free=150000000000, used=754820096),
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetMemoryBusWidth": 6144,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetRemappedRows": [0, 0, 0, 0],
            "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
            "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1965, 2: 3201}[clock],
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetFieldValues": field_values(FIELDS),
            "nvmlDeviceGetPowerUsage": 400000,
            "nvmlDeviceGetProcessUtilization": [],
            "nvmlSystemGetDriverVersion": "580.159.03",
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlSystemGetProcessName": "/usr/bin/python3",
        }
        super().__init__()
        for name, answer in (usual | answers).items():
            setattr(self, name, _call(answer, failing.get(name)))


def _call(answer: object, code: int | None) -> object:
    def call(*args: object) -> object:
        if code is not None:
            raise NVMLError(code)
        return answer(*args) if callable(answer) else answer

    return call
