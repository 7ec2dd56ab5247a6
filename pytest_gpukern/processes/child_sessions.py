"""Fresh child sessions: pytest processes of their own for named tests, and what became of each of them.

For confirming a suspicion, recording several sessions and comparing two revisions. A child is told by its
spec what to run and tells by a file of lines what it finds (`child.py`); what it measured before it crashed
is kept. It has a process group of its own, which is ended with it, and it ends with its parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes.child_arguments import child_arguments, child_environment
from pytest_gpukern.processes.child_messages import ChildRun, Heard
from pytest_gpukern.processes.process import POLL_S, TO_END_S, end_group, end_in_words, last_lines, start
from pytest_gpukern.values.result import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pytest

    from pytest_gpukern.values.result import JsonDict

TIMEOUT_S = 600.0
_NAMED = 3


@dataclass(frozen=True)
class ChildRequest:
    """What a child session is to run.

    Attributes:
        nodeids: pytest's names of the tests.
        moved: folder of the parent's tree → the same folder in another tree, in which arguments, `sys.path`,
            `PYTHONPATH` and the working folder are taken to lie.
        environ: environment variables that it gets besides.
        timeout_s: the longest time without a sign of life, so also that of one test.
        watched_roots: folders; which modules were loaded from below them is told.
        watched_names: top-level names of modules that are told of wherever they were loaded from.
        collects_all: it collects all that the command line names, and tells which tests it has besides.
        command_prefix: what stands before Python on the command line, such as a tool that watches it.
    """

    nodeids: tuple[str, ...]
    moved: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    watched_roots: tuple[str, ...] = ()
    watched_names: tuple[str, ...] = ()
    collects_all: bool = False
    command_prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChildSessions:
    """Starts child sessions that measure as this run does.

    Attributes:
        options: pytest's, with their values.
        positional: paths and tests that this run was given.
        folder: the working folder.
        path: `sys.path`.
        has_cache: whether pytest's cache plugin is there, which is to write elsewhere.
    """

    options: tuple[str, ...]
    positional: tuple[str, ...]
    folder: str
    path: tuple[str, ...]
    has_cache: bool = True

    def to_json(self) -> JsonDict:
        """As plain JSON, for the workers of xdist."""
        return plain(dataclasses.asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: JsonDict) -> ChildSessions:
        """The inverse of `to_json`."""
        lists = {name: tuple(data[name]) for name in ("options", "positional", "path")}
        return cls(folder=data["folder"], has_cache=data["has_cache"], **lists)

    @classmethod
    def of(cls, config: pytest.Config, *, device: str | None, judges: bool = False) -> ChildSessions:
        """Those of a configured run, on the device with this UUID; for a controller and its workers alike.

        With `judges`, what stands in for the run (see `child_arguments`).
        """
        folder = config.invocation_params.dir
        arguments = child_arguments(config, judges=judges)
        return cls(
            (*arguments.options, *([f"--gpukern-device={device}"] if device else [])),
            arguments.positional,
            str(folder),
            tuple(str(folder / entry) for entry in sys.path),
            has_cache=not config.pluginmanager.is_blocked("cacheprovider"),
        )

    def run(self, request: ChildRequest, progress: Callable[[int, int], None] | None = None) -> ChildRun:
        """Runs the tests of a request in a fresh process, and waits for it.

        Where one of them takes the process with it, or loses its CUDA context, that one failed, and those
        after it run in another. Whatever ends the wait, as Ctrl-C does, first ends the child and all that it
        started.

        Args:
            request: what to run.
            progress: is told how many of the wanted tests have ended, and how many there are.
        """
        run, asked = self._run_once(request, progress), len(request.nodeids)
        while 0 < len(left := _left_by(run, request)) < asked:  # else the next process would end as early
            asked, done = len(left), len(request.nodeids) - len(left)
            rest = dataclasses.replace(request, nodeids=left, collects_all=False)
            run = _joined(run, self._run_once(rest, _after(progress, done, len(request.nodeids))))
        return run

    def _run_once(self, request: ChildRequest, progress: Callable[[int, int], None] | None) -> ChildRun:
        with tempfile.TemporaryDirectory(prefix="gpukern-session-", ignore_cleanup_errors=True) as folder:
            place = Path(folder)
            spec = place / "spec.json"
            spec.write_text(json.dumps(self._spec_of(request, place)), encoding="utf-8")
            heard = Heard(place / "lines", frozenset(request.nodeids))
            with (place / "output").open("wb") as output:
                process = start(
                    spec,
                    folder=_elsewhere(self.folder, request.moved),
                    environ=environment(request.environ, request.moved),
                    output=output,
                    prefix=request.command_prefix,
                )
                try:
                    # A tool around it may have much to say once pytest is done.
                    to_end_s = request.timeout_s if request.command_prefix else TO_END_S
                    silent = _listen(process, heard, request.timeout_s, progress, to_end_s)
                finally:
                    end_group(process)
            status = None if silent else process.returncode
            said = (place / "output").read_text(encoding="utf-8", errors="replace")
            return heard.run(status, _problem(heard, status, request.timeout_s, said))

    def spec(
        self,
        place: Path,
        nodeids: Sequence[str],
        main: str = "processes.child_main",
        *,
        moved: Mapping[str, str] | None = None,
        basetemp: Path | None = None,
    ) -> JsonDict:
        """What every child is told: see `child`.

        Args:
            place: a folder of its own.
            nodeids: the tests that are wanted.
            main: the module that runs.
            moved: see `ChildRequest`.
            basetemp: where temporary folders of tests lie; by default in `place`.
        """
        moved = moved or {}
        cache = [f"-ocache_dir={place / 'cache'}"] if self.has_cache else []
        given = (*self.options, *cache, f"--basetemp={basetemp or place / 'basetemp'}", *self.positional)
        return {
            "main": f"pytest_gpukern.{main}",
            "path": [_elsewhere(entry, moved) for entry in self.path],
            "package": str(FOLDER),
            "parent": os.getpid(),
            "arguments": [_elsewhere(argument, moved) for argument in given],
            "nodeids": list(nodeids),
        }

    def _spec_of(self, request: ChildRequest, place: Path) -> JsonDict:
        return self.spec(place, request.nodeids, moved=request.moved) | {
            "parent": None if request.command_prefix else os.getpid(),
            "watched_roots": list(request.watched_roots),
            "watched_names": list(request.watched_names),
            "collects_all": request.collects_all,
            "lines": str(place / "lines"),
        }


def _left_by(run: ChildRun, request: ChildRequest) -> tuple[str, ...]:
    """The tests that a process did not come to; what a tool was to watch is that tool's to judge."""
    if not run.ended_early or request.command_prefix:
        return ()
    return tuple(nodeid for nodeid in request.nodeids if nodeid not in run.outcomes and nodeid != run.during)


