"""Describes what a measurement was made on: device, driver, library versions, host."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gpu.model import file_key
from pytest_gpukern.gpu.nvml import PowerLimits
from pytest_gpukern.values.backend_table import library_distributions
from pytest_gpukern.values.untrusted_json import own_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.gpu.nvml import Nvml


@dataclass(frozen=True)
class Fingerprint:
    """The conditions of a session, in watts and MHz; None if there is no device or the value is unknown."""

    device_name: str | None
    device_uuid: str | None
    device_model_key: str | None
    compute_capability: tuple[int, int] | None
    mig_profile: str | None
    is_simulated: bool
    driver_version: str | None
    cuda_driver_version: str | None
    power_limit_w: float | None
    max_sm_clock_mhz: int | None
    max_memory_clock_mhz: int | None
    python_version: str
    platform: str
    cpu_model: str
    cpu_count: int
    blas: str
    libraries: Mapping[str, str]

    @property
    def cpu_model_key(self) -> str:
        """The processor's model as part of a file name, for baselines of host variants: "amd-epyc-9654"."""
        return _cpu_model_key(self.cpu_model)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values; equal fingerprints give equal values."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["compute_capability"] = list(self.compute_capability) if self.compute_capability else None
        plain["libraries"] = dict(self.libraries)
        return plain

    def identity(self) -> str:
        """Returns twelve hexadecimal digits, equal for equal fields in every process."""
        canonical = own_json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def model_key_of(fingerprint: Mapping[str, Any], *, on_gpu: bool) -> str | None:
    """Returns the hardware that a stored result was timed on, as part of a file name; None if unknown."""
    if on_gpu:
        return fingerprint.get("device_model_key")
    model = fingerprint.get("cpu_model")
    return _cpu_model_key(model) if isinstance(model, str) else None


def _cpu_model_key(model: str) -> str:
    return file_key(model.replace("(R)", "").replace("(TM)", ""))


def take_fingerprint(device: Device | None, nvml: Nvml | None) -> Fingerprint:
    """Describes `device` (None: the host alone) and this process. Imports NumPy, creates no CUDA context."""
    real = device if device is not None and not device.is_simulated else None
    limits = nvml.limits(real.uuid) if nvml is not None and real is not None else PowerLimits()
    cuda = nvml.cuda_version() if nvml is not None else None
    return Fingerprint(
        device_name=device.name if device else None,
        device_uuid=device.uuid if device else None,
        device_model_key=device.model_key if device else None,
        compute_capability=device.compute_capability if device else None,
        mig_profile=device.mig_profile if device else None,
        is_simulated=bool(device and device.is_simulated),
        driver_version=nvml.driver_version() if nvml is not None else None,
        cuda_driver_version=f"{cuda[0]}.{cuda[1]}" if cuda else None,
        power_limit_w=limits.power_w,
        max_sm_clock_mhz=limits.sm_clock_mhz,
        max_memory_clock_mhz=limits.memory_clock_mhz,
        python_version=platform.python_version(),
        platform=platform.platform(),
        cpu_model=cpu_model(),
        cpu_count=cpu_count(),
        blas=blas(),
        libraries=library_versions(),
    )


def header_lines(
    device: Device | None, fingerprint: Fingerprint, simulator_reason: str | None = None
) -> list[str]:
    """Returns the lines a run's header shows about its device, driver, libraries, host and the simulator.

    `simulator_reason` says why the simulator is on, or why there is no device.
    """
    because = f" ({simulator_reason})" if simulator_reason else ""
    libraries = ", ".join(f"{name} {version}" for name, version in fingerprint.libraries.items())
    processors = f"{fingerprint.cpu_count} {'CPU' if fingerprint.cpu_count == 1 else 'CPUs'}"
    return [
        f"gpukern device: {_device_words(device, because)}",
        *([f"gpukern driver: {_driver_words(fingerprint)}"] if fingerprint.driver_version else []),
        f"gpukern simulator: {'on' + because if fingerprint.is_simulated else 'off'}",
        f"gpukern libraries: {libraries or 'none'}",
        f"gpukern host: {fingerprint.cpu_model}, {processors}; BLAS behind NumPy: {fingerprint.blas}",
    ]


