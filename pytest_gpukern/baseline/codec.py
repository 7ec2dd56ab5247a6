"""Reads and writes a baseline file: versioned JSON, one line a process and one a case.

So git shows what a new session changed, and a conflict shows both sides of a case. The file holds once what
the sessions of a case share, and once what all cases of a process share.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec

from pytest_gpukern.baseline.record import MOMENT, Baseline, Record
from pytest_gpukern.gate.comparability import Text
from pytest_gpukern.values.result import JsonDict, Measurement, Result
from pytest_gpukern.values.stored import beyond, defaults, fields
from pytest_gpukern.values.untrusted_json import ContentError, FileError, bounded, content_of, of_schema, read

SCHEMA = 4
"""The version of the files. Raise it when a reader of the old one would misunderstand the new."""

RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)
_ONE_SIDE = "Take one side of the file: git checkout --ours FILE, or --theirs FILE"
_CONFLICT = re.compile(
    rb"^<{7}(?: [^\n]*)?\n(.*?)(?:^\|{7}(?: [^\n]*)?\n.*?)?^={7}\r?\n(.*?)^>{7}(?: [^\n]*)?(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""Git's marks around both sides of a conflict; in style diff3 what both changed is between them."""
_KEY = re.compile(r"[^/]+/[^/]+/[^/]+")


class BaselineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """Holds the content of a file, once each session is whole."""

    problem: Text
    device_model: Text
    records: tuple[Record, ...] = ()


class _Processes(msgspec.Struct, frozen=True):
    processes: JsonDict = {}


def load(path: Path) -> Baseline:
    """Reads and checks a baseline file; raises FileError with file, field and remedy."""
    content = _content(path)
    if b"\n<<<<<<< " in content:
        remedy = f"Unite both sides: gpukern baseline merge {shlex.quote(str(path))}"
        raise FileError(path, "holds an unresolved merge conflict", remedy)
    return parse(content, path)


def load_sides(path: Path) -> list[Baseline]:
    """Reads and checks a baseline file; returns both sides, ours first, if it has git's conflict marks.

    Git may have merged a record, and not the line of its process: each side knows both sides' processes.
    """
    content = _content(path)
    if not _CONFLICT.search(content):
        return [parse(content, path)]
    ours, theirs = (_CONFLICT.sub(side, content) for side in (rb"\1", rb"\2"))
    return [parse(ours, path, other=theirs), parse(theirs, path, other=ours)]


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise FileError(path, "is a folder, not a baseline file", "Name one of its files")
    return content_of(path)


def parse(content: bytes, path: Path, *, other: bytes = b"") -> Baseline:
    """Checks the content of a baseline file; `path` is for messages only.

    Every field is known, has its type, and is there unless it has a default. Numbers are finite, keys unique.
    `other` is the other side of a conflict.
    """

    def refuse(fields: Mapping[str, msgspec.Raw]) -> None:
        if "results" in fields and "device_model" not in fields:
            remedy = "gpukern report reads it; gpukern baseline merge RUN.json --append --all records it"
            raise FileError(path, "is the file of a run, not a baseline", remedy)
        of_schema(fields, SCHEMA)

    try:
        known = read(other, _Processes, refuse=lambda _: None).processes if other else {}
        stored: BaselineFile = read(
            content, BaselineFile, refuse=refuse, unfold=lambda value: _whole(value, known)
        )
        cases: dict[str, Record] = {}
        for i, record in enumerate(stored.records):
            if record.case in cases:
                raise ContentError("a case has two records", where=f"records[{i}].case {record.case!r}")
            _check(record, f"records[{i}]")
            cases[record.case] = msgspec.structs.replace(record, device_model=stored.device_model)
    except ContentError as error:
        raise error.of_file(path, _ONE_SIDE if other else RESTORE) from error
    return Baseline(stored.problem, stored.device_model, cases)


def _whole(value: Any, known: JsonDict) -> Any:
    """Returns plain JSON in which each session is whole; what is no baseline is left to the schema.

    `known` are processes of another file.
    """
    if not isinstance(value, dict) or not isinstance(value.get("records"), list):
        return value
    processes = value.get("processes")
    if isinstance(processes, dict):
        processes = known | processes
    records = [whole_record(record, processes) for record in value["records"]]
    return {**{name: of for name, of in value.items() if name != "processes"}, "records": records}


def whole_record(record: Any, processes: Any) -> Any:
    """Returns a record with whole sessions. What is malformed stays as it is, and its schema refuses it."""
    try:
        epochs = []
        for epoch in record["epochs"]:
            shared = {**epoch.get("shared", {}), "nodeid": record["case"]}
            whole = [unfolded(session, processes, shared) for session in epoch["sessions"]]
            epochs.append({**{name: of for name, of in epoch.items() if name != "shared"}, "sessions": whole})
    except (AttributeError, KeyError, TypeError):
        return record
    return {**record, "epochs": epochs}


