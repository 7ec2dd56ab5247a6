"""Describes what a measurement was made on: device, driver, library versions, host."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import Nvml, PowerLimits
from pytest_gpukern.values.backend_table import library_distributions
from pytest_gpukern.values.fingerprint import OF_A_REPOSITORY, Fingerprint, Provenance


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
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        blas=blas(),
        libraries=library_versions(),
    )


_GIT_S = 5.0
_CI_PAGES = ("CI_JOB_URL", "BUILD_URL", "CIRCLE_BUILD_URL", "BUILDKITE_BUILD_URL")
_CI_BRANCHES = (
    *("GITHUB_HEAD_REF", "GITHUB_REF_NAME"),
    *("CI_COMMIT_REF_NAME", "BUILDKITE_BRANCH", "CIRCLE_BRANCH"),
)


def take_provenance(folder: Path, environ: Mapping[str, str] = os.environ) -> Provenance:
    """Returns the commit and branch that a folder is checked out at, and the page of the CI run.

    Asks git once, for five seconds at most; without git or a repository nothing is known. CI mostly checks
    out no branch by name, and then its variables name it.
    """
    status = asked_of_git(["status", "--porcelain=v2", "--branch", "--untracked-files=no"], folder, environ)
    if status is None:
        return Provenance(ci_url=_ci_page(environ))
    lines = status.splitlines()
    head = dict(
        line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch.")
    )
    commit, branch = head.get("oid"), head.get("head")
    if branch == "(detached)":
        branch = next((environ[name] for name in _CI_BRANCHES if environ.get(name)), None)
    return Provenance(
        commit=None if commit == "(initial)" else commit,
        dirty=any(not line.startswith("#") for line in lines),
        branch=branch,
        ci_url=_ci_page(environ),
    )


def asked_of_git(arguments: list[str], folder: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns what git prints within five seconds; None if there is no git, or it refuses."""
    try:
        done = git(arguments, folder, environ, timeout_s=_GIT_S)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


def git(
    arguments: list[str],
    folder: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder, and makes the user's own git wait for nothing.

    Variables that name another repository are left out, no hook of the repository runs, nothing asks for a
    password and git-lfs fetches nothing.
    """
    own = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
    return subprocess.run(
        ["git", "-c", f"core.hooksPath={os.devnull}", *arguments],
        cwd=folder,
        env={name: value for name, value in environ.items() if name not in OF_A_REPOSITORY} | own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout_s,
        check=False,
    )


def _ci_page(environ: Mapping[str, str]) -> str | None:
    """Returns the page of this run of CI, without what a user or a token may be in."""
    parts = [environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    github = f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else ""
    page = github or next((environ[name] for name in _CI_PAGES if environ.get(name)), "")
    try:
        split = urlsplit(page)
        port = f":{split.port}" if split.port else ""
    except ValueError:
        return None
    if split.scheme not in ("http", "https") or not split.hostname:
        return None
    return urlunsplit((split.scheme, split.hostname + port, split.path, "", ""))


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


def library_versions(distributions: Iterable[str] = _DISTRIBUTIONS) -> dict[str, str]:
    """Returns the installed versions of the libraries that measure or are measured, importing none."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in distributions:
        with contextlib.suppress(PackageNotFoundError):
            # None if the distribution's metadata are damaged.
            versions[name] = version(name) or "unknown"
    return versions


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


_SET_BY_THREADPOOLCTL = "KMP_DUPLICATE_LIB_OK"  # its import sets this for good; we put it back


def blas() -> str:
    """Names the BLAS behind NumPy and its threads: "OpenBLAS 0.3.30, 16 threads". Imports NumPy."""
    import numpy  # noqa: F401  (its BLAS is loaded with it)

    before = os.environ.get(_SET_BY_THREADPOOLCTL)
    from threadpoolctl import threadpool_info

    if before is None:
        os.environ.pop(_SET_BY_THREADPOOLCTL, None)
    return describe_pools(threadpool_info())


def describe_pools(pools: list[dict[str, Any]]) -> str:
    """Describes the BLAS in NumPy's folder among threadpoolctl's findings, or else the first BLAS."""
    of_blas = [pool for pool in pools if pool.get("user_api") == "blas"]
    if not of_blas:
        return "unknown BLAS"
    pool = next((pool for pool in of_blas if "numpy" in str(pool.get("filepath", "")).lower()), of_blas[0])
    name = _BLAS_NAMES.get(pool["internal_api"], pool["internal_api"])
    version = f" {pool['version']}" if pool.get("version") else ""
    threads = pool["num_threads"]
    return f"{name}{version}, {threads} {'thread' if threads == 1 else 'threads'}"
