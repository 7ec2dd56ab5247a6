"""Writes and reads the file of a run: every result as versioned JSON."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import zlib
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from pytest_gpukern.baseline.history import RecordedCase  # noqa: TC001 - read by annotation
from pytest_gpukern.findings.common_shift import Shift  # noqa: TC001
from pytest_gpukern.gpu.kernel_facts import readable
from pytest_gpukern.report.run import Failure, Run
from pytest_gpukern.values.result import Correctness, JsonDict, Result, plain
from pytest_gpukern.values.untrusted_json import (
    FileError,
    JsonError,
    ShapeError,
    built,
    decoded,
    unexpected,
)

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 5
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new.

In 1 a scope had one measurement. Since 2 it may have a second by another timer, which is marked `beside`.
Since 3 `sessions` has what further and confirming sessions of a test found, in the order in which they were
measured: a reader of 2 would accept the session that raised a suspicion in the place of those that decided.
Since 4 a kernel's launch stands beside its other values, no longer in a `shape` of its own.
Since 5 there is all that a report tells: what failed and was skipped, what was recorded, what the run said. A
reader of 4 would take a test that failed for one that passed.
"""

_PACKED = b"\x1f\x8b"
"""How a file begins that gzip packed."""
_LONGEST = 2**30
"""Bytes that a packed file may hold; a run of the suites takes 3 MiB."""
_DAMAGED = "Write the run again with --gpukern-report, or read it with the release that wrote it"


def run_text(run: Run) -> str:
    """Returns a run as JSON."""
    fingerprints: dict[str, JsonDict] = {}
    stored = {name: plain(getattr(run, name)) for name in _AS_THEY_ARE}
    data = {
        "schema": SCHEMA,
        "gpukern": run.version,
        "created": run.created.isoformat(timespec="seconds"),
        **stored,
        "fingerprints": fingerprints,
        "results": [_entry(result, fingerprints) for result in run.results],
        "sessions": [_entry(each, fingerprints) for found in run.sessions.values() for each in found],
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


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


def read_run(path: Path) -> Run:
    """Reads a run, every field checked; numbers not finite are None. The file may be packed by gzip.

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
        content = _unpacked(content) if content.startswith(_PACKED) else content
        return dataclasses.replace(_run(decoded(content), path), name=path.name)
    except JsonError as error:
        raise FileError(path, str(error), _DAMAGED) from error
    except ShapeError as error:
        raise FileError(path, error.problem, _DAMAGED, where=error.where or None) from error


def _unpacked(content: bytes) -> bytes:
    """Returns what gzip packed; raises JsonError where it is damaged or too long to be a run."""
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            unpacked = stream.read(_LONGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise JsonError(f"is not complete gzip: {error}") from error
    if len(unpacked) > _LONGEST:
        raise JsonError(f"holds more than {_LONGEST >> 20} MiB")
    return unpacked


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
    skips: tuple[tuple[str, str], ...] = ()
    rejected: tuple[str, ...] = ()
    failures: dict[str, Failure] = field(default_factory=dict)
    failures_known: bool = True
    history: dict[str, RecordedCase] = field(default_factory=dict)
    shift: Shift | None = None
    since_record: tuple[str, ...] = ()
    compared_with: str = "baseline"
    heading: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    duration_s: float | None = None
    spent_s: dict[str, float] = field(default_factory=dict)
    extra: JsonDict = field(default_factory=dict)


_IN_ANOTHER_FORM = ("created", "fingerprints", "results", "sessions", "extra")
_AS_THEY_ARE = tuple(each.name for each in fields(_Stored) if each.name not in _IN_ANOTHER_FORM)
"""Fields of `Run` that a file has in their own form."""


def _run(data: Any, path: Path) -> Run:
    if isinstance(data, dict) and "device_model" in data and "results" not in data:
        remedy = "gpukern report, compare and baseline show read it"
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
    sessions: dict[str, tuple[Result, ...]] = {}
    for each in found["sessions"]:
        sessions[each.nodeid] = (*sessions.get(each.nodeid, ()), each)
    as_they_are = {name: getattr(stored, name) for name in _AS_THEY_ARE}
    if version.schema < 5:
        as_they_are["failures_known"] = False
        as_they_are["failures"] = {
            each.nodeid: Failure((each.diagnosis or "").strip().partition("\n")[0])
            for each in found["results"]
            if each.correctness is Correctness.INCORRECT
        }
    created = _created(stored.created)
    return Run(found["results"], sessions, **as_they_are, created=created, version=version.gpukern)


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
