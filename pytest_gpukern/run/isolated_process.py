"""Handles the process that measures for a run, as seen from the one that reports.

What both tell each other goes over a connection (`isolated_child.py` says what). It has a process group of
its own, which is ended with it, and it ends with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.processes.child_sessions import (
    end_group,
    end_in_words,
    environment,
    kill_group,
    last_lines,
    start,
)
from pytest_gpukern.run.isolated_child import TELLS_WHERE, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from pytest_gpukern.processes.child_sessions import ChildSessions
    from pytest_gpukern.values.result import JsonDict

START_TIMEOUT_S = 600.0
"""For importing and collecting."""
_LOOK_S = 1.0
_TO_WRITE_STACKS_S = 2.0
_TO_TEAR_DOWN_S = 60.0
_MOST_CHARACTERS = 4000
_CRASH = "Fatal Python error"


@dataclass(frozen=True)
class Gone:
    """Why a process no longer measures.

    Attributes:
        why: in words: `ended by SIGSEGV`, `took longer than 60 s (--gpukern-timeout)`.
        shown: what it said last, or where it was, in lines; may be empty.
    """

    why: str
    shown: str = ""


@dataclass(frozen=True)
class Done:
    """A test has ended.

    Attributes:
        lost: why the process cannot measure any more, by CUDA's name of the error, or None.
    """

    lost: str | None = None


class MeasuringProcess:
    """A pytest that runs the tests of this run that need the GPU, one at a time.

    Args:
        children: what starts child sessions that judge as this run does.
        confirming: what starts those that confirm suspicions, for that process to use.
        nodeids: the tests that it will be asked to run.
        environ: environment variables that it gets besides.
        basetemp: where temporary folders of its tests lie.
        shows_output: whether what tests print goes to this process's terminal at once.
    """

    def __init__(
        self,
        children: ChildSessions,
        confirming: ChildSessions,
        nodeids: Sequence[str],
        *,
        environ: Mapping[str, str],
        basetemp: Path,
        shows_output: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpukern-measuring-", ignore_cleanup_errors=True)
        place = Path(self._folder.name)
        self._output = place / "output"
        self._stacks = place / "stacks"
        self._read_from = 0
        self._connection, theirs = Pipe()
        spec = place / "spec.json"
        told = {
            "connection": theirs.fileno(),
            "terminal": str(self._output),
            "stacks": str(self._stacks),
            "children": confirming.to_json(),
        }
        told |= children.spec(place, nodeids, "run.isolated_child", basetemp=basetemp)
        spec.write_text(json.dumps(told), encoding="utf-8")
        try:
            with self._output.open("ab") as output:
                self._process: subprocess.Popen[bytes] = start(
                    spec,
                    folder=children.folder,
                    environ=environment(environ),
                    output=None if shows_output else output,
                    handed_on=[theirs.fileno()],
                )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id, in this process's namespace."""
        return self._process.pid

    def wait_until_ready(self, hear: Callable[[str, Any], None]) -> JsonDict | Gone:
        """What it says once it has collected its tests; what it says before that goes to `hear`."""
        found: JsonDict | Gone = self._listen(
            START_TIMEOUT_S, hear, "collected", f"took over {START_TIMEOUT_S:g} s to collect"
        )
        return found

    def run(
        self,
        nodeid: str,
        following: str | None,
        *,
        timeout_s: float | None,
        hear: Callable[[str, Any], None],
    ) -> Done | Gone:
        """Has one test run, and waits for its end.

        Args:
            nodeid: the test.
            following: the one after it, whose fixtures stay set up.
            timeout_s: how long it may take, or None; waiting for the device does not count.
            hear: is given the words that it says meanwhile, each with what belongs to it.
        """
        self._read_from = self._output.stat().st_size
        with contextlib.suppress(OSError):
            send(self._connection, "run", [nodeid, following])
        too_long = f"took longer than {timeout_s:g} s (--gpukern-timeout)" if timeout_s is not None else ""
        found = self._listen(timeout_s, hear, "done", too_long)
        return found if isinstance(found, Gone) else Done(found)

    def end(self, hear: Callable[[str, Any], None]) -> None:
        """Has it tear down what is set up and end; what it does not do in time is done to it."""
        with contextlib.suppress(OSError):
            send(self._connection, "end", None)
            self._listen(_TO_TEAR_DOWN_S, hear, "", "")
        self.kill()

    def kill(self) -> None:
        """Ends it at once, with all that it started."""
        if self._process.poll() is None:
            kill_group(self._process)
        else:
            end_group(self._process)  # what it left in its group
        self._connection.close()
        self._folder.cleanup()

    def _listen(
        self, timeout_s: float | None, hear: Callable[[str, Any], None], until: str, too_long: str
    ) -> Any:
        """Hears what it says up to the word `until`, and returns what belongs to that; or `Gone`."""
        clock = _Clock()
        while timeout_s is None or clock.passed_s < timeout_s:
            left_s = _LOOK_S if timeout_s is None else timeout_s - clock.passed_s
            try:
                if not self._connection.poll(max(0.0, min(_LOOK_S, left_s))):
                    continue
                word, what = _received(self._connection)
            except (EOFError, OSError):
                return self._ended()
            if word == until:
                return what
            clock.hear(word)
            hear(word, what)
        return self._hung(too_long)

    def _ended(self) -> Gone:
        """It has closed its end of the connection."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_TEAR_DOWN_S)
        status = self._process.poll()
        why = "closed its connection" if status is None else f"ended {end_in_words(status)}"
        return Gone(why, self._said())

    def _hung(self, why: str) -> Gone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, TELLS_WHERE)
        give_up_s = time.monotonic() + _TO_WRITE_STACKS_S
        before, written = -1, 0
        while time.monotonic() < give_up_s and not written == before > 0:
            time.sleep(0.1)
            before, written = written, self._stacks.stat().st_size if self._stacks.exists() else 0
        stacks = self._stacks.read_text(encoding="utf-8", errors="replace") if written else ""
        kill_group(self._process)
        return Gone(why, stacks[:_MOST_CHARACTERS] or self._said())

    def _said(self) -> str:
        """What it has written to its output since the last test began: a crash says where, too."""
        with self._output.open("rb") as output:
            output.seek(self._read_from)
            text = output.read().decode("utf-8", errors="replace").strip()
        crash = text.find(_CRASH)  # behind which come the innermost frames first
        return text[crash : crash + _MOST_CHARACTERS] if crash >= 0 else text[-_MOST_CHARACTERS:]


class _Clock:
    """The time that has passed, but for that in which the other process waits for what is not its own."""

    def __init__(self) -> None:
        self._since_s: float = time.monotonic()
        self._before_s = 0.0
        self._waits = 0

    @property
    def passed_s(self) -> float:
        return self._before_s + (0.0 if self._waits else time.monotonic() - self._since_s)

    def hear(self, word: str) -> None:
        """Takes notice of `pause` and `resume`, which may be nested."""
        if word == "pause":
            self._before_s = self.passed_s
            self._waits += 1
        elif word == "resume":
            self._waits -= 1
            self._since_s = time.monotonic()


def _received(connection: Connection) -> tuple[str, Any]:
    """The next word and what belongs to it."""
    word, what = json.loads(connection.recv_bytes())
    return word, what


def why_gone(gone: Gone) -> str:
    """Why a process is gone, with its last lines, in one."""
    return f"{gone.why}: {last_lines(gone.shown)}"
