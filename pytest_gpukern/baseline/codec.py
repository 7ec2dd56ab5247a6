"""Reads and writes a baseline file: versioned JSON whose schema is the model in `record`.

A file stores once what many sessions share. A measurement is a row of numbers in the order of the file's
`columns`. Correctness and kernels are stored with the epoch; a session has its own only if they differ from
those of the epoch's first session.

msgspec decodes a file of this release, in a tenth of the time. We read field by field what it refuses or may
have read wrongly: older files, unknown fields, and damage, which is named.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
from msgspec import Meta, Struct, field

from pytest_gpukern.baseline.record import (
    INHERITED,
    NOTHING,
    Baseline,
    Epoch,
    Record,
    RecordedSession,
    RecordedTime,
    SessionEntry,
    Text,
    Whole,
)
from pytest_gpukern.values.garbage import uncollected
from pytest_gpukern.values.untrusted_json import (
    EXTRA,
    FileError,
    JsonError,
    ShapeError,
    built,
    decoded,
    deep,
    unexpected,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict

SCHEMA = 2
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new.

In 1 every session had its own correctness and kernels, and measurements were objects. Since 2 they are rows,
what an epoch's sessions share is stored once, and sessions have ids.
"""

COLUMNS = RecordedTime.__struct_fields__[:-1]
"""The columns of a row, in order. Only append to them: a row ends with its last value that is not null."""

_LATER_COLUMNS = ("mean_ns", "others_share")
"""Files of older releases lack them; they stay as they are until a row has a value."""

RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)
RESOLVE = (
    "Take one side with git checkout --ours FILE or --theirs FILE. Then add the sessions of the other's run: "
    "gpukern baseline merge RUN.json --append --all"
)
_CONFLICT = re.compile(rb"^<{7} ", re.MULTILINE)
_QUANTILE_COLUMNS = ("q05_ns", "q25_ns", "q50_ns", "q75_ns", "q95_ns")
_EXACT_WHOLE = 1e15  # below this a whole float is written as an integer, and read back as it was


_Columns = Annotated[tuple[Text, ...], Meta(min_length=1, description="a list with at least one entry")]


class _File(Struct, frozen=True, omit_defaults=True):
    """Holds the content of a file."""

    schema: int
    problem: Text
    device_model: Text
    columns: _Columns
    fingerprints: dict[str, dict[str, Any]]
    sessions: dict[str, SessionEntry]
    records: dict[str, Record]
    extra: Mapping[str, Any] = field(default=NOTHING, name="(unknown)")


# reading


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
    with uncollected():
        file = _quickly(content) or _by_field(content, path)
    try:
        _resolve(file)
    except ShapeError as error:
        raise FileError(path, error.problem, RESTORE, where=error.where) from error
    return Baseline(
        problem=file.problem,
        device_model=file.device_model,
        fingerprints=file.fingerprints,
        cases=file.records,
        sessions=file.sessions,
        extra=dict(file.extra),
    )


@functools.cache
def _decoder() -> msgspec.json.Decoder[_File]:
    return msgspec.json.Decoder(_File)


def _quickly(content: bytes) -> _File | None:
    """Returns what msgspec makes of a file, or None where only `_by_field` can tell.

    It accepts a key that occurs twice, and drops unknown fields. So its result, written again, must have as
    many keys as the file. We count keys by their colons, which must have no space before them.
    """
    if b" :" in content or b"\n:" in content or b"\t" in content or b"\r" in content:
        return None
    if b"\\" in content and b'\\":' in content:
        return None
    try:
        file = _decoder().decode(content)
        keys = _count_keys(msgspec.json.encode(file, enc_hook=dict))
        kernels = [kernel for epoch in _epochs(file) for kernel in epoch.kernels]
        kernels += [kernel for session in _sessions(file) for kernel in session.kernels]
        written = msgspec.json.encode(kernels)
    except (ValueError, RecursionError, OverflowError):
        return None
    keys -= written.count(b'":null') + written.count(b'"extra":{}')  # a dataclass is written with defaults
    times = (time for each in _sessions(file) for time in each.measurements.values())
    nested = (value for record in file.records.values() for value in record.point.values())
    certain = (
        keys == _count_keys(content)
        and file.schema == SCHEMA
        and file.columns == COLUMNS[: len(file.columns)]  # an older release knew fewer
        and not any(kernel.extra for kernel in kernels)
        and not any(time.extra is not NOTHING for time in times)
        and not any(isinstance(value, (dict, list)) and deep(value) for value in nested)
        and not deep(file.fingerprints)
    )
    return file if certain else None


