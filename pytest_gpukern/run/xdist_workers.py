"""Gives each worker of xdist a GPU of its own, and replaces those that cannot measure any more.

A worker measures its own tests. Its CUDA_VISIBLE_DEVICES is set before it imports pytest, and a worker that
replaces it gets the same GPU, or another one if it cannot start there. If a worker has lost its CUDA context,
it ends before its next test. xdist takes that for a crash in that test, so the controller has another worker
run it. A worker whose test takes too long is ended, with that test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpukern.gpu.model import short_uuid
from pytest_gpukern.run.item import may_use_gpu, timeout_of
from pytest_gpukern.run.stash import (
    FAILED_GPUS,
    GPU_OF_A_WORKER,
    LOST,
    RESCHEDULED,
    RUN_FOLDER,
    TELLS,
    WAITS,
    environment_of,
    gpus_of_workers,
    settings_of,
)
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE


def give_each_worker_a_gpu(config: pytest.Config) -> None:
    """Adds a GPU to the specification of each worker that xdist will start here, if the run measures on GPUs.

    execnet sets these variables before the worker imports anything of pytest.

    Raises:
        pytest.UsageError: there are more workers than GPUs, or each GPU is to be recorded.
    """
    from xdist.workermanage import parse_tx_spec_config

    cards = environment_of(config).gpu.cards
    specs = parse_tx_spec_config(config)
    local = [
        index for index, spec in enumerate(specs) if spec.startswith("popen") and GPU_OF_A_WORKER not in spec
    ]
    if not cards or not local:
        return
    free = [card for card in cards if not any(card.uuid in spec for spec in specs)]
    if len(local) > len(free):
        raise pytest.UsageError(_too_many(config, len(local) + len(cards) - len(free), len(cards)))
    baseline = settings_of(config).baseline
    if _measures_on_each(config) and baseline not in ("compare", "off"):
        raise pytest.UsageError(
            f"--dist=each with --gpukern-baseline={baseline}: each GPU measures every case, "
            "but a run records a case once. Drop --dist=each to record"
        )
    folder = TemporaryFolder("run")
    config.add_cleanup(folder.cleanup)
    config.stash[RUN_FOLDER] = Path(folder.name)
    for index, card in zip(local, free, strict=False):
        specs[index] += f"//{GPU_OF_A_WORKER}={card.uuid}//env:CUDA_DEVICE_ORDER=PCI_BUS_ID"
        specs[index] += f"//{TELLS}" if index == local[0] else ""
        specs[index] += f"//env:{RUN_FOLDER_VARIABLE}={folder.name}"
    config.option.tx = specs


def name_on_gpu(config: pytest.Config, node: Any, nodeid: str) -> str:
    """Returns a test's name with its GPU, as in `test_it.py::test_work@GPU-8d1f0a2c`, if each GPU runs it."""
    uuid = gpu_of(node)
    if uuid is None or not _measures_on_each(config):
        return nodeid
    return f"{nodeid}@{short_uuid(uuid, gpus_of_workers(config))}"


def _measures_on_each(config: pytest.Config) -> bool:
    return bool(config.getoption("dist") == "each")


class OnEachGpu:
    """Tells the reports of one test from several GPUs apart; a plugin of the controller of `--dist=each`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Adds the GPU to the test's name before anybody else sees the report."""
        node = getattr(report, "node", None)
        if node is not None:
            report.nodeid = name_on_gpu(self._config, node, report.nodeid)
        return (yield)


def _too_many(config: pytest.Config, workers: int, cards: int) -> str:
    """Says that there are more workers than GPUs, and what to do."""
    gpu, named = environment_of(config).gpu, settings_of(config).device
    model = gpu.device.name if gpu.device is not None else ""
    there = f"{cards} visible {'GPU' if cards == 1 else 'GPUs'} of the model {model}"
    if named is not None:
        there = f"the one GPU that --gpukern-device={named} names"
    return (
        f"-n {workers}: {workers} workers cannot measure on {there}. Workers that share a GPU take turns, "
        f"and are slower than one. Use -n auto, which starts one worker for each GPU, or -n {cards}"
    )


def on_gpu(uuid: str | None) -> dict[str, str]:
    """Returns the environment variables of a child session on another GPU than the controller's."""
    return {} if uuid is None else {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def gpu_of(node: Any) -> str | None:
    """Returns the UUID of the GPU that a worker was given, or None."""
    given: str | None = node.gateway.spec.env.get("CUDA_VISIBLE_DEVICES")
    return given


def move_to_another_gpu(config: pytest.Config, node: Any) -> str | None:
    """Has xdist start the replacement of a worker on another GPU of the run.

    Returns both UUIDs in words; None if no other GPU is left, or if each is to run every test.
    """
    uuid, given = gpu_of(node), gpus_of_workers(config)
    if uuid is None or _measures_on_each(config):
        return None
    failed = config.stash.setdefault(FAILED_GPUS, set())
    failed.add(uuid)
    left = [other for other in given if other not in failed]
    if not left:
        return None
    node.gateway.spec.env["CUDA_VISIBLE_DEVICES"] = left[0]
    return f"{short_uuid(uuid, given)} failed, and its worker went on with {short_uuid(left[0], given)}"


class Worker:
    """Ends a measuring worker without a CUDA context, or whose test takes too long; its plugin."""

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
        with environment_of(self._config).gpu.host.busy():
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

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Ends a worker without a context before libraries complain of all that they cannot give back."""
        if LOST in self._config.stash:
            os._exit(0)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Stops the test's clock while the test waits for something else, and leaves the host to others."""
        self._disarm()
        try:
            with environment_of(self._config).gpu.host.resting():
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

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lost_in: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes in which test a worker lost its context."""
        if (getattr(report, "gpukern", None) or {}).get("lost"):
            self._lost_in.setdefault(_worker(report), report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Gives another worker the test that one without a context did not begin.

        That worker's end was meant, so it does not count against xdist's default number of restarts. But a
        worker may also die of the test that lost the context, when the test's objects go: that is a crash.
        """
        lost_in = self._lost_in.pop(_worker(report), None)
        if lost_in is None or lost_in == name_on_gpu(self._config, report.node, crashitem):
            return
        if self._config.getoption("maxworkerrestart") is None:
            session: Any = self._config.pluginmanager.get_plugin("dsession")
            session._failed_nodes_count = getattr(session, "_failed_nodes_count", 0) - 1
        try:
            sched.mark_test_pending(crashitem)
        except NotImplementedError:  # where whole files are scheduled, it is still pending
            if hasattr(sched, "_removed2pending"):  # with --dist=each it is not
                left = sched._removed2pending.setdefault(report.node, [])
                left.insert(0, sched.node2collection[report.node].index(crashitem))
        report.outcome = RESCHEDULED  # type: ignore[assignment]

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Shows nothing for a test that is yet to run."""
        return ("", "", "") if str(report.outcome) == RESCHEDULED else None


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