def _device_words(device: Device | None, because: str) -> str:
    if device is None:
        return f"none{because}"
    if device.is_simulated:
        return f"{device.name}: correctness only, never speed"
    major, minor = device.compute_capability
    gib = device.memory_total_bytes / 2**30
    return f"{device.index}: {device.name}, compute capability {major}.{minor}, {gib:.1f} GiB, {device.uuid}"


def _driver_words(fingerprint: Fingerprint) -> str:
    parts = [f"{fingerprint.driver_version}", f"CUDA {fingerprint.cuda_driver_version or 'unknown'}"]
    if fingerprint.power_limit_w is not None:
        parts.append(f"power limit {fingerprint.power_limit_w:g} W")
    if fingerprint.max_sm_clock_mhz is not None:
        parts.append(f"SM clock up to {fingerprint.max_sm_clock_mhz} MHz")
    return ", ".join(parts)


# Names of distributions. Only installed ones are recorded.
_DISTRIBUTIONS = (
    *library_distributions(),
    "cuda-core",
    "cuda-bindings",
    "cupti-python",
    "numpy",
    "pytest",
    "pytest-benchmark",
    "pytest-gpukern",
)
_BLAS_NAMES = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS", "flexiblas": "FlexiBLAS"}


def library_versions() -> dict[str, str]:
    """Returns the versions of the libraries that measure or are measured, importing none of them."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in _DISTRIBUTIONS:
        try:
            # None if the distribution's metadata are damaged.
            found[name] = version(name) or "unknown"
        except PackageNotFoundError:
            continue
    return found


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the processor's name; Arm Linux has numbers only: "aarch64 implementer 0x41 part 0xd4f"."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    if fields.get("model name"):
        return re.sub(r"\s+", " ", fields["model name"])
    if fields.get("CPU part"):
        return (
            f"{platform.machine()} implementer {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
        )
    return platform.processor() or platform.machine() or "unknown processor"


def cpu_count() -> int:
    """Returns the number of logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_SET_BY_THREADPOOLCTL = "KMP_DUPLICATE_LIB_OK"  # its import sets this for good; we put it back


def blas() -> str:
    """Names the BLAS behind NumPy and its threads: "OpenBLAS 0.3.30, 16 threads". Imports NumPy."""
    import numpy  # noqa: F401  (its BLAS is loaded with it)

    before = os.environ.get(_SET_BY_THREADPOOLCTL)
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return f"{_built_with(_numpy_config())}, threads unknown: threadpoolctl is not installed"
    finally:
        if before is None:
            os.environ.pop(_SET_BY_THREADPOOLCTL, None)
    return describe_pools(threadpool_info()) or f"{_built_with(_numpy_config())}, threads unknown"


def describe_pools(pools: list[dict[str, Any]]) -> str | None:
    """Describes the BLAS in NumPy's folder among threadpoolctl's findings, or else the first BLAS."""
    found = [pool for pool in pools if pool.get("user_api") == "blas"]
    if not found:
        return None
    pool = next((pool for pool in found if "numpy" in str(pool.get("filepath", "")).lower()), found[0])
    name = _BLAS_NAMES.get(pool["internal_api"], pool["internal_api"])
    version = f" {pool['version']}" if pool.get("version") else ""
    threads = pool["num_threads"]
    return f"{name}{version}, {threads} {'thread' if threads == 1 else 'threads'}"


def _numpy_config() -> Mapping[str, Any]:
    import numpy as np

    return dict(np.show_config(mode="dicts") or {})


def _built_with(config: Mapping[str, Any]) -> str:
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return " ".join(part for part in (blas.get("name"), blas.get("version")) if part) or "unknown BLAS"
