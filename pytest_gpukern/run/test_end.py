"""Ends a test: settles it, skips what the simulator lacks, and puts the result on the report."""

from __future__ import annotations

import dataclasses
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.processes.child_main import NAME as CHILD
from pytest_gpukern.run.stash import (
    BEGUN_S,
    CONTEXT,
    ENVIRONMENT,
    LOST,
    MARKER,
    MEASURED,
    NOT_PASSED,
    TAKEN_OVER,
    LostContext,
    case_of,
    environment_of,
    is_replaceable,
    marker_of,
    may_use_gpu,
    new_test,
    place_of,
)
from pytest_gpukern.values.options import asked, try_the_simulator
from pytest_gpukern.values.phases import ACCOUNT
from pytest_gpukern.values.untrusted_json import printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpukern.run.measured_test import MeasuredTest
    from pytest_gpukern.values.result import GateFailure, JsonDict, Result


@contextmanager
def saying_what_is_missing(item: pytest.Item) -> Iterator[None]:
    """Skips a test that needs what the simulator lacks, or a GPU that is not there; both with the reason.

    In a run that did not ask for this plugin, a test that needs a GPU fails, and is told of the simulator.
    """
    try:
        yield
    except Exception as error:
        reason = simulator_lacks(error)
        if reason is not None:
            raise pytest.skip.Exception(reason, _use_item_location=True) from None
        _end_without_gpu(item, error)
        raise


def _end_without_gpu(item: pytest.Item, error: Exception) -> None:
    """Ends a test that uses this plugin where `error` says that there is no GPU, and there is none."""
    if not may_use_gpu(item):
        return
    from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error

    # PyTorch for processors says so whatever the machine has, so it counts only where there is no GPU.
    if missing_gpu_in_error(error) is None and "Torch not compiled with CUDA" not in str(error):
        return
    gpu = environment_of(item.config).gpu
    if gpu.missing_gpu is None:  # the library fits neither the driver nor the card
        return
    if asked(item.config):
        raise pytest.skip.Exception(gpu.why_no_gpu, _use_item_location=True) from None
    by_numba = type(error).__module__.partition(".")[0] == "numba"
    remedy = try_the_simulator(item.config) if by_numba else "Only Numba kernels can be checked without one"
    raise pytest.fail.Exception(f"no GPU: {gpu.missing_gpu}\n{remedy}", pytrace=False) from None


def simulator_lacks(error: BaseException) -> str | None:
    """Returns the reason for a skip if `error` says that the simulator lacks a feature, else None."""
    module = sys.modules.get("pytest_gpukern.gpu.simulator.errors")
    if module is None or not isinstance(error, module.SimulatorUnsupported):
        return None
    return f"not in the simulator: {error.feature}"


def forget(item: pytest.Item) -> None:
    """Drops what an earlier attempt at the item found, when a plugin reruns failures; this one begins."""
    item.stash[BEGUN_S] = time.monotonic()
    ACCOUNT.begin(None)
    if ENVIRONMENT in item.config.stash:
        from pytest_gpukern.gpu.live_threads import note_starter  # only in runs that use this plugin

        note_starter("")
    kept: tuple[pytest.StashKey[Any], ...] = (MEASURED, TAKEN_OVER, NOT_PASSED)
    for key in kept:
        if key in item.stash:
            del item.stash[key]


def refuse_without_context(item: pytest.Item) -> None:
    """Fails a test that may use the GPU if an earlier one has lost this process's CUDA context."""
    lost = item.config.stash.get(LOST, None)
    if lost is not None and may_use_gpu(item):
        pytest.fail(
            f"not run: this process lost its CUDA context in {lost.nodeid} ({lost.error}); "
            "--gpukern-isolate=on starts a new process after such a loss",
            pytrace=False,
        )


def fail_where_context_is_lost(item: pytest.Item) -> None:
    """Fails a test whose asynchronous work failed after its last call; nobody else would notice."""
    error = _context_fault(item)
    if error is None:
        return
    from pytest_gpukern.values.result import Correctness  # on an error only: every run loads this module

    test = item.stash.get(MEASURED, None)
    if _loses_it_on_purpose(test):
        return  # the next test has another process
    message = f"launch failed: {error}, found when we waited for all of the test's work on the device"
    if test is not None and test.result is not None:
        test.result = dataclasses.replace(test.result, correctness=Correctness.INCORRECT, diagnosis=message)
    pytest.fail(f"INCORRECT: {message}", pytrace=False)


def _loses_it_on_purpose(test: MeasuredTest | None) -> bool:
    return test is not None and test.rejected is not None and test.rejected.variant.loses_context


def note_context(item: pytest.Item) -> None:
    """Notes in which CUDA context a test's body begins."""
    if ENVIRONMENT in item.config.stash and may_use_gpu(item):
        item.stash[CONTEXT] = environment_of(item.config).gpu.current_context()


def note_lost_context(item: pytest.Item) -> str | None:
    """Notes after a teardown that the CUDA context is unusable, or is another one.

    Returns CUDA's error, if that is new.
    """
    config = item.config
    if LOST in config.stash or ENVIRONMENT not in config.stash:
        return None
    gpu = environment_of(config).gpu
    fault = error = _context_fault(item)
    if error is None:
        # A context from before the body is a fixture's; the next test of the module needs it.
        of_the_module = CONTEXT in item.stash and item.stash[CONTEXT] == gpu.current_context()
        error = gpu.context_change(another_may_stay=of_the_module or not is_replaceable(config))
    if error is not None:
        config.stash[LOST] = LostContext(item.nodeid, error, is_fault=fault is not None)
    return fault


