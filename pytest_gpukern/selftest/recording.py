"""The raw readings of a self-test, and their file: enough to compute every row of the table again."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.values.atomic_file import replace
from pytest_gpukern.values.untrusted_json import FileError, JsonError, ShapeError, check_shape, decoded

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict

SCHEMA = 1
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new."""

CONCLUSIONS = "conclusions"
"""Member of the file for those who do not want to compute: it is written and never read."""

_DAMAGED = "Give a file that gpukern selftest --output wrote, as it was written"


class RecordingError(FileError):
    """The file of a self-test cannot be written or read; the message names file, field and remedy."""

    def __init__(self, path: Path, problem: str, remedy: str = _DAMAGED, *, where: str | None = None) -> None:
        super().__init__(path, problem, remedy, where=where)


@dataclass(frozen=True)
class Spin:
    """A kernel that spins on the global timer and writes out for how long, read by a timer.

    Attributes:
        asked_ns: how long it was asked to spin.
        timer: which read it.
        own_ns: the median of its own times.
        reading_ns: the median of the timer's samples.
        beyond_ns: the median over the samples of what the timer read beyond the kernel's own time.
    """

    asked_ns: float
    timer: str
    own_ns: float
    reading_ns: float
    beyond_ns: float


@dataclass(frozen=True)
class Node:
    """A call as a node of a CUDA graph, and the same call read by the default timer with a hot cache.

    Attributes:
        name: of the kernel; of a spin, `spin` followed by the nanoseconds asked for.
        node_ns: slope of the replay time over the number of nodes; None where it cannot be captured.
        reading_ns: the median of the default timer's samples, or None.
        problem: why there is no number, in words.
    """

    name: str
    node_ns: float | None = None
    reading_ns: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Preparation:
    """What came before a kernel was measured: data, compilation and verification.

    Attributes:
        kernel: which.
        seconds: all of it.
        first_call_s: of this the first launch, which compiles and loads.
        recheck_s: verification again, after it was measured; None where it was not.
        problem: why it could not be measured, or was wrong, in words.
    """

    kernel: str
    seconds: float | None = None
    first_call_s: float | None = None
    recheck_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Reading:
    """A kernel as the plugin measures a case, by one timer.

    Attributes:
        kernel: which.
        cache: `cold` or `hot`.
        timer: which.
        median_ns: of the session.
        samples: how many.
        invalid: why the plugin would refuse the number, in words.
    """

    kernel: str
    cache: str
    timer: str
    median_ns: float
    samples: int
    invalid: str | None = None


@dataclass(frozen=True)
class Wall:
    """Wall time of measuring a kernel under one cache policy, by all the timers that `auto` uses."""

    kernel: str
    cache: str
    seconds: float


@dataclass(frozen=True)
class RivalReading:
    """A kernel by another tool.

    Attributes:
        tool: which.
        kernel: which; empty where `problem` is about the tool.
        cache: what the tool does about the cache: `cold` or `hot`.
        median_ns: of the session, or None.
        problem: why there is no number, in words.
    """

    tool: str
    kernel: str
    cache: str
    median_ns: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Session:
    """What one fresh process found.

    Attributes:
        default_timer: what `auto` chose.
        fallback: why it is not CUPTI, in words, or None.
        ticks_ns: smallest difference that each timer can show.
        fixed_costs_ns: what each timer says that it reads for an empty kernel beyond that kernel's own
            time, with a hot cache; None for none or not known.
        truth_step_ns: smallest step seen between the spinning kernels' own times, or None.
        setup_s: making the timers and what looks at the device, once a process: compiling their kernels,
            attaching CUPTI, opening NVML.
        elapsed_s: all of the process but its start and end.
        spins: kernels of known time.
        nodes: slopes of graphs.
        preparations: one a kernel.
        readings: one a kernel, cache policy and timer.
        walls: one a kernel and cache policy.
        rivals: one a tool and kernel.
        problem: why the session found nothing, in words.
    """

    default_timer: str = ""
    fallback: str | None = None
    ticks_ns: dict[str, float] = field(default_factory=dict)
    fixed_costs_ns: dict[str, float | None] = field(default_factory=dict)
    truth_step_ns: float | None = None
    setup_s: float | None = None
    elapsed_s: float | None = None
    spins: tuple[Spin, ...] = ()
    nodes: tuple[Node, ...] = ()
    preparations: tuple[Preparation, ...] = ()
    readings: tuple[Reading, ...] = ()
    walls: tuple[Wall, ...] = ()
    rivals: tuple[RivalReading, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Suites:
    """`gpukern validate` in a process of its own: wall time from start to end, and exit status."""

    wall_s: float
    exit_status: int


@dataclass(frozen=True)
class Recording:
    """A whole self-test.

    Attributes:
        gpukern: version of this package.
        created: when, as ISO 8601 with a time zone.
        fingerprint: device, driver, libraries and host; see `device.Fingerprint`.
        rivals: version of each other tool that is installed.
        asked_sessions: how many sessions there should be.
        elapsed_s: wall time of the sessions, process starts included, without the suites.
        sessions: what each found.
        suites: None where they were left out.
        warnings: what was odd about the device before the first session, in words.
    """

    gpukern: str
    created: str
    fingerprint: dict[str, Any]
    rivals: dict[str, str]
    asked_sessions: int
    elapsed_s: float
    sessions: tuple[Session, ...]
    suites: Suites | None = None
    warnings: tuple[str, ...] = ()


def write_recording(path: Path, recording: Recording, conclusions: JsonDict) -> None:
    """Writes a self-test, whole or not at all; folders that are missing are made.

    Args:
        path: the file, which is replaced if it is there.
        recording: the raw readings.
        conclusions: what was computed from them, as plain JSON.

    Raises:
        RecordingError: it cannot be written; an old file is as it was.
    """
    data = {"schema": SCHEMA, **dataclasses.asdict(recording), CONCLUSIONS: conclusions}
    write_json(path, data)


def write_json(path: Path, data: object) -> None:
    """Writes plain JSON, whole or not at all.

    Raises:
        RecordingError: it cannot be written.
    """
    write_text(path, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1))


