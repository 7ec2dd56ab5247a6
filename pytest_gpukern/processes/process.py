"""A Python process of our own: started on a spec, ended with all that it started, and what its end says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from pytest_gpukern.processes.child_main import BOOTSTRAP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

TO_END_S = 10.0
"""What a process is given whose pytest is done, or that was asked to end."""
POLL_S = 0.05
_LAST_LINES = 3
_LAST_CHARACTERS = 500


def start(
    spec: Path,
    *,
    folder: str,
    environ: Mapping[str, str],
    output: Any,
    handed_on: Iterable[int] = (),
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts a child on the JSON file that says what it is to do, as the leader of a process group.

    Args:
        spec: see `child`.
        folder: the working folder.
        environ: all of its environment variables.
        output: open file that its output and errors go to; None for this process's own.
        handed_on: file descriptors that it inherits under their numbers.
        prefix: what stands before Python on the command line, such as a tool that watches it.
    """
    return subprocess.Popen(
        [*prefix, sys.executable, "-P", "-c", BOOTSTRAP, str(spec)],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output if output is None else subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(handed_on),
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a child and all that it started and left in its process group, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up_s = time.monotonic() + TO_END_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            while time.monotonic() < give_up_s:
                process.poll()  # a process that nobody has waited for stays in its group
                os.killpg(process.pid, 0)
                time.sleep(POLL_S)
            continue
        break
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a child that hangs, and its process group, at once: it has had its time."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_in_words(status: int) -> str:
    """How a process ended: `with status 3`, `by SIGSEGV`."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def last_lines(output: str) -> str:
    """The last lines of an output in one, or that there are none."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:] or "it said nothing"
