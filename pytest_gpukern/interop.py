"""pytest-benchmark: every valid measurement in its JSON, table, saved files and comparison.

The one module that touches that plugin's objects. It relies on five things of 5.3: the session registered as
the plugin "pytest-benchmark" with its list `benchmarks`, `stats.Metadata` with its duck-typed fixture, the
session's `compared_mapping`, that an item is a benchmark if `benchmark` is among its fixture names, and that
its `BenchmarkFixture` leaves the running to its methods `_raw` and `_raw_pedantic`.
Where the plugin is absent or blocked (`-p no:benchmark`), nothing happens.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.report import ceiling, scope_time, units
from pytest_gpukern.result import Correctness, Result, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_gpukern.result import JsonDict, Measurement

SCHEMA = 1
"""Version of what `extra_info` holds."""

_PLUGIN = "pytest-benchmark"
_OURS = "gpukern"
"""Under which name ours goes where there is more than ours."""
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
    group: str | None
    param: str | None
    params: JsonDict | None
    extra_info: JsonDict = field(default_factory=dict)
    has_error: bool = False
    cprofile_stats: Any = None


def publish(
    config: pytest.Config,
    results: Iterable[Result],
    groups: Mapping[str, str | None],
    listed: Mapping[str, JsonDict] | None = None,
) -> None:
    """Appends every valid measurement to pytest-benchmark's session, so that it saves and shows them.

    To be called on the controller before that plugin's `pytest_sessionfinish`, which is a wrapper: so from a
    wrapper marked `tryfirst`. Left out are measurements that are simulated, invalid, of incorrect outputs or
    without samples, since it has no way to mark them; and all of them under `--benchmark-disable`, which
    promises that no stats are reported. A saved time with another timer, cache policy, scope, problem
    version, size or device is taken out of its comparison, which it says.

    Args:
        config: of the run.
        results: one a test.
        groups: node id → group that the test's marker names, if any; else the fixture's group, or where there
            is none of that plugin, the problem's name.
        listed: node id → from `listed_as`, of tests that used that plugin's fixture: their names, groups,
            parameters and `extra_info` stay what they are without us.
    """
    session = config.pluginmanager.get_plugin(_PLUGIN)
    if session is None or hasattr(config, "workerinput") or switched_off(config):
        return
    listed = listed or {}
    as_received = (Result.from_json(result.to_json()) for result in results)  # as if from another process
    published = [
        metadata
        for result in as_received
        if result.correctness is not Correctness.INCORRECT and not result.simulated
        for metadata in _of_result(result, groups.get(result.nodeid), listed.get(result.nodeid))
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
        _OURS: {
            "device": fingerprint.get("device_name"),
            "compute_capability": fingerprint.get("compute_capability"),
            "driver": fingerprint.get("driver_version"),
            "cuda": fingerprint.get("cuda_driver_version"),
            "libraries": dict(fingerprint.get("libraries") or {}),
        }
    }


def switched_off(config: pytest.Config) -> bool:
    """Whether the user disabled pytest-benchmark; it also disables itself under xdist, which is no reason."""
    disabled = config.getoption("benchmark_disable", default=False)
    return bool(disabled) and not config.getoption("benchmark_enable", default=False)


def is_its_fixture(value: Any) -> bool:
    """Whether a value is a `benchmark` fixture of pytest-benchmark that `hand_over` can serve."""
    from pytest_benchmark.fixture import BenchmarkFixture

    # By its type, since CodSpeed's fixture answers to `isinstance`.
    is_its = issubclass(type(value), BenchmarkFixture)
    return is_its and hasattr(value, "_raw") and hasattr(value, "_raw_pedantic")


def hand_over(
    fixture: Any, call: Callable[..., Any], pedantic: Callable[..., Any], *, measures: bool
) -> Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]:
    """Lets a `benchmark` fixture leave its running and timing to others.

    The two methods of this one object that run and time are replaced, by attributes of the object. It stays
    what it is to everybody else: its class, which its own plugin checks; its name, group and `extra_info`;
    `weave`; the refusal of a second use; the notes about errors and skips. A fixture of ours by its name
    would be in the way of every test of every run, and a stand-in for the object fails that plugin's check.
    A test that sets `benchmark.disabled` gets what it got before: one call.

    Args:
        fixture: for which `is_its_fixture` holds.
        call: gets what the test calls the fixture with.
        pedantic: gets what the test gives to `pedantic`, completed by its defaults; and `rounds_given`,
            whether the test gave `rounds`, whose default is 1.
        measures: whether calls are measured; otherwise the fixture says that it is disabled.

    Returns:
        What takes it back: the fixture is what it was, and gets returned how it runs `call` and `pedantic`.
    """
    was_disabled = fixture.disabled
    own_call, own_pedantic, asked_pedantic = fixture._raw, fixture._raw_pedantic, fixture.pedantic
    place_of_rounds = list(inspect.signature(asked_pedantic).parameters).index("rounds")
    rounds_given = False

    def run(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        runs = own_call if measures and fixture.disabled else call
        return runs(*args, **kwargs)

    def note_rounds(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal rounds_given
        rounds_given = "rounds" in kwargs or len(args) > place_of_rounds
        return asked_pedantic(*args, **kwargs)

    def run_pedantic(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if measures and fixture.disabled:
            return own_pedantic(*args, **kwargs)
        return pedantic(*args, **kwargs, rounds_given=rounds_given)

    def hand_back() -> tuple[Callable[..., Any], Callable[..., Any]]:
        del fixture._raw, fixture._raw_pedantic, fixture.pedantic
        fixture.disabled = was_disabled
        return own_call, own_pedantic

    fixture._raw, fixture._raw_pedantic, fixture.pedantic = run, run_pedantic, note_rounds
    fixture.disabled = not measures  # under xdist it disables itself, and we measure
    return hand_back


def give_stats(fixture: Any, measurement: Measurement) -> None:
    """Sets `benchmark.stats`, which a test may read, to a measurement; the session's list is left alone."""
    fixture.stats = _metadata(fixture, measurement)