def write_text(path: Path, content: str) -> None:
    """Writes lines, whole or not at all; folders that are missing are made.

    Raises:
        RecordingError: it cannot be written.
    """
    remedy = "Check permissions and free space, or choose another file with --output"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, f"{content}\n".encode())
    except FileError as error:
        raise RecordingError(path, error.problem, remedy) from error
    except OSError as error:
        raise RecordingError(path, f"cannot be written: {error.strerror or error}", remedy) from error


def read_recording(path: Path) -> Recording:
    """Reads a self-test, every field checked.

    Raises:
        RecordingError: the file is missing, damaged, no self-test or from a newer release.
    """
    data = read_object(path)
    check_schema(path, data.pop("schema", None), SCHEMA, data.get("gpukern"))
    data.pop(CONCLUSIONS, None)
    recording: Recording = built(data, Recording, path)
    if not recording.sessions:
        raise RecordingError(path, "is empty: there is nothing to judge", where="sessions")
    return recording


def read_session(path: Path) -> Session:
    """Reads what a child process wrote.

    Raises:
        RecordingError: there is nothing, or it is not a session.
    """
    session: Session = built(read_object(path), Session, path)
    return session


def check_schema(path: Path, schema: object, newest: int, written_by: object) -> None:
    """Refuses a version of a self-test's file that is none, or newer than this release.

    Raises:
        RecordingError: with what to do.
    """
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RecordingError(path, f"is {schema!r}, so this is no self-test", where="schema")
    if schema > newest:
        problem = f"is {schema}, written by {written_by or 'a newer release'}; this reads up to {newest}"
        raise RecordingError(path, problem, "Upgrade pytest-gpukern", where="schema")


def read_object(path: Path) -> JsonDict:
    """The JSON object in a file.

    Raises:
        RecordingError: it cannot be read, or holds something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise RecordingError(path, problem, "Check the path and its permissions") from error
    try:
        data = decoded(content)
    except JsonError as error:
        raise RecordingError(path, str(error)) from error
    if not isinstance(data, dict):
        raise RecordingError(path, f"holds {data!r:.40} instead of an object")
    return data


def built(data: JsonDict, kind: Any, path: Path) -> Any:
    """Plain JSON as the dataclass `kind`, every field checked.

    Raises:
        RecordingError: it has another shape; names the field.
    """
    try:
        check_shape(data, kind, "", null_floats=False)
        return _built(data, kind)
    except ShapeError as error:
        raise RecordingError(path, error.problem, where=error.where.lstrip(".")) from error


def _built(value: Any, kind: Any) -> Any:
    """Plain JSON that has the shape of `kind`, as that."""
    arguments = typing.get_args(kind)
    if value is None:
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{name: _built(item, hints[name]) for name, item in value.items()})
    if typing.get_origin(kind) is tuple:
        return tuple(_built(item, arguments[0]) for item in value)
    inner = [part for part in arguments if dataclasses.is_dataclass(part)]
    return _built(value, inner[0]) if inner else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
