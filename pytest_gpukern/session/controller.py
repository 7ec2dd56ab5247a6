"""Collects the results of all processes, and writes every file once, at the end of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import structs

from pytest_gpukern.session.collection import KNOWN_CASES_OF_A_WORKER, USAGE_ERROR, left_by_files
from pytest_gpukern.session.item import why_not_passed
from pytest_gpukern.session.plan import Ahead, Plan, hand_over
from pytest_gpukern.session.stash import (
    KNOWN_CASES,
    OPENED,
    UNCHANGED,
    UNCHANGED_OF_A_WORKER,
    device_uuid,
    distributes,
    environment_of,
    runs_tests,
    settings_of,
    tell,
    workers_of,
)
from pytest_gpukern.values.options import measures, plugin_requested
from pytest_gpukern.values.phases import ACCOUNT, add_to, phase
from pytest_gpukern.values.untrusted_json import FileError, built, first_line

if TYPE_CHECKING:
    from pytest_gpukern.baseline.merge import WriteReport
    from pytest_gpukern.baseline.record import Record
    from pytest_gpukern.baseline.store import KnownCases, ToPrune
    from pytest_gpukern.findings.common_shift import Shift
    from pytest_gpukern.report.run import Failure, RunResults, Skip, Voucher
    from pytest_gpukern.run.extra_sessions import Recording
    from pytest_gpukern.session.unchanged import Ran
    from pytest_gpukern.values.result import JsonDict, Result


class Terminated(KeyboardInterrupt):
    """Ends the run. No `except Exception` takes it for an error of a kernel, as it would `pytest.exit`."""


def end_on_sigterm(config: pytest.Config, controller: Controller) -> None:
    """Lets SIGTERM end the run as Ctrl-C does: our processes end too, and temporary folders are removed.

    Python itself would die on the spot. A handler that somebody else installed stays.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def end(number: int, _frame: FrameType | None) -> None:
        controller.terminated = 128 + number
        if controller.finishes:  # pytest shows the traceback of Ctrl-C
            pytest.exit("SIGTERM", controller.terminated)
        raise Terminated("SIGTERM")

    def restore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, end)
    config.add_cleanup(restore)


