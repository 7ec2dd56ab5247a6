"""pytest-benchmark as a run has it: whether it is there, what it counts, and what it says of the machine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpukern.values.result import JsonDict

OURS = "gpukern"
"""Under which name ours goes where there is more than ours."""


def session_of(config: pytest.Config) -> Any:
    """That plugin's session, or None where it is absent or blocked."""
    return config.pluginmanager.get_plugin("pytest-benchmark")


def switched_off(config: pytest.Config) -> bool:
    """Whether the user disabled pytest-benchmark; it also disables itself under xdist, which is no reason."""
    disabled = config.getoption("benchmark_disable", default=False)
    return bool(disabled) and not config.getoption("benchmark_enable", default=False)


@contextlib.contextmanager
def counted_as_benchmarks(
    config: pytest.Config, items: Iterable[pytest.Item], fixture: str = "gpu_benchmark"
) -> Iterator[None]:
    """Makes `--benchmark-only` and `--benchmark-skip` treat tests that use `fixture` as benchmarks.

    To be held round pytest-benchmark's `pytest_collection_modifyitems`, so in a wrapper marked `tryfirst`.
    Without one of the two options nothing is touched; its fixture is never requested.
    """
    flags = ("benchmark_only", "benchmark_skip")
    if not any(config.getoption(flag, default=False) for flag in flags):
        yield
        return
    touched = [i for i in items if isinstance(i, pytest.Function) and fixture in i.fixturenames]
    before = [item.fixturenames for item in touched]
    for item in touched:
        item.fixturenames = [*item.fixturenames, "benchmark"]  # a new list: items of a function share theirs
    try:
        yield
    finally:
        for item, names in zip(touched, before, strict=True):
            item.fixturenames = names


def machine_info(fingerprint: Mapping[str, Any]) -> JsonDict:
    """What to add to pytest-benchmark's `machine_info`: device, driver, CUDA and library versions.

    It compares the machine info of a saved run while it is being configured, so the fingerprint must be known
    by then, and must be the same when the run ends.
    """
    return {
        OURS: {
            "device": fingerprint.get("device_name"),
            "compute_capability": fingerprint.get("compute_capability"),
            "driver": fingerprint.get("driver_version"),
            "cuda": fingerprint.get("cuda_driver_version"),
            "libraries": dict(fingerprint.get("libraries") or {}),
        }
    }
