"""Runs named tests in fresh pytest processes, child sessions, and reads what became of each test.

They confirm suspicions, record several sessions and compare two revisions. A spec tells the child what to
run. The child writes what it finds into a file of lines (`child_main.py`), so that what it measured before a
crash is kept. A child leads a process group, which ends with it, and it ends with its parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_gpukern.gpu.lock import HostTurns
from pytest_gpukern.gpu.processes import group_is_alive
from pytest_gpukern.measure.observers import ObservedTest
from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes.child_arguments import child_arguments, child_environment
from pytest_gpukern.processes.child_main import BOOTSTRAP
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.result import JsonDict, Result, plain
from pytest_gpukern.values.untrusted_json import bounded, built, decoded, own_json

TIMEOUT_S = 600.0
TO_END_S = 10.0
"""Time to end, for a process whose pytest is done or that was asked to end."""
POLL_S = 0.05
_LAST_LINES = 3
_LAST_CHARACTERS = 500
_NAMED = 3
_MAY_BE_BLOCKED = ("cacheprovider", "terminal", "tmpdir")
"""Plugins of pytest whose options a child is given, unless `-p no:` blocks them."""
_ORDINARY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class ChildRequest:
    """Says what a child session is to run.

    Attributes:
        nodeids: pytest's names of the tests.
        moved: folder of the parent's tree → the same folder in another tree, for arguments, `sys.path`,
            `PYTHONPATH` and the working folder.
        environ: additional environment variables; None for one that the child must not have.
        timeout_s: the longest time without a message, so also that of one test.
        watched_roots: folders; the child lists the modules loaded from below them.
        watched_names: top-level names of modules that it lists wherever they were loaded from.
        collects_all: whether it collects all that the command line names, and lists the other tests.
        command_prefix: what comes before Python on the command line, such as a tool that watches it.
        checked: tests that an earlier session of the same tree has checked in full.
        datasets: folder in which sessions of that tree keep inputs and references for each other.
    """

    nodeids: tuple[str, ...]
    moved: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str | None] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    watched_roots: tuple[str, ...] = ()
    watched_names: tuple[str, ...] = ()
    collects_all: bool = False
    command_prefix: tuple[str, ...] = ()
    checked: frozenset[str] = frozenset()
    datasets: Path | None = None


@dataclass(frozen=True)
class ChildSessions:
    """Starts child sessions that measure as this run does.

    Attributes:
        options: pytest's, with their values.
        positional: paths and tests that this run was given.
        folder: the working folder.
        path: `sys.path`.
        blocked: those of `_MAY_BE_BLOCKED` that the run blocks.
        rootdir: pytest's, in the process that reports.
    """

    options: tuple[str, ...]
    positional: tuple[str, ...]
    folder: str
    path: tuple[str, ...]
    blocked: tuple[str, ...] = ()
    rootdir: str = "."

    def to_json(self) -> JsonDict:
        """Returns it as plain JSON, for the workers of xdist."""
        return plain(dataclasses.asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: JsonDict) -> ChildSessions:
        """Returns what `to_json` was called on."""
        return built(data, cls)  # type: ignore[no-any-return]

    @classmethod
    def of(cls, config: pytest.Config, *, device: str | None, judges: bool = False) -> ChildSessions:
        """Returns what starts the child sessions of a configured run, on the device with this UUID.

        With `judges`, they judge as the run does (see `child_arguments`).
        """
        folder = config.invocation_params.dir
        arguments = child_arguments(config, judges=judges)
        return cls(
            (*arguments.options, *([f"--gpukern-device={device}"] if device else [])),
            arguments.positional,
            str(folder),
            tuple(str(folder / entry) for entry in sys.path),
            tuple(name for name in _MAY_BE_BLOCKED if config.pluginmanager.is_blocked(name)),
            str(config.rootpath),
        )

    def run(
        self,
        request: ChildRequest,
        progress: Callable[[int, int], None] | None = None,
        started: StartedChild | None = None,
    ) -> ChildRun:
        """Runs the tests of a request in a fresh process, and waits for it.

        A test that cannot be collected, kills the process or loses its CUDA context has failed; those after
        it run in another process. If something ends the wait, such as Ctrl-C, we first end the child and all
        that it started. `progress` gets how many of the wanted tests have ended, and how many there are.
        `started` is a process that waits for its turn, from `start_ahead` with the same `moved` and
        `environ`.
        """
        ran, left, total = ChildRun(), request.nodeids, len(request.nodeids)
        while True:
            request = dataclasses.replace(request, nodeids=left)
            self._run_once(started or self._start(request), request, ran, progress, total)
            for nodeid in left:
                why = ran.why_uncollected(nodeid)
                if why is not None:
                    ran.outcomes.setdefault(nodeid, ("failed", why))
            if started is not None and ran.ended_early and not ran.outcomes:  # perhaps before its turn
                started = None
                continue
            asked, started = len(left), None
            left = tuple(id_ for id_ in left if id_ not in ran.outcomes and id_ != ran.during)
            if not left and ran.during is None:
                ran.ended_early = False  # it ran no test: none could be collected
            # A process that ran no test would fail again. Under a tool, the tool judges.
            if not ran.ended_early or request.command_prefix or not 0 < len(left) < asked:
                return ran
            if ran.during is not None:
                ran.outcomes[ran.during] = ("failed", ran.problem or "")
            request = dataclasses.replace(request, collects_all=False)

    def start_ahead(
        self,
        host: HostTurns,
        run_folder: Path,
        *,
        moved: Mapping[str, str],
        environ: Mapping[str, str | None],
    ) -> StartedChild:
        """Starts a process that imports what it is told to until `run` is given it.

        Call it while nobody times anything on the host.

        Args:
            host: the turns that it takes on the host while it imports.
            run_folder: where the lock files of these turns lie.
            moved: see `ChildRequest`, and so is `environ`.
        """
        busy = host.busy_from_its_start()
        try:
            ahead = {"run_folder": str(run_folder), "busy": busy}
            return self._start(ChildRequest((), moved, environ), ahead)
        finally:
            if busy is not None:
                os.close(busy)

    def _start(self, request: ChildRequest, ahead: JsonDict | None = None) -> StartedChild:
        """Starts a process for a request; with `ahead`, one that waits to be told what to run."""
        folder = TemporaryFolder("session")
        place = Path(folder.name)
        if ahead is None:
            spec = self._told(place, request)
        else:
            spec = self.spec(place, (), moved=request.moved) | ahead
        with (place / "output").open("wb") as output:
            process = start(
                _written(spec, place / "spec.json"),
                folder=_elsewhere(self.folder, request.moved),
                environ=environment(request.environ, request.moved),
                output=output,
                waits=ahead is not None,
                handed_on=[ahead["busy"]] if ahead is not None and ahead["busy"] is not None else (),
                prefix=request.command_prefix,
            )
        return StartedChild(folder, process, waits=ahead is not None)

    def _told(self, place: Path, request: ChildRequest) -> JsonDict:
        """Returns the whole spec of a request."""
        return self.spec(place, request.nodeids, moved=request.moved) | {
            "parent": None if request.command_prefix else os.getpid(),
            "watched_roots": list(request.watched_roots),
            "watched_names": list(request.watched_names),
            "collects_all": request.collects_all,
            "checked": sorted(request.checked),
            "datasets": None if request.datasets is None else str(request.datasets),
            "lines": str(place / "lines"),
        }

    def _run_once(
        self,
        child: StartedChild,
        request: ChildRequest,
        ran: ChildRun,
        progress: Callable[[int, int], None] | None,
        total: int,
    ) -> None:
        """Has one process run a request, and adds what it reports to `ran`."""
        place, process = child.place, child.process
        try:
            if child.waits:
                child.begin(self._told(place, request))
            heard = Heard(place / "lines", ran)
            # A tool around it may print much once pytest is done.
            to_end_s = request.timeout_s if request.command_prefix else TO_END_S
            in_time = _follow(process, heard, request.timeout_s, to_end_s, progress, total)
            end_group(process)
            ran.status = process.returncode if in_time else None
            ran.problem = _problem(heard, request, child.said)
        finally:
            child.end()

    def spec(
        self,
        place: Path,
        nodeids: Sequence[str],
        main: str = "processes.child_main",
        *,
        moved: Mapping[str, str] | None = None,
        basetemp: Path | None = None,
    ) -> JsonDict:
        """Returns what every child is told (see `child_main`).

        `place` is a folder of its own; temporary folders of tests lie in `basetemp`, by default below it.
        """
        moved = moved or {}
        cache = [f"-ocache_dir={place / 'cache'}"] if "cacheprovider" not in self.blocked else []
        # Nobody reads a child's summary; Hypothesis imports itself for its own, up to a second.
        given = (
            *self.options,
            *cache,
            *(["--no-summary"] if "terminal" not in self.blocked else []),
            *([f"--basetemp={basetemp or place / 'basetemp'}"] if "tmpdir" not in self.blocked else []),
            *self.positional,
        )
        return {
            "main": f"pytest_gpukern.{main}",
            "path": [_elsewhere(entry, moved) for entry in self.path],
            "package": str(FOLDER),
            "parent": os.getpid(),
            "arguments": [_elsewhere(argument, moved) for argument in given],
            "nodeids": list(nodeids),
            "rootdir": _elsewhere(self.rootdir, moved),
        }


def _written(spec: JsonDict, file: Path) -> Path:
    file.write_text(own_json.dumps(spec), encoding="utf-8")
    return file


@dataclass
class StartedChild:
    """Holds a child process, and the temporary folder in which it reads its spec and leaves its lines.

    Attributes:
        waits: whether it waits to be told what to run.
    """

    folder: TemporaryFolder
    process: subprocess.Popen[bytes]
    waits: bool = False

    @property
    def place(self) -> Path:
        """Returns the path of its folder."""
        return Path(self.folder.name)

    @property
    def said(self) -> str:
        """Returns what it has printed so far."""
        return (self.place / "output").read_text(encoding="utf-8", errors="replace")

    def begin(self, spec: JsonDict) -> None:
        """Begins the turn of a process that waits; it may have ended meanwhile."""
        self._tell(f"run {_written(spec, self.place / 'turn.json')}")

    def imports(self, module: str) -> None:
        """Has a process that waits import a module, which must leave CUDA alone."""
        self._tell(f"import {module}")

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def end(self) -> None:
        """Ends the process and all that it started, and removes its folder."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        end_group(self.process)
        self.folder.cleanup()


