"""What the plugin keeps on pytest's objects, and where it is made."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpukern.child import NAME as CHILD
from pytest_gpukern.options import SettingsError
from pytest_gpukern.printable import printable_lines

if TYPE_CHECKING:
    from pytest_gpukern.baseline import KnownCases
    from pytest_gpukern.benchmark import GpuBenchmark
    from pytest_gpukern.environment import Environment
    from pytest_gpukern.marker import MarkerOptions
    from pytest_gpukern.problem import Case
    from pytest_gpukern.session import ChildSessions
    from pytest_gpukern.settings import Settings
    from pytest_gpukern.simulator import SimulatorState
    from pytest_gpukern.takeover import TakenOver

MARKER = "gpu_benchmark"
USAGE_ERROR = "gpukern_usage_error"
"""Under which a worker of xdist tells the controller what is wrong with the options or the tests."""
TRY_THE_SIMULATOR = "without a GPU, --gpukern-simulator=auto checks Numba's kernels in its CUDA simulator"
"""What a run is told that did not ask for this plugin and lacks a GPU."""
SETTINGS = pytest.StashKey["Settings"]()
SIMULATOR = pytest.StashKey["SimulatorState"]()
ENVIRONMENT = pytest.StashKey["Environment"]()
BENCHMARK = pytest.StashKey["GpuBenchmark"]()
TAKEN_OVER = pytest.StashKey["TakenOver"]()
KNOWN_CASES: pytest.StashKey[tuple[KnownCases, ...]] = pytest.StashKey()
"""The cases that there are, in a run of all tests of the files that it selects."""
KNOWN_CASES_OF_A_WORKER = "gpukern_known_cases"
"""Under which a worker of xdist tells the controller the same."""


def settings_of(config: pytest.Config) -> Settings:
    """The parsed options of a run.

    Raises:
        pytest.UsageError: an option is impossible or contradicts another.
    """
    if SETTINGS not in config.stash:
        from pytest_gpukern.settings import Settings

        try:
            config.stash[SETTINGS] = Settings.from_config(config)
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[SETTINGS]


def simulator_of(config: pytest.Config) -> SimulatorState:
    """Whether this run uses the simulator; switched on by the first call, before anything imports Numba.

    Raises:
        pytest.UsageError: the environment or a loaded Numba contradicts the option.
    """
    if SIMULATOR not in config.stash:
        from pytest_gpukern import device, simulator

        settings = settings_of(config)
        try:
            state = simulator.decide(
                settings.simulator,
                asked=settings.asked,
                gpu_missing=lambda: device.missing_gpu_reason(os.environ),
                environ=os.environ,
                modules=sys.modules,
            )
            config.add_cleanup(simulator.deactivate)  # also where the run ends before it is configured
            simulator.activate(state)
        except (simulator.SimulatorError, device.DeviceError) as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[SIMULATOR] = state
    return config.stash[SIMULATOR]


def environment_of(config: pytest.Config) -> Environment:
    """The run's environment, made on first use.

    Raises:
        pytest.UsageError: no device fits the selection.
    """
    if ENVIRONMENT not in config.stash:
        from pytest_gpukern.device import DeviceError
        from pytest_gpukern.environment import Environment

        environment = Environment(
            settings_of(config),
            simulator_of(config),
            device_spec=getattr(config, "workerinput", {}).get("gpukern_device"),
            on_wait=lambda message: tell(config, message),
            children=lambda: children_of(config),
        )
        config.add_cleanup(environment.close)
        try:
            environment.device  # noqa: B018 - chosen and pinned now, before anybody initialises CUDA
        except DeviceError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[ENVIRONMENT] = environment
    return config.stash[ENVIRONMENT]


def children_of(config: pytest.Config) -> ChildSessions:
    """What starts child sessions of a run's tests; a worker of xdist was told by its controller."""
    from pytest_gpukern.session import ChildSessions

    if config.pluginmanager.has_plugin(CHILD):
        raise RuntimeError("a child session starts no others: it neither records nor judges")
    told = getattr(config, "workerinput", {}).get("gpukern_children")
    if told is not None:
        return ChildSessions.from_json(told)
    device = environment_of(config).device
    return ChildSessions.of(config, device=None if device is None or device.is_simulated else device.uuid)


def new_benchmark(item: pytest.Item, environment: Environment) -> GpuBenchmark:
    """The one `GpuBenchmark` of an attempt at a test item; a test that is run again gets a new one."""
    from pytest_gpukern.benchmark import GpuBenchmark

    benchmark = GpuBenchmark(environment, marker_of(item), item.nodeid, item.path)
    item.stash[BENCHMARK] = benchmark
    return benchmark


def taken_over_of(item: pytest.Item) -> TakenOver | None:
    """What measures for the `benchmark` fixture of a test, or None where that is pytest-benchmark's alone."""
    return item.stash.get(TAKEN_OVER, None)


def case_of(item: pytest.Item) -> Case | None:
    """The case that an item was made for, or None for a plain test."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    if case is None:
        return None  # as for every test of a run that never heard of this plugin: nothing more is loaded
    from pytest_gpukern.variant import Case

    return case if isinstance(case, Case) else None


def marker_of(item: pytest.Item) -> MarkerOptions:
    """The arguments of an item's marker; those of a closer marker win over a class's or module's.

    Raises:
        pytest.UsageError: an argument is unknown or impossible.
    """
    from pytest_gpukern.marker import MarkerOptions

    merged: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        try:
            MarkerOptions.from_mark(mark.args, mark.kwargs, item.nodeid)
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from error
        merged.update(mark.kwargs)
    return MarkerOptions.from_mark((), merged, item.nodeid)


def tell(config: pytest.Config, message: str) -> None:
    """Shows a line at once, past pytest's capture."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    line = f"gpukern: {printable_lines(message)}\n"
    if reporter is None:  # in a worker of xdist's: whatever the terminal shows may end in dots
        line = f"\n{line}"
    else:
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:
            reporter.write_line("")
        reporter.flush()
    if capture is None:
        sys.stderr.write(line)
        return
    with capture.global_and_fixture_disabled():
        sys.stderr.write(line)
        sys.stderr.flush()
