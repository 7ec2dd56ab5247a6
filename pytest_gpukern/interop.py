"""pytest-benchmark: every valid measurement in its JSON, table, saved files and comparison.

The one module that touches that plugin's objects. It relies on four things of 5.3: the session registered as
the plugin "pytest-benchmark" with its list `benchmarks`, `stats.Metadata` with its duck-typed fixture, the
session's `compared_mapping`, and that an item is a benchmark if `benchmark` is among its fixture names.
Where the plugin is absent or blocked (`-p no:benchmark`), nothing happens.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.report import units
from pytest_gpukern.result import Correctness, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpukern.result import JsonDict, Measurement

SCHEMA = 1
"""Version of what `extra_info` holds."""

_PLUGIN = "pytest-benchmark"
_IDENTITY = ("gpukern_schema", "scope", "timer", "cache", "problem_version", "measured_point", "device")
"""Fields of `extra_info` that must agree before pytest-benchmark may compare two times."""


class _Params(dict[str, Any]):
    """Axes and parameters; None for one that a case lacks, so that `--benchmark-group-by=param:…` works
    where problems have different axes."""

    def __missing__(self, key: str) -> None:
        return None


@dataclass
class _Fixture:
    """What `Metadata` reads from a `benchmark` fixture."""

    name: str
    fullname: str
    group: str
    param: str | None
    params: _Params
    extra_info: JsonDict
    has_error: bool = False
    cprofile_stats: None = field(default=None)


def publish(config: pytest.Config, results: Iterable[Result], groups: Mapping[str, str | None]) -> None:
    """Appends every valid measurement to pytest-benchmark's session, so that it saves and shows them.

    To be called on the controller before that plugin's `pytest_sessionfinish`, which is a wrapper: so from a
    wrapper marked `tryfirst`. Left out are measurements that are simulated, invalid, of incorrect outputs or
    without samples, since it has no way to mark them; and all of them under `--benchmark-disable`, which
    promises that no stats are reported. A saved time with another timer, cache policy, scope, problem
    version, size or device is taken out of its comparison, which it says.

    Args:
        config: of the run.
        results: one a test.
        groups: node id → group that the test's marker names, if any; else the problem's name is the group.
    """
    session = config.pluginmanager.get_plugin(_PLUGIN)
    if session is None or hasattr(config, "workerinput") or _switched_off(config):
        return
    as_received = (Result.from_json(result.to_json()) for result in results)  # as if from another process
    published = [
        metadata
        for result in as_received
        if result.correctness is not Correctness.INCORRECT and not result.simulated
        for metadata in _of_result(result, groups.get(result.nodeid) or result.case.problem)
    ]
    session.benchmarks.extend(published)
    _refuse_comparisons(session, published)


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
        "gpukern": {
            "device": fingerprint.get("device_name"),
            "compute_capability": fingerprint.get("compute_capability"),
            "driver": fingerprint.get("driver_version"),
            "cuda": fingerprint.get("cuda_driver_version"),
            "libraries": dict(fingerprint.get("libraries") or {}),
        }
    }


def _switched_off(config: pytest.Config) -> bool:
    """Whether the user disabled pytest-benchmark; it also disables itself under xdist, which is no reason."""
    disabled = config.getoption("benchmark_disable", default=False)
    return bool(disabled) and not config.getoption("benchmark_enable", default=False)


def _of_result(result: Result, group: str) -> Iterator[Any]:
    from pytest_benchmark.stats import Metadata

    name = _test_name(result.nodeid)
    taken: set[str] = set()
    for measurement in result.measurements:
        suffix = _suffix(result, measurement)
        suffix = f"[{measurement.key}]" if suffix in taken else suffix
        taken.add(suffix)
        samples_s = [sample / 1e9 for sample in measurement.samples_ns if units.is_number(sample)]
        if measurement.invalid is not None or not samples_s:
            continue
        fixture = _Fixture(
            name=name + suffix,
            fullname=result.nodeid + suffix,
            group=group,
            param=_param(name),
            params=_Params({**result.case.point, **result.case.parameters}),
            extra_info=_extra_info(result, measurement),
        )
        metadata = Metadata(fixture, measurement.iterations, {"timer": measurement.timer})
        for sample_s in samples_s:
            # `update` takes the time of all iterations and divides; ours is the mean of one call already.
            metadata.update(sample_s * measurement.iterations)
        yield metadata


def _suffix(result: Result, measurement: Measurement) -> str:
    """Empty for the primary scope, else the scope: a name means the same whatever scopes a run selects.

    The primary scope is the kernel's, but for host variants, which have one scope only, and plain tests.
    """
    backend = result.case.backend
    primary = result.measurements[0].scope if backend in (None, "host") else "kernel"
    return "" if measurement.scope == primary else f"[{measurement.scope}]"


def _test_name(nodeid: str) -> str:
    """The test's own part of a node id; its parameters may hold `::` and `/`."""
    test, bracket, parameters = nodeid.partition("::")[2].partition("[")
    return test.rpartition("::")[2] + bracket + parameters