def _count_keys(text: bytes) -> int:
    return text.count(b'":')


def _sessions(file: _File) -> Iterator[RecordedSession]:
    for epoch in _epochs(file):
        yield from epoch.sessions


def _epochs(file: _File) -> Iterator[Epoch]:
    for record in file.records.values():
        yield from record.epochs


def _by_field(content: bytes, path: Path) -> _File:
    """Reads a file of any schema; raises FileError with the field that is wrong."""
    try:
        value = decoded(content)
        json.dumps(value, ensure_ascii=False).encode()
    except JsonError as error:
        if _CONFLICT.search(content):
            raise FileError(path, "holds an unresolved merge conflict", RESOLVE) from error
        raise FileError(path, str(error), RESTORE) from error
    except UnicodeEncodeError as error:  # an escaped half of a surrogate pair, which cannot be written again
        raise FileError(path, f"is not UTF-8 text: {error.reason}", RESTORE) from error
    if isinstance(value, dict) and "results" in value and "device_model" not in value:
        remedy = "gpukern report reads it, and gpukern baseline merge records what it holds"
        raise FileError(path, "is the file of a run, not a baseline", remedy)
    try:
        file: _File = built(_with_objects(_migrated(value, path)), _File, null_floats=False)
    except ShapeError as error:
        raise FileError(path, error.problem, RESTORE, where=error.where or None) from error
    return file


def _with_objects(data: JsonDict) -> JsonDict:
    """Returns a file's content with its rows as objects: column → value, without nulls."""
    if "columns" not in data:
        raise ShapeError("columns", "is missing")
    try:
        columns = built(data["columns"], _Columns)
    except ShapeError as error:
        raise error.inside("columns") from None
    if len(set(columns)) < len(columns):
        raise unexpected("names that are all different", data["columns"]).inside("columns")
    for where, session in _sessions_in(data.get("records"), "records"):
        times: Any = session.get("times")
        for key, row in times.items() if isinstance(times, dict) else ():
            if not isinstance(row, list):
                raise unexpected("a list of values, one per column", row).inside(f"{where}.times[{key!r}]")
            if len(row) > len(columns):
                wanted = f"{len(columns)} values at most, one per column"
                raise unexpected(wanted, len(row)).inside(f"{where}.times[{key!r}]")
            named = zip(columns, row, strict=False)
            times[key] = {name: value for name, value in named if value is not None}
    return data


def _sessions_in(records: Any, name: str) -> Iterator[tuple[str, JsonDict]]:
    """Yields each session in a file's content with its path in the file, and skips what is damaged."""
    for case_id, record in _objects(records):
        for i, epoch in _objects(record.get("epochs")):
            for j, session in _objects(epoch.get("sessions")):
                yield f"{name}[{case_id!r}].epochs[{i}].sessions[{j}]", session


def _objects(container: Any) -> Iterator[tuple[Any, JsonDict]]:
    """Yields the objects in a list or an object."""
    items: Iterable[tuple[Any, Any]] = container.items() if isinstance(container, dict) else ()
    items = enumerate(container) if isinstance(container, list) else items
    return ((name, item) for name, item in items if isinstance(item, dict))


def _resolve(file: _File) -> None:
    """Gives each session what the file stores for several, and checks fields against each other."""
    for name, entry in file.sessions.items():
        if entry.fingerprint not in file.fingerprints:
            _fail(f"sessions[{name!r}].fingerprint", "one of the keys under fingerprints", entry.fingerprint)
    for case_id, record in file.records.items():
        for i, epoch in enumerate(record.epochs):
            for j, session in enumerate(epoch.sessions):
                try:
                    _resolve_session(session, epoch, file)
                except ShapeError as error:
                    raise error.inside(f"records[{case_id!r}].epochs[{i}].sessions[{j}]") from None
            if epoch.measured_point is NOTHING:
                _set(epoch, measured_point=record.point)
            _set(epoch, correctness=NOTHING, kernels=INHERITED)


