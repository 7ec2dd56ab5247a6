"""Runs tests that may use the GPU in a process of their own, one after the other, in their order.

This process then has no CUDA context. A test that breaks its context, hangs or kills its process fails alone:
we replace the process for the next test. Tests without our fixtures run here. The other process runs
`isolated_child.py`, which lists the messages.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from pytest_gpukern.benchmark_interop.pytest_benchmark import add_entries
from pytest_gpukern.processes.child_sessions import (
    ChildSessions,
    end_group,
    end_in_words,
    environment,
    kill_group,
    last_lines,
    start,
)
from pytest_gpukern.run.collection import measured_case
from pytest_gpukern.run.controller import Controller
from pytest_gpukern.run.isolated_child import STACKS_SIGNAL, said
from pytest_gpukern.run.item import carried, may_use_gpu, timeout_of
from pytest_gpukern.run.stash import captures, children_of, device_uuid, environment_of, tell
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Correctness, JsonDict, Result
from pytest_gpukern.values.untrusted_json import own_json

ELSEWHERE = "it runs in the measuring process"
"""Why this process opens no backend."""
_MOST_STARTS_IN_VAIN = 2
_MOST_TRIES = 3
"""Processes that may end before a test begins in them."""
_HERE = "--gpukern-isolate=off runs the tests in pytest's own process"


class Isolation:
    """Runs a run's GPU tests in the measuring process; a plugin of the reporting process."""

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        environment_of(config).gpu.elsewhere = ELSEWHERE
        self._process: MeasuringProcess | None = None
        self._nodeids: list[str] = []
        self._mine: dict[pytest.Item, pytest.Item | None] = {}
        self._others: dict[pytest.Item, pytest.Item | None] = {}
        self._starts = 0
        self._starts_in_vain = 0
        self._cannot_start: str | None = None
        self._pids: set[int] = set()
        self._own_pids: set[int] = set()
        self._last: _Attempt | None = None
        # Objects in the order of their hashes may be parameters; each process must have the same.
        self._hash_seed = os.environ.get("PYTHONHASHSEED", str(secrets.randbits(32)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Decides which tests run where, and ends the other process with the loop."""
        mine = [item for item in session.items if may_use_gpu(item)]
        others = [item for item in session.items if not may_use_gpu(item)]
        self._mine = dict(itertools.zip_longest(mine, mine[1:]))  # each with the next one, or None
        self._others = dict(itertools.zip_longest(others, others[1:]))
        self._nodeids = [item.nodeid for item in mine]
        try:
            looped = yield
            self._end()
            return looped
        except (pytest.Session.Failed, pytest.Session.Interrupted):  # as by -x
            self._end()
            raise
        finally:
            self._kill()
            left = environment_of(self._config).gpu.left_on_device(self._pids - self._own_pids)
            self._controller.closing += left

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Runs a test in the other process, or here with the next one here."""
        if item in self._mine:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            self._run(item)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        next_here = self._others.get(item)
        if nextitem is next_here:
            return None
        # Fixtures that the next test here needs stay, and no others. Wrappers are around us already.
        hook, plugins = item.config.hook.pytest_runtest_protocol, item.config.pluginmanager
        around = [impl.plugin for impl in hook.get_hookimpls() if impl.wrapper or impl.hookwrapper]
        inner = plugins.subset_hook_caller("pytest_runtest_protocol", remove_plugins=[self, *around])
        return inner(item=item, nextitem=next_here)

    def _run(self, item: pytest.Item) -> None:
        """Runs one test, in a new process if the old one was gone before the test began."""
        next_item = self._mine[item]
        for _ in range(_MOST_TRIES):
            attempt = self._last = _Attempt(item)
            process = self._running()
            if process is None:
                attempt.fail(f"the measuring process could not start: {self._cannot_start}; {_HERE}")
                return
            try:
                ended = process.run(
                    item.nodeid, next_item.nodeid if next_item else None, timeout_of(item), attempt.hear
                )
            except BaseException:  # Ctrl-C above all: the other process has its own process group
                process.interrupt()
                self._kill()
                raise
            self._pids |= attempt.pids
            if not isinstance(ended, Gone) or attempt.begun:
                break
            self._kill()
        if isinstance(ended, Gone):
            self._kill()
        elif ended is not None:
            self._end()
        if attempt.ends_run is not None:
            raise attempt.ends_run
        if isinstance(ended, Gone):
            attempt.fail(f"its measuring process {ended.why}", ended.shown)

    def _running(self) -> MeasuringProcess | None:
        """Returns the process; None if it failed to start twice."""
        while self._process is None and self._cannot_start is None:
            with phase("starting"):
                self._start()
        return self._process

    def _start(self) -> None:
        config, environment = self._config, environment_of(self._config)
        if not self._starts:
            self._own_pids = set(environment.gpu.own_pids)
        try:
            self._process = MeasuringProcess(
                ChildSessions.of(config, device=device_uuid(config), judges=True),
                children_of(config),
                self._nodeids,
                environ={**environment.gpu.for_children, "PYTHONHASHSEED": self._hash_seed},
                basetemp=self._basetemp(),
                shows_output=not captures(config),
            )
        except OSError as error:  # no descriptors are left, or no space
            self._cannot_start = str(error)
            return
        self._pids.add(self._process.pid)
        self._starts += 1
        try:
            collected = self._process.wait_until_ready(self._hear_outside)
        except BaseException:
            self._kill()
            raise
        if isinstance(collected, Gone):
            self._kill()
            self._starts_in_vain += 1
            if self._starts_in_vain >= _MOST_STARTS_IN_VAIN:
                self._cannot_start = f"it {collected.why}: {last_lines(collected.shown)}"
            return
        self._starts_in_vain = 0
        if self._starts == 1:
            for line in [*collected["uncollected"], *(f"note: {note}" for note in collected["notes"])]:
                tell(config, line)

    def _basetemp(self) -> Path | None:
        """Returns the folder for the tests' temporary folders: below this run's, and kept as long."""
        if self._config.pluginmanager.is_blocked("tmpdir"):
            return None
        factory = getattr(self._config, "_tmp_path_factory", None) or pytest.TempPathFactory.from_config(
            self._config, _ispytest=True
        )
        return Path(factory.getbasetemp()) / f"gpukern-measuring-{self._starts}"

    def _hear_outside(self, word: str, what: Any) -> None:
        """Shows lines that arrive while no test runs."""
        if word == "tell":
            tell(self._config, what)

    def _end(self) -> None:
        """Ends the process in order: fixtures are torn down, and the last test reports what fails then."""
        process, last, self._process = self._process, self._last, None
        if process is not None:
            gone = process.end(self._hear_outside if last is None else last.hear)
            if gone is not None and last is not None:
                last.fail(
                    f"while wider fixtures were torn down, its measuring process {gone.why}", gone.shown
                )

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class _Attempt:
    """Reports one test of the other process, and knows how far it came."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._reported: list[str] = []
        self._failed_early = False
        self.begun = False
        self.ends_run: BaseException | None = None
        """The exception that ended the run."""
        self.pids: set[int] = set()
        """The other process's ids on the device, as NVML numbers them."""

    def hear(self, word: str, what: Any) -> None:
        """Handles a message of the other process."""
        config = self._item.config
        if word == "begun":
            self.begun = True
        elif word == "report":
            self._report(_as_of_here(config.hook.pytest_report_from_serializable(config=config, data=what)))
        elif word == "warning":
            _record_warning(config, **what)
        elif word == "tell":
            tell(config, what)
        elif word == "entries":
            add_entries(config, what)
        elif word == "pids":
            self.pids.update(what)
        elif word == "missing":
            self.fail(
                "the measuring process has no test of this name: parameters and their ids must be the same "
                f"in every process; {_HERE}"
            )
        elif word == "lost":
            if not self._failed_early:
                self.fail(f"INCORRECT: launch failed: {what}, found once the test's objects had gone")
        elif word == "stops":
            self._item.session.shouldfail, self._item.session.shouldstop = what
        elif word == "unsendable":
            self.fail(f"the measuring process could not send its report: {what}; {_HERE}")
        elif word == "exit":
            interrupted = KeyboardInterrupt(what["text"])
            left = pytest.exit.Exception(what["text"], what["returncode"])
            self.ends_run = interrupted if what["interrupted"] else left

    def fail(self, why: str, shown: str = "") -> None:
        """Reports that the test failed in its current phase, and ends it."""
        if not self._reported:
            when = "setup"
        elif self._reported == ["setup"] and not self._failed_early:
            when = "call"
        else:
            when = "teardown"
        sections = [("measuring process", shown)] if shown else []
        failed = self._made(when, "failed", why, sections)
        if when != "teardown":
            data = _report_data(self._item, why)
            if data is not None:
                failed.gpukern = data  # type: ignore[attr-defined]
        self._report(failed)
        if when != "teardown":
            self._report(self._made("teardown", "passed", None, []))

    def _report(self, report: pytest.TestReport) -> None:
        if not isinstance(report, getattr(pytest, "SubtestReport", ())):  # after which the test goes on
            self._reported.append(str(report.when))
            self._failed_early = self._failed_early or not report.passed
        self._item.ihook.pytest_runtest_logreport(report=report)

    def _made(
        self, when: Any, outcome: Any, longrepr: str | None, sections: list[tuple[str, str]]
    ) -> pytest.TestReport:
        item = self._item
        keywords: Any = dict.fromkeys(item.keywords, 1)
        return pytest.TestReport(
            item.nodeid, item.location, keywords, outcome, longrepr, when, sections=sections
        )


def _report_data(item: pytest.Item, why: str) -> JsonDict | None:
    """Returns the report data of a test whose process is gone; None if it measures nothing."""
    info = measured_case(item.config, item)
    if info is None:
        return None
    environment = environment_of(item.config)
    result = Result(
        case=info,
        nodeid=item.nodeid,
        fingerprint=environment.gpu.fingerprint,
        provenance=environment.provenance,
        simulated=environment.gpu.simulated.active and info.on_gpu,
        session=environment.session,
        correctness=Correctness.INCORRECT,
        diagnosis=why,
    )
    return carried(item, {"result": result.to_json()})


def _as_of_here(report: pytest.TestReport) -> pytest.TestReport:
    """Turns a report's lists back into tuples, which JSON lacks and pytest's own plugins expect.

    pytest keeps all reports to the end; they share their texts, as those of one process do.
    """
    report.keywords = {sys.intern(keyword): value for keyword, value in report.keywords.items()}
    if isinstance(report.longrepr, list):  # a skip's file, line and reason
        report.longrepr = tuple(report.longrepr)
    path, line, name = report.location
    report.location = (sys.intern(path), line, sys.intern(name))
    report.sections = [(title, text) for title, text in report.sections]
    report.user_properties = [(name, value) for name, value in report.user_properties]
    return report


def _record_warning(config: pytest.Config, warning: JsonDict, nodeid: str, location: Any) -> None:
    """Lets pytest list a warning of the other process, under its own class if this process knows that."""
    module, name = warning["category"]
    category, text = getattr(sys.modules.get(module), name, None), warning["text"]
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category, text = UserWarning, f"{name}: {text}"
    message = UserWarning(text)
    recorded = warnings.WarningMessage(message, category, warning["filename"], warning["lineno"])
    location = tuple(location) if location is not None else None
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": recorded, "when": "runtest", "nodeid": nodeid, "location": location}
    )


START_TIMEOUT_S = 600.0
"""Time for importing and collecting."""
_LOOK_S = 1.0
_TO_WRITE_STACKS_S = 2.0
_TO_TEAR_DOWN_S = 60.0
_TO_BE_INTERRUPTED_S = 5.0
_MOST_CHARACTERS = 4000
_CRASH = "Fatal Python error"


@dataclass(frozen=True)
class Gone:
    """Says why a process no longer measures (`ended by SIGSEGV`), and its last output or its stacks."""

    why: str
    shown: str = ""


class MeasuringProcess:
    """Controls a pytest that runs this run's GPU tests, one at a time.

    It leads a process group, which ends with it. It ends with this process.

    Args:
        children: starts child sessions that judge as this run does.
        confirming: starts those that confirm suspicions, for that process to use.
        nodeids: the tests that it will be asked to run.
        environ: additional environment variables.
        basetemp: where temporary folders of its tests lie; None for a folder of its own.
        shows_output: whether what tests print goes to this process's terminal at once.
    """

    def __init__(
        self,
        children: ChildSessions,
        confirming: ChildSessions,
        nodeids: Sequence[str],
        *,
        environ: Mapping[str, str],
        basetemp: Path | None,
        shows_output: bool = False,
    ) -> None:
        self._folder = TemporaryFolder("measuring")
        place = Path(self._folder.name)
        self._output = place / "output"
        self._stacks = place / "stacks"
        self._read_from = 0
        self._connection, theirs = Pipe()
        spec = place / "spec.json"
        asked = {
            "connection": theirs.fileno(),
            "terminal": str(self._output),
            "stacks": str(self._stacks),
            "children": confirming.to_json(),
        }
        asked |= children.spec(place, nodeids, "run.isolated_child", basetemp=basetemp)
        spec.write_text(own_json.dumps(asked), encoding="utf-8")
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
        """Returns its process id, in this process's namespace."""
        return self._process.pid

    def wait_until_ready(self, hear: Callable[[str, Any], None]) -> JsonDict | Gone:
        """Returns what it says once it has collected; earlier messages go to `hear`."""
        too_long = f"took over {START_TIMEOUT_S:g} s to collect"
        return self._listen(START_TIMEOUT_S, hear, "collected", too_long)  # type: ignore[no-any-return]

    def run(
        self,
        nodeid: str,
        next_nodeid: str | None,
        timeout_s: float | None,
        hear: Callable[[str, Any], None],
    ) -> str | Gone | None:
        """Runs one test, and waits for its end.

        Fixtures that the test `next_nodeid` needs stay set up. Waiting for the device does not count against
        `timeout_s`. Returns why the process has ended or has to be replaced, or None.
        """
        self._read_from = self._output.stat().st_size
        with contextlib.suppress(OSError):
            self._connection.send_bytes(said("run", [nodeid, next_nodeid]))
        too_long = f"took longer than {timeout_s:g} s (--gpukern-timeout)" if timeout_s is not None else ""
        return self._listen(timeout_s, hear, "done", too_long)  # type: ignore[no-any-return]

    def end(self, hear: Callable[[str, Any], None]) -> Gone | None:
        """Lets it tear down and end; kills it if that takes too long. Returns what went wrong, or None."""
        self._read_from = self._output.stat().st_size
        with contextlib.suppress(OSError):
            self._connection.send_bytes(said("end", None))
        gone: Gone | None = self._listen(
            _TO_TEAR_DOWN_S, hear, "torn down", f"took longer than {_TO_TEAR_DOWN_S:g} s"
        )
        if gone is None:  # a library may still fail at its end, which is no test's fault
            self._listen(_TO_TEAR_DOWN_S, lambda *_: None, "", "")
        self.kill()
        return gone

    def interrupt(self) -> None:
        """Interrupts its test, so that fixtures are torn down; waits seconds for its end."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGINT)
            self._listen(_TO_BE_INTERRUPTED_S, lambda *_: None, "", "")

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
        """Handles messages up to the word `until`, and returns its value; or `Gone`.

        Messages that have come count even if the time is over: this process may have been suspended.
        """
        clock = _Clock()
        while True:
            left_s = _LOOK_S if timeout_s is None else timeout_s - clock.passed_s
            try:
                ended = self._process.poll() is not None  # its own child may hold the connection open
                if not self._connection.poll(0.0 if ended else max(0.0, min(_LOOK_S, left_s))):
                    if ended:
                        return self._ended()
                    if left_s <= 0.0:
                        return self._hung(too_long)
                    continue
                word, what = own_json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return self._ended()
            except (ValueError, TypeError, MemoryError) as error:  # MemoryError: the length made no sense
                return Gone(f"sent a message that cannot be read ({error})", self._said())
            if word == until:
                return what
            clock.hear(word)
            hear(word, what)

    def _ended(self) -> Gone:
        """Says how it ended, or that it only closed the connection."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_TEAR_DOWN_S)
        status = self._process.poll()
        why = "closed its connection" if status is None else f"ended {end_in_words(status)}"
        return Gone(why, self._said())

    def _hung(self, why: str) -> Gone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, STACKS_SIGNAL)
        give_up_s = time.monotonic() + _TO_WRITE_STACKS_S
        before, written = -1, 0
        while time.monotonic() < give_up_s and not written == before > 0:
            time.sleep(0.1)
            before, written = written, self._stacks.stat().st_size if self._stacks.exists() else 0
        stacks = self._stacks.read_text(encoding="utf-8", errors="replace") if written else ""
        kill_group(self._process)
        return Gone(why, stacks[:_MOST_CHARACTERS] or self._said())

    def _said(self) -> str:
        """Returns its output since the last test began, from the crash message if there is one."""
        with self._output.open("rb") as output:
            output.seek(self._read_from)
            text = output.read().decode("utf-8", errors="replace").strip()
        crash = text.find(_CRASH)  # the innermost frames come next
        return text[crash : crash + _MOST_CHARACTERS] if crash >= 0 else text[-_MOST_CHARACTERS:]


class _Clock:
    """Counts the time in which the other process did not wait for something else."""

    def __init__(self) -> None:
        self._since_s: float = time.monotonic()
        self._before_s = 0.0
        self._waits = 0

    @property
    def passed_s(self) -> float:
        return self._before_s + (0.0 if self._waits else time.monotonic() - self._since_s)

    def hear(self, word: str) -> None:
        """Handles `pause` and `resume`, which may be nested."""
        if word == "pause":
            self._before_s = self.passed_s
            self._waits += 1
        elif word == "resume":
            self._waits -= 1
            self._since_s = time.monotonic()
