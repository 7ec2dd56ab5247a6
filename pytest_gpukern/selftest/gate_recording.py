"""What the sessions of `gpukern selftest --gate` measured, and its file: enough to judge all of it again."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.selftest.gate_kernels import PLANTED_SHARES, GateCase
from pytest_gpukern.selftest.recording import (
    CONCLUSIONS,
    RecordingError,
    built,
    check_schema,
    read_object,
    write_text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict

SCHEMA = 1
KIND = "gate"
_NO_GATE = "Give a file that gpukern selftest --gate --output wrote"


@dataclass(frozen=True)
class GateReading:
    """A case as one session measured it; times in nanoseconds.

    Attributes:
        case: its id.
        median_ns: of the samples.
        low_ns: lower bound of the median's 95 % interval.
        high_ns: upper bound.
        samples: how many.
        sm_mhz: the SM clock around them, or None.
        jitter_ns: what the timer adds to the spread of the median, as a standard deviation.
        timer: which measured it, where that is not the session's default; else empty.
        invalid: why the plugin would refuse the number, in words.
    """

    case: str
    median_ns: float
    low_ns: float
    high_ns: float
    samples: int
    sm_mhz: float | None = None
    jitter_ns: float = 0.0
    timer: str = ""
    invalid: str | None = None


@dataclass(frozen=True)
class NvbenchReading:
    """A case as NVBench measured it: the mean in nanoseconds, and its relative standard deviation."""

    case: str
    mean_ns: float
    noise: float


@dataclass(frozen=True)
class GateSession:
    """What one fresh process measured.

    Attributes:
        default_timer: what kernels are timed by.
        fallback: why that is not CUPTI, in words, or None.
        readings: one a case.
        walls_ns: case → median of wall times from the launch until the device is idle.
        nvbench: of the sessions that ran it.
        left_out: case → why it cannot run here, in words.
        faults: case → what was wrong with its result, or why it could not be timed, in words.
        rivals: tool → why it measured nothing, in words.
        elapsed_s: all of the process but its start and end.
        problem: why the session found nothing, in words.
    """

    default_timer: str = ""
    fallback: str | None = None
    readings: tuple[GateReading, ...] = ()
    walls_ns: dict[str, float] = field(default_factory=dict)
    nvbench: tuple[NvbenchReading, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    rivals: dict[str, str] = field(default_factory=dict)
    elapsed_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class GateRecording:
    """All sessions of one device, in the order of time.

    Attributes:
        gpukern: version of this package.
        created: when, as ISO 8601 with a time zone.
        fingerprint: device, driver, libraries and host; empty where there was no GPU.
        rivals: version of each other tool that is installed.
        cases: what was measured.
        asked_sessions: how many sessions there should be.
        elapsed_s: wall time of the sessions, process starts included.
        sessions: what each found.
        warnings: what was odd about the device before the first session, in words.
        no_gpu: why there are no sessions, in words, or None.
    """

    gpukern: str
    created: str
    fingerprint: dict[str, Any]
    rivals: dict[str, str]
    cases: tuple[GateCase, ...]
    asked_sessions: int
    elapsed_s: float
    sessions: tuple[GateSession, ...]
    warnings: tuple[str, ...] = ()
    no_gpu: str | None = None


def write_gate_recording(path: Path, recording: GateRecording, conclusions: JsonDict) -> None:
    """Writes the sessions, a line each, whole or not at all; what is concluded is for those who only look.

    Raises:
        RecordingError: it cannot be written.
    """
    head = {"schema": SCHEMA, "kind": KIND, **dataclasses.asdict(recording), CONCLUSIONS: conclusions}
    del head["sessions"]
    members = [f"{json.dumps(name)}: {_compact(value)}" for name, value in head.items()]
    sessions = ",\n".join(_compact(sparse(session)) for session in recording.sessions)
    write_text(path, "{" + ",\n".join([*members, f'"sessions": [\n{sessions}\n]']) + "}")


def read_gate_recording(path: Path) -> GateRecording:
    """Reads what `write_gate_recording` wrote, every field checked.

    Raises:
        RecordingError: the file is missing, damaged, of another kind or from a newer release.
    """
    data = read_object(path)
    kind = data.pop("kind", None)
    if kind != KIND:
        problem = f"is {kind!r}, so this is no self-test of the gate"
        raise RecordingError(path, problem, _NO_GATE, where="kind")
    check_schema(path, data.pop("schema", None), SCHEMA, data.get("gpukern"))
    data.pop(CONCLUSIONS, None)
    recording: GateRecording = built(data, GateRecording, path)
    _check_names(recording, path)
    for number, session in enumerate(recording.sessions):
        for reading in session.readings:
            if not 0 < reading.low_ns <= reading.median_ns <= reading.high_ns:
                problem = f"has {reading.case!r} with a median outside its interval, or not above 0"
                raise RecordingError(path, problem, where=f"sessions[{number}].readings")
    return recording


def _check_names(recording: GateRecording, path: Path) -> None:
    """Refuses a name of a case that is none of the recording's, and a share of work that nobody plants."""
    for number, case in enumerate(recording.cases):
        if case.base and case.share not in PLANTED_SHARES:
            problem = f"is {case.share!r}, none of {', '.join(map(str, PLANTED_SHARES))}"
            raise RecordingError(path, problem, where=f"cases[{number}].share")
    known = {case.id for case in recording.cases}
    named = [(f"cases[{number}].base", [case.base or case.id]) for number, case in enumerate(recording.cases)]
    for number, session in enumerate(recording.sessions):
        where = f"sessions[{number}]"
        named.append((f"{where}.readings", [reading.case for reading in session.readings]))
        named.append((f"{where}.walls_ns", list(session.walls_ns)))
        named.append((f"{where}.nvbench", [reading.case for reading in session.nvbench]))
    for where, names in named:
        for name in names:
            if name not in known:
                raise RecordingError(path, f"names {name!r}, none of its cases", where=where)


def read_gate_session(path: Path) -> GateSession:
    """Reads what a child process wrote.

    Raises:
        RecordingError: there is nothing, or it is not a session.
    """
    session: GateSession = built(read_object(path), GateSession, path)
    return session


def sparse(session: GateSession) -> JsonDict:
    """A session as plain JSON without what is as it is by default."""
    return _sparse(session)  # type: ignore[no-any-return]


def _sparse(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_sparse(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fresh = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(value)
    }
    found = {name: getattr(value, name) for name in fresh}
    return {name: _sparse(item) for name, item in found.items() if item != fresh[name]}


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
