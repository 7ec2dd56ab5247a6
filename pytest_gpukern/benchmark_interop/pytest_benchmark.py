"""Serves pytest-benchmark in a run: its session, its `benchmark` fixture and its list of entries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_gpukern.report import units
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import JsonDict, Measurement
from pytest_gpukern.values.stored import plain

OURS = "gpukern"
"""The key of our part in dicts that others write to as well."""


def session_of(config: pytest.Config) -> Any:
    return config.pluginmanager.get_plugin("pytest-benchmark")


def switched_off(config: pytest.Config) -> bool:
    """Says whether the user disabled pytest-benchmark; under xdist it disables itself."""
    disabled = config.getoption("benchmark_disable", default=False)
    return bool(disabled) and not config.getoption("benchmark_enable", default=False)


@contextlib.contextmanager
def counted_as_benchmarks(config: pytest.Config, items: Iterable[pytest.Item]) -> Iterator[None]:
    """Makes `--benchmark-only` and `--benchmark-skip` treat tests that use our fixture as benchmarks.

    Use it around pytest-benchmark's `pytest_collection_modifyitems`, so in a wrapper marked `tryfirst`.
    """
    flags = ("benchmark_only", "benchmark_skip")
    if not any(config.getoption(flag, default=False) for flag in flags):
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        for item in items:
            if isinstance(item, pytest.Function) and "gpu_benchmark" in item.fixturenames:
                # A new list: items of a function share theirs.
                patched.setattr(item, "fixturenames", [*item.fixturenames, "benchmark"])
        yield


def machine_info(fingerprint: Fingerprint) -> JsonDict:
    """Returns what to add to pytest-benchmark's `machine_info`: device, driver, CUDA and library versions.

    It compares the machine info of a saved run while it is being configured, so the fingerprint must be known
    by then, and must be the same when the run ends.
    """
    ours = {
        "device": fingerprint.device_name,
        "compute_capability": fingerprint.compute_capability,
        "driver": fingerprint.driver_version,
        "cuda": fingerprint.cuda_driver_version,
        "libraries": dict(fingerprint.libraries),
    }
    return {OURS: plain(ours)}  # a list for a tuple, as in the JSON that it is compared with


def is_its_fixture(value: Any) -> bool:
    """Says whether a value is a `benchmark` fixture of pytest-benchmark that `hand_over` can serve."""
    from pytest_benchmark.fixture import BenchmarkFixture

    # By its type, since CodSpeed's fixture answers to `isinstance`.
    is_its = issubclass(type(value), BenchmarkFixture)
    return is_its and all(hasattr(value, name) for name in ("_raw", "_raw_pedantic", "_make_runner"))


def hand_over(
    fixture: Any, call: Callable[..., Any], pedantic: Callable[..., Any], *, measures: bool
) -> Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]:
    """Lets a `benchmark` fixture leave its running and timing to others; returns what takes it back.

    The two methods of this one object that run and time are replaced, by attributes of the object. It stays
    what it is to everybody else: its class, which its own plugin checks; its name, group and `extra_info`;
    the refusal of a second use; the notes about errors and skips. A test that sets `benchmark.disabled` gets
    what it got before: one call.

    Args:
        fixture: for which `is_its_fixture` holds.
        call: gets what the test calls the fixture with.
        pedantic: gets what the test gives to `pedantic`, completed by its defaults.
        measures: whether calls are measured; otherwise the fixture says that it is disabled.
    """
    was_disabled = fixture.disabled

    def instead_of(own: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            runs = own if measures and fixture.disabled else ours
            return runs(*args, **kwargs)

        return run

    def hand_back() -> tuple[Callable[..., Any], Callable[..., Any]]:
        del fixture._raw, fixture._raw_pedantic
        fixture.disabled = was_disabled
        return fixture._raw, fixture._raw_pedantic

    fixture._raw = instead_of(fixture._raw, call)
    fixture._raw_pedantic = instead_of(fixture._raw_pedantic, pedantic)
    fixture.disabled = not measures  # under xdist it disables itself, and we measure
    return hand_back


def each_timed(fixture: Any, around: Callable[..., Any]) -> None:
    """Has `around(calls, args, kwargs)` make the calls that a fixture times, and return what they return."""
    make = fixture._make_runner

    def make_runner(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
        runner = make(function, *arguments)
        return lambda loops: around(lambda: runner(loops), *arguments)

    fixture._make_runner = make_runner


def unlist(fixture: Any, config: pytest.Config) -> Callable[[], None]:
    """Keeps a fixture's times out of pytest-benchmark's list; returns what adds later ones after all.

    The test may read them.
    """
    listed, later = session_of(config).benchmarks, list[Any]()
    listed[:] = [metadata for metadata in listed if metadata is not fixture.stats]
    fixture._add_stats = later.append
    return lambda: listed.extend(later)


@dataclass
class ListedFixture:
    """Holds what `Metadata` reads from a `benchmark` fixture."""

    name: str
    fullname: str
    group: str | None
    param: str | None
    params: JsonDict | None
    extra_info: JsonDict = field(default_factory=dict)
    has_error: bool = False
    cprofile_stats: None = None

    def __post_init__(self) -> None:
        if self.params is not None:
            # Titles show a tuple, which JSON lacks; a list is rarely a parameter.
            self.params = _Params({n: tuple(v) if isinstance(v, list) else v for n, v in self.params.items()})


class _Params(dict[str, Any]):
    """Holds parameters; None for one that a test lacks, so `--benchmark-group-by=param:…` works for all."""

    def __missing__(self, key: str) -> None:
        return None


def portable(params: Mapping[str, Any]) -> JsonDict:
    """Returns parameters as JSON; what is neither a number nor a container becomes text that can travel."""
    made: JsonDict = {}
    for name, value in params.items():
        with contextlib.suppress(Exception):  # as of the text of an array in a lost CUDA context
            is_json = value is None or isinstance(value, (int, float, tuple, list, dict))
            made[name] = plain(value) if is_json else f"{value}".encode(errors="backslashreplace").decode()
    return made


def metadata_of(fixture: Any, measurement: Measurement) -> Any:
    """Returns a measurement as an entry; `fixture` is that plugin's, or a `ListedFixture`."""
    from pytest_benchmark.stats import Metadata

    metadata = Metadata(fixture, measurement.iterations, {"timer": measurement.timer})
    for sample_s in samples_s(measurement):
        # `update` takes the time of all iterations and divides; ours is the mean of one call already.
        metadata.update(sample_s * measurement.iterations)
    return metadata


