"""Replaces workers of xdist that cannot measure any more, without blaming another test.

A worker measures its own tests. If it has lost its CUDA context, it ends before its next test. xdist takes
that for a crash in that test, so the controller has another worker run it. A worker whose test takes too long
is ended, with that test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.run.stash import LOST, WAITS, may_use_gpu, timeout_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_RESCHEDULED = "rescheduled"


class Worker:
    """Ends a measuring worker without a CUDA context, or whose test takes too long; its plugin.

    Args:
        config: of the worker.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left_s: float | None = None
        self._armed_s = 0.0
        config.stash[WAITS] = self

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Ends a worker that has no context; what was reported so far has been sent."""
        if LOST in self._config.stash:
            os._exit(0)
        self._left_s = timeout_of(item) if may_use_gpu(item) else None
        self._arm()
        try:
            return (yield)
        finally:
            self._disarm()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Starts the clock again: pytest stops all such clocks when a test fails."""
        self._disarm()
        self._arm()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Stops the test's clock while the test waits for something else."""
        self._disarm()
        try:
            yield
        finally:
            self._arm()

    def _arm(self) -> None:
        """Starts a thread, which needs no interpreter, to show every stack and end this process in time."""
        self._armed_s = time.monotonic()
        if self._left_s is not None:
            shown = _terminal(self._config)
            faulthandler.dump_traceback_later(max(0.001, self._left_s), exit=True, file=shown)

    def _disarm(self) -> None:
        if self._left_s is not None:
            faulthandler.cancel_dump_traceback_later()
            self._left_s -= time.monotonic() - self._armed_s


class Replacing:
    """Knows which workers end for a lost context; a plugin of the controller of measuring workers."""

    def __init__(self) -> None:
        self._retiring: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes that a worker reports a lost context."""
        if (getattr(report, "gpukern", None) or {}).get("lost"):
            self._retiring.add(_worker(report))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Gives another worker the test that one without a context did not begin."""
        if _worker(report) not in self._retiring:
            return
        self._retiring.discard(_worker(report))
        with contextlib.suppress(NotImplementedError):  # where whole files are scheduled, it is still pending
            sched.mark_test_pending(crashitem)
        report.outcome = _RESCHEDULED  # type: ignore[assignment]

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Shows nothing for a test that is yet to run."""
        return ("", "", "") if str(report.outcome) == _RESCHEDULED else None


def _worker(report: pytest.TestReport) -> str:
    """Returns the name of the worker that sent a report, such as `gw0`."""
    return str(report.node.gateway.id) if hasattr(report, "node") else ""


def _terminal(config: pytest.Config) -> Any:
    """Returns where stacks are shown: standard error as it was before pytest captured it."""
    try:
        from _pytest.faulthandler import fault_handler_stderr_fd_key

        return config.stash[fault_handler_stderr_fd_key]
    except (ImportError, KeyError):
        return sys.__stderr__
