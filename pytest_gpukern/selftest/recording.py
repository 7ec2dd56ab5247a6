"""Holds what both self-tests measured and reads and writes its files: enough to compute every table again.

A file is one JSON object with a line for each session. A session is stored without values that are defaults.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pytest_gpukern.selftest.gate_kernels import PLANTED_SHARES, GateCase, gate_cases
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.untrusted_json import FileError, JsonError, ShapeError, built, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict

SCHEMA = 1
"""The version that this release writes. Raise it when a reader of the old one would misunderstand the new."""

SUITES_S = 180.0
"""Target for the wall time of all suites."""

_COMPUTED = ("range", "reached")
"""Properties of rows that the conclusions in a file hold besides the rows' fields."""


class RecordingError(FileError):
    """Says why the file of a self-test cannot be written or read: file, field and remedy."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Holds what one fresh process found.

    Attributes:
        default_timer: what `auto` chose.
        fallback: why it is not CUPTI, in words, or None.
        elapsed_s: time of the process without its start and end.
        problem: why the session failed, in words.
    """

    default_timer: str = ""
    fallback: str | None = None
    elapsed_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Holds a whole self-test of one device, with its sessions in the order of time.

    Attributes:
        file_kind: the `kind` that its file states, or None.
        gpukern: version of this package.
        created: when, as ISO 8601 with a time zone.
        fingerprint: device, driver, libraries and host; empty where there was no GPU.
        rivals: version of each other tool that is installed.
        asked_sessions: how many sessions there should be.
        elapsed_s: wall time of the sessions, process starts included.
        warnings: what was odd about the device before the first session, in words.
    """

    file_kind: ClassVar[str | None] = None

    gpukern: str
    created: str
    fingerprint: dict[str, Any] = field(default_factory=dict)
    rivals: dict[str, str] = field(default_factory=dict)
    asked_sessions: int = 0
    elapsed_s: float = 0.0
    sessions: tuple[Any, ...] = ()
    warnings: tuple[str, ...] = ()


# the timers; medians are those of a session


@dataclass(frozen=True)
class Spin:
    """Holds a timer's reading of a kernel that spins on the global timer and writes out its own time.

    Attributes:
        asked_ns: how long it was asked to spin.
        beyond_ns: the median over the samples of what the timer read beyond the kernel's own time.
    """

    asked_ns: float
    timer: str
    own_ns: float
    reading_ns: float
    beyond_ns: float


@dataclass(frozen=True)
class Node:
    """Holds the time of a call as a node of a CUDA graph, and by the default timer with a hot cache.

    Attributes:
        name: of the kernel; for a spin, `spin` and the nanoseconds asked for.
        node_ns: slope of the replay time over the number of nodes; None where it cannot be captured.
        reading_ns: the default timer's, or None.
        problem: why there is no number, in words.
    """

    name: str
    node_ns: float | None = None
    reading_ns: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Preparation:
    """Holds the time spent around measuring a kernel: on data, compilation and verification.

    Attributes:
        seconds: before measuring, in all.
        first_call_s: the part that the first launch took, which compiles and loads.
        recheck_s: verification afterwards; None where it was not measured.
        problem: why it could not be measured, or was wrong, in words.
    """

    kernel: str
    seconds: float | None = None
    first_call_s: float | None = None
    recheck_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Reading:
    """Holds a kernel's time by one timer, measured as the plugin measures a case.

    Attributes:
        invalid: why the plugin would refuse the number, in words.
        sm_mhz: the SM clock around the samples, or None.
        width_ns: of the median's 95 % interval; 0 if it was not recorded.
    """

    kernel: str
    cache: str
    timer: str
    median_ns: float
    samples: int
    invalid: str | None = None
    sm_mhz: float | None = None
    width_ns: float = 0.0


@dataclass(frozen=True)
class Wall:
    """Holds the wall time of measuring a kernel under one cache policy by all timers that `auto` uses."""

    kernel: str
    cache: str
    seconds: float


@dataclass(frozen=True)
class RivalReading:
    """Holds another tool's time of a kernel, and its cache policy; `problem` says why there is no number.

    `kernel` is empty if the problem is the tool's.
    """

    tool: str
    kernel: str
    cache: str
    median_ns: float | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimerSession(Session):
    """Holds what one fresh process found out about the timers.

    Attributes:
        ticks_ns: smallest difference that each timer can show.
        fixed_costs_ns: what each timer states that it reads for an empty kernel beyond that kernel's own
            time, with a hot cache; None for none or not known.
        truth_step_ns: smallest step seen between the spinning kernels' own times, or None.
        setup_s: making timers and observers, once per process: compiling their kernels, attaching CUPTI,
            opening NVML.
    """

    ticks_ns: dict[str, float] = field(default_factory=dict)
    fixed_costs_ns: dict[str, float | None] = field(default_factory=dict)
    truth_step_ns: float | None = None
    setup_s: float | None = None
    spins: tuple[Spin, ...] = ()
    nodes: tuple[Node, ...] = ()
    preparations: tuple[Preparation, ...] = ()
    readings: tuple[Reading, ...] = ()
    walls: tuple[Wall, ...] = ()
    rivals: tuple[RivalReading, ...] = ()


@dataclass(frozen=True)
class Suites:
    """Holds wall time and exit status of `gpukern validate` in a process of its own."""

    wall_s: float
    exit_status: int

    @property
    def reached(self) -> bool:
        """Returns whether they passed, and in time."""
        return self.exit_status == 0 and self.wall_s <= SUITES_S


@dataclass(frozen=True, kw_only=True)
class TimerRecording(Recording):
    """Holds a self-test of the timers; `suites` is None if they were left out."""

    sessions: tuple[TimerSession, ...] = ()
    suites: Suites | None = None


# the gate


@dataclass(frozen=True)
class GateReading:
    """Holds a case's time in one session.

    Attributes:
        case: its id.
        low_ns: lower bound of the median's 95 % interval.
        high_ns: upper bound.
        sm_mhz: the SM clock around the samples, or None.
        jitter_ns: what the timer adds to the spread of the median, as a standard deviation.
        invalid: why the plugin would refuse the number, in words.
    """

    case: str
    median_ns: float
    low_ns: float
    high_ns: float
    samples: int
    sm_mhz: float | None = None
    jitter_ns: float = 0.0
    invalid: str | None = None


@dataclass(frozen=True)
class NvbenchReading:
    """Holds a case's time by NVBench; `noise` is the relative standard deviation."""

    case: str
    mean_ns: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class GateSession(Session):
    """Holds what one fresh process measured for the gate to judge.

    Attributes:
        walls_ns: case → median of wall times from the launch until the device is idle.
        nvbench: what NVBench measured, in the sessions that ran it.
        left_out: case → why it cannot run here, in words.
        faults: case → what was wrong with its result, or why it could not be timed, in words.
        rivals: tool → why it measured nothing, in words.
    """

    readings: tuple[GateReading, ...] = ()
    walls_ns: dict[str, float] = field(default_factory=dict)
    nvbench: tuple[NvbenchReading, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    rivals: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GateRecording(Recording):
    """Holds a self-test of the gate; `no_gpu` says why there are no sessions."""

    file_kind: ClassVar[str | None] = "gate"

    sessions: tuple[GateSession, ...] = ()
    cases: tuple[GateCase, ...] = field(default_factory=gate_cases)
    no_gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class Conclusions:
    """Holds rows computed from a recording; `missing` says what should have been measured and was not."""

    missing: tuple[str, ...] = ()

    @property
    def verdicts(self) -> list[bool]:
        """Returns whether each target is reached; what is missing counts as not reached."""
        found = []
        for each in dataclasses.fields(self):
            rows = getattr(self, each.name)
            for row in rows if isinstance(rows, tuple) else (rows,):
                reached = getattr(row, "reached", None)
                found += [] if reached is None else [reached]
        return [*found, *(False for _ in self.missing)]

    @property
    def reached(self) -> bool:
        """Returns whether every target is reached."""
        return bool(self.verdicts) and all(self.verdicts)


def missing_sessions(recording: Recording) -> Iterator[str]:
    """Says which sessions are missing, and whether they cannot be compared."""
    for number, session in enumerate(recording.sessions, start=1):
        if session.problem is not None:
            yield f"session {number} failed: {session.problem}"
    if len(recording.sessions) < recording.asked_sessions:
        yield f"{len(recording.sessions)} of {recording.asked_sessions} sessions were run"
    timers = {session.default_timer for session in recording.sessions if session.problem is None}
    if len(timers) > 1:
        yield f"sessions chose different timers: {', '.join(sorted(timers))}"


SomeSession = TypeVar("SomeSession", bound=Session)
SomeRecording = TypeVar("SomeRecording", bound=Recording)
Shaped = TypeVar("Shaped")


# writing


def now() -> str:
    """Returns the time as a recording states it: ISO 8601 with a time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def write_recording(path: Path, recording: Recording, conclusions: Conclusions | None = None) -> None:
    """Writes a self-test, whole or not at all; folders that are missing are made.

    The conclusions are for those who do not want to compute, and are never read.

    Raises:
        RecordingError: it cannot be written; an old file is as it was.
    """
    named = {} if recording.file_kind is None else {"kind": recording.file_kind}
    data = {"schema": SCHEMA, **named, **dataclasses.asdict(recording), "conclusions": _shown(conclusions)}
    del data["sessions"]
    members = [f"{json.dumps(name)}: {_compact(value)}" for name, value in data.items()]
    sessions = ",\n".join(_compact(_sparse(session)) for session in recording.sessions)
    _write(path, "{" + ",\n".join([*members, f'"sessions": [\n{sessions}\n]']) + "}")


def write_session(path: Path, session: Session) -> None:
    """Writes what a child process found, or raises `RecordingError`."""
    _write(path, _compact(_sparse(session)))


def _write(path: Path, content: str) -> None:
    try:
        write_named(path, f"{content}\n", "--output")
    except FileError as error:
        raise RecordingError(path, error.problem, error.remedy) from error


def _sparse(value: Any) -> Any:
    """Returns a session as plain JSON without defaults."""
    if isinstance(value, tuple):
        return [_sparse(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fresh = {
        each.name: each.default_factory() if callable(each.default_factory) else each.default
        for each in dataclasses.fields(value)
    }
    found = {name: getattr(value, name) for name in fresh}
    return {name: _sparse(item) for name, item in found.items() if item != fresh[name]}


def _shown(value: Any) -> Any:
    """Returns rows as plain JSON, computed properties included; a float that is not finite is null."""
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
        names += [name for name in _COMPUTED if name not in names and hasattr(value, name)]
        return {name: _shown(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# reading


def read_recording(path: Path, kind: type[SomeRecording]) -> SomeRecording:
    """Reads a self-test of one kind, every field checked.

    Raises:
        RecordingError: the file is missing, damaged, of another kind or from a newer release.
    """
    data = _decoded(path)
    found, schema = data.pop("kind", None), data.pop("schema", None)
    if found != kind.file_kind:
        problem = f"is {found!r}, so this is not a self-test of the {kind.file_kind or 'timers'}"
        option = "--gate --output" if kind.file_kind else "--output"
        raise RecordingError(path, problem, f"Give a file that gpukern selftest {option} wrote", where="kind")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise _damaged(path, "schema", f"is {schema!r}, so this is not a self-test")
    if schema > SCHEMA:
        written_by = data.get("gpukern") or "a newer release"
        problem = f"is {schema}, written by {written_by}; this reads up to {SCHEMA}"
        raise RecordingError(path, problem, "Upgrade pytest-gpukern", where="schema")
    data.pop("conclusions", None)
    recording = _built(data, kind, path)
    for where, problem in _contradictions(recording):
        raise _damaged(path, where, problem)
    return recording


def read_session(path: Path, kind: type[SomeSession]) -> SomeSession:
    """Reads what a child process wrote, or raises `RecordingError`."""
    return _built(_decoded(path), kind, path)


def _contradictions(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yields field and problem of values that have the right shape but cannot be judged."""
    if not isinstance(recording.fingerprint.get("libraries", {}), dict):
        yield "fingerprint.libraries", "is not an object"
    if isinstance(recording, TimerRecording) and not recording.sessions:
        yield "sessions", "is empty: there is nothing to judge"
    if not isinstance(recording, GateRecording):
        return
    known = {case.id for case in recording.cases}
    for number, case in enumerate(recording.cases):
        if case.base and (case.base not in known or case.share not in PLANTED_SHARES):
            planted = ", ".join(map(str, PLANTED_SHARES))
            problem = f"has base {case.base!r}, not one of its cases, or a share other than {planted}"
            yield f"cases[{number}]", problem
    for number, session in enumerate(recording.sessions):
        for reading in session.readings:
            if reading.case not in known:
                yield f"sessions[{number}].readings", f"names {reading.case!r}, not one of its cases"
            if not 0 < reading.low_ns <= reading.median_ns <= reading.high_ns:
                problem = f"has {reading.case!r} with a median outside its interval, or not above 0"
                yield f"sessions[{number}].readings", problem


def _damaged(path: Path, where: str | None, problem: str) -> RecordingError:
    remedy = "Give a file of gpukern selftest --output, unchanged"
    return RecordingError(path, problem, remedy, where=where)


def _decoded(path: Path) -> JsonDict:
    """Returns the JSON object in a file."""
    try:
        data = decoded(path.read_bytes())
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise RecordingError(path, problem, "Check the path and its permissions") from error
    except JsonError as error:
        raise _damaged(path, None, str(error)) from error
    if not isinstance(data, dict):
        raise _damaged(path, None, f"holds {data!r:.40} instead of an object")
    return data


def _built(data: JsonDict, kind: type[Shaped], path: Path) -> Shaped:
    """Returns plain JSON as the dataclass `kind`, every field checked."""
    try:
        found: Shaped = built(data, kind)
    except ShapeError as error:
        raise _damaged(path, error.where, error.problem) from error
    return found
