"""Content of older files as that of newer ones; what is damaged passes through, for the reader to name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pytest_gpukern.baseline.compact_rows import COLUMNS, QUANTILE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpukern.values.result import JsonDict


def from_1(content: JsonDict) -> JsonDict:
    """Version 2 of a file of version 1: measurements become rows; its sessions have no ids.

    What the sessions of an epoch share may be stored with each of them too, so that needs no step here.
    """
    sessions = list(_sessions_of(content))
    times = [time for session in sessions for time in _dicts(session.get("measurements"))]
    unknown = {name for time in times for name in _named(time)} - {*COLUMNS, *QUANTILE_COLUMNS}
    columns = [*COLUMNS, *sorted(unknown)]
    for session in sessions:
        measured = session.pop("measurements", None)
        if isinstance(measured, dict):
            session["times"] = {
                key: [_named(time).get(name) for name in columns] if isinstance(time, dict) else time
                for key, time in measured.items()
            }
        elif measured is not None:
            session["times"] = measured
    renamed = {"records" if name == "cases" else name: value for name, value in content.items()}
    return {**renamed, "columns": columns, "sessions": {}}


def _sessions_of(content: JsonDict) -> Iterator[JsonDict]:
    for record in _dicts(content.get("cases")):
        for epoch in _dicts(record.get("epochs")):
            yield from _dicts(epoch.get("sessions"))


def _dicts(container: Any) -> Iterator[JsonDict]:
    """The objects in a list or an object."""
    items = container.values() if isinstance(container, dict) else container
    return (item for item in items if isinstance(item, dict)) if isinstance(items, Iterable) else iter(())


def _named(time: JsonDict) -> JsonDict:
    """A measurement's values by column."""
    values = {name: value for name, value in time.items() if name != "quantiles_ns"}
    points = time.get("quantiles_ns")
    if isinstance(points, list) and len(points) == len(QUANTILE_COLUMNS):
        values.update(zip(QUANTILE_COLUMNS, points, strict=True))
    if values.get("q50_ns") == values.get("median_ns"):
        values.pop("q50_ns", None)
    return values