def _param(name: str) -> str | None:
    _, bracket, rest = name.partition("[")
    return rest.removesuffix("]") if bracket else None


def _extra_info(result: Result, measurement: Measurement) -> JsonDict:
    """What a number means and what was found out about it, finite and under names that hold their units."""
    case, summary, median_ns = result.case, measurement.summary, measurement.summary.median_ns
    verdict = result.verdicts.get(measurement.key)
    known = units.is_number(median_ns) and median_ns > 0
    traffic, flops = measurement.traffic_bytes, measurement.flops
    info = {
        "gpukern_schema": SCHEMA,
        "case": case.id,
        "problem": case.problem,
        "problem_version": case.problem_version,
        "backend": case.backend,
        "variant": case.variant,
        "measured_point": case.measured_point,
        "scope": measurement.scope,
        "timer": measurement.timer,
        "cache": measurement.cache,
        "measures": measurement.measures,
        "stopped": measurement.stopped,
        "median_low_s": _seconds(summary.low_ns),
        "median_high_s": _seconds(summary.high_ns),
        "traffic_bytes": traffic,
        "flops": flops,
        "gb_per_s": traffic / median_ns if traffic and known else None,
        "gflop_per_s": flops / median_ns if flops and known else None,
        "correctness": result.correctness.value,
        "verdict": verdict.kind.value if verdict else None,
        "verdict_reason": verdict.reason if verdict else None,
        "verdict_ratio": verdict.ratio if verdict else None,
        "warnings": [*summary.warnings, *result.notes],
        "device": result.fingerprint.get("device_name" if case.on_gpu else "cpu_model"),
        "driver": result.fingerprint.get("driver_version"),
    }
    return {
        name: value if not isinstance(value, float) or units.is_number(value) else None
        for name, value in info.items()
    }


def _seconds(nanoseconds: float | None) -> float | None:
    return nanoseconds / 1e9 if units.is_number(nanoseconds) else None


def _refuse_comparisons(session: Any, published: list[Any]) -> None:
    """Takes saved times that differ in more than time out of the comparison, and says which and why."""
    differences: dict[str, list[str]] = {}
    for saved in (getattr(session, "compared_mapping", None) or {}).values():
        for metadata in published:
            difference = _difference(saved.get(metadata.fullname), metadata.extra_info)
            if difference is not None:
                del saved[metadata.fullname]
                differences.setdefault(difference, []).append(metadata.name)
    for difference, names in differences.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        # Not its `warning`, which would end the run under `-W error`.
        session.logger.info(f"gpukern: {names[0]}{more}: not compared: {difference}")


def _difference(saved: JsonDict | None, now: JsonDict) -> str | None:
    """The first of `_IDENTITY` in which a saved benchmark differs from this one, in words, or None."""
    if saved is None:
        return None
    then = saved.get("extra_info") or {}
    for name in _IDENTITY:
        if then.get(name) != now[name]:
            return f"{name} was {then.get(name)!r}, is {now[name]!r}"
    return None
