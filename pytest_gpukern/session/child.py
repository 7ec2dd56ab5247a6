"""Runs in a process that another one started: a pytest that runs tests one by one, as it is told.

`processes/process.py` has the other end, and `processes/messages.py` lists what is said.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import hashlib
import importlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks

from pytest_gpukern.benchmark_interop.pytest_benchmark import take_entries
from pytest_gpukern.gpu.libcuda import LibCuda
from pytest_gpukern.gpu.lock import HostTurns
from pytest_gpukern.gpu.processes import is_alive
from pytest_gpukern.processes import messages
from pytest_gpukern.processes.process import STACKS_SIGNAL
from pytest_gpukern.session.item import checks_in, note_lost_context, tear_down, why_not_passed
from pytest_gpukern.session.stash import CHILD, LOST, environment_of
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE

_LOOK_S = 1.0
_ENDED_AFTER_PARENT = 70


def main(start: dict[str, Any]) -> None:
    """Waits to be told which tests to run, runs them as told, and ends with pytest's exit status."""
    if start["under_tool"]:  # the kernel ends the tool with the process that asked, but not this one
        threading.Thread(target=end_after, args=(start["asked_by"],), daemon=True).start()
    sys.path[:] = start["path"]
    package = sys.modules["pytest_gpukern"]
    # Else pytest warns that it cannot rewrite this plugin any more; some runs make that an error.
    package.__doc__ = f"{package.__doc__} PYTEST_DONT_REWRITE"
    os.set_inheritable(start["connection"], False)  # processes that tests start would keep it open
    connection = Connection(start["connection"])
    os.register_at_fork(after_in_child=connection.close)  # a fork would speak for this process
    begin = wait_for_turn(connection, start)
    sys.path[:] = begin.path
    os.environ |= begin.environ
    sys.argv = ["pytest", *begin.arguments]  # what a lock says of its holder
    status = int(pytest.main(list(begin.arguments), plugins=[Child(begin, connection)]))
    if start["under_tool"]:  # it may look at how a process ends
        sys.exit(status)
    end_at_once(status)


