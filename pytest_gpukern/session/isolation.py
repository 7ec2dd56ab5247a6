"""Runs tests that may use the GPU in a process of their own, one after the other, in their order.

This process then has no CUDA context. A test that breaks its context, hangs or kills its process fails alone:
we replace the process for the next test. Tests without our fixtures run here. The other process runs
`session/child.py`. A worker of xdist does the same on its GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import secrets
import sys
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from pytest_gpukern.benchmark_interop.pytest_benchmark import add_entries
from pytest_gpukern.gpu.model import short_uuid
from pytest_gpukern.processes import messages
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.process import TO_TEAR_DOWN_S, Gone, Process, last_lines
from pytest_gpukern.processes.sessions import ChildSessions
from pytest_gpukern.report.units import counted
from pytest_gpukern.session.collection import info_of
from pytest_gpukern.session.item import (
    carried,
    context_of,
    may_use_gpu,
    tear_down,
    timeout_of,
)
from pytest_gpukern.session.stash import Assignment, children_of, device_uuid, environment_of, tell
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Correctness, JsonDict, Result
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import built, printable_lines

if TYPE_CHECKING:
    from pytest_gpukern.run.spine import Settled

_MOST_STARTS_IN_VAIN = 2
_MOST_TRIES = 3
"""Processes that may end before a test begins in them."""
_HERE = "--gpukern-isolate=off runs the tests in pytest's own process"


class Isolation:
    """Runs a run's GPU tests in the measuring process; a plugin of pytest's process, or of xdist's worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        given = Assignment.of(config)
        self._is_worker = given is not None
        self._cards = [given.card, *given.others] if given is not None else [device_uuid(config)]
        self._process: Process | None = None
        self._mine: list[pytest.Item] = []
        self._next: dict[pytest.Item, pytest.Item | None] = {}
        """Test → the next one that runs where it does."""
        self._found: frozenset[str] | None = None
        """The tests that the process has; None until it has collected."""
        self._starts = 0
        self._starts_in_vain = 0
        self._cannot_start: str | None = None
        self._moved: str | None = None
        self._last: _Attempt | None = None
        self._held: list[_Attempt] = []
        # Objects in the order of their hashes may be parameters; each process must have the same.
        self._hash_seed = os.environ.get("PYTHONHASHSEED", str(secrets.randbits(32)))
        config.add_cleanup(self._kill)
        if given is not None:  # both import at the same time, and this one opens NVML meanwhile
            self._launch()
        environment_of(config).gpu.why_no_context = "it runs in the measuring process"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Has a worker's process collect while the worker does."""
        if self._is_worker:
            self._begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Decides which tests run where, ends the other process with the loop, and settles what waits."""
        self._mine = [item for item in session.items if may_use_gpu(item)]
        others = [item for item in session.items if not may_use_gpu(item)]
        for kind in (self._mine, others):
            self._next |= itertools.zip_longest(kind, kind[1:])
        ends_early = True
        try:
            looped = yield
            self._tear_down()
            ends_early = False
            return looped
        except (pytest.Session.Failed, pytest.Session.Interrupted):  # as by -x
            self._tear_down()
            raise
        finally:
            self._kill()
            self._settle(early=ends_early)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Runs a test in the other process, or here with the next one here."""
        following = self._after(item, nextitem)
        if may_use_gpu(item):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            self._run(item, following)
            if self._is_worker and nextitem is None:
                tear_down(item, None)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        if self._is_worker:  # xdist takes reports of the current test alone
            tear_down(item, item)
            if self._last is not None:
                self._last.item = item
        if nextitem is following:
            return None
        # Fixtures that the next test here needs stay, and no others. Wrappers are around us already.
        hook, plugins = item.config.hook.pytest_runtest_protocol, item.config.pluginmanager
        around = [impl.plugin for impl in hook.get_hookimpls() if impl.wrapper or impl.hookwrapper]
        inner = plugins.subset_hook_caller("pytest_runtest_protocol", remove_plugins=[self, *around])
        return inner(item=item, nextitem=following)

    def _settle(self, *, early: bool) -> None:
        """Settles together the tests that wait, now that no process of ours holds the device."""
        if not self._held:
            return
        from pytest_gpukern.run.spine import settle_together

        tests, environment = [attempt.waiting() for attempt in self._held], environment_of(self._config)
        try:
            if not early:
                tell(self._config, f"{counted(len(tests), 'test')} left: further sessions decide their times")
            settled = settle_together(tests, environment, early=early)
        except BaseException:  # Ctrl-C above all: no report is lost
            self._report(settle_together(tests, environment, early=True))
            raise
        self._report(settled)

    def _report(self, settled: Sequence[Settled]) -> None:
        for attempt, of in zip(self._held, settled, strict=True):
            attempt.report_settled(of)

    def _after(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        """Returns the next test that runs where this one does.

        A worker knows one test ahead only. If that one runs elsewhere, the item's parent has wider fixtures
        stay until the next test here is known.
        """
        if not self._is_worker:
            return self._next[item]
        elsewhere = nextitem is not None and may_use_gpu(nextitem) != may_use_gpu(item)
        return item.parent if elsewhere else nextitem

    def _run(self, item: pytest.Item, following: Any) -> None:
        """Runs one test, in a new process if the old one was gone before the test began."""
        wanted = messages.RunTest(
            item.nodeid, following.nodeid if following else None, keeps=following is item.parent
        )
        timeout_s = timeout_of(item)
        too_long = f"took longer than {timeout_s:g} s (--gpukern-timeout)" if timeout_s is not None else ""
        for _ in range(_MOST_TRIES):
            attempt = self._last = _Attempt(item, self._held)
            while self._found is None and self._cannot_start is None:
                with phase("starting"):
                    self._start()
            process = self._process
            attempt.moved, self._moved = self._moved, None
            if process is None or self._found is None:
                attempt.fail(f"the measuring process could not start: {self._cannot_start}; {_HERE}")
                return
            if wanted.nodeid not in self._found:
                attempt.fail(
                    "the measuring process has no test of this name: parameters and their ids must be the "
                    f"same in every process; {_HERE}"
                )
                return
            try:
                ended = process.run(wanted, attempt.hear, timeout_s=timeout_s, too_long=too_long)
            except BaseException:  # Ctrl-C above all: the other process has its own process group
                process.interrupt()
                self._kill()
                raise
            if not isinstance(ended, Gone) or attempt.begun:
                break
            self._kill()
        if isinstance(ended, Gone):
            self._kill()
        else:
            attempt.end(ended)
            if ended.lost is not None:
                self._tear_down()
        if attempt.ends_run is not None:
            raise attempt.ends_run
        if isinstance(ended, Gone):
            attempt.fail(f"its measuring process {ended.why}", ended.shown)

    @property
    def _children(self) -> ChildSessions:
        return dataclasses.replace(children_of(self._config), card=self._cards[0])

    def _launch(self) -> None:
        """Launches a process, which waits to be told what to collect."""
        of_worker = {name: value for name, value in os.environ.items() if name.startswith("PYTEST_XDIST_")}
        request = ChildRequest(environ={**of_worker, "PYTHONHASHSEED": self._hash_seed})
        captures = self._config.getoption("capture", "no") != "no"  # -p no:capture takes the option away, too
        try:
            self._process = self._children.start(request, shows_output=not captures)
        except OSError as error:  # no descriptors are left, or no space
            self._cannot_start = str(error)
            return
        self._starts += 1

    def _begin(self) -> None:
        """Has the process collect, which may have been launched before."""
        if self._process is None and self._cannot_start is None:
            self._launch()
        if self._process is None:
            return
        worker = getattr(self._config, "workerinput", {})
        # A worker does not know yet which tests are its own.
        request = ChildRequest(tuple(item.nodeid for item in self._mine) if not self._is_worker else ())
        begin = structs.replace(
            self._children.begin(self._process, request, judges=True, basetemp=self._basetemp()),
            environ=environment_of(self._config).gpu.for_children,
            worker={name: value for name, value in worker.items() if name != "gpukern"} or None,
        )
        self._process.begin(begin)

    def _start(self) -> None:
        """Waits until a process has collected, which may have begun before."""
        if self._process is None:
            self._begin()
        if self._process is None:
            return
        try:
            collected = self._process.collected(self._hear_outside)
        except BaseException:
            self._kill()
            raise
        if isinstance(collected, Gone):
            self._kill()
            self._starts_in_vain += 1
            if self._starts_in_vain >= _MOST_STARTS_IN_VAIN:
                self._leave_card(f"it {collected.why}: {last_lines(collected.shown)}")
            return
        self._found = frozenset(collected.nodeids)
        self._starts_in_vain = 0
        if self._starts == 1:
            for note in collected.notes:
                tell(self._config, f"note: {note}")

    def _leave_card(self, why: str) -> None:
        """Goes on with the GPU of another worker; if there is none, no process can start."""
        failed = self._cards.pop(0)
        if not self._cards:
            self._cannot_start = why
            return
        uuids = [str(failed), *map(str, self._cards)]
        before, now = short_uuid(uuids[0], uuids), short_uuid(uuids[1], uuids)
        self._moved = f"{before} failed, and its worker went on with {now}: {why}"
        self._starts_in_vain = 0

    def _basetemp(self) -> Path | None:
        """Returns the folder for the tests' temporary folders: below this run's, and kept as long."""
        if self._config.pluginmanager.is_blocked("tmpdir"):
            return None
        factory = getattr(self._config, "_tmp_path_factory", None) or pytest.TempPathFactory.from_config(
            self._config, _ispytest=True
        )
        return Path(factory.getbasetemp()) / f"gpukern-measuring-{self._starts}"

    def _hear_outside(self, message: messages.Message) -> None:
        """Shows what arrives while no test runs; later processes cannot collect the same files."""
        if isinstance(message, messages.Tell):
            tell(self._config, message.text)
        elif isinstance(message, messages.Uncollected) and self._starts == 1:
            tell(self._config, f"{message.nodeid}: {message.text}")

    def _tear_down(self) -> None:
        """Has the process tear its fixtures down and end; the last test reports what fails before its end."""
        last = self._last
        if self._process is None or self._found is None:
            return
        ended = self._process.end(self._hear_outside if last is None else last.hear)
        if not isinstance(ended, Gone):
            self._process.status(TO_TEAR_DOWN_S)
        elif last is not None:
            last.fail(f"while wider fixtures were torn down, its measuring process {ended.why}", ended.shown)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = self._found = None


class _Attempt:
    """Reports one test of the other process, and knows how far it came."""

    def __init__(self, item: pytest.Item, waiting: list[_Attempt]) -> None:
        self.item, self._waiting = item, waiting
        self.moved: str | None = None
        """Says which GPU failed before, in words, for the next report."""
        self._phases = 0
        self._failed_early = False
        self.begun = False
        self.held: list[pytest.TestReport] = []
        """Reports of a test that waits for the end of the run, from that of its call on."""
        self.ends_run: BaseException | None = None
        """The exception that ended the run."""

    def hear(self, message: messages.Message) -> None:
        config = self.item.config
        match message:
            case messages.Begun():
                self.begun = True
            case messages.Reported():
                report = config.hook.pytest_report_from_serializable(config=config, data=message.data)
                self._report(_as_of_here(report))
            case messages.Warned():
                _record_warning(config, message)
            case messages.Tell():
                tell(config, message.text)
            case messages.Listed():
                add_entries(config, message.entries)
            case messages.Exit():
                left = pytest.exit.Exception(message.text, message.returncode)
                self.ends_run = KeyboardInterrupt(message.text) if message.interrupted else left

    def end(self, done: messages.Done) -> None:
        session = self.item.session
        session.shouldfail = done.fail or session.shouldfail
        session.shouldstop = done.stop or session.shouldstop
        if done.failed_late is not None and not self._failed_early:
            self.fail(done.failed_late)

    def fail(self, why: str, shown: str = "") -> None:
        """Reports that the test failed in its current phase, and ends it."""
        when = "call" if self._phases else "setup"
        if self._failed_early or self._phases > 1:
            when = "teardown"
        failed = self._made(when, "failed", printable_lines(why), printable_lines(shown.expandtabs()))
        if when == "teardown":
            self._report(failed)
            return
        failed.gpukern = _report_data(self.item, why)  # type: ignore[attr-defined]
        self._report(failed)
        self._report(self._made("teardown", "passed"))

    def _report(self, report: pytest.TestReport) -> None:
        # After a subtest the test goes on, and before it begins wider fixtures of others are torn down.
        if self.begun and not isinstance(report, pytest.SubtestReport):
            self._phases += 1
            self._failed_early = self._failed_early or not report.passed
        report.nodeid = self.item.nodeid
        if self.moved is not None:
            report.gpukern = {**getattr(report, "gpukern", {}), "problem": self.moved}  # type: ignore[attr-defined]
            self.moved = None
        if report.when == "setup" and self.held:  # of a further attempt: the one before counts no more
            for each in self.held:
                self.item.ihook.pytest_runtest_logreport(report=each)
            self.held.clear()
            self._waiting.remove(self)
        waits = getattr(report, "gpukern", {}).get("waits") is not None
        if waits and not self.held:
            self._waiting.append(self)
        if self.held or waits:
            self.held.append(report)
        else:
            self.item.ihook.pytest_runtest_logreport(report=report)

    def waiting(self) -> Settled:
        """Returns what `settle_together` needs of a test that waits."""
        from pytest_gpukern.run.spine import Settled

        carried = self.held[0].gpukern
        result, *sessions = (
            structs.replace(built(data, Result), nodeid=self.item.nodeid)
            for data in (carried["result"], *carried["sessions"])
        )
        return Settled(result, tuple(sessions), **carried["waits"])

    def report_settled(self, settled: Settled) -> None:
        """Reports a test that waited with what it came to."""
        found = {
            "result": plain(settled.result),
            "sessions": plain(settled.sessions),
            "gate_failures": plain(settled.failures),
        }
        for each in self.held:  # a teardown that failed carries the result again, and may have own failures
            carried = getattr(each, "gpukern", {})
            own = {"gate_failures"} if carried.get("gate_failures") else set()
            carried.update({name: found[name] for name in found.keys() & carried.keys() - own})
        report = self.held[0]
        if settled.failures and report.passed:
            why = printable_lines("\n".join(map(str, settled.failures)))
            call = pytest.CallInfo.from_call(lambda: pytest.fail(why, pytrace=False), "call")
            assert call.excinfo is not None
            report.outcome, report.longrepr = "failed", call.excinfo.getrepr(style="value")
        for each in self.held:
            self.item.ihook.pytest_runtest_logreport(report=each)

    def _made(self, when: Any, outcome: Any, why: str | None = None, shown: str = "") -> pytest.TestReport:
        item, sections = self.item, [("measuring process", shown)] if shown else []
        keywords: Any = dict.fromkeys(item.keywords, 1)
        return pytest.TestReport(item.nodeid, item.location, keywords, outcome, why, when, sections=sections)


def _report_data(item: pytest.Item, why: str) -> JsonDict:
    info = info_of(item.config, item)
    if info is None:
        return {}
    simulated = environment_of(item.config).gpu.simulated.active and info.on_gpu
    result = context_of(item).new_result(
        info, simulated=simulated, correctness=Correctness.INCORRECT, diagnosis=why
    )
    return carried(item, {"result": plain(result)})


def _as_of_here(report: pytest.TestReport) -> pytest.TestReport:
    """Turns a report's lists back into tuples, which JSON lacks and pytest's own plugins expect."""
    if isinstance(report.longrepr, list):  # a skip's file, line and reason
        report.longrepr = tuple(report.longrepr)
    path, line, name = report.location
    report.location = path, line, name
    report.sections = [(title, text) for title, text in report.sections]
    report.user_properties = [(name, value) for name, value in report.user_properties]
    return report


def _record_warning(config: pytest.Config, warned: messages.Warned) -> None:
    """Lets pytest list a warning of the other process, under its own class if this process knows that."""
    module, name = warned.category
    category, text = getattr(sys.modules.get(module), name, None), warned.text
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category, text = UserWarning, f"{name}: {text}"
    recorded = warnings.WarningMessage(UserWarning(text), category, warned.filename, warned.lineno)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": recorded,
            "when": "runtest",
            "nodeid": warned.nodeid,
            "location": warned.location,
        }
    )