def listed_as(fixture: Any) -> JsonDict | None:
    """How pytest-benchmark lists a fixture that has stats, as plain JSON, or None for one that has none."""
    return None if fixture.stats is None else _listed(fixture.stats)


def _listed(metadata: Any) -> JsonDict:
    names = ("name", "fullname", "group", "param", "params", "extra_info", "has_error")
    return plain({name: getattr(metadata, name) for name in names})  # type: ignore[no-any-return]


def take_entries(config: pytest.Config) -> list[JsonDict]:
    """What pytest-benchmark itself has measured in this process since it was asked last, as plain JSON.

    A test that runs in a process of its own may be left to that plugin, or use its fixture beside ours; the
    process that reports lists it, by `add_entries`.
    """
    session = config.pluginmanager.get_plugin(_PLUGIN)
    if session is None:
        return []
    entries = [
        {
            "listed": _listed(metadata),
            "iterations": metadata.iterations,
            "options": metadata.as_dict(stats=False)["options"],
            "data": metadata.stats.data,
            "profile": [
                [function, found[:4]]  # and who called it, which is not shown
                for function, found in getattr(metadata.cprofile_stats, "stats", {}).items()
            ],
        }
        for metadata in session.benchmarks
    ]
    session.benchmarks.clear()
    return plain(entries)  # type: ignore[no-any-return]


def add_entries(config: pytest.Config, entries: Iterable[JsonDict]) -> None:
    """Adds what `take_entries` found in another process to those of this one's session."""
    from pytest_benchmark.stats import Metadata

    session: Any = config.pluginmanager.get_plugin(_PLUGIN)
    for entry in entries:
        fixture = _Fixture(**entry["listed"])
        if entry["profile"]:
            # Of a `pstats.Stats` only what it found is read: function → counts and times.
            calls = {tuple(function): tuple(found) for function, found in entry["profile"]}
            fixture.cprofile_stats = SimpleNamespace(stats=calls)
        metadata = Metadata(fixture, entry["iterations"], entry["options"])
        metadata.stats.data.extend(entry["data"])
        session.benchmarks.append(metadata)