def _joined(run: ChildRun, rest: ChildRun) -> ChildRun:
    """What two processes found, of which the second ran what the first did not come to."""
    guilty = {run.during: ("failed", run.problem or "")} if run.during is not None else {}
    return dataclasses.replace(
        rest,
        results={**run.results, **rest.results},
        outcomes={**run.outcomes, **guilty, **rest.outcomes},
        modules=rest.modules or run.modules,
        uncollected=tuple(dict.fromkeys((*run.uncollected, *rest.uncollected))),
        listed={**run.listed, **rest.listed},
        others=run.others,
    )


def _after(
    progress: Callable[[int, int], None] | None, done: int, total: int
) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda finished, _: progress(done + finished, total)


def _listen(
    process: subprocess.Popen[bytes],
    heard: Heard,
    timeout_s: float,
    progress: Callable[[int, int], None] | None,
    to_end_s: float = TO_END_S,
) -> bool:
    """Follows a child until it ends, or is done and lingers; whether it was silent for too long instead."""
    last_s = time.monotonic()
    while True:
        ended = process.poll() is not None
        if heard.listen():
            last_s = time.monotonic()
            if progress is not None:
                progress(len(heard.outcomes), len(heard.wanted))
        silence_s = time.monotonic() - last_s
        if ended or (heard.ended_with is not None and silence_s > to_end_s):
            return False
        if silence_s > timeout_s:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)


def environment(environ: Mapping[str, str], moved: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this process's without what is its own, and `environ` besides."""
    found = {**child_environment(os.environ), **environ}
    if "PYTHONPATH" in found and moved:
        entries = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(_elsewhere(entry, moved) for entry in entries)
    return found


def _elsewhere(text: str, moved: Mapping[str, str]) -> str:
    """A path, or an argument that holds one, with a folder of this tree replaced by that of another."""
    for here, there in moved.items():
        found = re.compile(rf"(^|^-\w|[=:,]){re.escape(here)}(?=$|[/:,])")
        text = found.sub(lambda match, there=there: match[1] + there, text)  # type: ignore[misc]
    return text


def _problem(heard: Heard, status: int | None, timeout_s: float, said: str) -> str | None:
    """Why a child that has ended did not tell of every test, in words, or None."""
    during = f" while running {heard.running}" if heard.running else ""
    if heard.damage is not None:
        return f"it told what cannot be read: {heard.damage}"
    if status is None:
        return f"ended after {timeout_s:g} s without a sign of life{during}: {last_lines(said)}"
    if heard.uncollected and not heard.outcomes:
        return could_not_collect(heard.uncollected)
    if heard.ended_early:
        return f"it ended {end_in_words(status)}{during}: {last_lines(said)}"
    missing = heard.missing
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return f"not found: {', '.join(missing[:_NAMED])}{more}: {last_lines(said)}"
    return None


def could_not_collect(files: Sequence[str]) -> str:
    """What a session says whose tests could not all be collected, with the end of the first reason."""
    name, _, reason = files[0].partition(": ")
    return f"it could not collect {name}: {last_lines(reason)}"
