"""The host side of a run: processor, libraries, and the BLAS behind NumPy."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# By the name of the distribution. Only those that are installed are recorded.
_DISTRIBUTIONS = (
    "numba",
    "numba-cuda",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cupy",
    "pycuda",
    "scikit-cuda",
    "torch",
    "dask",
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
    """Return the installed versions of the libraries that measure or are measured, importing none of them."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in _DISTRIBUTIONS:
        try:
            # None for a distribution whose metadata is damaged.
            found[name] = version(name) or "unknown"
        except PackageNotFoundError:
            continue
    return found


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name; Arm Linux has numbers only: "aarch64 implementer 0x41 part 0xd4f"."""
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
    """Return the number of logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_SET_BY_THREADPOOLCTL = "KMP_DUPLICATE_LIB_OK"  # by its import, for good, which is not ours to decide


def blas() -> str:
    """Name the BLAS behind NumPy and its threads: "OpenBLAS 0.3.30, 16 threads". Imports NumPy."""
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
    """Describe the BLAS in NumPy's folder among threadpoolctl's findings, or else the first BLAS."""
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
