"""The baseline file: versioned JSON, read with every field checked and written for review in a diff."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_gpukern.baseline.record import (
    QUANTILES,
    RESTORE,
    Baseline,
    BaselineError,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedKernel,
    RecordedSession,
    RecordedTime,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpukern.result import JsonDict

SCHEMA = 1
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new."""

MIGRATIONS: dict[int, Callable[[JsonDict], JsonDict]] = {}
"""Version n → function from a file's content of version n to one of version n + 1."""

_LINE = 210  # without its indent: a measurement fits, so that a diff shows old and new below each other
_DEEPEST = 50  # levels of nesting; the schema itself needs ten


def load(path: Path) -> Baseline:
    """Reads and checks a baseline file; raises BaselineError with file, field and remedy."""
    try:
        content = path.read_bytes()
    except OSError as error:
        remedy = "Check the path and its permissions"
        raise BaselineError(path, f"cannot be read: {error.strerror}", remedy) from error
    return parse(content, path)


def parse(content: bytes, path: Path) -> Baseline:
    """Checks the content of a baseline file; `path` is for messages only.

    Every known field is checked, and required unless it has a default. Unknown ones are kept. Numbers are
    finite, keys are unique.
    """
    try:
        data = _decoded(content, path)
    except RecursionError as error:
        raise BaselineError(path, "is nested too deeply", RESTORE) from error
    if _deep(data):
        raise BaselineError(path, "is nested too deeply", RESTORE)
    return _baseline(_Node(_migrated(data, path), path))


def render(baseline: Baseline) -> bytes:
    """The file's content: sorted keys, two spaces a level, what fits on one line on one line."""
    return (_layout({"schema": SCHEMA, **baseline.to_json()}, 0) + "\n").encode()


