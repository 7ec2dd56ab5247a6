"""The end of a test: verdict, skips for what the simulator lacks, and the result on the report."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_gpukern.printable import printable_lines
from pytest_gpukern.state import BENCHMARK, TAKEN_OVER, case_of, marker_of, settings_of, taken_over_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class GpukernWarning(UserWarning):
    """A verdict that would fail its test, under `--gpukern-gate=warn`; a marked test that is not measured."""


@contextmanager
def skip_what_the_simulator_lacks() -> Iterator[None]:
    """Turns `SimulatorUnsupported` into a skip that names the feature."""
    try:
        yield
    except Exception as error:
        reason = simulator_lacks(error)
        if reason is not None:
            pytest.skip(reason)
        raise


def simulator_lacks(error: BaseException) -> str | None:
    """The reason for a skip where `error` says that the simulator lacks a feature, else None."""
    module = sys.modules.get("pytest_gpukern.simulator.errors")
    if module is None or not isinstance(error, module.SimulatorUnsupported):
        return None
    return f"not in the simulator: {error.feature}"


def forget(item: pytest.Item) -> None:
    """Drops what an earlier attempt at the same item found out, as a plugin that reruns failures makes."""
    if BENCHMARK in item.stash:
        del item.stash[BENCHMARK]
    if TAKEN_OVER in item.stash:
        del item.stash[TAKEN_OVER]


def conclude(item: pytest.Item) -> None:
    """Fails the test where the gate says so; warns instead under `--gpukern-gate=warn`."""
    benchmark = item.stash.get(BENCHMARK, None)
    if case_of(item) is not None and (benchmark is None or not (benchmark.result or benchmark.rejected)):
        pytest.fail("the test never ran its case: call gpu_benchmark.run(case)", pytrace=False)
    if benchmark is None:
        return
    complaint = benchmark.conclude()
    if complaint is None:
        return
    complaint = printable_lines(complaint)  # it may quote the record
    if settings_of(item.config).gate == "warn":
        with warnings.catch_warnings():
            warnings.simplefilter("always", GpukernWarning)  # a warning also where others are made errors
            warnings.warn(GpukernWarning(f"{item.nodeid}: {complaint}"), stacklevel=2)
        return
    benchmark.failed_by_the_gate = True
    pytest.fail(complaint, pytrace=False)


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Puts the item's result on the report: `report.gpukern`, plain JSON that xdist carries along.

    The report of the teardown carries how pytest-benchmark lists the test: fixtures may still add to that.
    """
    benchmark = item.stash.get(BENCHMARK, None)
    if benchmark is None:
        return
    if report.when == "teardown":
        taken_over = taken_over_of(item)
        listed = taken_over.listed() if taken_over is not None else None
        if listed is not None:
            report.gpukern = {"listed": listed}  # type: ignore[attr-defined]
        return
    case = case_of(item)
    report.gpukern = {  # type: ignore[attr-defined]
        "id": case.id if case else item.nodeid,
        "group": marker_of(item).group,
        "result": benchmark.result.to_json() if benchmark.result is not None else None,
        "failed_by_the_gate": benchmark.failed_by_the_gate,
    }