def _resolve_session(session: RecordedSession, epoch: Epoch, file: _File) -> None:
    if session.correctness is NOTHING:
        _set(session, correctness=epoch.correctness)
    if session.kernels is INHERITED:
        _set(session, kernels=epoch.kernels)
    if session.session is not None:
        entry = file.sessions.get(session.session)
        if entry is None:
            _fail("session", "one of the keys under sessions", session.session)
        _set(
            session,
            recorded=session.recorded or entry.recorded,
            fingerprint=session.fingerprint or entry.fingerprint,
        )
    for name in ("recorded", "fingerprint"):
        if not getattr(session, name):
            raise ShapeError(name, "is missing")
    if session.fingerprint not in file.fingerprints:
        _fail("fingerprint", "one of the keys under fingerprints", session.fingerprint)
    if not session.measurements:
        raise ShapeError("times", "is missing")
    for key, time in session.measurements.items():
        if not time.low_ns <= time.median_ns <= time.high_ns:
            found = [time.low_ns, time.median_ns, time.high_ns]
            _fail(f"times[{key!r}]", "low_ns ≤ median_ns ≤ high_ns", found)
        if not time.q05_ns <= time.q25_ns <= time.quantiles_ns[2] <= time.q75_ns <= time.q95_ns:
            _fail(f"times[{key!r}]", " ≤ ".join(_QUANTILE_COLUMNS), list(time.quantiles_ns))


def _set(value: Struct, **fields: Any) -> None:
    """Sets fields of a frozen value that nothing else refers to yet."""
    for name, item in fields.items():
        msgspec.structs.force_setattr(value, name, item)


def _fail(where: str, wanted: str, found: object) -> NoReturn:
    raise unexpected(wanted, found).inside(where)


# older files


def _migrated(content: Any, path: Path) -> JsonDict:
    """Brings a file of an older schema to the present one, a version at a time."""
    if not isinstance(content, dict):
        raise FileError(path, str(unexpected("an object", content)), RESTORE)
    try:
        version = built({"schema": content["schema"]} if "schema" in content else {}, _Versioned).schema
    except ShapeError as error:
        raise FileError(path, error.problem, RESTORE, where=error.where) from error
    if version > SCHEMA:
        raise FileError(
            path,
            f"written by a newer pytest-gpukern (schema {version}, this one reads {SCHEMA})",
            "Upgrade pytest-gpukern, or name a folder of older baselines with --gpukern-baseline-dir",
            where="schema",
        )
    data = content
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


class _Versioned(Struct, frozen=True):
    """Holds the field that a file of any schema has."""

    schema: Whole


def _from_1(content: JsonDict) -> JsonDict:
    """Turns a file of version 1 into one of version 2: measurements become rows; its sessions have no ids.

    Damage stays, for the reader to name. Correctness and kernels may stay with each session.
    """
    sessions = [session for _, session in _sessions_in(content.get("cases"), "cases")]
    times = [time for session in sessions for _, time in _objects(session.get("measurements"))]
    unknown = {name for time in times for name in _by_column(time)} - set(COLUMNS)
    columns = [*COLUMNS, *sorted(unknown)]
    for session in sessions:
        measured = session.pop("measurements", None)
        if isinstance(measured, dict):
            session["times"] = {
                key: [_by_column(time).get(name) for name in columns] if isinstance(time, dict) else time
                for key, time in measured.items()
            }
        elif measured is not None:
            session["times"] = measured
    renamed = {"records" if name == "cases" else name: value for name, value in content.items()}
    return {**renamed, "columns": columns, "sessions": {}}


def _by_column(time: JsonDict) -> JsonDict:
    """Returns a measurement's values by column."""
    values = {name: value for name, value in time.items() if name != "quantiles_ns"}
    points = time.get("quantiles_ns")
    if isinstance(points, list) and len(points) == len(_QUANTILE_COLUMNS):
        values.update(zip(_QUANTILE_COLUMNS, points, strict=True))
    if values.get("q50_ns") == values.get("median_ns"):
        values.pop("q50_ns", None)
    return values


MIGRATIONS: dict[int, Callable[[JsonDict], JsonDict]] = {1: _from_1}
"""Version n → function from a file's content of version n to one of version n + 1."""


# writing


def render(baseline: Baseline) -> bytes:
    """Returns the file's content: sorted keys, and one line per measurement."""
    times = [
        time
        for record in baseline.cases.values()
        for epoch in record.epochs
        for session in epoch.sessions
        for time in session.measurements.values()
    ]
    known = COLUMNS
    while known[-1] in _LATER_COLUMNS and all(getattr(time, known[-1]) is None for time in times):
        known = known[:-1]
    columns = (*known, *sorted({name for time in times for name in time.extra}))
    content = {
        **baseline.extra,
        "schema": SCHEMA,
        "problem": baseline.problem,
        "device_model": baseline.device_model,
        "columns": list(columns),
        "fingerprints": baseline.fingerprints,
        "sessions": {name: as_stored(entry) for name, entry in baseline.sessions.items()},
        "records": {name: _record(record, baseline, columns) for name, record in baseline.cases.items()},
    }
    return (_laid_out(content) + "\n").encode()