def _layout(value: object, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    if not value or not isinstance(value, (dict, list)) or (depth > 0 and len(flat) <= _LINE):
        return flat
    if isinstance(value, list):
        opening, closing = "[]"
        lines = [_layout(item, depth + 1) for item in value]
    else:
        opening, closing = "{}"
        lines = [
            f"{json.dumps(name, ensure_ascii=False)}: {_layout(value[name], depth + 1)}"
            for name in sorted(value)
        ]
    indent = "\n" + "  " * (depth + 1)
    return opening + indent + ("," + indent).join(lines) + "\n" + "  " * depth + closing


def _decoded(content: bytes, path: Path) -> Any:
    def fail(problem: str) -> NoReturn:
        raise BaselineError(path, problem, RESTORE)

    def constant(token: str) -> NoReturn:
        fail(f"holds {token}, which is no JSON number")

    def number(token: str) -> float:
        value = float(token)
        return value if math.isfinite(value) else fail(f"holds the number {token}, which is out of range")

    def members(pairs: list[tuple[str, Any]]) -> JsonDict:
        result: JsonDict = {}
        for name, value in pairs:
            if name in result:
                fail(f"holds the key {name!r} twice in one object")
            result[name] = value
        return result

    if not content.strip():
        fail("is empty")
    try:
        text = content.decode()
        value = json.loads(text, object_pairs_hook=members, parse_constant=constant, parse_float=number)
        json.dumps(value, ensure_ascii=False).encode()  # an escaped half of a surrogate pair
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise BaselineError(path, f"is not UTF-8 text: {error.reason}", RESTORE) from error
    except json.JSONDecodeError as error:
        problem = f"is no complete JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        raise BaselineError(path, problem, RESTORE) from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise BaselineError(path, f"holds an impossible number: {error}", RESTORE) from error
    return value


def _deep(value: Any) -> bool:
    """Whether a value is nested deeper than `render`, which is recursive, should have to follow."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


def _migrated(content: Any, path: Path) -> JsonDict:
    """Brings a file of an older schema to the present one, a version at a time."""
    root = _Node(content, path)
    version = root["schema"].integer(at_least=0)
    data = root.mapping()
    if version > SCHEMA:
        raise BaselineError(
            path,
            f"written by a newer pytest-gpukern (schema {version}, this one reads {SCHEMA})",
            "Upgrade pytest-gpukern, or compare with --gpukern-baseline-dir on files that this one wrote",
            where="schema",
        )
    while version < SCHEMA:
        migrate = MIGRATIONS.get(version)
        if migrate is None:
            problem = f"schema {version} is unknown; this pytest-gpukern reads {SCHEMA}"
            raise BaselineError(path, problem, RESTORE, where="schema")
        try:
            data = migrate(data)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"damaged content of schema {version}: {type(error).__name__}: {error}"
            raise BaselineError(path, problem, RESTORE) from error
        version += 1
    return {**data, "schema": version}


def _baseline(root: _Node) -> Baseline:
    fingerprints = {name: node.mapping() for name, node in root["fingerprints"].members()}
    return Baseline(
        problem=root["problem"].text(),
        device_model=root["device_model"].text(),
        fingerprints=fingerprints,
        cases={name: _record(node, fingerprints) for name, node in root["cases"].members()},
        extra=root.others("schema", "problem", "device_model", "fingerprints", "cases"),
    )


def _record(node: _Node, fingerprints: dict[str, JsonDict]) -> Record:
    return Record(
        point=node["point"].mapping(),
        epochs=tuple(_epoch(epoch, fingerprints) for epoch in node["epochs"].items()),
        extra=node.others("point", "epochs"),
    )


def _epoch(node: _Node, fingerprints: dict[str, JsonDict]) -> Epoch:
    return Epoch(
        opened=node["opened"].time(),
        reason=None if node["reason"].value is None else node["reason"].text(),
        problem_version=node["problem_version"].integer(at_least=0),
        measured_point=node["measured_point"].mapping(),
        sessions=tuple(_session(session, fingerprints) for session in node["sessions"].items()),
        extra=node.others("opened", "reason", "problem_version", "measured_point", "sessions"),
    )


def _session(node: _Node, fingerprints: dict[str, JsonDict]) -> RecordedSession:
    fingerprint = node["fingerprint"].text()
    if fingerprint not in fingerprints:
        node["fingerprint"].fail("one of the keys under fingerprints")
    measurements = {key: _time(time, key) for key, time in node["measurements"].members()}
    if not measurements:
        node["measurements"].fail("at least one measurement")
    return RecordedSession(
        recorded=node["recorded"].time(),
        fingerprint=fingerprint,
        first_call_ns=node["first_call_ns"].optional_number(),
        correctness={name: _accuracy(output) for name, output in node["correctness"].members()},
        measurements=measurements,
        compile_ns=node.optional("compile_ns").optional_number(),
        kernels=tuple(_kernel(kernel) for kernel in node.optional("kernels").optional_items()),
        extra=node.others(*(each.name for each in fields(RecordedSession))),
    )


def _kernel(node: _Node) -> RecordedKernel:
    code = node.optional("machine_code_sha256")
    return RecordedKernel(
        name=node["name"].text(),
        registers=node["registers"].integer(at_least=0),
        local_bytes=node["local_bytes"].integer(at_least=0),
        shared_bytes=node["shared_bytes"].integer(at_least=0),
        machine_code_sha256=None if code.value is None else code.text(),
        spill_store_bytes=node.optional("spill_store_bytes").optional_integer(at_least=0),
        spill_load_bytes=node.optional("spill_load_bytes").optional_integer(at_least=0),
        extra=node.others(*(each.name for each in fields(RecordedKernel))),
    )


def _accuracy(node: _Node) -> OutputAccuracy:
    return OutputAccuracy(
        max_abs=node["max_abs"].optional_number(),
        max_rel=node["max_rel"].optional_number(),
        max_ulp=node["max_ulp"].optional_number(),
        extra=node.others("max_abs", "max_rel", "max_ulp"),
    )


def _time(node: _Node, key: str) -> RecordedTime:
    if key.count("/") != 2 or not all(key.split("/")):
        node.fail("a key of the form scope/timer/cache", found=key)
    names = ("low_ns", "median_ns", "high_ns")
    low, median, high = (node[name].number() for name in names)
    if median <= 0:
        node["median_ns"].fail("a positive number")
    if not low <= median <= high:
        node.fail("low_ns ≤ median_ns ≤ high_ns", found=[low, median, high])
    points = tuple(item.number() for item in node["quantiles_ns"].items())
    if len(points) != len(QUANTILES) or list(points) != sorted(points):
        node["quantiles_ns"].fail(f"{len(QUANTILES)} numbers in ascending order")
    return RecordedTime(
        median_ns=median,
        low_ns=low,
        high_ns=high,
        n=node["n"].integer(at_least=1),
        quantiles_ns=points,
        fixed_cost_ns=node.optional("fixed_cost_ns").optional_number(),
        sm_mhz=node.optional("sm_mhz").optional_number(),
        memory_mhz=node.optional("memory_mhz").optional_number(),
        extra=node.others(*(each.name for each in fields(RecordedTime))),
    )


@dataclass(frozen=True)
class _Node:
    """A value in the file and the way to it, for messages."""

    value: Any
    path: Path
    where: str = ""

    def __getitem__(self, name: str) -> _Node:
        where = f"{self.where}.{name}" if self.where else name
        mapping = self.mapping()
        if name not in mapping:
            raise BaselineError(self.path, "is missing", RESTORE, where=where)
        return _Node(mapping[name], self.path, where)

    def optional(self, name: str) -> _Node:
        """The member, or None in its place."""
        where = f"{self.where}.{name}" if self.where else name
        return _Node(self.mapping().get(name), self.path, where)

    def fail(self, expected: str, *, found: object = None) -> NoReturn:
        text = repr(self.value if found is None else found)
        text = text if len(text) <= 60 else text[:57] + "…"
        problem = f"expected {expected}, found {text}"
        raise BaselineError(self.path, problem, RESTORE, where=self.where or None)

    def mapping(self) -> JsonDict:
        return self.value if isinstance(self.value, dict) else self.fail("an object")

    def members(self) -> list[tuple[str, _Node]]:
        return [
            (name, _Node(value, self.path, f"{self.where}[{name!r}]"))
            for name, value in self.mapping().items()
        ]

    def items(self) -> list[_Node]:
        if not isinstance(self.value, list) or not self.value:
            self.fail("a list with at least one entry")
        return [_Node(item, self.path, f"{self.where}[{i}]") for i, item in enumerate(self.value)]

    def optional_items(self) -> list[_Node]:
        return [] if self.value is None else self.items()

    def others(self, *known: str) -> JsonDict:
        return {name: value for name, value in self.mapping().items() if name not in known}

    def text(self) -> str:
        return self.value if isinstance(self.value, str) and self.value else self.fail("a text")

    def time(self) -> str:
        text = self.text()
        try:
            aware = datetime.fromisoformat(text).tzinfo is not None
        except ValueError:
            aware = False
        return text if aware else self.fail("a time such as 2026-11-20T10:00:00Z")

    def integer(self, *, at_least: int) -> int:
        fine = isinstance(self.value, int) and not isinstance(self.value, bool) and self.value >= at_least
        return int(self.value) if fine else self.fail(f"a whole number of at least {at_least}")

    def optional_integer(self, *, at_least: int) -> int | None:
        return None if self.value is None else self.integer(at_least=at_least)

    def number(self) -> float:
        """A finite number that is not negative."""
        if not isinstance(self.value, (int, float)) or isinstance(self.value, bool) or self.value < 0:
            self.fail("a number that is not negative")
        try:
            return float(self.value)
        except OverflowError:
            self.fail("a number in range")

    def optional_number(self) -> float | None:
        return None if self.value is None else self.number()