def end_at_once(status: int) -> NoReturn:
    """Ends this process after its exit handlers, without taking apart all modules: that takes half a second.

    Threads that are left do not keep it.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_for_turn(connection: Connection, start: dict[str, Any]) -> messages.Begin:
    """Imports libraries while others measure, and returns what to run when this process's turn begins.

    We import known libraries only. Conftests and test files are collected in the turn: they may run anything
    when they are imported, and collecting opens the device. While another process times something on the
    host, nothing is imported: this process was started `busy`, and takes turns from then on.

    This process ends itself if its parent has no turn for it, or if a library has made a CUDA context.
    """
    run_folder = os.environ.get(RUN_FOLDER_VARIABLE)
    turns = HostTurns(Path(run_folder) if run_folder else None)
    if start["busy"] is not None:
        os.close(start["busy"])
    culprit = None
    while culprit is None or connection.poll():
        message = received(connection)
        if message is None:
            sys.exit("the run had no turn for this session")
        if isinstance(message, messages.Begin):
            return message
        assert isinstance(message, messages.Import)
        if culprit is None:
            with turns.busy(), suppress(Exception):  # which the test files will meet
                importlib.import_module(message.module)
            culprit = message.module if LibCuda().has_context() else None
    sys.exit(f"{culprit} makes a CUDA context when it is imported")


def _can_fail(item: pytest.Item) -> bool:
    with suppress(pytest.fail.Exception):  # of a bad condition, which fails the test
        return evaluate_skip_marks(item) is None and evaluate_xfail_marks(item) is None
    return True


def received(connection: Connection) -> messages.Message | None:
    """Returns the next message of the process that started this one, or None if that is gone."""
    try:
        return messages.FROM_PARENT.decode(connection.recv_bytes())
    except (EOFError, OSError):
        return None


class Child:
    """Connects that pytest with the process that started it, as a plugin."""

    def __init__(self, begin: messages.Begin, connection: Connection) -> None:
        self.begin = begin
        self._connection = connection
        self._others: tuple[str, ...] = ()
        self._collects_garbage = gc.isenabled()
        gc.disable()
        self._stacks = Path(begin.stacks).open("w", encoding="utf-8")  # noqa: SIM115 - for good
        faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True)

    @property
    def judges(self) -> bool:
        """Whether it is a run's measuring process: then it also starts the sessions that confirm."""
        return self.begin.children is not None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, object, object]:
        """Has a session go on without a conftest that fails: pytest then collects nothing below its folder.

        It is reported here too, since options of the run that it declares are unknown now.
        """
        try:
            return (yield)
        except Exception as error:
            conftest = getattr(error, "path", None)
            if not isinstance(conftest, Path) or self.judges:
                raise
            folder = os.path.relpath(conftest.parent, early_config.rootpath)
            self._tell(messages.Uncollected(folder, str(error)))
            return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Collects the files of the wanted tests only, if it was told which these are.

        The command line stays as the parent's: it decides which conftests are loaded at once, so which
        options there are, and where the ini file lies.
        """
        self._config = config
        config.stash[CHILD] = self
        if self.begin.worker is not None:
            config.workerinput, config.workeroutput = self.begin.worker, {}  # type: ignore[attr-defined]
        request = self.begin.request
        if not request.nodeids:
            return
        files = None if request.collects_all else files_to_collect(request.nodeids, config.rootpath)
        if files is not None:
            config.args, config.option.pyargs = files, False
        elif not config.option.pyargs:  # a missing path, or test of a file, would end this session
            config.args = [path for given in config.args if Path(path := given.partition("::")[0]).exists()]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Restores garbage collection when collecting ends, and leaves out of it what there is by then.

        A session keeps what it imports. On an H200's host, searching it nine times over as it grew took 1.4
        to 1.7 s of the nine that a session of these suites took to start. Later pytest has everything
        searched five times when it ends, and we do around each test.
        """
        try:
            return (yield)
        finally:
            gc.freeze()
            if self._collects_garbage:
                gc.enable()

    def pytest_sessionstart(self) -> None:
        """Separates what pytest prints from what tests print, which `-s` shows to the user."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            # Each line at once: the process may end without closing its files.
            reporter._tw._file = Path(self.begin.terminal).open("a", 1, encoding="utf-8", errors="replace")  # noqa: SIM115

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Reports why a file could not be collected: the output has that far above its end."""
        if report.failed:
            self._tell(messages.Uncollected(report.nodeid, why_not_passed(report)))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = frozenset(self.begin.request.nodeids)
        if not wanted:
            return
        others = [item for item in items if item.nodeid not in wanted]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.nodeid in wanted]
        if self.begin.request.collects_all:
            self._others = tuple(item.nodeid for item in others if checks_in(item) and _can_fail(item))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs tests as told, until the other end has no more, or is gone."""
        items = {item.nodeid: item for item in session.items}
        environment = environment_of(session.config)
        self._tell(messages.Collected(tuple(items), self._others, tuple(environment.library_notes)))
        last = None
        while isinstance(wanted := received(self._connection), messages.RunTest):
            item = items[wanted.nodeid]
            if last is not None:
                tear_down(last, item)
            last, following = item, item.parent if wanted.keeps else items.get(wanted.next_nodeid or "")
            with environment.gpu.host.busy():
                goes_on = self._run(last, following)
            if not goes_on:
                return True
        lost = session.config.stash.get(LOST, None)
        if last is not None and not (lost is not None and lost.is_fault):
            tear_down(last, None)
        roots, names = self.begin.request.watched_roots, self.begin.request.watched_names
        self._tell(messages.TornDown(loaded_below(roots, names) if roots else ()))
        return True

    def _run(self, item: pytest.Item, following: Any) -> bool:
        """Runs one test; returns whether the run goes on."""
        self._tell(messages.Begun())
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            interrupted, status = isinstance(error, KeyboardInterrupt), getattr(error, "returncode", None)
            self._tell(messages.Exit(str(error), status, interrupted))
            return False
        if entries := take_entries(item.config):
            self._tell(messages.Listed(entries))
        fault = note_lost_context(item)  # again, since pytest has let the test's objects go only now
        lost, session = item.config.stash.get(LOST, None), item.session
        late = f"INCORRECT: launch failed: {fault}, found once the test's objects had gone"
        self._tell(
            messages.Done(
                lost.error if lost is not None else None,
                late if fault is not None else None,
                str(session.shouldfail) if session.shouldfail else None,
                str(session.shouldstop) if session.shouldstop else None,
            )
        )
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Passes a report on; pytest keeps it to the end, so without what it carries."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        vars(report).pop("gpukern", None)
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        self._tell(messages.Reported(data, outcome, why_not_passed(report)))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Passes a test's warning on; the reporting process has those of collecting itself."""
        if when == "runtest":
            kind, text = warning_message.category, str(warning_message.message)
            where = (warning_message.filename, warning_message.lineno)
            self._tell(messages.Warned((kind.__module__, kind.__qualname__), text, *where, nodeid, location))

    def tell_user(self, text: str) -> None:
        self._tell(messages.Tell(text))

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Stops the test's clock while it waits for something else, and leaves the host to others."""
        self._tell(messages.Paused())
        try:
            with environment_of(self._config).gpu.host.resting():
                yield
        finally:
            self._tell(messages.Resumed())

    def _tell(self, message: messages.Message) -> None:
        content = messages.encoded(message)
        try:
            self._connection.send_bytes(content)
        except OSError:
            sys.exit("the process that started this session has ended")


def files_to_collect(wanted: Iterable[str], root: Path) -> list[str] | None:
    """Returns the wanted tests' files, or None to collect all that was given.

    The name of a test outside of the root folder does not tell its file, and pytest takes a bracket in an
    argument for the beginning of a test's parameters.
    """
    files = dict.fromkeys(root / nodeid.partition("::")[0] for nodeid in wanted)
    can_be_told = all(file.is_file() and "[" not in str(file) for file in files)
    return [str(file) for file in files] if can_be_told else None


def loaded_below(roots: Sequence[str], names: Sequence[str]) -> tuple[messages.LoadedModule, ...]:
    """Returns the loaded modules below `roots`, or below a name of `names`."""
    resolved = [Path(root).resolve() for root in roots]
    folders = functools.cache(os.path.realpath)  # a session has thousands of modules in few folders
    loaded = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        folder, base = os.path.split(os.path.realpath(file) if os.path.islink(file) else file)  # noqa: PTH114
        path = Path(folders(folder)) / base
        watched = name.partition(".")[0] in names or any(path.is_relative_to(root) for root in resolved)
        if watched and path.is_file():
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            loaded.append(messages.LoadedModule(name, str(path), sha256))
    return tuple(loaded)


def end_after(process: int) -> NoReturn:
    while is_alive(process):
        time.sleep(_LOOK_S)
    os._exit(_ENDED_AFTER_PARENT)
