"""Starts a process that runs tests for this one, hears it, and ends it with all that it started.

What runs there is `session/child.py`. Each process leads a process group, and it ends with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from pytest_gpukern.gpu.lock import HostTurns
from pytest_gpukern.gpu.processes import group_is_alive
from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes import messages
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE

BOOTSTRAP = (
    "import json, sys; start = json.loads(sys.argv[1]); "
    "sys.path[:] = [start['package'], *start['path']]; "
    "from pytest_gpukern.session.child import main; main(start)"
)
"""Code for Python to run, followed by what it is told. `-m` would prefer a package of this name in the
working folder, but we measure the tests of another revision with this one's code."""
STACKS_SIGNAL = signal.SIGUSR1
"""The signal that writes every thread's stack to a file, whatever the process does."""

TO_END_S = 10.0
"""Time to end, for a process that was asked to."""
POLL_S = 0.05
_START_TIMEOUT_S = 600.0
_LOOK_S = 1.0
_TO_WRITE_STACKS_S = 2.0
TO_TEAR_DOWN_S = 60.0
_TO_BE_INTERRUPTED_S = 5.0
_MOST_CHARACTERS = 4000
_LAST_LINES = 3
_LAST_CHARACTERS = 500
_CRASH = "Fatal Python error"
_WITH_PARENT = (
    "import ctypes, os, sys; parent, ctype, *command = sys.argv[1:]; "
    "ctype or os.environ.pop('LC_CTYPE', None); "  # which Python sets where the locale is C
    "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "  # PR_SET_PDEATHSIG, SIGKILL
    "os.getppid() == int(parent) and os.execvp(command[0], command)"  # else the parent has ended before
)

Hear = Callable[[messages.Message], None]
Awaited = TypeVar("Awaited", bound=messages.Message)


@dataclass(frozen=True)
class Gone:
    """Says why a process is no longer there (`ended by SIGSEGV`), and its last output or its stacks."""

    why: str
    shown: str = ""


