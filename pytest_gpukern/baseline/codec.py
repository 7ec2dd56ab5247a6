"""Reads and writes a baseline file: versioned JSON whose schema is the model in `record`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pytest_gpukern.baseline.record import SCHEMA, Baseline
from pytest_gpukern.values.untrusted_json import ContentError, FileError, bounded, content_of, of_schema, read

RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)
RESOLVE = (
    "Take one side with git checkout --ours FILE or --theirs FILE. Then add the sessions of the other's run: "
    "gpukern baseline merge RUN.json --append --all"
)
_CONFLICT = re.compile(rb"^<{7} ", re.MULTILINE)


def load(path: Path) -> Baseline:
    """Reads and checks a baseline file; raises FileError with file, field and remedy."""
    if path.is_dir():
        raise FileError(path, "is a folder, not a baseline file", "Name one of its files")
    return parse(content_of(path), path)


def parse(content: bytes, path: Path) -> Baseline:
    """Checks the content of a baseline file; `path` is for messages only.

    Every field is known, has its type, and is there unless it has a default. Numbers are finite, keys unique.
    """

    def refuse(fields: Mapping[str, msgspec.Raw]) -> None:
        if "results" in fields and "device_model" not in fields:
            remedy = "gpukern report reads it, and gpukern baseline merge records what it holds"
            raise FileError(path, "is the file of a run, not a baseline", remedy)
        of_schema(fields, SCHEMA)

    try:
        baseline: Baseline = read(content, Baseline, refuse=refuse)
        _check(baseline)
    except ContentError as error:
        if _CONFLICT.search(content):
            raise FileError(path, "holds an unresolved merge conflict", RESOLVE) from error
        raise error.of_file(path, RESTORE) from error
    return baseline


def _check(baseline: Baseline) -> None:
    """Checks fields against each other; raises ContentError."""
    for name, entry in baseline.sessions.items():
        if entry.fingerprint not in baseline.fingerprints:
            _fail(f"sessions[{name!r}].fingerprint", "one of the keys under fingerprints", entry.fingerprint)
    for case_id, record in baseline.cases.items():
        for i, epoch in enumerate(record.epochs):
            for j, session in enumerate(epoch.sessions):
                where = f"records[{case_id!r}].epochs[{i}].sessions[{j}]"
                if session.session not in baseline.sessions:
                    _fail(f"{where}.session", "one of the keys under sessions", session.session)
                for key, time in session.times.items():
                    if not time.low_ns <= time.median_ns <= time.high_ns:
                        values = [time.low_ns, time.median_ns, time.high_ns]
                        _fail(f"{where}.times[{key!r}]", "low_ns ≤ median_ns ≤ high_ns", values)
                    points = time.quantiles_ns
                    if points is not None and list(points) != sorted(points):
                        _fail(f"{where}.times[{key!r}].quantiles_ns", "ascending numbers", list(points))


def _fail(where: str, wanted: str, value: object) -> NoReturn:
    raise ContentError(f"expected {wanted}, found {bounded(repr(value), 60)}", where=where)


def render(baseline: Baseline) -> bytes:
    """Returns the file's content: sorted keys, and one line per measurement, kernel and fingerprint."""
    encoded = msgspec.json.encode(baseline, order="deterministic")
    return (_laid_out(msgspec.json.decode(encoded)) + "\n").encode()


_OPENED = frozenset({"epochs", "fingerprints", "kernels", "records", "sessions", "times"})
"""Containers that are never put on one line, however short, so that a new entry changes no other line."""


def _laid_out(value: Any, *, name: str = "", indent: str = "") -> str:
    """Returns a JSON value as text: on one line, unless something in it is never put on one."""
    opened = name in _OPENED or (isinstance(value, dict) and not _OPENED.isdisjoint(value))
    if not value or not isinstance(value, (dict, list)) or not opened:
        return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    inner, lines, flat = indent + " ", list[str](), list[str]()
    if isinstance(value, list):
        lines = [_laid_out(item, indent=inner) for item in value]
    for key, item in value.items() if isinstance(value, dict) else ():
        text = f"{msgspec.json.encode(key).decode()}: {_laid_out(item, name=key, indent=inner)}"
        if isinstance(item, (dict, list)):
            lines += [", ".join(flat)] if flat else []
            lines, flat = [*lines, text], []
        else:
            flat.append(text)
    lines += [", ".join(flat)] if flat else []
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"
