"""Runs the sessions of `gpukern selftest --gate` one after another, each in a fresh process."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.package import __version__
from pytest_gpukern.selftest.gate_kernels import gate_cases
from pytest_gpukern.selftest.gate_recording import GateRecording, GateSession, read_gate_session
from pytest_gpukern.selftest.processes import finished, last_lines, rival_versions
from pytest_gpukern.selftest.recording import RecordingError
from pytest_gpukern.selftest.session import session_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SESSION_TIMEOUT_S = 300.0
_NVBENCH_EVERY = 4
_MOST_LOST = 3
"""Sessions in a row that found nothing, after which it is no use to go on."""


def run_gate_sessions(
    *,
    sessions: int,
    rivals: bool,
    device: str | None,
    tell: Callable[[str], None],
    keep: Callable[[GateRecording], None],
) -> GateRecording:
    """Measures all cases in fresh processes on one device, which stays locked meanwhile.

    Args:
        sessions: how many processes, one after another.
        rivals: whether other tools measure too.
        device: which GPU, as in `--gpukern-device`; None for the first visible.
        tell: is told what happens, a line each.
        keep: is given what there is after each session.

    Returns:
        What they found; without a GPU a recording without sessions, which says why.

    Raises:
        DeviceError: `device` or CUDA_VISIBLE_DEVICES fits no device.
    """
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    environment = session_environment(device)
    try:
        if environment.missing_gpu is not None and device is None:
            missing = environment.missing_gpu
            return GateRecording(__version__, created, {}, {}, gate_cases(), 0, 0.0, (), no_gpu=missing)
        fingerprint = environment.fingerprint
        tell(f"{environment.device}, driver {fingerprint.driver_version}: {sessions} sessions")
        recording = GateRecording(
            gpukern=__version__,
            created=created,
            fingerprint=fingerprint.to_json(),
            rivals=rival_versions() if rivals else {},
            cases=gate_cases(),
            asked_sessions=sessions,
            elapsed_s=0.0,
            sessions=(),
            warnings=tuple(environment.warnings),
        )
        with environment.exclusive():
            started = time.perf_counter()
            for session in _sessions(sessions, rivals=rivals, tell=tell):
                recording = dataclasses.replace(
                    recording,
                    sessions=(*recording.sessions, session),
                    elapsed_s=round(time.perf_counter() - started, 1),
                )
                keep(recording)
        return recording
    finally:
        environment.close()


def _sessions(count: int, *, rivals: bool, tell: Callable[[str], None]) -> Iterator[GateSession]:
    lost = 0
    with tempfile.TemporaryDirectory(prefix="gpukern-gate-") as folder:
        for number in range(count):
            started = time.perf_counter()
            session = run_gate_child(Path(folder) / f"{number}.json", number, rivals=rivals)
            outcome = session.problem or f"{time.perf_counter() - started:.1f} s"
            tell(f"session {number + 1} of {count}: {outcome}")
            yield session
            lost = lost + 1 if session.problem else 0
            if lost >= _MOST_LOST:
                tell(f"{lost} sessions in a row found nothing: the others are not started")
                return


def gate_child_command(into: Path, number: int, *, rivals: bool) -> list[str]:
    """The command of a process that measures session `number`, from 0, and writes it to a file."""
    others = ["walls", *(["nvbench"] if number % _NVBENCH_EVERY == 0 else [])] if rivals else []
    return [sys.executable, "-m", "pytest_gpukern.selftest.gate_child", str(into), str(number), *others]


def run_gate_child(into: Path, number: int, *, rivals: bool) -> GateSession:
    """One session in a fresh process; where it found nothing, its `problem` says why.

    What counts is the file: a process that has written it may end as it likes.
    """
    status, said = finished(gate_child_command(into, number, rivals=rivals), _SESSION_TIMEOUT_S)
    end = f"it was {said}" if status is None else f"it ended with status {status}: {last_lines(said)}"
    if not into.exists():
        return GateSession(problem=end)
    try:
        return read_gate_session(into)
    except RecordingError as error:
        return GateSession(problem=f"{error} ({end})")