def _context_fault(item: pytest.Item) -> str | None:
    """Says why the CUDA context is lost; returns None if it is not, or if the test cannot have used it."""
    if ENVIRONMENT not in item.config.stash or not may_use_gpu(item):
        return None
    return environment_of(item.config).gpu.context_fault()


def conclude(item: pytest.Item) -> None:
    """Fails the test if the gate says so."""
    fail_where_context_is_lost(item)
    test = item.stash.get(MEASURED, None)
    if case_of(item) is not None and (test is None or not (test.result or test.rejected)):
        pytest.fail("the test never ran its case: call gpu_benchmark.run(case)", pytrace=False)
    names, marked = getattr(item, "fixturenames", ()), item.get_closest_marker(MARKER) is not None
    if test is None and marked and asked(item.config) and "benchmark" not in names:
        test = new_test(item, environment_of(item.config))
    if test is None:
        return
    if marked or TAKEN_OVER not in item.stash:  # it may get our fixture by name
        test.note_where_never_called()
    _fail_by_the_gate(item, test, test.settle())


def stop_observing(item: pytest.Item) -> None:
    """Stops watching the code that the test loads, before a teardown, which may fail."""
    test = item.stash.get(MEASURED, None)
    if test is not None:
        test.stop_observing()


def end_observing(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Notes after a teardown what the test left on the device, and fails it if the gate says so."""
    if CONTEXT in item.stash and (nextitem is None or nextitem.path != item.path):
        del item.stash[CONTEXT]
    test = item.stash.get(MEASURED, None)
    if test is not None and test.result is not None:
        test.let_go()
        values = getattr(item, "funcargs", None) or {}  # which pytest drops only once it has reported
        passed = test.ended
        _fail_by_the_gate(item, test, test.observed.finish(passed=passed, let_go=values.clear))
    _fail_where_threads_go_on_launching(item, failed=test is not None and bool(test.gate_failures))


def _fail_where_threads_go_on_launching(item: pytest.Item, *, failed: bool) -> None:
    """Fails a test whose threads would disturb the next one's times; a new process runs that, if possible."""
    config = item.config
    if ENVIRONMENT not in config.stash or LOST in config.stash:
        return
    from pytest_gpukern.gpu.live_threads import new_threads

    who = environment_of(config).gpu.launching_threads() if new_threads() else ""
    if not who:
        return
    told = f"{who} left running by this test kept launching on the GPU"
    if is_replaceable(config):
        config.stash[LOST] = LostContext(item.nodeid, told)
    if not failed:
        pytest.fail(f"{told}; join it in the test", pytrace=False)


def _fail_by_the_gate(item: pytest.Item, test: MeasuredTest, failures: Sequence[GateFailure]) -> None:
    """Fails a test for the gate's reasons, if any; in a child session its parent judges."""
    if failures and not item.config.pluginmanager.has_plugin(CHILD):
        test.gate_failures = tuple(failures)
        pytest.fail(printable_lines("\n".join(map(str, failures))), pytrace=False)  # may quote the record


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Puts the item's result on the report: `report.gpukern`, plain JSON that xdist carries along.

    The teardown's report carries how pytest-benchmark lists the test, since fixtures may still add to that,
    and what observers saw.
    """
    test = item.stash.get(MEASURED, None)
    if not report.passed:
        item.stash[NOT_PASSED] = True
    if report.when == "teardown":
        fault = note_lost_context(item)
        if fault is not None and NOT_PASSED not in item.stash and not _loses_it_on_purpose(test):
            report.outcome = "failed"
            report.longrepr = f"INCORRECT: launch failed: {fault}, found when the test's fixtures had gone"
        if ENVIRONMENT in item.config.stash:
            from pytest_gpukern.gpu.live_threads import note_starter

            note_starter(item.nodeid)
        if LOST in item.config.stash:
            report.gpukern = {"lost": item.config.stash[LOST].error}  # type: ignore[attr-defined]
    if test is None:
        return
    spent_s = ACCOUNT.lap()
    if report.when == "teardown":
        taken_over = item.stash.get(TAKEN_OVER, None)
        listed = taken_over.listed() if taken_over is not None else None
        found = test.observed.found
        told: JsonDict = {"listed": listed, "observed": None if found is None else found.to_json()}
        if any(each is not None for each in told.values()):
            told["gate_failures"] = [dataclasses.asdict(reason) for reason in test.gate_failures]
        told["spent_s"] = spent_s
        report.gpukern = getattr(report, "gpukern", {}) | told  # type: ignore[attr-defined]
        del item.stash[MEASURED]  # pytest keeps items to the end of the run
        return
    if report.when == "setup" and report.passed:  # the test's body adds all there is to tell
        report.gpukern = {"spent_s": spent_s}  # type: ignore[attr-defined]
        return
    result, rejected = test.result, test.rejected is not None
    told = carried(item, result, test.sessions, test.gate_failures, rejected=rejected)
    report.gpukern = {**told, "spent_s": spent_s}  # type: ignore[attr-defined]


def carried(
    item: pytest.Item,
    result: Result | None,
    sessions: Iterable[Result] = (),
    gate_failures: Iterable[GateFailure] = (),
    *,
    rejected: bool = False,
) -> JsonDict:
    """Returns what travels on the report of a test, as plain JSON.

    Args:
        item: the test.
        result: what it found out, if anything.
        sessions: what its extra sessions found out.
        gate_failures: why the gate failed it, if nothing before it did.
        rejected: whether it checked a broken case.
    """
    case = case_of(item)
    return {
        "id": case.id if case else item.nodeid,
        "group": marker_of(item).group,
        "result": result.to_json() if result is not None else None,
        "sessions": [session.to_json() for session in sessions],
        "gate_failures": [dataclasses.asdict(reason) for reason in gate_failures],
        "rejected": rejected,
        "place": list(place_of(item)),
    }