def _of_result(result: Result, group: str | None, listed: JsonDict | None) -> Iterator[Any]:
    taken: set[str] = set()
    for measurement in result.measurements:
        suffix = _suffix(result, measurement)
        suffix = f"[{measurement.key}]" if suffix in taken else suffix
        taken.add(suffix)
        if measurement.invalid is not None or not _samples_s(measurement):
            continue
        if listed is not None and measurement.beside:
            continue  # a suite has the entries that it has without us; the main one tells of other timers
        fixture = _own_fixture(result) if listed is None else _Fixture(**listed)
        fixture.name += suffix
        fixture.fullname += suffix
        fixture.group = group or fixture.group
        ours = _extra_info(result, measurement)
        # What a test noted stays as it is, under whatever names, so ours goes under one.
        fixture.extra_info = ours if listed is None else {**fixture.extra_info, _OURS: ours}
        yield _metadata(fixture, measurement)


def _own_fixture(result: Result) -> _Fixture:
    """The entry of a test that never saw a fixture of pytest-benchmark's."""
    name = _test_name(result.nodeid)
    return _Fixture(
        name=name,
        fullname=result.nodeid,
        group=result.case.problem,
        param=_param(name),
        params=_Params({**result.case.point, **result.case.parameters}),
    )


def _metadata(fixture: Any, measurement: Measurement) -> Any:
    from pytest_benchmark.stats import Metadata

    metadata = Metadata(fixture, measurement.iterations, {"timer": measurement.timer})
    for sample_s in _samples_s(measurement):
        # `update` takes the time of all iterations and divides; ours is the mean of one call already.
        metadata.update(sample_s * measurement.iterations)
    return metadata


def _samples_s(measurement: Measurement) -> list[float]:
    return [sample / 1e9 for sample in measurement.samples_ns if units.is_number(sample)]


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
        "verdict_reason": verdict.explained if verdict else None,
        "verdict_ratio": verdict.ratio if verdict else None,
        "warnings": [*summary.warnings, *result.notes],
        "device": result.fingerprint.get("device_name" if case.on_gpu else "cpu_model"),
        "driver": result.fingerprint.get("driver_version"),
        **_device_info(result, measurement),
    }
    return {
        name: value if not isinstance(value, float) or units.is_number(value) else None
        for name, value in info.items()
    }


def _device_info(result: Result, measurement: Measurement) -> JsonDict:
    """What is known of how the device came to a number: other timers', ceilings, clocks and kernels."""
    others = tuple(
        each for each in result.measurements if each.scope == measurement.scope and each is not measurement
    )
    kernels = result.kernels if measurement.scope != "transfer" else ()
    return {
        "other_timers_s": {each.timer: _seconds(each.summary.median_ns) for each in others},
        "fixed_cost_s": _seconds(measurement.fixed_cost_ns),
        "shares_of_ceilings": ceiling.ceiling_shares(result, scope_time.ScopeTime(measurement, others)),
        "sm_mhz": measurement.state.get("sm_mhz"),
        "memory_mhz": measurement.state.get("memory_mhz"),
        "energy_mj": measurement.energy_mj,
        "mean_power_w": measurement.mean_power_w,
        "energy_untold": measurement.energy_untold,
        "kernels": [
            {
                "name": kernel.readable,
                "registers": kernel.shape.registers,
                "shared_bytes": kernel.shape.static_shared_bytes + kernel.shape.dynamic_shared_bytes,
                "local_bytes": kernel.shape.local_bytes,
                "spill_store_bytes": kernel.spill_store_bytes,
                "spill_load_bytes": kernel.spill_load_bytes,
                "occupancy": kernel.occupancy,
            }
            for kernel in kernels
        ],
    }


def _seconds(nanoseconds: float | None) -> float | None:
    return nanoseconds / 1e9 if units.is_number(nanoseconds) else None


def _refuse_comparisons(session: Any, published: list[Any]) -> None:
    """Takes saved times that differ in more than time out of the comparison, and says which and why."""
    differences: dict[str, list[str]] = {}
    for saved in (getattr(session, "compared_mapping", None) or {}).values():
        for metadata in published:
            difference = _difference(saved.get(metadata.fullname), _ours(metadata.extra_info))
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
    then = _ours(saved.get("extra_info") or {})
    for name in _IDENTITY:
        if then.get(name) != now[name]:
            return f"{name} was {then.get(name)!r}, is {now[name]!r}"
    return None


def _ours(extra_info: JsonDict) -> JsonDict:
    """Our part of an entry's `extra_info`: all of it, but where a test has its own."""
    ours = extra_info.get(_OURS)
    return ours if isinstance(ours, dict) else extra_info
