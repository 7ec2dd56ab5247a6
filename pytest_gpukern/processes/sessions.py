"""Runs named tests in fresh processes, child sessions, and reads what became of each test.

They confirm suspicions, record several sessions and compare two revisions. They do not judge.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from pytest_gpukern.measure.observers import ObservedTest
from pytest_gpukern.processes import messages
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.process import TO_END_S, Gone, Process, last_lines
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.backend_table import BACKENDS
from pytest_gpukern.values.note import NotRun
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE
from pytest_gpukern.values.result import JsonDict, Result
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import built

TIMEOUT_S = 600.0
_NAMED = 3
_NOT_INHERITED = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"),  # of a git hook
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_",
    "COV_CORE_",
    "COVERAGE_PROCESS_",
)


@dataclass(frozen=True)
class ChildSessions:
    """Starts processes that run a run's tests as the run was asked to; `session.arguments` makes it.

    Attributes:
        options: pytest's, with their values, of a process that does not judge.
        judging: those of the run's measuring process, which judges.
        positional: paths and tests that this run was given.
        path: `sys.path`.
        blocked: plugins of pytest that the run blocks, of those whose options a child is given.
        card: UUID of the GPU; None if there is none.
    """

    options: tuple[str, ...]
    judging: tuple[str, ...]
    positional: tuple[str, ...]
    folder: str
    path: tuple[str, ...]
    blocked: tuple[str, ...] = ()
    card: str | None = None

    def to_json(self) -> JsonDict:
        return plain(dataclasses.asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: JsonDict) -> ChildSessions:
        return built(data, cls)  # type: ignore[no-any-return]

    def start(self, request: ChildRequest, *, shows_output: bool = False) -> Process:
        """Starts a process that waits to be told what to run, where and how the request says.

        It may import what it is told to before.
        """
        sees = seeing(self.card) if self.card else {}
        return Process(
            path=[moved_path(entry, request.moved) for entry in self.path],
            folder=moved_path(self.folder, request.moved),
            environ=environment({**sees, **request.environ}, request.moved),
            prefix=request.command_prefix,
            shows_output=shows_output,
        )

    def begin(
        self, process: Process, request: ChildRequest, *, judges: bool = False, basetemp: Path | None = None
    ) -> messages.Begin:
        """Returns what a process is told; temporary folders of tests lie in `basetemp`, or in its own."""
        place = process.place
        # Nobody reads a child's summary; Hypothesis imports itself for its own, up to a second.
        given = (
            *(self.judging if judges else self.options),
            *([f"--gpukern-device={self.card}"] if self.card else []),
            *([f"-ocache_dir={place / 'cache'}"] if "cacheprovider" not in self.blocked else []),
            *(["--no-summary"] if "terminal" not in self.blocked else []),
            *([f"--basetemp={basetemp or place / 'basetemp'}"] if "tmpdir" not in self.blocked else []),
            *self.positional,
        )
        return messages.Begin(
            arguments=tuple(moved_path(argument, request.moved) for argument in given),
            path=tuple(moved_path(entry, request.moved) for entry in self.path),
            request=request,
            children=self.to_json() if judges else None,
        )

    def run(
        self,
        request: ChildRequest,
        progress: Callable[[int, int], None] | None = None,
        started: Process | None = None,
    ) -> ChildRun:
        """Runs the tests of a request in a fresh process, and waits for it.

        A test that cannot be collected, kills the process or loses its CUDA context has failed; those after
        it run in another process. If something ends the wait, such as Ctrl-C, we first end the child and all
        that it started. `progress` gets how many of the wanted tests have ended, and how many there are.
        `started` is a process that waits for its turn, started with the same `moved` and `environ`.
        """
        ran, left, total = ChildRun(), request.nodeids, len(request.nodeids)
        while True:
            process = started or self.start(request)
            try:
                for _ in self._run_in(process, structs.replace(request, nodeids=left), ran):
                    if progress is not None:
                        progress(len(ran.endings), total)
            finally:
                process.kill()
            for nodeid in left:
                why = ran.why_uncollected(nodeid)
                if why is not None:
                    ran.endings.setdefault(nodeid, Ending("failed", why))
            if started is not None and ran.ended_early and not ran.endings:  # perhaps before its turn
                started = None
                continue
            asked, started = len(left), None
            left = tuple(id_ for id_ in left if id_ not in ran.endings and id_ != ran.during)
            if not left and ran.during is None:
                ran.ended_early = False  # it ran no test: none could be collected
            # A process that ran no test would fail again. Under a tool, the tool judges.
            if not ran.ended_early or request.command_prefix or not 0 < len(left) < asked:
                return ran
            if ran.during is not None:
                ran.fail(ran.during, ran.problem or "")
            request = structs.replace(request, collects_all=False)

    def _run_in(self, process: Process, request: ChildRequest, ran: ChildRun) -> Iterator[None]:
        """Runs tests in one process as far as it comes; yields after each that ended."""
        ran.during, ran.ended_early, ran.problem, ran.status, ran.exit = None, True, None, None, None
        slow = f"took longer than {TIMEOUT_S:g} s"
        process.begin(self.begin(process, request))
        collected = process.collected(ran.hear)
        if isinstance(collected, Gone):
            ran.end_with(process, collected)
            return
        ran.others = ran.others or collected.others
        collected_ids = frozenset(collected.nodeids)
        left = [nodeid for nodeid in request.nodeids if nodeid in collected_ids]
        lost = None
        while left and lost is None:
            ran.during = left.pop(0)
            wanted = messages.RunTest(ran.during, left[0] if left else None)
            done = process.run(wanted, ran.hear, timeout_s=TIMEOUT_S, too_long=slow)
            if ran.exit is not None or isinstance(done, Gone):
                ran.end_with(process, done if ran.exit is None else Gone(f"was ended by {ran.exit!r}"))
                return
            ending = ran.endings.get(ran.during)
            if done.failed_late is not None and (ending is None or ending.outcome == "passed"):
                ran.fail(ran.during, done.failed_late)
            if done.lost is not None:  # another process runs the others
                lost = f"{ran.during} lost the CUDA context: {done.lost}"
            ran.during = None
            yield
        ended = process.end(ran.hear)
        if isinstance(ended, Gone):
            ran.end_with(process, ended)
            return
        ran.modules = ended.modules
        # A tool around it may print much once pytest is done.
        ran.status = process.status(TIMEOUT_S if request.command_prefix else TO_END_S)
        ran.ended_early = bool(left)
        ran.problem = lost if left else ran.what_is_missing(request.nodeids, process.said)


_OURS = ("pytest_gpukern.session.collection", "pytest_gpukern.run.measured_test")
_LIBRARIES = dict.fromkeys(name for row in BACKENDS.values() for name in row.imports)


class Waiting:
    """Starts the sessions to come while one measures: they import libraries, and wait for their turn.

    They import the parts of this plugin that a session needs. As a finder of `sys.meta_path` that finds
    nothing, it has them import each library of a backend as soon as this process begins to.

    Args:
        start: starts one, of the base or of the working tree.
        most: how many wait at a time, if there are processors beside the measuring one; 0 for none.
        tell: is given a line if one ends before its turn. Then no more are started.
        libraries: what they import; None for all libraries that this process has imported.

    Attributes:
        folder: what is theirs alone, until this is closed.
    """

    def __init__(
        self,
        start: Callable[[bool], Process],
        most: int,
        tell: Callable[[str], None],
        libraries: Iterable[str] | None = None,
    ) -> None:
        self._start = start
        self._most = min(most, len(os.sched_getaffinity(0)) - 1) if sys.platform == "linux" else 0
        self.tell = tell
        self._temporary = TemporaryFolder("run")
        self.folder = Path(self._temporary.name)
        self._processes: dict[bool, list[Process]] = {True: [], False: []}
        known = [name for name in _LIBRARIES if name in sys.modules]
        self._imported = [*_OURS, *(known if libraries is None else libraries)]
        sys.meta_path.insert(0, self)

    def environ(self, changed: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Returns the variables of all sessions, by which they take turns on the host.

        They do so in our folder, or in that of a run with several workers.
        """
        return {RUN_FOLDER_VARIABLE: str(self.folder), **changed}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name in _LIBRARIES and name not in self._imported:
            self._imported.append(name)
            for process in (*self._processes[True], *self._processes[False]):
                process.imports(name)

    def take(self, on_base: bool, coming: Sequence[bool]) -> Process | None:
        """Returns the session of a side that waits, or None, and starts those that come after it."""
        waiting = self._processes[on_base]
        process = waiting.pop(0) if waiting else None
        if process is not None and process.has_ended:
            self.tell(f"sessions import nothing before their turn any more: {last_lines(process.said)}")
            self._most = 0
            process.kill()
            process = None
        self.prepare(coming)
        return process

    def prepare(self, coming: Sequence[bool]) -> None:
        wanted = coming[: self._most]
        for side, waiting in self._processes.items():
            for _ in range(wanted.count(side) - len(waiting)):
                waiting.append(self._start(side))
                for name in self._imported:
                    waiting[-1].imports(name)

    def close(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for waiting in self._processes.values():
            while waiting:
                waiting.pop().kill()
        self._temporary.cleanup()


class Ending(NamedTuple):
    """Says how a test ended.

    Attributes:
        outcome: `passed`, `failed`, `skipped` or `xfailed`.
        text: why, in words.
        sessions: results of the other sessions that were measured for it.
    """

    outcome: str
    text: str = ""
    result: Result | None = None
    sessions: tuple[Result, ...] = ()


@dataclass
class ChildRun:
    """Holds what a child session found, in all the processes that it took.

    Attributes:
        endings: test → how it ended, of those that did.
        modules: the watched modules.
        uncollected: file, or folder whose conftest fails → why nothing of it could be collected.
        listed: test → how pytest-benchmark lists it, of those that use its fixture.
        others: this plugin's tests that nobody wanted and that can fail, if the session collected all.
        problem: why not every test ended, in words with the last lines of output, or None.
        during: the test that was running when it ended early, or None.
        ended_early: whether its pytest did not finish; if it did, a test without an outcome does not exist.
        exit: what a test gave as the reason when it ended the session, or None.
        status: the exit status; negative for a signal; None if it took too long.
    """

    endings: dict[str, Ending] = field(default_factory=dict)
    modules: tuple[messages.LoadedModule, ...] = ()
    uncollected: dict[str, str] = field(default_factory=dict)
    listed: dict[str, JsonDict] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    problem: str | None = None
    during: str | None = None
    ended_early: bool = False
    exit: str | None = None
    status: int | None = None

    def hear(self, message: messages.Message) -> None:
        if isinstance(message, messages.Uncollected):
            self.uncollected.setdefault(message.nodeid, message.text)
        elif isinstance(message, messages.Exit):
            self.exit = message.text
        if not isinstance(message, messages.Reported):
            return
        nodeid, when = message.data["nodeid"], message.data["when"]
        carried = message.data.get("gpukern") or {}
        if carried.get("listed") is not None:
            self.listed[nodeid] = carried["listed"]
        result = self.result_of(nodeid)
        if when == "call" or message.outcome != "passed":
            kind = carried.get("skip_kind")
            text = NotRun.told(kind, message.text) if kind else message.text
            if carried.get("result") is not None:
                result = built(carried["result"], Result)
            self.endings[nodeid] = Ending(message.outcome, text, result)
        if carried.get("observed") is not None and result is not None:
            seen = built(carried["observed"], ObservedTest).added_to(result)
            self.endings[nodeid] = self.endings[nodeid]._replace(result=seen)

    def result_of(self, nodeid: str) -> Result | None:
        return self.endings[nodeid].result if nodeid in self.endings else None

    def fail(self, nodeid: str, why: str) -> None:
        self.endings[nodeid] = Ending("failed", why, self.result_of(nodeid))

    def ending(self, nodeid: str) -> Ending | None:
        """Returns how a test ended; one whose turn did not come in a session that ended early has failed."""
        early = Ending("failed", f"its session ended early: {self.problem}") if self.ended_early else None
        return self.endings.get(nodeid, early)

    def end_with(self, process: Process, gone: Gone) -> None:
        during = f" while running {self.during}" if self.during else ""
        self.problem = f"it {gone.why}{during}: {last_lines(gone.shown or process.said)}"
        self.status = process.status(TO_END_S)

    def what_is_missing(self, nodeids: Iterable[str], said: str) -> str | None:
        missing = sorted(set(nodeids) - self.endings.keys())
        if not missing:
            return None
        if self.uncollected and missing == sorted(nodeids):
            return next(itertools.starmap(_could_not_collect, self.uncollected.items()))
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return f"not found: {', '.join(missing[:_NAMED])}{more}: {last_lines(said)}"

    def why_uncollected(self, nodeid: str) -> str | None:
        for node, why in self.uncollected.items():
            if node == "." or f"{nodeid}::".startswith((f"{node}/", f"{node}::")):
                return _could_not_collect(node, why)
        return None


def _could_not_collect(node: str, why: str) -> str:
    return f"{'the root folder' if node == '.' else node} could not be collected: {last_lines(why)}"


def seeing(*uuids: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def environment(
    environ: Mapping[str, str | None], moved: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Returns a child's environment: this process's without what is its own, changed as `environ` says."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    variables = {name: value for name, value in {**own, **environ}.items() if value is not None}
    if "PYTHONPATH" in variables and moved:
        entries = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(moved_path(entry, moved) for entry in entries)
    return variables


def moved_path(text: str, moved: Mapping[str, str]) -> str:
    """Replaces a folder of this tree by that of another, in a path or an argument that holds one."""
    for here, there in moved.items():
        folder = re.compile(rf"(^|^-\w|[=:,]){re.escape(here)}(?=$|[/:,])")
        text = folder.sub(lambda match, there=there: match[1] + there, text)  # type: ignore[misc]
    return text