class Controller:
    """Gathers the results that travel on a run's reports; xdist's workers have none."""

    def __init__(self, config: pytest.Config, plan: Plan | None = None) -> None:
        self._config, self._plan, self._ahead = config, plan, Ahead()
        self._measures = measures(config)
        self._results: dict[str, Result] = {}
        self._sessions: dict[str, list[Result]] = {}
        self._skips: list[Skip] = []
        self._rejected: dict[str, str] = {}
        self._entries: dict[str, JsonDict] = {}
        self._listed: dict[str, JsonDict] = {}
        self._failures: dict[str, Failure] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._problems: list[str] = []
        self.finishes, self.terminated = False, 0
        self._files: tuple[Path, ...] = ()
        self._baselines: WriteReport | None = None
        self._history: dict[str, Record] = {}
        self._shift: Shift | None = None
        self._since_record: list[str] = []
        self._machine = ""
        self._stale: list[ToPrune] = []
        self._selected: dict[str, None] = {}
        self._reported: set[str] = set()
        self._green = False
        self._unable: dict[str, tuple[str, str]] = {}
        """Test that cannot have failed → whether it is `unmeasured`, `xfailed` or `xpassed`, and why."""
        self._skipped_files: dict[str, str] = {}
        self._begun_s = time.monotonic()
        self._spent_s: dict[str, float] = {}
        """Phase → seconds of this process outside tests, and of all tests wherever they ran."""
        ACCOUNT.begin("starting")
        self._progress: Callable[[int, int], None] | None = None

    @property
    def _cards(self) -> list[str]:
        workers = workers_of(self._config)
        return workers.cards[: workers.count] if workers is not None else []

    @property
    def results(self) -> list[Result]:
        """Returns what the tests found, in order; of a test that was run again, the last attempt."""
        order = dict.fromkeys([*self._selected, *self._results])  # workers end in any order
        return [self._results[nodeid] for nodeid in order if nodeid in self._results]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes which tests there are, and what was opened here: tests elsewhere inherit variables."""
        if self._config.pluginmanager.has_plugin("gpukern-isolation"):
            self._note_opened()
        self._selected = dict.fromkeys(item.nodeid for item in session.items)
        self._ran  # noqa: B018 - tests may extend Python's path

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Says whole words where the terminal lacks signs."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and plugin_requested(self._config):
            from pytest_gpukern.report.layout import spell_out

            spell_out(reporter._tw._file)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_configure_node(self) -> Generator[None, Any, Any]:
        """Notes what was opened here before a worker starts: it inherits variables, and is handed values."""
        opened = self._config.stash.get(OPENED, None)
        if opened is not None and self._ran is not None and self._ran.opened:
            opened.carried()  # by the workers that have started, which tell it themselves
        outcome = yield
        self._note_opened()
        return outcome

    def _note_opened(self) -> None:
        if self._ran is not None and (opened := self._config.stash.get(OPENED, None)) is not None:
            self._ran.take_opened(opened.carried())
            if not distributes(self._config):  # further workers are handed values, too
                opened.close()

    @functools.cached_property
    def _ran(self) -> Ran | None:
        """Holds what a voucher needs to know of the tests; None if the run writes no file to hold it."""
        asked = plugin_requested(self._config) and settings_of(self._config).benchmark
        if not asked or settings_of(self._config).run_file is None:
            return None
        from pytest_gpukern.session.unchanged import Ran

        return Ran(self._config.rootpath)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Notes which tests there are where workers collect them."""
        self._selected |= dict.fromkeys(ids)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Ends the run with the usage error that a worker found, before xdist shows it as a crash.

        Once tests run, only a worker that replaces another can find one: then the run goes on.
        Workers collect, so one of them also says which cases there are.

        Raises:
            pytest.UsageError: a worker reported an error while it collected, or died of one before.
        """
        output = getattr(node, "workeroutput", {})
        _, died_of_one, text = str(error).rpartition("UsageError: ")  # the end of its traceback
        message = output.get(USAGE_ERROR) or (died_of_one and text)
        if message and not self._reported:
            raise pytest.UsageError(message.strip())
        selection = output.get(KNOWN_CASES_OF_A_WORKER)
        if UNCHANGED_OF_A_WORKER in output:  # each worker leaves out the same
            from pytest_gpukern.report.run import Unchanged

            self._config.stash[UNCHANGED] = built(output[UNCHANGED_OF_A_WORKER], Unchanged)
        if selection is not None and KNOWN_CASES not in self._config.stash:
            from pytest_gpukern.baseline.store import KnownCases

            known, whole = selection
            self._config.stash[KNOWN_CASES] = tuple(KnownCases(**cases) for cases in known), whole

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes which files skipped themselves, as where a library is missing."""
        if report.skipped and report.nodeid.endswith(".py"):
            self._skipped_files[report.nodeid] = _why_skipped(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        add_to(self._spent_s, ACCOUNT.begin(None))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Takes the result off a report, from this process or a worker; pytest keeps reports to the end."""
        self._take(report)
        reported = yield
        vars(report).pop("gpukern", None)
        if report.when == "teardown" and (self._results or self._measures):
            self._progress = self._progress or self._telling("tests")
            self._progress(len(self._reported), len(self._selected))
        return reported

    def _take(self, report: pytest.TestReport) -> None:
        carried: JsonDict = getattr(report, "gpukern", {})
        add_to(self._spent_s, carried.get("spent_s", {}))
        self._reported.add(report.nodeid)
        if "problem" in carried:
            self._problems.append(carried["problem"])
        if isinstance(report, pytest.SubtestReport):  # its test fails with it
            return
        expected, ended = hasattr(report, "wasxfail"), report.failed or report.when == "call"
        result = carried.get("result") or {}
        ran = result.get("first_call_ns") is not None or bool(result.get("code") or carried.get("rejected"))
        if report.skipped or (ended and expected):
            kind = ("xfailed" if report.skipped else "xpassed") if expected else "unmeasured"
            self._unable[report.nodeid] = kind, _why_skipped(report)
        elif ended and report.passed and not ran:
            self._unable[report.nodeid] = "unmeasured", "its test measured nothing"
        elif ended:
            self._unable.pop(report.nodeid, None)
        if self._ran is not None:
            self._ran.take(report, carried)
        if report.when == "teardown":
            if "id" in carried:
                self._take_result(report.nodeid, carried)
            self._take_teardown(report, carried)
            return
        # xdist's, of a crash, or pytest-retry's, of a further attempt
        if not carried and (str(report.when) == "???" or report.nodeid in self._places):
            self._note_failure(report, carried)
        if "id" not in carried:
            return
        if report.skipped:
            from pytest_gpukern.report.run import Skip

            self._skips.append(Skip(carried["id"], _why_skipped(report), carried.get("skip_kind", "")))
            return
        self._failures.pop(report.nodeid, None)
        self._note_failure(report, carried)
        if carried.get("rejected") and report.passed:
            self._rejected[report.nodeid] = carried["id"]
        self._take_result(report.nodeid, carried)

    def _take_result(self, nodeid: str, carried: JsonDict) -> None:
        from pytest_gpukern.values.result import Result

        self._places[nodeid] = tuple(carried["place"])
        if carried["result"] is not None:
            self._results[nodeid], *self._sessions[nodeid] = (
                structs.replace(built(data, Result), nodeid=nodeid)
                for data in (carried["result"], *carried.get("sessions", ()))
            )
            self._entries[nodeid] = carried["entry"]

    def _take_teardown(self, report: pytest.TestReport, carried: JsonDict) -> None:
        """Takes pytest-benchmark's row, what the test left on the device, and whether its teardown failed.

        pytest's JUnit file has the properties of this report.
        """
        if carried.get("listed") is not None:
            self._listed[report.nodeid] = carried["listed"]
        result, observed = self._results.get(report.nodeid), carried.get("observed")
        if result is None:
            return
        if observed is not None:
            from pytest_gpukern.measure.observers import ObservedTest

            self._results[report.nodeid] = msgspec.convert(observed, ObservedTest).added_to(result)
        self._note_failure(report, carried)
        if self._config.getoption("xmlpath", None):
            from pytest_gpukern.report.junit import properties
            from pytest_gpukern.report.run import RunResults

            test = report.nodeid
            failures = {test: self._failures[test]} if test in self._failures else {}
            settings = settings_of(self._config)
            history: dict[str, Record] = {}
            with contextlib.suppress(FileError):  # reported elsewhere
                if failures and settings.benchmark:
                    recorded = environment_of(self._config).record_of(result.case)
                    history |= {test: recorded.for_report()} if recorded.epochs else {}
            of_test = RunResults(
                [self._results[test]],
                {test: self._sessions[test]},
                failures=failures,
                history=history,
                compared_with=self._ahead.compared_with,
                settings=settings,
            )
            report.user_properties += properties(of_test)

    def _note_failure(self, report: pytest.TestReport, carried: JsonDict) -> None:
        """Notes of a failed report why the gate failed the test, or the first line of another failure.

        The latter counts before: an `update` accepts what became slower, not what the test found wrong.
        """
        if not report.failed or self._failed_by_itself(report.nodeid):
            return
        from pytest_gpukern.report.run import Failure
        from pytest_gpukern.values.result import GateFailure

        reasons = tuple(GateFailure(**reason) for reason in carried.get("gate_failures", ()))
        self._failures[report.nodeid] = Failure(first_line(why_not_passed(report)), reasons)

    def _failed_by_itself(self, nodeid: str) -> bool:
        return nodeid in self._failures and not self._failures[nodeid].by_the_gate

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Runs the plan before the tests; once they have ended, sessions of what is to be recorded."""
        if self._plan is not None and runs_tests(session):
            self._ahead = ahead = self._plan.run(session.items)
            self._listed |= ahead.listed
            self._problems += ahead.problems
        looped = yield
        if (
            plugin_requested(self._config)
            and self._writes_baselines
            and not self._config.getoption("collectonly")
        ):
            with phase("recording sessions"):
                self._recording.measure(self._results, self._failed_by_itself, self._cards, self._telling)
            for nodeid, extra in (self._recording.extra or {}).items():
                self._sessions[nodeid] += extra.results
        return looped

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Hands over how a test of the plan ended."""
        ending = self._ahead.endings.get(item.nodeid)
        if ending is None:
            return None
        hand_over(item, ending, nextitem)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, Any, Any]:
        """Writes files, fails a run that judged nothing and publishes to pytest-benchmark.

        This runs before the terminal's own wrapper, whose summary shows it.
        """
        self.finishes, session.exitstatus = True, self.terminated or session.exitstatus
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._left_out:
            session.exitstatus = exitstatus = pytest.ExitCode.OK
        self._green = exitstatus == pytest.ExitCode.OK and not self.terminated
        if exitstatus != pytest.ExitCode.USAGE_ERROR and not self._config.getoption("collectonly"):
            with phase("reports"):
                if plugin_requested(self._config):
                    self._compare_all()
                    self._write_baselines()
                    self._problems += self._not_judged()
                    self._tell_what_is_weaker()
                    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                        self._problems += self._not_run(exitstatus)
                self._write_forms(in_summary=False)
        if self._problems and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def _not_judged(self) -> list[str]:
        """Says what `no-gpu` and `missing` of `--gpukern-fail-on` fail."""
        settings, on_gpu = settings_of(self._config), [of for of in self.results if of.case.on_gpu]
        problems = []
        # What is the SAME CODE as before has a verdict, and no time.
        judged = (of for of in on_gpu if of.measurements or of.verdicts)
        judged_on_gpu = any(not result.simulated for result in judged)
        stands_for_gpu = self._left_out and environment_of(self._config).gpu.has_gpu  # as where they passed
        if settings.benchmark and "no-gpu" in settings.fail_on and not (judged_on_gpu or stands_for_gpu):
            # A file that skipped itself, as where a library is missing, may hold kernels.
            left = self._why_unable("unmeasured")
            unmeasured = self._skipped_files or any(left.keys() & of.tests for of in self._known)
            if settings.asks_for_gpu or on_gpu or unmeasured or not self.results:
                why = environment_of(self._config).gpu.missing_gpu
                failed = "--gpukern-fail-on=no-gpu: nothing was measured on a GPU in this run"
                problems.append(failed + (f" ({why})" if why else ""))
        return problems + (self._missing() if "missing" in settings.fail_on else [])

    @property
    def _left_out(self) -> bool:
        unchanged = self._config.stash.get(UNCHANGED, None)
        return bool(unchanged and unchanged.tests)

    @functools.cached_property
    def _voucher(self) -> Voucher | None:
        """Says for which tests this run vouches; None where it writes no run file, or measures nothing."""
        if self._ran is None or self._left_out:
            return None
        from pytest_gpukern.session.unchanged import voucher_of

        green = self._green and not self._problems
        whole = self._config.stash.get(KNOWN_CASES, ((), False))[1]
        return voucher_of(self._config, self._ran, self.results, green=green, whole=whole)

    @property
    def _known(self) -> tuple[KnownCases, ...]:
        return self._config.stash.get(KNOWN_CASES, ((), False))[0]

    @functools.cached_property
    def _known_and_left(self) -> list[KnownCases]:
        """The cases of the selected files, and of a run of everything the baselines left behind.

        It is asked for only when all is collected, and it walks the folders of the run.
        """
        known, whole = self._config.stash.get(KNOWN_CASES, ((), False))
        left = left_by_files(self._config, known, self._skipped_files, self._model_keys) if whole else ()
        return [*known, *left]

    def _not_run(self, exitstatus: int) -> list[str]:
        """Says which tests have no report: xdist had no worker left to run them, or somebody ended the run.

        A run that failed may have ended at its first failure.
        """
        missing, workers = [of for of in self._selected if of not in self._reported], workers_of(self._config)
        if not missing or (workers is None and exitstatus != pytest.ExitCode.OK):
            return []
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        shortfall = f"{len(missing)} of {len(self._selected)} selected tests did not run: {missing[0]}{more}"
        restarts = "a worker ended and none replaced it (--max-worker-restart says how many may be)"
        return [
            f"{shortfall}; {restarts if workers is not None else 'the run ended early, as by pytest.exit'}"
        ]

    def _why_unable(self, *kinds: str) -> dict[str, str]:
        return {test: why for test, (kind, why) in self._unable.items() if kind in kinds}

    def _missing(self) -> list[str]:
        return [
            f"--gpukern-fail-on=missing: {len(ids)} recorded {'case' if len(ids) == 1 else 'cases'} did not "
            f"run: {reason} ({', '.join(sorted(ids))})"
            for reason, ids in sorted(self._recorded_but(self._why_unable("unmeasured"), gone=True).items())
        ]

    def _recorded_but(self, left: Mapping[str, str], *, gone: bool) -> dict[str, set[str]]:
        """Returns why recorded cases fail no test → these cases: of tests `left` out, or that are gone."""
        store, devices = environment_of(self._config).store, {device_uuid(self._config) or "", *self._cards}
        why: dict[str, set[str]] = {}
        for cases, model_key in self._by_model(self._known_and_left):
            with contextlib.suppress(FileError):  # reported elsewhere
                recorded = store.on_record(cases, model_key, devices)
                for test in cases.tests.keys() & left.keys():
                    why.setdefault(left[test], set()).update({cases.tests[test]} & recorded)
                if gone:
                    of_none = recorded & {*store.to_prune(cases, model_key).ids}
                    why.setdefault(cases.why_gone, set()).update(of_none)
        return {reason: ids for reason, ids in why.items() if ids}

    def _tell_what_is_weaker(self) -> None:
        """Says what lets more pass than at the base or by the record, beside findings of single tests.

        It fails the run with `weaker`. Cases that are gone are told by `missing` or beside the records, too.
        """
        settings, ahead = settings_of(self._config), self._ahead
        texts = [*ahead.weaker]
        why: dict[str, set[str]] = {}
        for test in ahead.passed_before & self._unable.keys():
            why.setdefault(self._unable[test][1], set()).add(test)
        fails = "weaker" in settings.fail_on
        gone = fails and "missing" not in settings.fail_on
        left = self._why_unable("xfailed", *(["unmeasured"] if gone else []))
        if settings.benchmark and settings.baseline not in ("off", "update") and (gone or left):
            for reason, cases in self._recorded_but(left, gone=gone).items():
                why.setdefault(reason, set()).update(cases)
        for reason, names in sorted(why.items()):
            texts.append(f"{len(names)} cannot fail any more: {reason} ({', '.join(sorted(names))})")
        if fails:
            self._problems += [f"--gpukern-fail-on=weaker: {text}" for text in texts]
        else:
            self._since_record += [f"weaker: {text}" for text in texts]

    def pytest_terminal_summary(self) -> None:
        self._write_forms(in_summary=True)

    def _write_forms(self, *, in_summary: bool) -> None:
        """Makes the forms of the report that apply; what a run found nothing for is not even loaded."""
        if not (
            self._results or self._skips or self._rejected or self._problems or plugin_requested(self._config)
        ):
            return
        from pytest_gpukern.report.forms import write_forms

        report = write_forms(self._report(), self._config, in_summary=in_summary)
        self._files, self._problems = report.files, list(report.problems)

    def _report(self) -> RunResults:
        from pytest_gpukern.report.records import record_lines, shaping_options
        from pytest_gpukern.report.run import RunResults
        from pytest_gpukern.report.summary import REST

        add_to(self._spent_s, ACCOUNT.lap())
        spent_s, duration_s = dict(self._spent_s), time.monotonic() - self._begun_s
        settings, workers = settings_of(self._config), workers_of(self._config)
        if workers is not None and workers.count > 1:  # some may be idle
            spent_s[REST] = max(0.0, workers.count * duration_s - sum(spent_s.values()))
        report = RunResults(
            results=self.results,
            settings=settings,
            sessions={nodeid: self._sessions[nodeid] for nodeid in self._results},
            skips=self._skips,
            rejected=tuple(self._rejected.values()),
            failures=self._failures,
            history=self._history,
            shift=self._shift,
            since_record=self._since_record,
            machine=self._machine,
            places=self._places,
            entries=self._entries,
            listed=self._listed,
            compared_with=self._ahead.compared_with,
            heading=self._ahead.heading,
            unchanged=self._config.stash.get(UNCHANGED, None),
            voucher=self._voucher,
            baselines=self._baselines,
            shortened=self._recording.short if self._writes_baselines else {},
            stale=self._stale,
            shaping=shaping_options(self._config),
            files=self._files,
            problems=tuple(self._problems),
            duration_s=duration_s,
            spent_s=spent_s,
        )
        return dataclasses.replace(
            report, closing=(*self._ahead.closing, *record_lines(report, self._config))
        )

    def _compare_all(self) -> None:
        """Looks up what is recorded, and for a shift common to all results, before anything is written."""
        settings = settings_of(self._config)
        if not settings.benchmark or settings.baseline == "off":
            return
        from pytest_gpukern.findings.common_shift import Compared, shift_among
        from pytest_gpukern.report.head import head, machine_as_recorded
        from pytest_gpukern.values.result import Correctness

        compared = []
        for result in self.results:
            judged = next((key for key, verdict in result.verdicts.items() if verdict.ratio), None)
            try:
                recorded = environment_of(self._config).record_of(result.case)
            except FileError as error:
                self._problems.append(str(error))
                return
            past = recorded.past(judged) if judged is not None else ()
            if recorded.epochs:
                self._history[result.nodeid] = recorded.for_report()
            if past:
                compared.append(Compared(result, past))
        self._shift = shift_among(compared)
        wrong = any(result.correctness is Correctness.INCORRECT for result in self.results)
        self._since_record = head(compared, self._shift, wrong=wrong)
        self._machine = machine_as_recorded(compared, self._shift) if compared else ""

    def _write_baselines(self) -> None:
        """Writes baselines. A file that cannot be written fails the run, and does not crash it."""
        environment = environment_of(self._config)
        known = self._known_and_left if settings_of(self._config).code else self._known
        if self._writes_baselines:
            self._baselines = self._recording.write(self._results, self._sessions, self._failed_by_itself)
            self._problems += [str(error) for error in self._baselines.errors]
        for cases, model_key in self._by_model(known):
            with contextlib.suppress(FileError):  # reported elsewhere
                stale = environment.store.to_prune(cases, model_key)
                skipped = cases.why_gone in self._skipped_files.values()
                self._stale += [stale] if stale.ids and not skipped else []

    @functools.cached_property
    def _recording(self) -> Recording:
        from pytest_gpukern.run.extra_sessions import Recording

        return Recording(environment_of(self._config))

    @property
    def _writes_baselines(self) -> bool:
        settings = settings_of(self._config)
        return settings.benchmark and settings.baseline not in ("compare", "off")

    @property
    def _model_keys(self) -> set[str]:
        if settings_of(self._config).code:
            from pytest_gpukern.baseline.store import CODE

            return {CODE}
        return {environment_of(self._config).gpu.model_key(on_gpu=on_gpu) for on_gpu in (True, False)}

    def _by_model(self, cases: Sequence[KnownCases]) -> Iterable[tuple[KnownCases, str]]:
        return itertools.product(cases, self._model_keys if cases else ())  # else NumPy is not loaded

    def _telling(self, what: str) -> Callable[[int, int], None]:
        from pytest_gpukern.report.progress import telling_now_and_then

        if self._config.get_verbosity() < 0:
            return lambda finished, total: None  # noqa: ARG005 - pytest's dots show that the run goes on
        return telling_now_and_then(functools.partial(tell, self._config), what)


def _why_skipped(report: pytest.TestReport | pytest.CollectReport) -> str:
    why = why_not_passed(report)
    return f"expected to fail: {why}" if hasattr(report, "wasxfail") else why
