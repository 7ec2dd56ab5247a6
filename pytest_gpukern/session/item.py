"""Follows one test item of pytest: its marker and case, its set-up, its end, and what its report carries."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.session import stash
from pytest_gpukern.values.options import SettingsError, plugin_requested, try_the_simulator
from pytest_gpukern.values.phases import ACCOUNT

if TYPE_CHECKING:
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.problem import Declared
    from pytest_gpukern.run.measured_test import MeasuredTest
    from pytest_gpukern.run.spine import SubjectContext
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import GateFailure, JsonDict

MARKER = "gpu_benchmark"
FIXTURES = frozenset(("gpu_benchmark", "gpu_device", "gpu_synchronize", "gpu_warmup"))
"""Our fixtures: a test that asks for one may use the GPU."""
_WENT_ON = "the test caught this and went on; use verify(…, expect_failure=True) for an expected failure"
_ONLY_NUMBA = "Only Numba kernels can be checked without one"


@dataclass
class Attempt:
    """Holds what has become of one attempt at a test; plugins that rerun failures make several.

    Attributes:
        test: measures it; None for a test that does not use this plugin.
        taken_over: measures for its `benchmark` fixture; None if that is pytest-benchmark's alone.
        passes: whether no phase has failed or was skipped.
        missing: what skips it at its end, since a subtest needs what is not there.
        was_incorrect: what was wrong in the last attempt that was wrong, in a line.
        context: the CUDA context in which its body began, if its module has another test.
    """

    test: MeasuredTest | None = None
    taken_over: Any = None
    passes: bool = True
    missing: BaseException | None = None
    was_incorrect: str | None = None
    context: int | None = None


_ATTEMPT = pytest.StashKey[Attempt]()


def attempt_at(item: pytest.Item) -> Attempt:
    return item.stash.setdefault(_ATTEMPT, Attempt())


def may_use_gpu(item: pytest.Item) -> bool:
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or measures_in(item)


def checks_in(item: pytest.Item) -> bool:
    """Returns whether this plugin measures in a test, or rejects broken variants there."""
    return "gpu_benchmark" in getattr(item, "fixturenames", ()) or measures_in(item)


def measures_in(item: pytest.Item) -> bool:
    """Returns whether this plugin measures in a test.

    It does through its own fixture, unless the test only rejects broken variants. It does through
    pytest-benchmark's in a run that asks for that.
    """
    names = getattr(item, "fixturenames", ())
    if "gpu_benchmark" in names:
        declared = declared_of(item)
        return declared is None or not declared.wrong
    if "benchmark" not in names:
        return False
    ini = str(item.config.getini("gpukern_all")).strip().lower()
    takes_all = item.config.getoption("gpukern_all") or ini in ("1", "yes", "true", "on")
    return bool(takes_all) or item.get_closest_marker(MARKER) is not None


def declared_of(item: pytest.Item) -> Declared | None:
    """Returns whose cases a test's function runs; None for a test that is not `@problem.cases`."""
    return getattr(getattr(item, "function", None), "_gpukern_problem", None)


