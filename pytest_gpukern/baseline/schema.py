"""The baseline file: versioned JSON, read with every field checked and written for review in a diff."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pytest_gpukern.baseline.compact_rows import QUANTILE_COLUMNS, to_file
from pytest_gpukern.baseline.json_layout import laid_out
from pytest_gpukern.baseline.migrations import from_1
from pytest_gpukern.baseline.node import RESTORE, Node
from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedSession,
    RecordedTime,
    SessionEntry,
)
from pytest_gpukern.values.result import KernelFacts
from pytest_gpukern.values.untrusted_json import FileError, JsonError, decoded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict

SCHEMA = 2
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new.

In 1 every session had its own correctness and kernels, and measurements were objects. Since 2 they are rows,
what an epoch's sessions share is stored once, and sessions have ids.
"""

MIGRATIONS: dict[int, Callable[[JsonDict], JsonDict]] = {1: from_1}
"""Version n → function from a file's content of version n to one of version n + 1."""


def load(path: Path) -> Baseline:
    """Reads and checks a baseline file; raises FileError with file, field and remedy."""
    if path.is_dir():
        remedy = "Name one of its files; gpukern baseline list shows them"
        raise FileError(path, "is a folder, not a baseline file", remedy)
    try:
        content = path.read_bytes()
    except OSError as error:
        remedy = "Check the path and its permissions"
        raise FileError(path, f"cannot be read: {error.strerror}", remedy) from error
    return parse(content, path)


def parse(content: bytes, path: Path) -> Baseline:
    """Checks the content of a baseline file; `path` is for messages only.

    Every known field is checked, and required unless it has a default. Unknown ones are kept. Numbers are
    finite, keys are unique.
    """
    data = _decoded(content, path)
    if isinstance(data, dict) and "results" in data and "device_model" not in data:
        remedy = "gpukern show reads it, and gpukern baseline merge records what it holds"
        raise FileError(path, "is the file of a run, not a baseline", remedy)
    return _baseline(Node(_migrated(data, path), path))


def render(baseline: Baseline) -> bytes:
    """The file's content: sorted keys, and a line a measurement."""
    return (laid_out({"schema": SCHEMA, **to_file(baseline)}) + "\n").encode()


def _decoded(content: bytes, path: Path) -> Any:
    try:
        value = decoded(content)
        json.dumps(value, ensure_ascii=False).encode()
    except JsonError as error:
        raise FileError(path, str(error), RESTORE) from error
    except UnicodeEncodeError as error:  # an escaped half of a surrogate pair, which cannot be written again
        raise FileError(path, f"is not UTF-8 text: {error.reason}", RESTORE) from error
    return value


def _migrated(content: Any, path: Path) -> JsonDict:
    """Brings a file of an older schema to the present one, a version at a time."""
    root = Node(content, path)
    version = root["schema"].integer(at_least=0)
    data = root.mapping()
    if version > SCHEMA:
        raise FileError(
            path,
            f"written by a newer pytest-gpukern (schema {version}, this one reads {SCHEMA})",
            "Upgrade pytest-gpukern, or compare with --gpukern-baseline-dir on files that this one wrote",
            where="schema",
        )
    while version < SCHEMA:
        migrate = MIGRATIONS.get(version)
        if migrate is None:
            problem = f"schema {version} is unknown; this pytest-gpukern reads {SCHEMA}"
            raise FileError(path, problem, RESTORE, where="schema")
        try:
            data = migrate(data)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"damaged content of schema {version}: {type(error).__name__}: {error}"
            raise FileError(path, problem, RESTORE) from error
        version += 1
    return {**data, "schema": version}


@dataclass(frozen=True)
class _Tables:
    """What a file holds once, for all its records."""

    fingerprints: dict[str, JsonDict]
    sessions: dict[str, SessionEntry]
    columns: tuple[str, ...]


def _baseline(root: Node) -> Baseline:
    fingerprints = {name: node.mapping() for name, node in root["fingerprints"].members()}
    columns = tuple(column.text() for column in root["columns"].items())
    if len(set(columns)) < len(columns):
        root["columns"].fail("names that are all different")
    sessions = {name: _entry(node, fingerprints) for name, node in root["sessions"].members()}
    tables = _Tables(fingerprints, sessions, columns)
    return Baseline(
        problem=root["problem"].text(),
        device_model=root["device_model"].text(),
        fingerprints=fingerprints,
        sessions=sessions,
        cases={name: _record(node, tables) for name, node in root["records"].members()},
        extra=root.others(
            *("schema", "problem", "device_model", "columns", "fingerprints", "sessions", "records")
        ),
    )


def _entry(node: Node, fingerprints: dict[str, JsonDict]) -> SessionEntry:
    return SessionEntry(
        recorded=node["recorded"].time(),
        fingerprint=node["fingerprint"].one_of(fingerprints, "fingerprints"),
        canaries={name: time.optional_number() for name, time in node.optional("canaries").some_members()},
        extra=node.others("recorded", "fingerprint", "canaries"),
    )


