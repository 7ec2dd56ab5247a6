"""Runs the sessions of a self-test one after another, each in a fresh process, and the suites in one more."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.package import __version__
from pytest_gpukern.selftest.recording import Recording, RecordingError, Session, Suites, read_session
from pytest_gpukern.selftest.session import session_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SESSION_TIMEOUT_S = 600.0
_SUITES_TIMEOUT_S = 1800.0
_RIVALS = ("triton", "torch", "cuda-bench", "cupy-cuda12x", "cupy-cuda13x", "pytest-benchmark")
_LAST_LINES = 3


class NoGpuError(Exception):
    """There is no GPU to test; the message says why."""


def run_selftest(
    *, sessions: int, rivals: bool, suites: bool, device: str | None, tell: Callable[[str], None]
) -> Recording:
    """Runs a whole self-test on one device, which stays locked meanwhile.

    Args:
        sessions: fresh processes, one after another.
        rivals: whether other tools are measured too.
        suites: whether the packaged suites run too.
        device: which GPU, as in `--gpukern-device`; None for the first visible.
        tell: is told what happens, a line each.

    Raises:
        NoGpuError: there is none.
        DeviceError: `device` or CUDA_VISIBLE_DEVICES fits no device.
    """
    environment = session_environment(device)
    try:
        if environment.missing_gpu is not None:
            raise NoGpuError(environment.missing_gpu)
        chosen = environment.device
        fingerprint = environment.fingerprint
        tell(f"{chosen}, driver {fingerprint.driver_version}: {sessions} sessions")
        created = datetime.now().astimezone().isoformat(timespec="seconds")
        with environment.exclusive():
            started = time.perf_counter()
            found = tuple(_sessions(sessions, rivals=rivals, tell=tell))
            elapsed_s = time.perf_counter() - started
            ran = _run_suites(tell) if suites else None
        return Recording(
            gpukern=__version__,
            created=created,
            fingerprint=fingerprint.to_json(),
            rivals=rival_versions(),
            asked_sessions=sessions,
            elapsed_s=round(elapsed_s, 1),
            sessions=found,
            suites=ran,
            warnings=tuple(environment.warnings),
        )
    finally:
        environment.close()


def _sessions(count: int, *, rivals: bool, tell: Callable[[str], None]) -> list[Session]:
    found = []
    with tempfile.TemporaryDirectory(prefix="gpukern-selftest-") as folder:
        for number in range(1, count + 1):
            started = time.perf_counter()
            session = run_child(Path(folder) / f"{number}.json", rivals=rivals)
            seconds = time.perf_counter() - started
            outcome = f"failed: {session.problem}" if session.problem else f"{seconds:.1f} s"
            tell(f"session {number} of {count}: {outcome}")
            found.append(session)
    return found


def child_command(into: Path, *, rivals: bool) -> list[str]:
    """The command of a process that takes the readings of one session and writes them to a file."""
    return [sys.executable, "-m", "pytest_gpukern.selftest.child", str(into), *(["rivals"] if rivals else [])]


def run_child(into: Path, *, rivals: bool, timeout_s: float = _SESSION_TIMEOUT_S) -> Session:
    """One session in a fresh process; where it found nothing, its `problem` says why.

    What counts is the file: a process that has written it may end as it likes.
    """
    status, said = finished(child_command(into, rivals=rivals), timeout_s)
    end = f"it was {said}" if status is None else f"it ended with status {status}: {last_lines(said)}"
    if not into.exists():
        return Session(problem=end)
    try:
        return read_session(into)
    except RecordingError as error:
        return Session(problem=f"{error} ({end})")


def suites_command() -> list[str]:
    """The command that checks and times the packaged suites, without looking at any baseline."""
    return [sys.executable, "-m", "pytest_gpukern", "validate", "-q", "--gpukern-baseline=off"]


def _run_suites(tell: Callable[[str], None]) -> Suites:
    tell("the suites whole")
    started = time.perf_counter()
    status, said = finished(suites_command(), _SUITES_TIMEOUT_S)
    seconds = time.perf_counter() - started
    tell(f"suites: {seconds:.0f} s" if status == 0 else f"suites: {last_lines(said)}")
    return Suites(round(seconds, 1), -1 if status is None else status)


def finished(command: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
    """Status and output of a process; None and what was done where it took too long."""
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
        return None, f"ended after {timeout_s:g} s"
    return done.returncode, done.stdout


def last_lines(output: str) -> str:
    """The end of what a process said, in one line."""
    lines: Sequence[str] = [line.strip() for line in output.strip().splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:])[-500:] or "it said nothing"


def rival_versions() -> dict[str, str]:
    """Version of each other tool that is installed."""
    found = {}
    for name in _RIVALS:
        try:
            found[name] = importlib.metadata.version(name) or "unknown"
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