def _follow(
    process: subprocess.Popen[bytes],
    heard: Heard,
    timeout_s: float,
    to_end_s: float,
    progress: Callable[[int, int], None] | None,
    total: int,
) -> bool:
    """Follows a child until it ends, or is done and lingers; returns False where it fell silent."""
    last_s = time.monotonic()
    while True:
        ended = process.poll() is not None
        if heard.listen():
            last_s = time.monotonic()
            if progress is not None:
                progress(len(heard.ran.outcomes), total)
        silence_s = time.monotonic() - last_s
        if ended or (heard.ended_with is not None and silence_s > to_end_s):
            return True
        if silence_s > timeout_s:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)


def environment(environ: Mapping[str, str | None], moved: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns a child's environment: this process's without what is its own, changed as `environ` says."""
    changed = {**child_environment(os.environ), **environ}
    variables = {name: value for name, value in changed.items() if value is not None}
    if "PYTHONPATH" in variables and moved:
        entries = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(_elsewhere(entry, moved) for entry in entries)
    return variables


def _elsewhere(text: str, moved: Mapping[str, str]) -> str:
    """Replaces a folder of this tree by that of another, in a path or an argument that holds one."""
    for here, there in moved.items():
        folder = re.compile(rf"(^|^-\w|[=:,]){re.escape(here)}(?=$|[/:,])")
        text = folder.sub(lambda match, there=there: match[1] + there, text)  # type: ignore[misc]
    return text


def _problem(heard: Heard, request: ChildRequest, said: str) -> str | None:
    """Says why a child that has ended did not report every test, or returns None."""
    ran = heard.ran
    during = f" while running {ran.during}" if ran.during else ""
    missing = sorted(set(request.nodeids) - ran.outcomes.keys())
    if heard.damage is not None:
        return f"it sent a line that cannot be read: {heard.damage}"
    if ran.status is None:
        return f"ended after {request.timeout_s:g} s without a sign of life{during}: {last_lines(said)}"
    if ran.uncollected and len(missing) == len(request.nodeids):
        return next(_could_not_collect(*uncollected) for uncollected in ran.uncollected.items())
    if ran.ended_early:
        return f"it ended {end_in_words(ran.status)}{during}: {last_lines(said)}"
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return f"not found: {', '.join(missing[:_NAMED])}{more}: {last_lines(said)}"
    return None


def _could_not_collect(node: str, why: str) -> str:
    return f"{'the root folder' if node == '.' else node} could not be collected: {last_lines(why)}"


class LoadedModule(NamedTuple):
    """Holds a module that a session had loaded when it ended, with the hash of its file's contents."""

    name: str
    file: str
    sha256: str


@dataclass
class ChildRun:
    """Holds what a child session found, in all the processes that it took.

    Attributes:
        results: test → its result, of those that found something.
        outcomes: test → (`passed`, `failed`, `skipped` or `xfailed`, why in words), of those that ended.
        modules: the watched modules.
        uncollected: file, or folder whose conftest fails → why nothing of it could be collected.
        listed: test → how pytest-benchmark lists it, of those that use its fixture.
        others: this plugin's tests that nobody wanted, if the session collected all.
        problem: why not every test ended, in words with the last lines of output, or None.
        during: the test that was running when it ended early, or None.
        ended_early: whether its pytest did not finish; if it did, a test without an outcome does not exist.
        status: the exit status; negative for a signal; None if it was ended for its silence.
    """

    results: dict[str, Result] = field(default_factory=dict)
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    modules: tuple[LoadedModule, ...] = ()
    uncollected: dict[str, str] = field(default_factory=dict)
    listed: dict[str, JsonDict] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    problem: str | None = None
    during: str | None = None
    ended_early: bool = False
    status: int | None = None

    def why_uncollected(self, nodeid: str) -> str | None:
        """Says why a test could not be collected, or returns None."""
        for node, why in self.uncollected.items():
            if node == "." or f"{nodeid}::".startswith((f"{node}/", f"{node}::")):
                return _could_not_collect(node, why)
        return None


class Heard:
    """Reads what one process reports, and adds it to what its session found.

    Args:
        file: of lines, each a JSON object. It may not exist yet, and its last line may be incomplete.
        ran: what is added to.
    """

    def __init__(self, file: Path, ran: ChildRun) -> None:
        self._file = file
        self._read = 0
        self.ran = ran
        ran.during, ran.ended_early = None, True
        self.ended_with: int | None = None
        """pytest's own exit status, once it is done; the process may end otherwise."""
        self.damage: str | None = None

    def listen(self) -> bool:
        """Reads the new, complete lines; returns whether there were any."""
        try:
            with self._file.open("rb") as lines:
                lines.seek(self._read)
                new = lines.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                self._take(decoded(line))
            except (ValueError, KeyError, TypeError) as error:
                self.damage = self.damage or f"{line[:60]!r}: {bounded(str(error), 200)}"
        return bool(whole)

    def _take(self, line: JsonDict) -> None:
        kind, ran = line["kind"], self.ran
        if kind == "start":
            ran.during = _text(line["nodeid"])
        elif kind == "test":
            nodeid = _text(line["nodeid"])
            ran.outcomes[nodeid] = (_text(line["outcome"]), _text(line["text"]))
            if line["result"] is not None:  # a failed teardown has none
                ran.results[nodeid] = Result.from_json(line["result"])
        elif kind == "modules":
            ran.modules = tuple(LoadedModule(*map(_text, module)) for module in line["modules"])
        elif kind == "uncollected":
            ran.uncollected.setdefault(_text(line["nodeid"]), _text(line["text"]))
        elif kind == "listed":
            ran.listed[_text(line["nodeid"])] = dict(line["listed"])
        elif kind == "observed" and line["nodeid"] in ran.results:
            observed, nodeid = built(line["observed"], ObservedTest), line["nodeid"]
            ran.results[nodeid] = observed.added_to(ran.results[nodeid])
        elif kind == "others":
            ran.others = tuple(map(_text, line["nodeids"]))
        elif kind == "end":
            ran.during, self.ended_with = None, line["status"]
            ran.ended_early = self.ended_with not in _ORDINARY


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
    waits: bool = False,
    handed_on: Iterable[int] = (),
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts a child on the JSON file that says what it is to do, as the leader of a process group.

    Args:
        spec: see `child_main`.
        folder: the working folder.
        environ: all of its environment variables.
        output: open file that its output and errors go to; None for this process's own.
        waits: whether its standard input is a pipe from this process.
        handed_on: file descriptors that it inherits under their numbers.
        prefix: see `ChildRequest.command_prefix`.
    """
    return subprocess.Popen(
        [*prefix, sys.executable, "-P", "-c", BOOTSTRAP, str(spec)],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
        stdout=output,
        stderr=output if output is None else subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(handed_on),
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a child and all that it started and left in its process group, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second also ends what has hidden from our look
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        give_up_s = time.monotonic() + TO_END_S
        while process.poll() is None or group_is_alive(process.pid):
            if time.monotonic() > give_up_s:
                break
            time.sleep(POLL_S)
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a child that hangs, and its process group, at once."""
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
