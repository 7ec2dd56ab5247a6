"""Asks NVML, NVIDIA's management library, which needs no CUDA context.

We use nvidia-ml-py. `cuda.core.system` (1.2) would be a second way beside it: it lacks power limits, ECC,
remapped rows, compute mode, the width of the memory bus, how busy each process keeps the GPU, and ids of MIG
instances. It is only in the extras for a GPU, and its import takes 0.7 s and loads cuda.bindings.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable

CLOCK_EVENTS: Mapping[int, str] = {
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
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (…ThrottleReasons until R535): why clocks are not higher.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html; the last two: older drivers only.
"""


@dataclass(frozen=True)
class GpuRecord:
    """One physical GPU as NVML lists it, or one of its MIG instances; memory in bytes.

    `index` is the number of the GPU for NVML and nvidia-smi. An instance has the index of its GPU.
    """

    index: int
    name: str
    uuid: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    mig_profile: str | None = None
    mig_enabled: bool = False
    mig_instances: tuple[GpuRecord, ...] = ()


@dataclass(frozen=True)
class GpuProcess:
    """A process with a CUDA context on a GPU.

    `pid` is a process id of the host, even inside a container, and 0 if NVML does not know it. `name` and
    `used_mib` are None if unknown. `sm_percent` is the recent share of time in which its kernels ran; None if
    unknown or not asked.
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
    """How busy one process kept a GPU over the 1/6 s to 1 s before `time_us` of the driver's clock."""

    pid: int
    time_us: int
    sm_percent: int


@dataclass(frozen=True)
class PowerLimits:
    """The limits a GPU runs under, in watts and MHz; None if unknown."""

    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


@dataclass(frozen=True)
class Configuration:
    """How a GPU is set up, for administrators; None if unknown.

    Attributes:
        persistence: whether the driver keeps the GPU initialised while nobody uses it.
        ecc: whether memory errors are corrected now.
        ecc_pending: whether memory errors will be corrected after the next reset.
        mig_pending: whether the GPU will be split by MIG after the next reset.
        compute_mode: how many processes may use it: `default`, `exclusive_thread`, `prohibited` or
            `exclusive_process`.
        corrected_errors: memory errors that ECC corrected, since the driver was loaded.
        uncorrected_errors: memory errors that ECC could not correct, since the driver was loaded.
        remapped_rows: broken memory rows that were replaced, ever.
        row_remap_pending: whether broken memory rows are replaced at the next reset.
        row_remap_failed: whether too many rows were broken to replace them all.
        default_power_w: the factory power limit.
    """

    persistence: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    mig_pending: bool | None = None
    compute_mode: str | None = None
    corrected_errors: int | None = None
    uncorrected_errors: int | None = None
    remapped_rows: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    default_power_w: float | None = None


@dataclass(frozen=True)
class DeviceState:
    """The state of a device at one moment, from NVML; None if the driver, permissions or MIG prevent it.

    A MIG instance shares clocks, limiters and temperatures with the other instances of its GPU; it has no
    power of its own.

    Attributes:
        at_ns: the host's monotonic clock in nanoseconds; meaningful only within one process.
        sm_clock_mhz: clock of the multiprocessors, in the driver's steps (15 MHz on an H200).
        memory_clock_mhz: clock of the memory.
        clock_events: why the clocks are not higher at this moment, by names of `nvml.CLOCK_EVENTS`.
        limited_ns: name of a clock event → nanoseconds for which it has held clocks down since the driver was
            loaded. Unlike `clock_events`, the difference of two states also shows events that came and went
            between them. Events that the driver does not count are absent.
        temperature_c: temperature of the GPU.
        memory_temperature_c: temperature of the memory.
        power_w: power drawn by the GPU: at this moment if the driver reports that, else the average over up
            to a second.
        memory_used_bytes: memory in use on the device, by all processes.
        foreign: processes of others with a CUDA context on the device.
        pcie_bytes_per_s: bytes a second over PCIe, to and from the GPU, while the state was taken. This
            process waits meanwhile, so others sent them.
    """

    at_ns: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_events: tuple[str, ...] | None = None
    limited_ns: Mapping[str, int] = field(default_factory=dict)
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power_w: float | None = None
    memory_used_bytes: int | None = None
    foreign: tuple[GpuProcess, ...] = ()
    pcie_bytes_per_s: float | None = None


