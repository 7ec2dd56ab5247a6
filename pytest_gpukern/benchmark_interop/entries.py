"""Entries of pytest-benchmark's list: made of a measurement, and carried from another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpukern.benchmark_interop.plugin import session_of
from pytest_gpukern.report import units
from pytest_gpukern.values.result import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from pytest_gpukern.values.result import JsonDict, Measurement


@dataclass
class ListedFixture:
    """What `Metadata` reads from a `benchmark` fixture."""

    name: str
    fullname: str
    group: str | None
    param: str | None
    params: JsonDict | None
    extra_info: JsonDict = field(default_factory=dict)
    has_error: bool = False
    cprofile_stats: Any = None


def metadata_of(fixture: Any, measurement: Measurement) -> Any:
    """A measurement as an entry; `fixture` is that plugin's, or a `ListedFixture`."""
    from pytest_benchmark.stats import Metadata

    metadata = Metadata(fixture, measurement.iterations, {"timer": measurement.timer})
    for sample_s in samples_s(measurement):
        # `update` takes the time of all iterations and divides; ours is the mean of one call already.
        metadata.update(sample_s * measurement.iterations)
    return metadata


def samples_s(measurement: Measurement) -> list[float]:
    """The samples of a measurement in seconds, without those that are no number."""
    return [sample / 1e9 for sample in measurement.samples_ns if units.is_number(sample)]


def give_stats(fixture: Any, measurement: Measurement) -> None:
    """Sets `benchmark.stats`, which a test may read, to a measurement; the session's list is left alone."""
    fixture.stats = metadata_of(fixture, measurement)


def listed_as(fixture: Any) -> JsonDict | None:
    """How pytest-benchmark lists a fixture that has stats, as plain JSON, or None for one that has none."""
    return None if fixture.stats is None else _listed(fixture.stats)


def take_entries(config: pytest.Config) -> list[JsonDict]:
    """What pytest-benchmark itself has measured in this process since it was asked last, as plain JSON.

    A test that runs in a process of its own may be left to that plugin, or use its fixture beside ours; the
    process that reports lists it, by `add_entries`.
    """
    session = session_of(config)
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

    session = session_of(config)
    for entry in entries:
        fixture = ListedFixture(**entry["listed"])
        if entry["profile"]:
            # Of a `pstats.Stats` only what it found is read: function → counts and times.
            calls = {tuple(function): tuple(found) for function, found in entry["profile"]}
            fixture.cprofile_stats = SimpleNamespace(stats=calls)
        metadata = Metadata(fixture, entry["iterations"], entry["options"])
        metadata.stats.data.extend(entry["data"])
        session.benchmarks.append(metadata)


def _listed(metadata: Any) -> JsonDict:
    names = ("name", "fullname", "group", "param", "params", "extra_info", "has_error")
    return plain({name: getattr(metadata, name) for name in names})  # type: ignore[no-any-return]