def _record(record: Record, baseline: Baseline, columns: tuple[str, ...]) -> JsonDict:
    epochs = [_epoch(epoch, record, baseline, columns) for epoch in record.epochs]
    return {**record.extra, "point": record.point, "epochs": epochs}


def _epoch(epoch: Epoch, record: Record, baseline: Baseline, columns: tuple[str, ...]) -> JsonDict:
    shared = _shared(epoch.sessions[0])
    moved = epoch.measured_point is not NOTHING and epoch.measured_point != record.point
    return {
        **as_stored(epoch, without=("sessions", "measured_point")),
        **({"measured_point": epoch.measured_point} if moved else {}),
        **{name: value for name, value in shared.items() if value},
        "sessions": [_session(session, shared, baseline, columns) for session in epoch.sessions],
    }


def _shared(session: RecordedSession) -> JsonDict:
    """Returns a session's correctness and kernels, which the sessions of an epoch mostly share."""
    return {
        "correctness": {name: as_stored(output) for name, output in session.correctness.items()},
        "kernels": [as_stored(kernel) for kernel in session.kernels],
    }


def _session(
    session: RecordedSession, shared: JsonDict, baseline: Baseline, columns: tuple[str, ...]
) -> JsonDict:
    entry = baseline.sessions.get(session.session or "")
    known = [
        name
        for name in ("recorded", "fingerprint")
        if entry is not None and getattr(session, name) == getattr(entry, name)
    ]
    return {
        **as_stored(session, without=("correctness", "kernels", "times", *known)),
        **{name: value for name, value in _shared(session).items() if value != shared[name]},
        "times": {key: _row(time, columns) for key, time in session.measurements.items()},
    }


def _row(time: RecordedTime, columns: tuple[str, ...]) -> list[Any]:
    values = as_stored(time)
    row = [values.get(name) for name in columns]
    while row[-1] is None:
        row.pop()
    return row


def as_stored(value: Any, without: tuple[str, ...] = ()) -> JsonDict:
    """Returns a value of the model as it is stored: with unknown fields, and without defaults."""
    kind: Any = type(value)
    known = {
        name: _whole(item)
        for name, field_name, default in _fields_of(kind)
        if name not in without and (item := getattr(value, field_name)) != default
    }
    return {**value.extra, **known}


@functools.cache
def _fields_of(kind: Any) -> tuple[tuple[str, str, object], ...]:
    """Returns name in the file, attribute and default of each field but `extra`."""
    if dataclasses.is_dataclass(kind):
        fields = [(each.name, each.name, each.default) for each in dataclasses.fields(kind)]
    else:
        infos = msgspec.structs.fields(kind)
        fields = [
            (
                info.encode_name,
                info.name,
                info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory(),
            )
            for info in infos
        ]
    return tuple(each for each in fields if each[1] != EXTRA)


def _whole(value: Any) -> Any:
    """Returns a whole number without its `.0`, also in a dict of numbers."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_WHOLE
    return int(value) if whole else value


_LINE = 240
_OPENED = frozenset({"epochs", "fingerprints", "kernels", "records", "sessions", "times"})
"""Containers that are never put on one line, however short, so that a new entry changes no other line."""


def _laid_out(value: Any, *, name: str = "", within: str = "", indent: str = "") -> str:
    """Returns a JSON value as text: one block per session, one line per measurement, kernel or output."""
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    if not value or not isinstance(value, (dict, list)) or _on_one_line(value, flat, name, within):
        return flat
    inner = indent + " "
    if isinstance(value, list):
        lines = [_laid_out(item, within=name, indent=inner) for item in value]
    else:
        lines = _members(value, name, inner)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"


def _on_one_line(value: Any, flat: str, name: str, within: str) -> bool:
    if within in ("kernels", "times"):
        return True
    if name in _OPENED or (not within and not name):
        return False
    if isinstance(value, dict) and not _OPENED.isdisjoint(value):
        return False
    return len(flat) <= _LINE or (
        isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
    )


def _members(value: dict[str, Any], name: str, indent: str) -> list[str]:
    """Returns the members of an object, one per line; those that are no containers share one if they fit."""
    lines: list[str] = []
    run: list[str] = []
    for key in [*sorted(value), None]:
        if key is not None and not isinstance(value[key], (dict, list)):
            run.append(f"{_quoted(key)}: {_laid_out(value[key])}")
            continue
        together = ", ".join(run)
        lines += [together] if run and len(together) <= _LINE else run
        run = []
        if key is not None:
            lines.append(f"{_quoted(key)}: {_laid_out(value[key], name=key, within=name, indent=indent)}")
    return lines


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
