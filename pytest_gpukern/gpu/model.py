"""Describes the device a run uses: its fixed properties, and values asked anew each time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_gpukern.gpu.libcuda import LibCuda
from pytest_gpukern.gpu.nvml import GpuRecord, Nvml, host_memory_bytes
from pytest_gpukern.values.fingerprint import file_key

SIMULATED_UUID = "SIM-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Device(GpuRecord):
    """One GPU, one MIG instance, or Numba's simulator; memory in bytes.

    `index` is the index of NVML and nvidia-smi (of a MIG instance, its GPU's). CUDA's ordinal depends on the
    environment; after `pin` it is 0. `uuid` starts with "GPU-", "MIG-" or, for the simulator, "SIM-".
    `nvml` and `cuda` answer what is asked anew; the simulator needs neither.
    """

    is_simulated: bool = False
    nvml: Nvml | None = field(default=None, repr=False, compare=False)
    cuda: LibCuda = field(default_factory=LibCuda, repr=False, compare=False)

    @classmethod
    def simulated(cls) -> Device:
        """Describes Numba's CUDA simulator: the host's memory, one multiprocessor, no L2 cache.

        The compute capability is what the simulator claims.
        """
        return cls(
            index=0,
            name="CUDA simulator",
            uuid=SIMULATED_UUID,
            compute_capability=(5, 2),
            memory_total_bytes=host_memory_bytes("SC_PHYS_PAGES"),
            is_simulated=True,
        )

    @property
    def memory_free_bytes(self) -> int:
        """Free memory now, in bytes, asked each time: of NVML, for the simulator of the host."""
        if self.nvml is None:
            return host_memory_bytes("SC_AVPHYS_PAGES")
        return self.nvml.memory_free_bytes(self.uuid)

    @property
    def multiprocessor_count(self) -> int:
        """Streaming multiprocessors of a pinned device: we ask CUDA about its first one."""
        return 1 if self.is_simulated else int(cuda_properties().multiprocessor_count)

    @property
    def l2_bytes(self) -> int:
        """L2 cache of a pinned device, in bytes."""
        return 0 if self.is_simulated else int(cuda_properties().l2_cache_size)

    @property
    def model_key(self) -> str:
        """The model as part of a file name: "nvidia-h200", "nvidia-h200-mig-1g_18gb", "cuda-simulator"."""
        base = re.sub(r"\s+MIG\s+\S+$", "", self.name)
        mig = f"-mig-{file_key(self.mig_profile)}" if self.mig_profile else ""
        return file_key(base) + mig

    def __str__(self) -> str:
        return f"{self.name} ({self.uuid})"


def cuda_properties() -> Any:
    """Returns what CUDA tells of its first device; makes no context."""
    from cuda.core import Device as CudaDevice

    return CudaDevice(0).properties


def short_uuid(uuid: str, uuids: Iterable[str]) -> str:
    """Shortens a UUID to a prefix that none of `uuids` shares, of at least twelve characters."""
    others = [other for other in uuids if other != uuid]
    lengths = range(12, len(uuid))
    return next((uuid[:n] for n in lengths if not any(other.startswith(uuid[:n]) for other in others)), uuid)
