"""Runs the sessions of a self-test one after another, each in a fresh process.

The parent pins and locks the device. A child takes the readings of one session and writes them to a file:
`python -m pytest_gpukern.selftest.processes timers|gate FILE NUMBER [rivals] [nvbench]`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.package import __version__
from pytest_gpukern.processes.child_sessions import last_lines
from pytest_gpukern.selftest.recording import (
    GateSession,
    RecordingError,
    Session,
    SomeRecording,
    SomeSession,
    Suites,
    TimerRecording,
    TimerSession,
    now,
    read_session,
    write_session,
)
from pytest_gpukern.selftest.session import run_gate_session, run_timer_session, session_environment
from pytest_gpukern.values.atomic_file import TemporaryFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SESSION_TIMEOUT_S = 600.0
_SUITES_TIMEOUT_S = 1800.0
_NVBENCH_EVERY = {TimerSession: 1, GateSession: 4}
_MOST_LOST = 3
"""Sessions that fail in a row before the self-test gives up."""
_RIVALS = ("triton", "torch", "cuda-bench", "cupy-cuda12x", "cupy-cuda13x", "pytest-benchmark")


class NoGpuError(Exception):
    """Says why there is no GPU to test."""


def run_selftest(
    kind: type[SomeRecording],
    *,
    sessions: int,
    rivals: bool,
    suites: bool,
    device: str | None,
    tell: Callable[[str], None],
    keep: Callable[[SomeRecording], None],
) -> SomeRecording:
    """Runs the sessions of a self-test on one device, which stays locked meanwhile.

    Args:
        kind: of self-test.
        sessions: fresh processes, one after another.
        rivals: whether other tools measure too.
        suites: whether the packaged suites run too; only in a self-test of the timers.
        device: which GPU, as in `--gpukern-device`; None for the first visible.
        tell: is given progress, line by line.
        keep: is given the recording so far after each session.

    Raises:
        NoGpuError: there is none.
        DeviceError: `device` or CUDA_VISIBLE_DEVICES fits no device.
    """
    environment = session_environment(device)
    try:
        if environment.gpu.missing_gpu is not None:
            raise NoGpuError(environment.gpu.missing_gpu)
        chosen, fingerprint = environment.gpu.device, environment.gpu.fingerprint
        tell(f"{chosen}, driver {fingerprint.driver_version}: {sessions} sessions")
        recording = kind(
            gpukern=__version__,
            created=now(),
            fingerprint=fingerprint.to_json(),
            rivals=_rival_versions(),
            asked_sessions=sessions,
            warnings=tuple(environment.gpu.warnings),
        )
        session_kind = TimerSession if kind is TimerRecording else GateSession
        with environment.gpu.exclusive():
            started = time.perf_counter()
            for session in _sessions(session_kind, sessions, rivals=rivals, tell=tell):
                found = (*recording.sessions, session)
                elapsed_s = round(time.perf_counter() - started, 1)
                recording = dataclasses.replace(recording, sessions=found, elapsed_s=elapsed_s)
                keep(recording)
            if suites and isinstance(recording, TimerRecording):
                recording = dataclasses.replace(recording, suites=_run_suites(tell))
        return recording
    finally:
        environment.gpu.close()


def _sessions(
    kind: type[SomeSession], count: int, *, rivals: bool, tell: Callable[[str], None]
) -> Iterator[SomeSession]:
    lost = 0
    with TemporaryFolder("selftest") as folder:
        for number in range(count):
            started = time.perf_counter()
            session = run_child(kind, Path(folder) / f"{number}.json", number, rivals=rivals)
            seconds = time.perf_counter() - started
            outcome = f"failed: {session.problem}" if session.problem else f"{seconds:.1f} s"
            tell(f"session {number + 1} of {count}: {outcome}")
            yield session
            lost = lost + 1 if session.problem else 0
            if lost >= _MOST_LOST:
                tell(f"{lost} sessions in a row failed: the others are not started")
                return


def child_command(kind: type[SomeSession], into: Path, number: int, *, rivals: bool) -> list[str]:
    """Returns the command of a process that takes the readings of session `number`, from 0, into a file."""
    nvbench = rivals and number % _NVBENCH_EVERY[kind] == 0
    others = [*(["rivals"] if rivals else []), *(["nvbench"] if nvbench else [])]
    what = "timers" if kind is TimerSession else "gate"
    return [sys.executable, "-m", "pytest_gpukern.selftest.processes", what, str(into), str(number), *others]


def run_child(
    kind: type[SomeSession],
    into: Path,
    number: int,
    *,
    rivals: bool,
    timeout_s: float = _SESSION_TIMEOUT_S,
) -> SomeSession:
    """Runs one session in a fresh process; if it fails, its `problem` says why.

    Only the file counts: once it is written, the process may end with any status.
    """
    status, said = _finished(child_command(kind, into, number, rivals=rivals), timeout_s)
    end = f"it was {said}" if status is None else f"it ended with status {status}: {last_lines(said)}"
    if not into.exists():
        return kind(problem=end)
    try:
        return read_session(into, kind)
    except RecordingError as error:
        return kind(problem=f"{error} ({end})")


def suites_command() -> list[str]:
    """Returns the command that checks and times the packaged suites, without looking at any baseline."""
    return [sys.executable, "-m", "pytest_gpukern", "validate", "-q", "--gpukern-baseline=off"]


def _run_suites(tell: Callable[[str], None]) -> Suites:
    """Runs all packaged suites, in a process of their own."""
    tell("running all suites")
    started = time.perf_counter()
    status, said = _finished(suites_command(), _SUITES_TIMEOUT_S)
    seconds = time.perf_counter() - started
    tell(f"suites: {seconds:.0f} s" if status == 0 else f"suites: {last_lines(said)}")
    return Suites(round(seconds, 1), -1 if status is None else status)


def _finished(command: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
    """Returns status and output of a process; None and a remark if it was stopped for taking too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"stopped after {timeout_s:g} s"
    return done.returncode, done.stdout


def _rival_versions() -> dict[str, str]:
    """Returns the version of each other tool that is installed."""
    found = {}
    for name in _RIVALS:
        try:
            found[name] = importlib.metadata.version(name) or "unknown"
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(arguments: Sequence[str]) -> None:
    """Takes the readings of one session on the device that the parent has pinned and locked."""
    what, into, number, *others = arguments
    rivals, nvbench = "rivals" in others, "nvbench" in others

    def save(session: Session) -> None:
        write_session(Path(into), session)

    if what == "timers":
        run_timer_session(rivals=rivals, nvbench=nvbench, save=save)
    else:
        run_gate_session(int(number), rivals=rivals, nvbench=nvbench, save=save)


if __name__ == "__main__":
    main(sys.argv[1:])
