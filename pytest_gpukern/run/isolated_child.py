"""Runs in the measuring process: a pytest that runs tests one by one, as it is told.

The reporting process has the other end, `isolation.py`. Both send pairs as JSON: a word, and its value. This
process receives

- `run`, with the names of a test and of the next one (or None), whose fixtures stay;
- `end`.

It sends

- `collected`: it is ready; with files that could not be collected, and notes on libraries;
- `report`, `warning`: pytest's reports and warnings of the running test;
- `tell`: a line for the user;
- `pause`, `resume`: the test waits for something else, such as the device;
- `begun`: a test begins;
- `entries`: what pytest-benchmark itself measured in the test;
- `pids`: its process ids in NVML, as far as it has found out;
- `done`: the test has ended; with why the CUDA context is lost, or None;
- `torn down`: fixtures are, after `end`;
- `lost`: an asynchronous launch has failed, which we found only after the test's last report;
- `stops`: what the test set in the session to fail or stop the run;
- `missing`: there is no test of this name;
- `unsendable`: a message could not be written as JSON;
- `exit`: the test ended the run, by `pytest.exit` or Ctrl-C.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_gpukern.benchmark_interop.pytest_benchmark import take_entries
from pytest_gpukern.processes.child_main import (
    ROOTDIR,
    CollectsFirst,
    become_child,
    deselect_others,
    end_at_once,
    files_to_collect,
)
from pytest_gpukern.run.item import note_lost_context
from pytest_gpukern.run.stash import LOST, MEASURING, WAITS, environment_of
from pytest_gpukern.values.result import JsonDict
from pytest_gpukern.values.untrusted_json import own_json

STACKS_SIGNAL = signal.SIGUSR1
"""The signal that writes every thread's stack to the spec's file, whatever the process does."""


def main(spec: dict[str, Any]) -> NoReturn:
    """Runs the tests of a spec as it is told, and ends with pytest's exit status."""
    become_child(spec)
    end_at_once(int(pytest.main(list(spec["arguments"]), plugins=[MeasuringChild(spec), CollectsFirst()])))


class MeasuringChild:
    """Connects that pytest with the reporting process, as a plugin.

    Args:
        spec: as for any child, and also `connection` (file descriptor of this end), `stacks` (file for
            stacks), `terminal` (file for what pytest itself prints) and `children` (starts child sessions).
    """

    def __init__(self, spec: JsonDict) -> None:
        os.set_inheritable(spec["connection"], False)  # processes that tests start would keep it open
        self._connection = Connection(spec["connection"])
        os.register_at_fork(after_in_child=self._connection.close)  # a fork would speak for this process
        self._wanted = dict.fromkeys(spec["nodeids"])
        self._rootdir = Path(spec["rootdir"])
        self._terminal = Path(spec["terminal"])
        self._uncollected: list[str] = []
        self.children: JsonDict = spec["children"]
        """Starts child sessions of the run's tests; as JSON."""
        self._stacks = Path(spec["stacks"]).open("w", encoding="utf-8")  # noqa: SIM115 - for good
        faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Collects the files of the wanted tests only."""
        config.stash[MEASURING] = config.stash[WAITS] = self
        config.stash[ROOTDIR] = self._rootdir
        self._config = config
        files = files_to_collect(self._wanted, config.rootpath)
        if files is not None:
            config.args, config.option.pyargs = files, False

    def pytest_sessionstart(self) -> None:
        """Separates what pytest prints from what tests print, which `-s` shows to the user."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = self._terminal.open("a", encoding="utf-8", errors="replace")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes what could not be collected."""
        if report.failed:
            self._uncollected.append(f"{report.nodeid}: {report.longrepr}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects what runs elsewhere."""
        deselect_others(config, items, self._wanted)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs tests as told, until the other end has no more, or is gone."""
        items = {item.nodeid: item for item in session.items}
        notes = environment_of(session.config).libraries.notes
        self._tell("collected", {"uncollected": self._uncollected, "notes": notes})
        last = None
        while (wanted := self._next_test()) is not None:
            nodeid, next_nodeid = wanted
            last = items.get(nodeid, last)
            if nodeid not in items:
                self._tell("missing", nodeid)
                self._tell("done", None)
            elif not self._run(items[nodeid], items.get(next_nodeid or "")):
                return True
        lost = session.config.stash.get(LOST, None)
        if last is not None and not (lost is not None and lost.is_fault):
            self._tear_down(last)
        self._tell("torn down", None)
        return True

    def _tear_down(self, last: pytest.Item) -> None:
        """Tears down fixtures that later tests would have found here; the last test reports errors."""
        call = pytest.CallInfo.from_call(lambda: last.session._setupstate.teardown_exact(None), "teardown")
        if call.excinfo is not None:
            self.pytest_runtest_logreport(pytest.TestReport.from_item_and_call(last, call))

    def _next_test(self) -> tuple[str, str | None] | None:
        """Returns the test to run and the next one; None if there are no more."""
        try:
            word, what = own_json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        return what if word == "run" else None

    def _run(self, item: pytest.Item, next_item: pytest.Item | None) -> bool:
        """Runs one test; returns whether the run goes on."""
        self._tell("begun", None)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            returncode = getattr(error, "returncode", None)
            self._tell("exit", {"text": str(error), "returncode": returncode, "interrupted": interrupted})
            return False
        if entries := take_entries(item.config):
            self._tell("entries", entries)
        self._tell("pids", environment_of(item.config).gpu.own_pids)
        fault = note_lost_context(item)  # again, since pytest has let the test's objects go only now
        if fault is not None:
            self._tell("lost", fault)
        if item.session.shouldfail or item.session.shouldstop:
            self._tell("stops", [item.session.shouldfail, item.session.shouldstop])
        lost = item.config.stash.get(LOST, None)
        self._tell("done", lost.error if lost is not None else None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Passes a report on; pytest keeps it to the end, so without what it carries."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        vars(report).pop("gpukern", None)
        self._tell("report", data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Passes a test's warning on; the reporting process has those of collecting itself."""
        if when == "runtest":
            kind = warning_message.category
            described = {
                "category": [kind.__module__, kind.__qualname__],
                "text": str(warning_message.message),
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
            }
            self._tell("warning", {"warning": described, "nodeid": nodeid, "location": location})

    def tell_user(self, text: str) -> None:
        """Sends a line to show to the user."""
        self._tell("tell", text)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stops the test's clock while the test waits for something else."""
        self._tell("pause", None)
        try:
            yield
        finally:
            self._tell("resume", None)

    def _tell(self, word: str, what: Any) -> None:
        try:
            message = said(word, what)
        except Exception as error:  # noqa: BLE001 - a test may put anything on its report
            message = said("unsendable", f"{type(error).__name__}: {error}")
        try:
            self._connection.send_bytes(message)
        except OSError:
            sys.exit("the reporting process has ended")


def said(word: str, what: Any) -> bytes:
    """Returns a word and its value as a message; a value without a JSON form becomes text."""
    message: bytes = own_json.dumps([word, what], default=str).encode()
    return message