# Answers that mean "not available here"; they never stop a run. WSL, containers, integrated GPUs and MIG
# instances each refuse some of the calls below. Names as in `pynvml.NVMLError_…`.
_UNANSWERED = frozenset(
    {
        "ArgumentVersionMismatch",
        "Deprecated",
        "FunctionNotFound",
        "InvalidArgument",
        "NoData",
        "NoPermission",
        "NotFound",
        "NotSupported",
        "OperatingSystem",
        "Unknown",
    }
)
_NO_GPU = "the NVIDIA driver is loaded, but it found no GPU"
_NO_DRIVER = "no NVIDIA driver library (libnvidia-ml.so.1 not found)"

_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_CORRECTED, _UNCORRECTED, _SINCE_LOADED = 0, 1, 0
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")

# Field ids of nvml.h, asked in one call. Event counters are nanoseconds since the driver was loaded.
_MEMORY_TEMPERATURE_C, _POWER_MW = 82, 186
_LIMITED_NS = {
    74: "sw_power_cap",
    75: "sw_thermal_slowdown",
    76: "sync_boost",
    77: "board_limit",
    79: "reliability",
    # Only R575 numbered these two 252 and 253; its 270 and 271 are settings, which never grow.
    270: "hw_thermal_slowdown",
    271: "hw_power_brake_slowdown",
}
COUNTED_EVENTS = tuple(_LIMITED_NS.values())
"""Clock events of which drivers may count for how long they hold down the clocks."""
_PCIE_BYTES = (197, 198)  # sent and received, since R555
_FIELDS = (_MEMORY_TEMPERATURE_C, _POWER_MW, *_LIMITED_NS)
_WRAPS = 2**32
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


def open_nvml() -> Nvml:
    """Opens NVML for this process; the caller closes it.

    NVML counts openings, so we do not disturb other libraries that use it. After a fork, open a new one.

    Raises NvmlUnavailable with the reason: the package is missing, there is no GPU, or what NVML says.
    """
    try:
        import pynvml
    except ImportError as error:
        why = f"NVML cannot be asked: the package nvidia-ml-py is not usable ({error})"
        raise NvmlUnavailable(why) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        problem = f"NVML could not start: {str(error).rstrip('.')}"
        known = {"GpuNotFound": _NO_GPU, "LibraryNotFound": _NO_DRIVER}
        raise NvmlUnavailable(known.get(_kind(error), problem)) from None
    nvml = Nvml(pynvml)
    if nvml.count() == 0:
        nvml.close()
        raise NvmlUnavailable(_NO_GPU)
    return nvml