def _record(node: Node, tables: _Tables) -> Record:
    point = node["point"].mapping()
    return Record(
        point=point,
        epochs=tuple(_epoch(epoch, point, tables) for epoch in node["epochs"].items()),
        extra=node.others("point", "epochs"),
    )


def _epoch(node: Node, point: JsonDict, tables: _Tables) -> Epoch:
    measured = node.optional("measured_point")
    return Epoch(
        opened=node["opened"].time(),
        reason=node.optional("reason").optional_text(),
        problem_version=node["problem_version"].integer(at_least=0),
        measured_point=point if measured.value is None else measured.mapping(),
        sessions=tuple(_session(session, node, tables) for session in node["sessions"].items()),
        extra=node.others(
            *("opened", "reason", "problem_version", "measured_point", "sessions"), *_SHARED_IN_AN_EPOCH
        ),
    )


_SHARED_IN_AN_EPOCH = ("correctness", "kernels")


def _session(node: Node, epoch: Node, tables: _Tables) -> RecordedSession:
    named = node.optional("session")
    entry = None if named.value is None else tables.sessions[named.one_of(tables.sessions, "sessions")]
    own = node.mapping()
    correctness, kernels = ((node if name in own else epoch).optional(name) for name in _SHARED_IN_AN_EPOCH)
    times = {key: _time(row.as_object(tables.columns), key) for key, row in node["times"].members()}
    if not times:
        node["times"].fail("at least one measurement")
    recorded, fingerprint = (entry.recorded, entry.fingerprint) if entry is not None else ("", "")
    if entry is None or "recorded" in own:
        recorded = node["recorded"].time()
    if entry is None or "fingerprint" in own:
        fingerprint = node["fingerprint"].one_of(tables.fingerprints, "fingerprints")
    return RecordedSession(
        recorded=recorded,
        fingerprint=fingerprint,
        first_call_ns=node.optional("first_call_ns").optional_number(),
        correctness={name: _accuracy(output) for name, output in correctness.some_members()},
        measurements=times,
        compile_ns=node.optional("compile_ns").optional_number(),
        kernels=tuple(_kernel(kernel) for kernel in kernels.some_items()),
        session=named.optional_text(),
        extra=node.others(*(each.name for each in fields(RecordedSession)), "times"),
    )


def _kernel(node: Node) -> KernelFacts:
    return KernelFacts(
        name=node["name"].text(),
        registers=node["registers"].integer(at_least=0),
        local_bytes=node["local_bytes"].integer(at_least=0),
        shared_bytes=node["shared_bytes"].integer(at_least=0),
        machine_code_sha256=node.optional("machine_code_sha256").optional_text(),
        grid=node.optional("grid").optional_extent(),
        block=node.optional("block").optional_extent(),
        extra=node.others(*(each.name for each in fields(KernelFacts))),
    )


def _accuracy(node: Node) -> OutputAccuracy:
    return OutputAccuracy(
        max_abs=node["max_abs"].optional_number(),
        max_rel=node["max_rel"].optional_number(),
        max_ulp=node["max_ulp"].optional_number(),
        bits=node.optional("bits").optional_text(),
        determinism=node.optional("determinism").optional_text(),
        extra=node.others(*(each.name for each in fields(OutputAccuracy))),
    )


def _time(node: Node, key: str) -> RecordedTime:
    if key.count("/") != 2 or not all(key.split("/")):
        node.fail("a key of the form scope/timer/cache", found=key)
    names = ("low_ns", "median_ns", "high_ns")
    low, median, high = (node[name].number() for name in names)
    if median <= 0:
        node["median_ns"].fail("a positive number")
    if not low <= median <= high:
        node.fail("low_ns ≤ median_ns ≤ high_ns", found=[low, median, high])
    has_middle = node.optional("q50_ns").value is not None
    points = tuple(
        median if name == "q50_ns" and not has_middle else node[name].number() for name in QUANTILE_COLUMNS
    )
    if list(points) != sorted(points):
        node.fail(f"{' ≤ '.join(QUANTILE_COLUMNS)}", found=list(points))
    unused = node.optional("invalid_samples")
    return RecordedTime(
        median_ns=median,
        low_ns=low,
        high_ns=high,
        n=node["n"].integer(at_least=1),
        quantiles_ns=points,
        fixed_cost_ns=node.optional("fixed_cost_ns").optional_number(),
        sm_mhz=node.optional("sm_mhz").optional_number(),
        memory_mhz=node.optional("memory_mhz").optional_number(),
        invalid_samples=0 if unused.value is None else unused.integer(at_least=0),
        jitter_ns=node.optional("jitter_ns").optional_number() or 0.0,
        extra=node.others(*(each.name for each in fields(RecordedTime)), *QUANTILE_COLUMNS),
    )
