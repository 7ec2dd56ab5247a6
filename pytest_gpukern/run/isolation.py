"""Tests that may use the GPU run in a process of their own, one after the other, in their order.

So this process has no CUDA context, and what breaks one, or hangs, or takes its process with it, fails one
test: its process is replaced, and the next test has a new one. Tests without our fixtures run here.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.benchmark_interop.plugin import add_entries
from pytest_gpukern.processes.child_sessions import ChildSessions
from pytest_gpukern.run.collection import measured_case
from pytest_gpukern.run.isolated_process import Gone, MeasuringProcess, why_gone
from pytest_gpukern.run.stash import children_of, device_uuid, environment_of, may_use_gpu, tell, timeout_of
from pytest_gpukern.run.test_end import carried
from pytest_gpukern.values.result import Correctness, Result

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpukern.run.controller import Controller
    from pytest_gpukern.values.result import JsonDict

ELSEWHERE = "it runs in the process that measures"
"""Why no backend is opened in this one."""
_MOST_STARTS_IN_VAIN = 2
_HERE = "--gpukern-isolate=off runs the tests in pytest's own process"


class Isolation:
    """The plugin of a run whose GPU tests are isolated; registered in the process that reports.

    Args:
        config: of the run.
        controller: is told of what is left on the device.
    """

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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Knows which tests run where, and ends the other process with the loop."""
        mine = [item for item in session.items if may_use_gpu(item)]
        others = [item for item in session.items if not may_use_gpu(item)]
        self._mine = dict(itertools.zip_longest(mine, mine[1:]))  # each with the next one, or None
        self._others = dict(itertools.zip_longest(others, others[1:]))
        self._nodeids = [item.nodeid for item in mine]
        try:
            looped = yield
            self._end()
            return looped
        finally:
            self._kill()
            left = environment_of(self._config).gpu.left_on_device(self._pids - self._own_pids)
            self._controller.closing += left

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Has a test run in the other process, or here with the next one here."""
        if item in self._mine:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            self._run(item)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        following = self._others.get(item)
        if nextitem is following:
            return None
        # Fixtures that the next test here needs stay, and no others.
        return item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _run(self, item: pytest.Item) -> None:
        """Has one test run, in a new process where the old one was gone before the test began."""
        following = self._mine[item]
        while True:
            attempt = _Attempt(item)
            process = self._running()
            if process is None:
                attempt.fail(f"the process that measures could not start: {self._cannot_start}; {_HERE}")
                return
            try:
                ended = process.run(
                    item.nodeid,
                    following.nodeid if following is not None else None,
                    timeout_s=timeout_of(item),
                    hear=attempt.hear,
                )
            except BaseException:  # Ctrl-C above all: the other process has its own process group
                self._kill()
                raise
            self._pids |= attempt.pids
            if not isinstance(ended, Gone) or attempt.begun:
                break
            self._kill()
        if isinstance(ended, Gone):
            self._kill()
        elif ended.lost is not None:
            self._end()
        if attempt.ends_run is not None:
            raise attempt.ends_run
        if isinstance(ended, Gone):
            attempt.fail(f"the process that measured it {ended.why}", ended.shown)

    def _running(self) -> MeasuringProcess | None:
        """The process; where it cannot be started, which is tried twice, None."""
        while self._process is None and self._cannot_start is None:
            self._start()
        return self._process

    def _start(self) -> None:
        config, environment = self._config, environment_of(self._config)
        if not self._starts:
            self._own_pids = set(environment.gpu.own_pids)
        self._process = MeasuringProcess(
            ChildSessions.of(config, device=device_uuid(config), judges=True),
            children_of(config),
            self._nodeids,
            environ=environment.gpu.for_children,
            basetemp=self._basetemp(),
            shows_output=config.getoption("capture", "fd") == "no",
        )
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
                self._cannot_start = f"it {why_gone(collected)}"
            return
        self._starts_in_vain = 0
        if self._starts == 1:
            for line in [*collected["uncollected"], *(f"note: {note}" for note in collected["notes"])]:
                tell(config, line)

    def _basetemp(self) -> Path:
        """Where temporary folders of the tests lie: below this run's, so that they are kept as long."""
        factory = getattr(self._config, "_tmp_path_factory", None) or pytest.TempPathFactory.from_config(
            self._config, _ispytest=True
        )
        return Path(factory.getbasetemp()) / f"gpukern-measuring-{self._starts}"

    def _hear_outside(self, word: str, what: Any) -> None:
        """What is said while no test runs."""
        if word == "tell":
            tell(self._config, what)

    def _end(self) -> None:
        """Ends the process in order, so that fixtures are torn down."""
        if self._process is not None:
            self._process.end(self._hear_outside)
            self._process = None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class _Attempt:
    """One test in the other process: what is reported of it, and how far it came."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._reported: list[str] = []
        self._failed_early = False
        self.begun = False
        self.ends_run: BaseException | None = None
        """What the test ended the run with."""
        self.pids: set[int] = set()
        """Processes with a context on the device, as NVML numbers them, that are the other process."""

    def hear(self, word: str, what: Any) -> None:
        """Reports what the other process tells."""
        config = self._item.config
        if word == "begun":
            self.begun = True
        elif word == "report":
            self._report(_as_it_was(config.hook.pytest_report_from_serializable(config=config, data=what)))
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
                "the process that measures has no test of this name: parameters and their ids must be the "
                f"same in every process; {_HERE}"
            )
        elif word == "unsendable":
            self.fail(f"its report could not be passed on by the process that measured it: {what}; {_HERE}")
        elif word == "exit":
            interrupted = KeyboardInterrupt(what["text"])
            left = pytest.exit.Exception(what["text"], what["returncode"])
            self.ends_run = interrupted if what["interrupted"] else left

    def fail(self, why: str, shown: str = "") -> None:
        """Reports that the test failed where it stood, and that it is over."""
        if not self._reported:
            when = "setup"
        elif self._reported == ["setup"] and not self._failed_early:
            when = "call"
        else:
            when = "teardown"
        sections = [("process that measured", shown)] if shown else []
        failed = self._made(when, "failed", why, sections)
        if when != "teardown":
            told = _told(self._item, why)
            if told is not None:
                failed.gpukern = told  # type: ignore[attr-defined]
        self._report(failed)
        if when != "teardown":
            self._report(self._made("teardown", "passed", None, []))

    def _report(self, report: pytest.TestReport) -> None:
        if report.when is not None:
            self._reported.append(report.when)
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


def _told(item: pytest.Item, why: str) -> JsonDict | None:
    """What travels on the report of a test whose process is gone; None for one that measures nothing."""
    info = measured_case(item.config, item)
    if info is None:
        return None
    environment = environment_of(item.config)
    result = Result(
        case=info,
        nodeid=item.nodeid,
        fingerprint=environment.gpu.fingerprint.to_json(),
        simulated=False,
        session=environment.session,
        correctness=Correctness.INCORRECT,
        diagnosis=why,
    )
    return carried(item, result)


def _as_it_was(report: pytest.TestReport) -> pytest.TestReport:
    """A report whose tuples, which JSON has none of, are tuples again: pytest's own plugins expect them."""
    if isinstance(report.longrepr, list):  # a skip's file, line and reason
        report.longrepr = tuple(report.longrepr)
    report.location = tuple(report.location)  # type: ignore[assignment]
    report.sections = [(title, text) for title, text in report.sections]
    report.user_properties = [(name, value) for name, value in report.user_properties]
    return report


def _record_warning(config: pytest.Config, warning: JsonDict, nodeid: str, location: Any) -> None:
    """Has pytest list a warning of the other process, under its own class where this one knows that."""
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