def samples_s(measurement: Measurement) -> list[float]:
    return [sample / 1e9 for sample in measurement.samples_ns if units.is_number(sample)]


def give_time_of_a_call(fixture: Any, time_ns: float | None) -> None:
    """Sets `benchmark.stats` to the time of the only call that was made; it is listed nowhere."""
    from pytest_benchmark.stats import Metadata

    if time_ns is not None:
        fixture.stats = Metadata(fixture, 1, {"timer": "host"})
        fixture.stats.update(time_ns / 1e9)


def take_entries(config: pytest.Config) -> list[JsonDict]:
    """Takes what pytest-benchmark itself has measured in this process since last asked, as plain JSON."""
    session = session_of(config)
    if session is None:
        return []
    entries = [
        {
            "listed": listed_as(metadata),
            "iterations": metadata.iterations,
            "options": metadata.as_dict(stats=False)["options"],
            "data": metadata.stats.data,
        }
        for metadata in session.benchmarks
    ]
    session.benchmarks.clear()
    return plain(entries)  # type: ignore[no-any-return]


def add_entries(config: pytest.Config, entries: Iterable[JsonDict]) -> None:
    """Adds the entries that `take_entries` returned in another process to this process's session."""
    from pytest_benchmark.stats import Metadata

    session = session_of(config)
    for entry in entries:
        metadata = Metadata(ListedFixture(**entry["listed"]), entry["iterations"], entry["options"])
        metadata.stats.data.extend(entry["data"])
        session.benchmarks.append(metadata)


def listed_as(metadata: Any) -> JsonDict:
    """Returns how pytest-benchmark lists what it measured, as plain JSON."""
    names = ("name", "fullname", "group", "param", "extra_info", "has_error")
    params = None if metadata.params is None else portable(metadata.params)
    return plain({"params": params} | {name: getattr(metadata, name) for name in names})  # type: ignore[no-any-return]