class Process:
    """Controls a process that runs tests one at a time, as it is asked to.

    Until `begin`, it only imports what `imports` names. If its variables name the folder of a run, it does so
    while nobody of that run times anything on the host. It ends with the thread that makes this.

    Args:
        path: its `sys.path` while it starts.
        environ: all of its environment variables.
        prefix: what comes before Python on the command line, such as a tool that watches it.
        shows_output: whether it prints to this process's terminal.
    """

    def __init__(
        self,
        *,
        path: Sequence[str],
        folder: str,
        environ: Mapping[str, str],
        prefix: Sequence[str] = (),
        shows_output: bool = False,
    ) -> None:
        self._folder = TemporaryFolder("session")
        self.place = Path(self._folder.name)
        self._output, self._stacks = self.place / "output", self.place / "stacks"
        self._read_from = 0
        self._connection, theirs = Pipe()
        run_folder = environ.get(RUN_FOLDER_VARIABLE)
        # A tool would keep the lock for as long as it runs.
        busy = HostTurns(Path(run_folder)).busy_from_its_start() if run_folder and not prefix else None
        start = {
            "package": str(FOLDER.parent),
            "path": list(path),
            "connection": theirs.fileno(),
            "asked_by": os.getpid(),
            "under_tool": bool(prefix),
            "busy": busy,
        }
        try:
            with self._output.open("ab") as output:
                self._process = started_with_us(
                    [*prefix, sys.executable, "-P", "-c", BOOTSTRAP, json.dumps(start)],
                    environ,
                    None if shows_output else output,
                    folder=folder,
                    pass_fds=[fd for fd in (theirs.fileno(), busy) if fd is not None],
                )
        except BaseException:
            self._folder.cleanup()
            raise
        finally:
            theirs.close()
            if busy is not None:
                os.close(busy)
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def said(self) -> str:
        """Returns what it has printed so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def imports(self, module: str) -> None:
        self._send(messages.Import(module))

    def begin(self, begin: messages.Begin) -> None:
        """Has it collect."""
        self._send(msgspec.structs.replace(begin, terminal=str(self._output), stacks=str(self._stacks)))

    def collected(self, hear: Hear) -> messages.Collected | Gone:
        """Waits until it has collected; earlier messages go to `hear`."""
        slow = f"took over {_START_TIMEOUT_S:g} s to collect"
        return self._listen(messages.Collected, hear, _START_TIMEOUT_S, slow)

    def run(
        self, wanted: messages.RunTest, hear: Hear, *, timeout_s: float | None, too_long: str = ""
    ) -> messages.Done | Gone:
        """Runs one test, and waits for its end; waiting for the device does not count against `timeout_s`.

        `too_long` is the reason given if it takes longer.
        """
        self._read_from = self._output.stat().st_size
        self._send(wanted)
        return self._listen(messages.Done, hear, timeout_s, too_long)

    def end(self, hear: Hear) -> messages.TornDown | Gone:
        """Lets it tear down and end, and waits until it is torn down; kills it if that takes too long."""
        self._read_from = self._output.stat().st_size
        self._send(messages.End())
        return self._listen(messages.TornDown, hear, TO_TEAR_DOWN_S, f"took longer than {TO_TEAR_DOWN_S:g} s")

    def status(self, timeout_s: float) -> int | None:
        """Waits for its end, and heeds no message.

        Returns its exit status, negative for a signal, or None if it takes too long.
        """
        give_up_s = time.monotonic() + timeout_s
        while not self.has_ended and time.monotonic() < give_up_s:
            with contextlib.suppress(EOFError, OSError):
                if self._connection.poll(POLL_S):
                    self._connection.recv_bytes()
                    continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
        return self._process.poll()

    def interrupt(self) -> None:
        """Interrupts its test, so that fixtures are torn down; waits seconds for its end."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGINT)
        self.status(_TO_BE_INTERRUPTED_S)

    def kill(self) -> None:
        """Ends it at once, with all that it started."""
        if self.has_ended:
            end_group(self._process)  # what it left in its group
        else:
            kill_group(self._process)
        self._connection.close()
        self._folder.cleanup()

    def _send(self, message: messages.Message) -> None:
        with contextlib.suppress(OSError):  # it has ended, which whoever listens finds out
            self._connection.send_bytes(messages.encoded(message))

    def _listen(
        self, until: type[Awaited], hear: Hear, timeout_s: float | None, too_long: str
    ) -> Awaited | Gone:
        """Handles messages up to the first of a kind, and returns that.

        Messages that have come count even if the time is over: this process may have been suspended.
        """
        clock = _Clock()
        while True:
            left_s = _LOOK_S if timeout_s is None else timeout_s - clock.passed_s
            try:
                ended = self.has_ended  # its own child may hold the connection open
                if not self._connection.poll(0.0 if ended else max(0.0, min(_LOOK_S, left_s))):
                    if ended:
                        return self._ended()
                    if left_s <= 0.0:
                        return self._hung(too_long)
                    continue
                message = messages.FROM_CHILD.decode(self._connection.recv_bytes())
            except (EOFError, OSError):
                return self._ended()
            except (msgspec.MsgspecError, MemoryError) as error:  # MemoryError: the length made no sense
                return Gone(f"sent a message that cannot be read ({error})", self._shown())
            if isinstance(message, until):
                return message
            clock.hear(message)
            hear(message)

    def _ended(self) -> Gone:
        status = self.status(TO_TEAR_DOWN_S)
        why = "closed its connection" if status is None else f"ended {end_in_words(status)}"
        return Gone(why, self._shown())

    def _hung(self, why: str) -> Gone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACKS_SIGNAL)
        give_up_s = time.monotonic() + _TO_WRITE_STACKS_S
        before, written = -1, 0
        while time.monotonic() < give_up_s and not written == before > 0:
            time.sleep(0.1)
            before, written = written, self._stacks.stat().st_size if self._stacks.exists() else 0
        stacks = self._stacks.read_text(encoding="utf-8", errors="replace") if written else ""
        kill_group(self._process)
        return Gone(why, stacks[:_MOST_CHARACTERS] or self._shown())

    def _shown(self) -> str:
        """Returns its output since the last test began, from the crash message if there is one."""
        with self._output.open("rb") as output:
            output.seek(self._read_from)
            text = output.read().decode("utf-8", errors="replace").strip()
        crash = text.find(_CRASH)  # the innermost frames come next
        return text[crash : crash + _MOST_CHARACTERS] if crash >= 0 else text[-_MOST_CHARACTERS:]


class _Clock:
    """Counts the time in which the other process did not wait for something else."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._before_s = 0.0
        self._waits = 0

    @property
    def passed_s(self) -> float:
        return self._before_s + (0.0 if self._waits else time.monotonic() - self._since_s)

    def hear(self, message: messages.Message) -> None:
        """Handles `Paused` and `Resumed`, which may be nested."""
        if isinstance(message, messages.Paused):
            self._before_s = self.passed_s
            self._waits += 1
        elif isinstance(message, messages.Resumed):
            self._waits -= 1
            self._since_s = time.monotonic()


def started_with_us(
    command: Sequence[str],
    environ: Mapping[str, str],
    output: IO[bytes] | None,
    *,
    folder: str | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a command that writes to a file, or to our own output, and leads a process group.

    Call it in a thread that waits for the command. The kernel ends it with that thread (Linux), also if this
    process is killed.
    """
    return subprocess.Popen(
        [sys.executable, "-ISc", _WITH_PARENT, str(os.getpid()), environ.get("LC_CTYPE", ""), *command],
        cwd=folder,
        env=dict(environ),
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started and left in its process group, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second also ends what has hidden from our look
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        give_up_s = time.monotonic() + TO_END_S
        while time.monotonic() < give_up_s and (process.poll() is None or group_is_alive(process.pid)):
            time.sleep(POLL_S)
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that hangs, and its process group, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_in_words(status: int) -> str:
    """Says how a process ended: `with status 3`, `by SIGSEGV`."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def last_lines(output: str) -> str:
    """Returns the last lines of an output in one, or says that there are none."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:] or "it said nothing"