class Nvml:
    """Asks NVML by UUID, on an initialised `pynvml`; every answer may be unknown (None or empty)."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self._handles: dict[str, Any] = {}
        self._gpus_of_instances: dict[str, Any] = {}

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes NVML; call it once, since NVML counts."""
        self._ask("nvmlShutdown")

    def count(self) -> int:
        """Returns the number of GPUs NVML lists, including those it cannot open."""
        return int(self._ask("nvmlDeviceGetCount") or 0)

    def gpus(self) -> tuple[GpuRecord, ...]:
        """Returns every GPU this process may open, in NVML's order, by PCI bus id."""
        records = (self._gpu(index) for index in range(self.count()))
        return tuple(record for record in records if record is not None)

    def driver_version(self) -> str | None:
        version: str | None = self._ask("nvmlSystemGetDriverVersion")
        return version

    def cuda_version(self) -> tuple[int, int] | None:
        """Returns the newest CUDA the driver supports; NVML encodes 13.0 as 13000."""
        encoded = self._ask("nvmlSystemGetCudaDriverVersion")
        return None if not encoded else (encoded // 1000, encoded % 1000 // 10)

    def memory_free_bytes(self, uuid: str) -> int:
        """Returns the free memory now, in bytes; the host's for an integrated GPU (Jetson, GB10)."""
        info = self._ask("nvmlDeviceGetMemoryInfo", self._handle(uuid))
        return host_memory_bytes("SC_AVPHYS_PAGES") if info is None else int(info.free)

    def compute_processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Returns the processes with a CUDA context on the device; empty if the driver does not list them."""
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle(uuid)) or ()
        return tuple(self._process(int(process.pid), process.usedGpuMemory) for process in processes)

    def limits(self, uuid: str) -> PowerLimits:
        """Returns the enforced power limit (NVML: milliwatts) and the highest SM and memory clocks."""
        power_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit", self._handle(uuid))
        gpu = self._whole_gpu(uuid)  # a MIG instance has no clocks of its own
        return PowerLimits(
            power_w=None if power_mw is None else power_mw / 1000,
            sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", gpu, _CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", gpu, _CLOCK_MEMORY),
        )

    def configuration(self, uuid: str) -> Configuration:
        """Returns how the GPU is set up, in eight calls; a refused call leaves its fields None."""
        gpu = self._whole_gpu(uuid)
        ecc = self._ask("nvmlDeviceGetEccMode", gpu) or (None, None)  # now, after the next reset
        mig = self._ask("nvmlDeviceGetMigMode", gpu) or (None, None)
        mode = self._ask("nvmlDeviceGetComputeMode", gpu)
        rows = self._ask("nvmlDeviceGetRemappedRows", gpu)  # corrected, uncorrected, pending, failed
        power_mw = self._ask("nvmlDeviceGetPowerManagementDefaultLimit", gpu)
        return Configuration(
            persistence=_truth(self._ask("nvmlDeviceGetPersistenceMode", gpu)),
            ecc=_truth(ecc[0]),
            ecc_pending=_truth(ecc[1]),
            mig_pending=_truth(mig[1]),
            compute_mode=_COMPUTE_MODES[mode] if mode in range(len(_COMPUTE_MODES)) else None,
            corrected_errors=self._ask("nvmlDeviceGetTotalEccErrors", gpu, _CORRECTED, _SINCE_LOADED),
            uncorrected_errors=self._ask("nvmlDeviceGetTotalEccErrors", gpu, _UNCORRECTED, _SINCE_LOADED),
            remapped_rows=rows and rows[0] + rows[1],
            row_remap_pending=rows and bool(rows[2]),
            row_remap_failed=rows and bool(rows[3]),
            default_power_w=None if power_mw is None else power_mw / 1000,
        )

    def pcie_link(self, uuid: str) -> dict[str, int | None]:
        """Returns generation and lanes of the link to the host, now and the most that GPU and slot can use.

        An idle GPU may use an older generation to save power.
        """
        gpu = self._whole_gpu(uuid)
        return {
            "generation": self._ask("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
            "width": self._ask("nvmlDeviceGetCurrPcieLinkWidth", gpu),
            "max_generation": self._ask("nvmlDeviceGetMaxPcieLinkGeneration", gpu),
            "max_width": self._ask("nvmlDeviceGetMaxPcieLinkWidth", gpu),
        }

    def memory_bus_width_bits(self, uuid: str) -> int | None:
        width = self._ask("nvmlDeviceGetMemoryBusWidth", self._whole_gpu(uuid))
        return None if not width else int(width)

    def state(self, uuid: str) -> DeviceState:
        """Returns the device's state now, in six calls; a refused call leaves its field None.

        On an H200 they take about 2.6 ms.
        """
        handle, gpu = self._handle(uuid), self._whole_gpu(uuid)
        at_ns = monotonic_ns()
        sm_mhz = self._ask("nvmlDeviceGetClockInfo", gpu, _CLOCK_SM)
        memory_mhz = self._ask("nvmlDeviceGetClockInfo", gpu, _CLOCK_MEMORY)
        events = self._ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if events is None:  # the name until R535
            events = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        fields = self._field_values(gpu, _FIELDS)
        temperature = self._ask("nvmlDeviceGetTemperature", gpu, _TEMPERATURE_GPU)
        if temperature is None:  # CUDA 14 drops the older name
            temperature = self._ask("nvmlDeviceGetTemperatureV", gpu, _TEMPERATURE_GPU)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        power_mw = None
        if handle is gpu:
            power_mw = fields.get(_POWER_MW) or self._ask("nvmlDeviceGetPowerUsage", gpu)
        return DeviceState(
            at_ns=at_ns,
            sm_clock_mhz=sm_mhz,
            memory_clock_mhz=memory_mhz,
            clock_events=None if events is None else _event_names(events),
            limited_ns={name: int(fields[key]) for key, name in _LIMITED_NS.items() if key in fields},
            temperature_c=temperature,
            memory_temperature_c=int(fields.get(_MEMORY_TEMPERATURE_C, 0)) or None,
            power_w=None if power_mw is None else power_mw / 1000,
            memory_used_bytes=None if memory is None else int(memory.used),
        )

    def pcie_bytes(self, uuid: str) -> int | None:
        """Returns the bytes sent and received over PCIe, modulo 2³²; None if unknown, for example under MIG.

        Takes less than half a millisecond; `nvmlDeviceGetPcieThroughput` takes 20 ms a direction.
        """
        handle = self._handle(uuid)
        counts = self._field_values(handle, _PCIE_BYTES) if handle is self._whole_gpu(uuid) else {}
        return int(sum(counts.values())) % _WRAPS if len(counts) == len(_PCIE_BYTES) else None

    def pcie_bytes_since(self, uuid: str, before: int | None) -> int | None:
        """Returns the bytes over PCIe since `pcie_bytes` returned `before`, if fewer than 2³²."""
        now = None if before is None else self.pcie_bytes(uuid)
        return None if before is None or now is None else (now - before) % _WRAPS

    def utilization(self, uuid: str, since_us: int) -> tuple[Utilization, ...]:
        """Returns each process's samples after `since_us`; NVML has none for MIG instances."""
        samples = self._ask("nvmlDeviceGetProcessUtilization", self._handle(uuid), since_us)
        return tuple(
            Utilization(int(sample.pid), int(sample.timeStamp), int(sample.smUtil))
            for sample in samples or ()
            if sample.timeStamp > since_us  # NVML returns the whole buffer, with zeros for unused entries
        )

    def _gpu(self, index: int) -> GpuRecord | None:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index, also="GpuIsLost")
        uuid = None if handle is None else self._ask("nvmlDeviceGetUUID", handle)
        if not uuid:
            return None
        self._handles[uuid] = handle
        mig = self._ask("nvmlDeviceGetMigMode", handle) or (0, 0)  # now, after the next reset
        gpu = GpuRecord(
            index=index,
            name=self._ask("nvmlDeviceGetName", handle) or "NVIDIA GPU of unknown name",
            uuid=uuid,
            compute_capability=tuple(self._ask("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)),
            memory_total_bytes=self._memory_total_bytes(handle),
        )
        if not mig[0]:
            return gpu
        return dataclasses.replace(gpu, mig_enabled=True, mig_instances=self._mig_instances(handle, gpu))

    def _mig_instances(self, parent: Any, gpu: GpuRecord) -> tuple[GpuRecord, ...]:
        limit = self._ask("nvmlDeviceGetMaxMigDeviceCount", parent) or 0
        instances = []
        for slot in range(limit):
            # Slots without an instance answer NOT_FOUND.
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, slot)
            uuid = None if handle is None else self._ask("nvmlDeviceGetUUID", handle)
            if not uuid:
                continue
            self._handles[uuid] = handle
            self._gpus_of_instances[uuid] = parent
            named = re.search(r"\bMIG (\S+)", self._ask("nvmlDeviceGetName", handle) or "")
            profile = named.group(1) if named else "unknown"
            instance = dataclasses.replace(
                gpu,
                name=f"{gpu.name} MIG {profile}",
                uuid=uuid,
                memory_total_bytes=self._memory_total_bytes(handle),
                mig_profile=profile,
            )
            instances.append(instance)
        return tuple(instances)

    def _memory_total_bytes(self, handle: Any) -> int:
        info = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return host_memory_bytes("SC_PHYS_PAGES") if info is None else int(info.total)

    def _process(self, pid: int, used: int | None) -> GpuProcess:
        name = self._ask("nvmlSystemGetProcessName", pid) if pid else None
        return GpuProcess(pid, name or None, None if used is None else used >> 20)

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self.gpus()
        try:
            return self._handles[uuid]
        except KeyError:
            why = f"NVML lists no device with the UUID {uuid}; was a MIG instance removed?"
            raise DeviceError(why) from None

    def _whole_gpu(self, uuid: str) -> Any:
        """Returns the handle of the GPU itself, or of the GPU that a MIG instance belongs to."""
        handle = self._handle(uuid)
        return self._gpus_of_instances.get(uuid, handle)

    def _field_values(self, handle: Any, fields: Sequence[int]) -> dict[int, float]:
        values = self._ask("nvmlDeviceGetFieldValues", handle, list(fields))
        return {
            int(value.fieldId): getattr(value.value, _VALUE_MEMBERS[value.valueType])
            for value in values or ()
            if value.nvmlReturn == 0 and value.valueType < len(_VALUE_MEMBERS)
        }

    def _ask(self, call: str, *args: Any, also: str = "") -> Any:
        """Calls NVML; None if it does not answer here, DeviceError if GPU or driver are broken."""
        function = getattr(self._pynvml, call, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self._pynvml.NVMLError as error:
            if _kind(error) in {*_UNANSWERED, also}:
                return None
            raise DeviceError(f"NVML failed to answer {call}: {error}") from error


def _kind(error: BaseException) -> str:
    return type(error).__name__.removeprefix("NVMLError_")


def _truth(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _event_names(bits: int) -> tuple[str, ...]:
    known = tuple(name for bit, name in CLOCK_EVENTS.items() if bits & bit)
    rest = bits & ~sum(CLOCK_EVENTS)
    return (*known, f"unknown_{rest:#x}") if rest else known


def host_memory_bytes(pages: str) -> int:
    """Returns the host's memory, by the name of `os.sysconf` for a number of pages; 0 if unknown."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
