"""Runs named tests in fresh pytest processes, child sessions, and hears what became of each test.

For confirming a suspicion, recording several sessions and comparing two revisions. A spec tells the child
what to run. The child writes what it finds into a file of lines (`child_main.py`), so that what it measured
before a crash is kept. A child leads a process group, which ends with it, and it ends with its parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.measure.device_memory import TeardownMemory
from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes.child_arguments import child_arguments, child_environment
from pytest_gpukern.processes.child_main import BOOTSTRAP
from pytest_gpukern.values.result import Result, plain
from pytest_gpukern.values.untrusted_json import ShapeError, bounded, check_shape, decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpukern.values.result import JsonDict


TIMEOUT_S = 600.0
TO_END_S = 10.0
"""What a process is given whose pytest is done, or that was asked to end."""
POLL_S = 0.05
_LAST_LINES = 3
_LAST_CHARACTERS = 500
_NAMED = 3
_ORDINARY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


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
        """What every child is told: see `child_main`.

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


@dataclass(frozen=True)
class ChildRun:
    """What a child session found.

    Attributes:
        results: test → what it found out, of those that found something.
        outcomes: test → (`passed`, `failed`, `skipped` or `xfailed`, why in words), of those that ended.
        modules: (name, file, SHA-256) of the modules that were watched for.
        uncollected: files that could not be collected, and why.
        listed: test → how pytest-benchmark lists it, of those that use its fixture.
        others: tests of this plugin's that nobody wanted, of a session that collected all.
        problem: why not every test ended, in words with the last lines of output, or None.
        during: the test that was running when it ended early, or None.
        ended_early: whether its pytest did not come to its end; else a test without an outcome is not there.
        status: the exit status; negative for a signal; None where it was ended for its silence.
    """

    results: Mapping[str, Result] = field(default_factory=dict)
    outcomes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    modules: tuple[tuple[str, str, str], ...] = ()
    uncollected: tuple[str, ...] = ()
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    problem: str | None = None
    during: str | None = None
    ended_early: bool = False
    status: int | None = None


class Heard:
    """What a child has told so far.

    Args:
        file: of lines, each a JSON object; it may not be there yet, and its last line may be torn.
        wanted: the tests that were asked for.
    """

    def __init__(self, file: Path, wanted: frozenset[str]) -> None:
        self._file = file
        self._read = 0
        self.wanted = wanted
        self.results: dict[str, Result] = {}
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.modules: tuple[tuple[str, str, str], ...] = ()
        self.uncollected: list[str] = []
        self.listed: dict[str, JsonDict] = {}
        self.others: tuple[str, ...] = ()
        self.running: str | None = None
        self.ended_with: int | None = None
        """pytest's own exit status, once it is done; the process may end otherwise."""
        self.damage: str | None = None

    @property
    def missing(self) -> list[str]:
        """Wanted tests of which no outcome was told."""
        return sorted(self.wanted - self.outcomes.keys())

    @property
    def ended_early(self) -> bool:
        """Whether its pytest has not come to its end."""
        return self.ended_with not in _ORDINARY

    def listen(self) -> bool:
        """Takes in the lines that are new and whole; whether there were any."""
        try:
            with self._file.open("rb") as lines:
                lines.seek(self._read)
                new = lines.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return bool(whole)

    def run(self, status: int | None, problem: str | None) -> ChildRun:
        """All of it."""
        return ChildRun(
            results=self.results,
            outcomes=self.outcomes,
            modules=self.modules,
            uncollected=tuple(self.uncollected),
            listed=self.listed,
            others=self.others,
            problem=problem,
            during=self.running,
            ended_early=self.ended_early,
            status=status,
        )

    def _take(self, line: bytes) -> None:
        try:
            told = decoded(line)
            kind = told["kind"]
            if kind == "start":
                self.running = _text(told["nodeid"])
            elif kind == "test":
                self._take_test(told)
            elif kind == "modules":
                self.modules = tuple(
                    (_text(name), _text(file), _text(digest)) for name, file, digest in told["modules"]
                )
            elif kind == "uncollected":
                self.uncollected.append(f"{told['nodeid']}: {told['text']}")
            elif kind == "listed":
                self.listed[_text(told["nodeid"])] = dict(told["listed"])
            elif kind == "memory":
                self._take_memory(_text(told["nodeid"]), told["memory"])
            elif kind == "others":
                self.others = tuple(map(_text, told["nodeids"]))
            elif kind == "end":
                self.running, self.ended_with = None, told["status"]
        except (ValueError, KeyError, TypeError, ShapeError) as error:
            self.damage = self.damage or f"{line[:60]!r} makes no sense: {bounded(str(error), 200)}"

    def _take_test(self, told: JsonDict) -> None:
        nodeid = _text(told["nodeid"])
        self.outcomes[nodeid] = (_text(told["outcome"]), _text(told["text"]))
        if told["result"] is not None:  # a failed teardown tells of none
            check_shape(told["result"], Result, "result")
            self.results[nodeid] = Result.from_json(told["result"])

    def _take_memory(self, nodeid: str, told: JsonDict) -> None:
        if nodeid in self.results:
            check_shape(told, TeardownMemory, "memory")
            self.results[nodeid] = TeardownMemory.from_json(told).added_to(self.results[nodeid])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


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
        spec: see `child_main`.
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
