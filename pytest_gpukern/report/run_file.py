"""Writes and reads the file of a run: every result as versioned JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from pytest_gpukern.baseline.codec import Processes, folded_record, unfolded, whole_record
from pytest_gpukern.baseline.record import Record
from pytest_gpukern.findings.common_shift import Shift
from pytest_gpukern.report.run import Failure, NextStep, RunResults, Skip, Unchanged, Voucher
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import ContentError, Figure, content_of, of_schema, read

SCHEMA = 7
"""The version of the files. Raise it when a reader of the old one would misunderstand the new."""

DAMAGED = "Write the run again with --gpukern-report, or read it with the release that wrote it"


def run_text(run: RunResults) -> str:
    processes = Processes()
    sessions = (session for sessions in run.sessions.values() for session in sessions)
    stored = {
        "schema": SCHEMA,
        "gpukern": run.version,
        "created": run.created.replace(microsecond=0),
        "results": [processes.folded(result) for result in run.results],
        "sessions": [processes.folded(session) for session in sessions],
        "history": {
            name: {**folded_record(record, processes), "device_model": record.device_model}
            for name, record in run.history.items()
        },
    }
    stored |= {name: plain(getattr(run, name)) for name in RunFile.__struct_fields__ if name not in stored}
    stored["processes"] = processes.table()  # complete only now
    try:
        content = msgspec.json.encode(stored)
    except UnicodeEncodeError:  # half of a surrogate pair, from a file name that is no UTF-8
        content = json.dumps(msgspec.to_builtins(stored), ensure_ascii=False).encode(errors="replace")
    return msgspec.json.format(content, indent=1).decode() + "\n"


def refuse(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises ContentError for the fields of a file that is no run of this release."""
    if "device_model" in fields and "results" not in fields:
        remedy = "gpukern report and compare read it"
        raise ContentError("is a baseline, not the file of a run", remedy=remedy)
    of_schema(fields, SCHEMA)


def read_run(path: Path) -> RunResults:
    """Reads a run, every field checked; numbers not finite are None. The file may be packed by gzip.

    Raises:
        FileError: the file is missing, empty, damaged, no run file or from another release.
    """

    try:
        stored: RunFile = read(content_of(path), RunFile, refuse=refuse, unfold=_whole)
    except ContentError as error:
        raise error.of_file(path, DAMAGED) from error
    fields = structs.asdict(stored)
    fields["version"] = fields.pop("gpukern")
    fields["sessions"] = grouped((session.nodeid, session) for session in stored.sessions)
    return RunResults(**fields, name=path.name)


def _whole(fields: dict[str, Any]) -> dict[str, Any]:
    """Makes each session of plain JSON whole; what is no run is left to the schema."""
    processes = fields.pop("processes", None)
    for name in ("results", "sessions"):
        if isinstance(fields.get(name), list):
            fields[name] = [unfolded(result, processes) for result in fields[name]]
    if isinstance(fields.get("history"), dict):
        fields["history"] = {name: whole_record(of, processes) for name, of in fields["history"].items()}
    return fields


class RunFile(Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """Holds the content of a file."""

    gpukern: str
    created: Annotated[datetime, Meta(tz=True)]
    results: tuple[Result, ...]
    sessions: tuple[Result, ...]
    history: dict[str, Record]
    skips: tuple[Skip, ...]
    rejected: tuple[str, ...]
    failures: dict[str, Failure]
    shift: Shift | None
    since_record: tuple[str, ...]
    compared_with: str
    heading: tuple[str, ...]
    closing: tuple[str | NextStep, ...]
    problems: tuple[str, ...]
    duration_s: Figure | None
    spent_s: dict[str, Figure]
    machine: str = ""
    unchanged: Unchanged | None = None
    voucher: Voucher | None = None