def _check(record: Record, where: str) -> None:
    """Checks fields against each other; raises ContentError."""
    for i, epoch in enumerate(record.epochs):
        for j, session in enumerate(epoch.sessions):
            place = f"{where}.epochs[{i}].sessions[{j}]"
            if not re.fullmatch(MOMENT, session.recorded):
                _fail(f"{place}.recorded", "an ISO 8601 time with its offset", session.recorded)
            if not session.measurements:
                _fail(f"{place}.measurements", "at least one", [])
            for k, timed in enumerate(session.measurements):
                _check_time(timed, f"{place}.measurements[{k}]")
            if len({timed.key for timed in session.measurements}) < len(session.measurements):
                keys = [timed.key for timed in session.measurements]
                _fail(f"{place}.measurements", "one under each scope, timer and cache", keys)


def _check_time(timed: Measurement, where: str) -> None:
    summary = timed.summary
    values = [summary.low_ns, summary.median_ns, summary.high_ns]
    if not _KEY.fullmatch(timed.key):
        _fail(where, "names of scope, timer and cache", timed.key)
    if None in values or not (0 <= summary.low_ns <= summary.median_ns <= summary.high_ns and values[1] > 0):
        _fail(where, "0 ≤ low_ns ≤ median_ns ≤ high_ns, and a median above 0", values)
    if summary.n < 1:
        _fail(where, "at least one sample", summary.n)
    points = timed.quantiles_ns
    if points is not None and (list(points) != sorted(points) or points[0] < 0):
        _fail(f"{where}.quantiles_ns", "ascending numbers", list(points))


def _fail(where: str, wanted: str, value: object) -> NoReturn:
    raise ContentError(f"expected {wanted}, found {bounded(repr(value), 60)}", where=where)


def render(baseline: Baseline) -> bytes:
    """Returns the file's content: processes and cases in the order of their names."""
    processes = Processes()
    records = [folded_record(record, processes) for _, record in sorted(baseline.cases.items())]
    head = {"schema": SCHEMA, "problem": baseline.problem, "device_model": baseline.device_model}
    parts = [f"{_text(name)}: {_text(value)}" for name, value in head.items()]
    lines = [f"{_text(name)}: {_text(of)}" for name, of in sorted(processes.table().items())]
    parts += [_opened("processes", "{}", lines), _opened("records", "[]", map(_text, records))]
    return ("{\n " + ",\n ".join(parts) + "\n}\n").encode()


def folded_record(record: Record, processes: Processes) -> JsonDict:
    """Returns for each epoch what its sessions share, and what each has beyond that."""
    epochs, given = [], {"nodeid": record.case}
    apart = {*_OF_A_PROCESS, *_OF_A_SESSION, *given}
    for epoch in record.epochs:
        reason = {"reason": epoch.reason} if epoch.reason is not None else {}
        shared = {name: of for name, of in fields(epoch.sessions[0]).items() if name not in apart}
        own = [processes.folded(session, shared | given) for session in epoch.sessions]
        shared = beyond(defaults(Result), shared)
        epochs.append({"opened": epoch.opened, **reason, "shared": shared, "sessions": own})
    return {"case": record.case, "epochs": epochs}


def _opened(name: str, brackets: str, lines: Iterable[str]) -> str:
    inner = ",\n  ".join(lines)
    return f"{_text(name)}: {brackets[0]}\n  {inner}\n {brackets[1]}"


def _text(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


_OF_A_PROCESS = ("fingerprint", "provenance", "canaries", "ceilings", "recorded")
"""Fields that the results of one process mostly share."""
_OF_A_SESSION = ("session", "role", "measurements", "first_call_ns", "compile_ns")
"""Fields in which the sessions of a case mostly differ; it shares the others."""


class Processes:
    """Holds what the results of each process share, by its id, as they are written."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, Any]] = {}

    def folded(self, result: Result, shared: Mapping[str, Any] = MappingProxyType({})) -> JsonDict:
        """Returns a result's fields that neither case nor process shares, and that are no defaults."""
        own = {name: getattr(result, name) for name in _OF_A_PROCESS if name not in shared}
        process = self._first.setdefault(result.session, own)
        known = defaults(Result) | process | dict(shared)
        return beyond(known, fields(result))

    def table(self) -> JsonDict:
        return {name: beyond(defaults(Result), process) for name, process in self._first.items()}


def unfolded(result: Any, processes: Any, shared: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Returns a whole result as plain JSON. What is malformed stays as it is, and its schema refuses it."""
    if not isinstance(result, dict):
        return result
    name = result.get("session", "")
    process = processes.get(name) if isinstance(processes, dict) and isinstance(name, str) else None
    return {**(process if isinstance(process, dict) else {}), **shared, **result}
