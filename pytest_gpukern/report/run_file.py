"""Writes and reads the file of a run: every result as versioned JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from pytest_gpukern.gpu.kernel_facts import readable
from pytest_gpukern.package import __version__
from pytest_gpukern.values.atomic_file import replace
from pytest_gpukern.values.result import JsonDict, Result
from pytest_gpukern.values.untrusted_json import (
    FileError,
    JsonError,
    ShapeError,
    built,
    decoded,
    unexpected,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from pytest_gpukern.report.forms import RunReport

SCHEMA = 4
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new.

In 1 a scope had one measurement. Since 2 it may have a second by another timer, which is marked `beside`.
Since 3 `sessions` has what further and confirming sessions of a test found, in the order in which they were
measured: a reader of 2 would accept the session that raised a suspicion in the place of those that decided.
Since 4 a kernel's launch stands beside its other values, no longer in a `shape` of its own.
"""

_DAMAGED = "Write the run again with --gpukern-output, or read it with the release that wrote it"
_UNWRITABLE = "Check permissions and free space, or choose another file with --gpukern-output"


@dataclass(frozen=True)
class RunFile:
    """Holds what the file of a run does.

    Attributes:
        results: what the run reports, one a test.
        sessions: what further and confirming sessions of these tests found, as measured one after the other;
            their `role` says what for.
        created: when the run ended.
    """

    results: tuple[Result, ...]
    sessions: tuple[Result, ...]
    created: datetime

    def sessions_of(self, result: Result) -> list[Result]:
        """Returns the sessions of one test besides the one that is reported."""
        return [each for each in self.sessions if each.nodeid == result.nodeid]


def write(report: RunReport, config: pytest.Config) -> Path | None:  # noqa: ARG001
    """Writes the file of a run where `--gpukern-output` names one."""
    path = report.settings.output
    if path is not None:
        sessions = [session for found in report.sessions.values() for session in found]
        write_run_file(path, report.results, sessions, created=datetime.now(UTC), version=__version__)
    return path


def write_run_file(
    path: Path,
    results: Iterable[Result],
    sessions: Iterable[Result] = (),
    *,
    created: datetime,
    version: str,
) -> None:
    """Writes all results of a run, whole or not at all; folders that are missing are made.

    Raises:
        FileError: it cannot be written; an old file is as it was.
    """
    fingerprints: dict[str, JsonDict] = {}
    entries = [_entry(result, fingerprints) for result in results]
    further = [_entry(session, fingerprints) for session in sessions]
    data = {
        "schema": SCHEMA,
        "gpukern": version,
        "created": created.isoformat(timespec="seconds"),
        "fingerprints": fingerprints,
        "results": entries,
        "sessions": further,
    }
    content = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Names that are no UTF-8 hold halves of surrogate pairs, which JSON escapes.
        replace(path, content.encode(errors="backslashreplace"))
    except FileError as error:
        raise FileError(path, error.problem, _UNWRITABLE) from error
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}", _UNWRITABLE) from error


def _entry(result: Result, fingerprints: dict[str, JsonDict]) -> JsonDict:
    """Returns a result as stored, its fingerprint in the table of them."""
    entry = result.to_json()
    identity = _identity(entry["fingerprint"])
    fingerprints[identity] = entry["fingerprint"]
    return {**entry, "fingerprint": identity}


def _identity(fingerprint: JsonDict) -> str:
    """Returns twelve hexadecimal digits, equal where all fields are: the same as `Fingerprint.identity`."""
    canonical = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def read_run_file(path: Path) -> list[Result]:
    """Reads the results of a run, one a test, as `read_run` does."""
    return list(read_run(path).results)


def read_run(path: Path) -> RunFile:
    """Reads a run, every field checked; numbers not finite are None.

    What an older release did not write has its default.

    Raises:
        FileError: the file is missing, empty, damaged, no run file or from a newer release.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise FileError(path, problem, "Check the path and its permissions") from error
    try:
        return _run(decoded(content), path)
    except JsonError as error:
        raise FileError(path, str(error), _DAMAGED) from error
    except ShapeError as error:
        raise FileError(path, error.problem, _DAMAGED, where=error.where or None) from error


@dataclass(frozen=True)
class _Version:
    """Holds what the file of a run by any release has; `extra` is the rest."""

    schema: Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
    gpukern: str = "a newer release"
    extra: JsonDict = field(default_factory=dict)


@dataclass(frozen=True)
class _Stored:
    """Holds what the file of a run has besides its version."""

    created: str
    fingerprints: dict[str, dict[str, Any]]
    results: tuple[dict[str, Any], ...]
    sessions: tuple[dict[str, Any], ...] = ()
    extra: JsonDict = field(default_factory=dict)


def _run(data: Any, path: Path) -> RunFile:
    if isinstance(data, dict) and "device_model" in data and "results" not in data:
        remedy = "gpukern baseline show and gpukern compare read it"
        raise FileError(path, "is a baseline, not the file of a run", remedy)
    version: _Version = built(data, _Version)
    if version.schema > SCHEMA:
        problem = f"is {version.schema}, written by {version.gpukern}; this release reads up to {SCHEMA}"
        raise FileError(path, problem, "Upgrade pytest-gpukern", where="schema")
    stored: _Stored = built(version.extra, _Stored)
    found: dict[str, tuple[Result, ...]] = {}
    for name, entries in (("results", stored.results), ("sessions", stored.sessions)):
        found[name] = tuple(
            _result(_from_3(entry) if version.schema < 4 else entry, stored.fingerprints, f"{name}[{i}]")
            for i, entry in enumerate(entries)
        )
    return RunFile(found["results"], found["sessions"], _created(stored.created))


def _result(entry: JsonDict, fingerprints: JsonDict, where: str) -> Result:
    identity = entry.get("fingerprint")
    if not isinstance(identity, str) or identity not in fingerprints:
        raise unexpected("one of the keys under fingerprints", identity).inside(f"{where}.fingerprint")
    try:
        return Result.from_json({**entry, "fingerprint": fingerprints[identity]})
    except ShapeError as error:
        raise error.inside(where) from error


def _created(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise unexpected("a time with its offset", text).inside("created")
    return moment


def _from_3(entry: JsonDict) -> JsonDict:
    """Returns a result of schema 3 as one of 4; the check of its fields names what is damaged."""
    measurements = entry.get("measurements")
    for measurement in measurements if isinstance(measurements, list) else ():
        work = measurement.get("work") if isinstance(measurement, dict) else None
        for each in work if isinstance(work, list) else ():
            if isinstance(each, dict) and "shape" in each:
                each["kernel"] = _flat({"name": each.get("name"), "shape": each.pop("shape")})
    kernels = entry.get("kernels")
    if isinstance(kernels, list):
        entry["kernels"] = [_flat(kernel) for kernel in kernels]
    return entry


def _flat(kernel: Any) -> Any:
    """Returns a kernel of schema 3 with its launch beside its other values."""
    shape = kernel.get("shape") if isinstance(kernel, dict) else None
    if not isinstance(shape, dict):
        return shape
    parts = [shape.pop(name, None) for name in ("static_shared_bytes", "dynamic_shared_bytes")]
    symbol = kernel.pop("name", None)
    name = kernel.pop("readable", None) or (readable(symbol) if isinstance(symbol, str) else None)
    gone = ("shape", "count", "time_ns")
    kept = {field: value for field, value in kernel.items() if field not in gone}
    shared_bytes = sum(parts) if all(isinstance(part, int) for part in parts) else None
    return {**kept, **shape, "symbol": symbol, "name": name, "shared_bytes": shared_bytes}
