"""Peer access between GPUs, without which managed memory can silently move to the host."""

from __future__ import annotations

import platform
import sys
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.gpu.nvml import Nvml


def peer_access_warnings(
    nvml: Nvml, devices: Sequence[Device], *, limited_system: bool | None = None
) -> list[str]:
    """Return a warning for each pair of GPUs whose lack of peer access makes managed memory zero-copy.

    Where a GPU cannot access managed memory concurrently with the host, i.e. on Windows, WSL and Tegra and
    before compute capability 6.0, managed allocations stay in host memory as long as a process sees two
    GPUs without peer access, and kernels read them over the bus. Elsewhere pages migrate and nothing is
    said. Pairs that NVML says nothing about, and instances of MIG, which have no peers, are left out.
    `limited_system` says whether the operating system is one of those named; None finds out.

    Rule: cuMemAllocManaged, https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
    """
    limited = _is_limited_system() if limited_system is None else limited_system
    gpus = [device for device in devices if not device.is_simulated and device.mig_profile is None]
    return [
        f"no peer access between {one} and {other}: a process that sees both keeps managed memory on the "
        f"host (zero-copy), and kernels that use it are slower. Show it one of them: "
        f"CUDA_VISIBLE_DEVICES={one.uuid}"
        for one, other in combinations(gpus, 2)
        if (limited or min(one.compute_capability, other.compute_capability) < (6, 0))
        and nvml.peer_access(one.uuid, other.uuid) is False
    ]


def _is_limited_system() -> bool:
    release = platform.release().lower()
    return sys.platform == "win32" or "microsoft" in release or "tegra" in release