def case_of(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    if case is None:
        return None  # nothing more is loaded for tests that do not use this plugin
    from pytest_gpukern.problems.cases import Case

    return case if isinstance(case, Case) else None


def place_of(item: pytest.Item) -> tuple[str, int]:
    """Returns file and line, counted from 1, of the variant that an item is made for, or of a plain test."""
    case = case_of(item)
    if case is not None and case.variant.prepare is not None:
        code = case.variant.prepare.__code__
        return code.co_filename, code.co_firstlineno
    return str(item.path), (item.location[1] or 0) + 1


def marker_of(item: pytest.Item) -> MarkerOptions:
    """Returns the arguments of an item's marker; a closer marker wins over a class's or module's.

    A wrong marker counts as none, and fails its test (`begin`).
    """
    from pytest_gpukern.values.marker import MarkerOptions

    merged: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        with suppress(SettingsError):
            MarkerOptions.from_mark(mark.args, mark.kwargs, item.nodeid)
            merged.update(mark.kwargs)
    return MarkerOptions.from_mark((), merged, item.nodeid)


def timeout_of(item: pytest.Item) -> float | None:
    """Returns how long a test may take in its measuring process, in seconds, or None."""
    own = marker_of(item).timeout
    timeout_s = own if own is not None else stash.settings_of(item.config).timeout_s
    return None if timeout_s == math.inf else timeout_s


def new_test(item: pytest.Item) -> MeasuredTest:
    from pytest_gpukern.run.measured_test import MeasuredTest

    attempt_at(item).test = test = item.config.stash.get(stash.NEW_TEST, MeasuredTest)(context_of(item))
    return test


def context_of(item: pytest.Item) -> SubjectContext:
    from pytest_gpukern.run.spine import SubjectContext

    config = item.config
    child, environment = config.stash.get(stash.CHILD, None), stash.environment_for_test(config)
    request = None if child is None else child.begin.request
    return SubjectContext(
        environment,
        marker_of(item),
        item.nodeid,
        item.path,
        checked=request is not None and item.nodeid in request.checked,
        asks=request is not None and request.asks,
        rootdir=config.rootpath,
    )


@contextmanager
def saying_what_is_missing(item: pytest.Item) -> Iterator[None]:
    """Skips a test that needs what the simulator lacks, or a GPU that is not there; both with the reason."""
    try:
        yield
    except Exception as error:
        if missing := _what_is_missing(item, error):
            raise missing from None
        raise
    kept = getattr(item, "_excinfo", None)  # unittest's
    if kept and all(instead := [_what_is_missing(item, of.value) for of in kept]):
        kept.clear()
        raise instead[0]


def skip_subtest(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Does the same for the error of a subtest, which ends no test; the test is skipped at its end."""
    if call.excinfo and call.when == "call" and (missing := _what_is_missing(item, call.excinfo.value)):
        call.excinfo = pytest.ExceptionInfo.from_exception(missing.with_traceback(call.excinfo.tb))
        attempt_at(item).missing = attempt_at(item).missing or missing


def _what_is_missing(item: pytest.Item, error: Any) -> Any:
    """Returns what ends a test instead of an error that says so; None for any other error.

    In a run that did not ask for this plugin, a test that needs a GPU fails, and is told of the simulator.
    """
    reason = simulator_lacks(error)
    if reason is None and may_use_gpu(item):
        from pytest_gpukern.gpu.simulator.errors import meant_by, missing_gpu_in_error, torch_wants_gpu

        found = meant_by(error, lambda of: missing_gpu_in_error(of) or torch_wants_gpu(of))
        gpu = stash.environment_of(item.config).gpu if found else None
        if gpu is None or gpu.missing_gpu is None:  # the library fits neither the driver nor the card
            return None
        if not plugin_requested(item.config):
            by_numba = type(found).__module__.partition(".")[0] in ("numba", "numba_cuda_mlir")
            remedy = try_the_simulator(item.config) if by_numba else _ONLY_NUMBA
            return failure(f"no GPU: {gpu.missing_gpu}\n{remedy}")
        from pytest_gpukern.values.note import DEVICE_OF_TENSORS, NO_GPU, NotRun

        on_host = gpu.simulated.active and torch_wants_gpu(found)
        reason = NotRun(NO_GPU, f"PyTorch has none; {DEVICE_OF_TENSORS}") if on_host else gpu.why_no_gpu
    return pytest.skip.Exception(reason, _use_item_location=True) if reason else None


def simulator_lacks(error: BaseException) -> str | None:
    errors = sys.modules.get("pytest_gpukern.gpu.simulator.errors")
    found = errors and errors.meant_by(error, lambda of: isinstance(of, errors.SimulatorUnsupported))
    from pytest_gpukern.values.note import NOT_SIMULATED, NotRun

    return NotRun(NOT_SIMULATED, found.feature) if found else None


def begin(item: pytest.Item) -> None:
    """Begins an attempt at a test, and forgets an earlier one, as a plugin that reruns failures makes them.

    It fails a test whose marker has an unknown or impossible argument, with file and line, and one that may
    use the GPU if an earlier test has lost this process's CUDA context.
    """
    ACCOUNT.begin(None)
    if stash.OPENED in item.config.stash:
        item.config.stash[stash.OPENED].enter(item.nodeid)
    if stash.ENVIRONMENT in item.config.stash:
        from pytest_gpukern.gpu.live_threads import note_starter  # only in runs that use this plugin

        note_starter("")
    item.stash[_ATTEMPT] = Attempt(was_incorrect=attempt_at(item).was_incorrect)
    file, line, name = item.location
    for mark in item.iter_markers(MARKER):
        from pytest_gpukern.values.marker import MarkerOptions  # only in runs that use this plugin

        try:
            MarkerOptions.from_mark(mark.args, mark.kwargs, f"{file}:{(line or 0) + 1}: {name}")
        except SettingsError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None  # shown once
    lost = item.config.stash.get(stash.LOST, None)
    if lost is not None and may_use_gpu(item):
        pytest.fail(
            f"not run: this process lost its CUDA context in {lost.nodeid} ({lost.error}); "
            "--gpukern-isolate=on starts a new process after such a loss",
            pytrace=False,
        )


@contextmanager
def failing_where_wrong(item: pytest.Item) -> Iterator[None]:
    """Fails a phase in which something was found wrong, though it goes on or is skipped.

    pytest then heeds marks, such as xfail. After `pytest.exit` the run still ends.
    """
    __tracebackhide__ = True
    told = _wrong(item)
    skips = getattr(sys.modules.get("unittest"), "SkipTest", pytest.skip.Exception)
    try:
        yield
    except (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, skips) as error:
        if _wrong(item) in (None, told):
            raise
        if isinstance(error, pytest.exit.Exception):
            item.session.shouldstop = str(error) or "pytest.exit"
    finally:
        test = attempt_at(item).test
        if test is not None and test.diagnosis is not None:
            from pytest_gpukern.values.untrusted_json import first_line

            attempt_at(item).was_incorrect = first_line(test.diagnosis)
    if _wrong(item) not in (None, told):
        kept = getattr(item, "_excinfo", None)  # unittest's, which pytest prefers to ours
        if kept and isinstance(kept[0].value, pytest.skip.Exception):
            kept.clear()
        raise failure(f"{_wrong(item)}\n  {_WENT_ON}")


def _wrong(item: pytest.Item) -> str | None:
    test = attempt_at(item).test
    return test.wrong if test is not None else None


def _fail_where_context_is_lost(item: pytest.Item, test: MeasuredTest | None) -> None:
    """Fails a test whose asynchronous work failed after its last call; nobody else would notice."""
    error = _context_fault(item)
    if error is None or _failed_on_purpose(test):
        return
    from pytest_gpukern.values.result import Correctness  # on an error only: every run loads this module

    message = f"launch failed: {error}, found when we waited for all of the test's work on the device"
    if test is not None and test.result is not None:
        from msgspec import structs

        test.result = structs.replace(test.result, correctness=Correctness.INCORRECT, diagnosis=message)
    pytest.fail(f"INCORRECT: {message}", pytrace=False)


def _failed_on_purpose(test: MeasuredTest | None) -> bool:
    """Says whether a test rejects a variant whose launch fails: it may lose the context, as any other."""
    if test is None or test.rejected is None:
        return False
    from pytest_gpukern.check.diagnosis import Fault

    return test.rejected.variant.expected_fault == Fault.LAUNCH_FAILED


def note_context(item: pytest.Item) -> None:
    if (contexts := _contexts_of(item)) is not None:
        attempt_at(item).context = contexts.current_context()


def note_lost_context(item: pytest.Item) -> str | None:
    """Notes after a teardown that the CUDA context is unusable, or is another one.

    Returns CUDA's error, if that is new.
    """
    config = item.config
    if stash.LOST in config.stash or stash.ENVIRONMENT not in config.stash:
        return None
    contexts, fault = stash.environment_of(config).gpu.contexts, _context_fault(item)
    error = fault
    if error is None and contexts is not None:
        # A context from before the body is a fixture's; the next test of the module needs it.
        of_the_module = attempt_at(item).context == contexts.current_context()
        error = contexts.context_change(another_may_stay=of_the_module or stash.CHILD not in config.stash)
    if error is not None:
        config.stash[stash.LOST] = stash.LostContext(item.nodeid, error, is_fault=fault is not None)
    return fault


def _contexts_of(item: pytest.Item) -> Any:
    """Returns what knows the CUDA context that a test may use; None for a test that uses none."""
    uses = stash.ENVIRONMENT in item.config.stash and may_use_gpu(item)
    return stash.environment_of(item.config).gpu.contexts if uses else None


def _context_fault(item: pytest.Item) -> str | None:
    """Says why the CUDA context is lost; returns None if it is not, or if the test cannot have used it."""
    contexts = _contexts_of(item)
    return None if contexts is None else contexts.context_fault()


def conclude(item: pytest.Item, *, subtest_failed: bool) -> None:
    attempt = attempt_at(item)
    test = attempt.test
    _fail_where_context_is_lost(item, test)
    if attempt.missing is not None and not subtest_failed:
        raise attempt.missing
    if getattr(item, "_excinfo", None):  # unittest keeps to itself why its test did not pass
        return
    if case_of(item) is not None and (test is None or not (test.result or test.rejected)):
        pytest.fail("the test never ran its case: call gpu_benchmark.run(case)", pytrace=False)
    names, marked = getattr(item, "fixturenames", ()), item.get_closest_marker(MARKER) is not None
    if test is None and marked and plugin_requested(item.config) and "benchmark" not in names:
        test = new_test(item)
    if test is None:
        return
    if subtest_failed:
        pytest.fail("a subtest failed", pytrace=False)
    if marked or attempt.taken_over is None:  # it may get our fixture by name
        test.note_where_never_called()
    if test.evidence is not None and attempt.was_incorrect is not None:
        from pytest_gpukern.values.note import Note

        test.evidence.add_note(Note(f"INCORRECT in an earlier attempt: {attempt.was_incorrect}"))
    fail_by_the_gate(item, test, test.settle(may_wait=_may_wait(item)))


_ENDS_AT_ONCE = ("maxfail", "stepwise", "reruns")
"""Options of pytest and of a plugin. With them a failure ends the run at once, or the test runs again."""


def _may_wait(item: pytest.Item) -> bool:
    """Returns whether the process that shows reports can hold back a test's: not one of xdist's workers.

    The marks `xfail` and `flaky` count only while pytest runs the test.
    """
    child, config = item.config.stash.get(stash.CHILD, None), item.config
    if child is None or not child.judges or child.begin.worker is not None:
        return False
    marked = any(map(item.get_closest_marker, ("xfail", "flaky")))
    return not marked and not any(config.getoption(name, None) for name in _ENDS_AT_ONCE)


def end_observing(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Notes after a teardown what the test left on the device, and fails it if the gate says so."""
    test = attempt_at(item).test
    if nextitem is None or nextitem.path != item.path:
        attempt_at(item).context = None
    if test is not None and test.result is not None:
        test.let_go()
        values = getattr(item, "funcargs", None) or {}  # which pytest drops only once it has reported
        fail_by_the_gate(item, test, test.finish_observing(passed=test.ended, let_go=values.clear))
    _fail_where_threads_go_on_launching(item, failed=test is not None and bool(test.gate_failures))


def _fail_where_threads_go_on_launching(item: pytest.Item, *, failed: bool) -> None:
    """Fails a test whose threads would disturb the next one's times; a new process runs that, if possible."""
    config = item.config
    if stash.ENVIRONMENT not in config.stash or stash.LOST in config.stash:
        return
    from pytest_gpukern.gpu.live_threads import new_threads

    who = stash.environment_of(config).gpu.launching_threads() if new_threads() else ""
    if not who:
        return
    why = f"{who} left running by this test kept launching on the GPU"
    if stash.CHILD in config.stash:
        config.stash[stash.LOST] = stash.LostContext(item.nodeid, why)
    if not failed:
        raise failure(f"{why}; join it in the test")


def fail_by_the_gate(item: pytest.Item, test: MeasuredTest, failures: Sequence[GateFailure]) -> None:
    """Fails a test for the gate's reasons, if any; in a child session its parent judges."""
    if failures and stash.judges(item.config):
        test.gate_failures = tuple(failures)
        raise failure("\n".join(map(str, failures)))


def failure(text: str) -> Any:
    """Fails a phase with a text that may quote a record, a library or a user; pytest shows it as it is."""
    from pytest_gpukern.values.untrusted_json import printable_lines

    return pytest.fail.Exception(printable_lines(text), pytrace=False)


def attach(item: pytest.Item, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Puts the item's result on the report: `report.gpukern`, plain JSON that xdist carries along.

    The teardown's report carries how pytest-benchmark lists the test, since fixtures may still add to that,
    and what observers saw. It carries the result again where the teardown fails, or no report has carried it.
    """
    attempt = attempt_at(item)
    test = attempt.test
    attempt.passes = attempt.passes and report.passed
    if report.when == "teardown":
        fault = note_lost_context(item)
        if fault is not None and attempt.passes and not _failed_on_purpose(test):
            report.outcome = "failed"
            report.longrepr = f"INCORRECT: launch failed: {fault}, found when the test's fixtures had gone"
        if stash.ENVIRONMENT in item.config.stash:
            from pytest_gpukern.gpu.live_threads import note_starter

            note_starter(item.nodeid)
    carries: JsonDict = {}
    if report.when == "teardown" and stash.OPENED in item.config.stash:
        carries |= item.config.stash[stash.OPENED].carried()
        report.gpukern = carries  # type: ignore[attr-defined]
    if test is None:
        return
    carries |= {"spent_s": ACCOUNT.lap()}
    if report.when == "teardown":
        carries |= {
            "listed": attempt.taken_over.listed() if attempt.taken_over else None,
            **test.torn_down_to_json(),
        }
        if report.failed or not test.sent:  # pytest-retry reports no further attempt in its own words
            carries |= carried(item, test.to_json())
        attempt.test = attempt.taken_over = None  # pytest keeps items to the end of the run
    elif report.when != "setup" or not report.passed:  # else the test's body adds all there is to tell
        skipped = getattr(call.excinfo and call.excinfo.value, "msg", None)
        carries |= carried(item, test.to_json()) | {"skip_kind": getattr(skipped, "kind", "")}
    report.gpukern = carries  # type: ignore[attr-defined]


def carried(item: pytest.Item, of_test: JsonDict) -> JsonDict:
    """Returns what travels on a test's report: `MeasuredTest.to_json`, which test it is, its parameters."""
    from pytest_gpukern.benchmark_interop.pytest_benchmark import portable

    case, params = case_of(item), dict(getattr(getattr(item, "callspec", None), "params", {}))
    if case is not None:
        del params["case"]
        params |= {"variant": case.variant.name, "backend": case.variant.backend}
        params |= case.point | case.parameters
    return {
        "id": case.id if case else item.nodeid,
        "entry": {"group": marker_of(item).group, "params": portable(params)},
        "place": list(place_of(item)),
        **of_test,
    }


def why_not_passed(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Says why a test or a file did not pass, or need not have; returns "" if it did and had to."""
    if hasattr(report, "wasxfail"):  # its `longrepr` is the whole expected failure
        return str(report.wasxfail) or "no reason given"
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip()
    text = str(crash.message).strip()
    if not text.replace(".", "").isidentifier():
        return text.removeprefix("Failed: ")  # pytest's own word for it
    from pytest_gpukern.problems.call_by_name import place_of as place  # every run loads this module

    return f"{text} in {place(crash.path, crash.lineno)}"


def tear_down(item: pytest.Item, following: pytest.Item | None) -> None:
    """Tears down the wider fixtures that `following` does not need; `item` reports an error.

    pytest does so itself where it is told which test follows. It is not where that one runs elsewhere.
    """
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(following), "teardown")
    if call.excinfo is not None:
        report = pytest.TestReport.from_item_and_call(item, call)
        item.ihook.pytest_runtest_logreport(report=report)
