"""Keeps the plugin's objects on those of pytest, and makes them on first use."""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpukern.processes.child_main import DATASETS, ROOTDIR
from pytest_gpukern.processes.child_main import NAME as CHILD
from pytest_gpukern.values.options import SettingsError, sanitizing_tool
from pytest_gpukern.values.untrusted_json import printable_lines

if TYPE_CHECKING:
    from pytest_gpukern.baseline.store import KnownCases
    from pytest_gpukern.gpu.simulator.switch import SimulatorState
    from pytest_gpukern.processes.child_sessions import ChildSessions
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.settings import Settings

USAGE_ERROR = "gpukern_usage_error"
"""Key under which an xdist worker tells the controller what is wrong with options or tests."""
SETTINGS = pytest.StashKey["Settings"]()
SIMULATOR = pytest.StashKey["SimulatorState"]()
ENVIRONMENT = pytest.StashKey["Environment"]()
KNOWN_CASES: pytest.StashKey[tuple[KnownCases, ...]] = pytest.StashKey()
"""The cases of the selected files."""
LOST = pytest.StashKey["LostContext"]()
"""Why this process's CUDA context is unusable, once it is."""
MEASURING = pytest.StashKey[Any]()
"""The plugin of a measuring process, which sends to the reporting process."""
ISOLATED_WHEN_MEASURED = True
"""Whether GPU tests run in a measuring process by default, when they are measured."""
_INSIDE = {
    "--pdb": "usepdb",
    "--trace": "trace",
    "--setup-show": "setupshow",
    "--setup-only": "setuponly",
    "--setup-plan": "setupplan",
}
"""pytest's options that need the tests in its own process → where pytest keeps them."""
WAITS = pytest.StashKey[Any]()
"""The plugin that ends a process if a test takes too long; its `waiting()` stops the clock."""
RESCHEDULED = "rescheduled"
"""Outcome of a report of a test that a worker of xdist did not begin."""
BEGAN_WITH = pytest.StashKey[dict[str, str]]()
"""The environment variables of a run before it loaded any conftest."""
RUN_FOLDER: pytest.StashKey[Path] = pytest.StashKey()
"""Temporary folder of a run whose workers have a GPU each."""
RECORDED = "recorded.json"
"""File in it: `gpus`, test → UUIDs of the GPUs that it was recorded on; `durations_s`, test → seconds;
`data`, test → its problem and point, whose inputs and reference a worker makes once; and `last`, the tests
after which a worker ends, since they destroy its CUDA context."""
FAILED_GPUS = pytest.StashKey[set[str]]()
"""UUIDs of the GPUs of workers that can no longer be used."""
GPU_OF_A_WORKER = "env:CUDA_VISIBLE_DEVICES"
"""Key of xdist's specification of a worker for the UUID of its GPU."""
TELLS = "gpukern_tells"
"""Key of it, and of a worker's input, for the worker that writes `RECORDED` and any that replaces it."""
KNOWN_CASES_OF_A_WORKER = "gpukern_known_cases"
"""Key under which an xdist worker tells the controller the same cases."""


class LostContext(NamedTuple):
    """Says what made a CUDA context unusable: the test after which we found that, and why.

    It is a fault if CUDA itself says so. Then errors of fixtures that are torn down only follow from it.
    """

    nodeid: str
    error: str
    is_fault: bool = False


def reports(config: pytest.Config) -> bool:
    """Returns whether this process collects and writes results: no xdist worker, and no measuring process."""
    return not (hasattr(config, "workerinput") or MEASURING in config.stash)


def isolates(config: pytest.Config) -> bool:
    """Returns whether tests that may use the GPU run in a measuring process, without a CUDA context here.

    They do if we measure on a GPU, if somebody asks for it, or if the time of a test is limited: nothing else
    stops a crash or a hang of the simulator. xdist's workers and child sessions are such processes already.

    Raises:
        pytest.UsageError: isolation was asked for, and also an option that needs the tests in this process.
    """
    settings = settings_of(config)
    is_child = config.pluginmanager.has_plugin(CHILD) or not reports(config)
    if is_child or settings.against or settings.sanitize or distributes(config):
        return False
    inside = next((option for option, dest in _INSIDE.items() if config.getoption(dest, False)), None)
    if config.pluginmanager.is_blocked("reports"):  # which sends reports from process to process
        inside = "-p no:reports"
    if settings.isolate and inside is not None:
        raise pytest.UsageError(
            f"--gpukern-isolate=on: {inside} needs the tests in pytest's own process; drop one"
        )
    if settings.isolate is not None or inside is not None:
        return bool(settings.isolate)
    return settings.bounds_tests or (ISOLATED_WHEN_MEASURED and environment_of(config).gpu.measures)


def distributes(config: pytest.Config) -> bool:
    """Returns whether this process has workers of xdist run the tests."""
    return config.getoption("dist", "no") != "no" and bool(config.getoption("tx", None))


def refuse_distribution(config: pytest.Config, option: str, what: str) -> None:
    """Raises pytest.UsageError if tests are distributed: under `option`, `what` takes turns on one GPU."""
    if distributes(config):
        raise pytest.UsageError(
            f"{option}: {what} take turns on one GPU, so tests cannot be distributed; drop -n, or add -n 0"
        )


def runs_tests(session: pytest.Session) -> bool:
    """Returns whether the collected tests are about to run."""
    collected = not session.testsfailed or session.config.option.continue_on_collection_errors
    return bool(collected and not session.config.option.collectonly)


def gpus_of_workers(config: pytest.Config) -> list[str]:
    """Returns the UUIDs of the GPUs that the workers of a run were given."""
    parts = (part for spec in config.getoption("tx", None) or () for part in spec.split("//"))
    return [part.partition("=")[2] for part in parts if part.startswith(f"{GPU_OF_A_WORKER}=")]


def bounds_workers(config: pytest.Config) -> bool:
    """Returns whether xdist's workers are replaced and ended as a measuring process would be."""
    settings = settings_of(config)
    return settings.benchmark or bool(settings.isolate) or settings.bounds_tests


def is_replaceable(config: pytest.Config) -> bool:
    """Returns whether another process takes over if this one has lost its CUDA context."""
    is_worker = hasattr(config, "workerinput") and bounds_workers(config)
    return MEASURING in config.stash or is_worker or sanitizing_tool() is not None


def settings_of(config: pytest.Config) -> Settings:
    """Returns the parsed options of a run.

    Raises:
        pytest.UsageError: an option is impossible or contradicts another.
    """
    if SETTINGS not in config.stash:
        from pytest_gpukern.values.settings import Settings

        try:
            settings = Settings.from_config(config)
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from error
        if settings.seed is not None:  # perhaps drawn; child sessions get the same
            config.option.gpukern_seed = str(settings.seed)
        config.stash[SETTINGS] = settings
    return config.stash[SETTINGS]


def simulator_of(config: pytest.Config) -> SimulatorState:
    """Returns whether this run uses the simulator; the first call switches it on, before Numba is imported.

    Raises:
        pytest.UsageError: the environment or a loaded Numba contradicts the option.
    """
    if SIMULATOR not in config.stash:
        from pytest_gpukern.gpu.errors import DeviceError
        from pytest_gpukern.gpu.selection import missing_gpu_reason
        from pytest_gpukern.gpu.simulator.errors import SimulatorError
        from pytest_gpukern.gpu.simulator.switch import activate, deactivate, decide

        settings = settings_of(config)
        try:
            state = decide(
                settings.simulator,
                asked=settings.asked,
                gpu_missing=lambda: missing_gpu_reason(os.environ),
                environ=os.environ,
                modules=sys.modules,
            )
            config.add_cleanup(deactivate)  # also if the run ends before it is configured
            activate(state)
        except (SimulatorError, DeviceError) as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[SIMULATOR] = state
    return config.stash[SIMULATOR]


def environment_of(config: pytest.Config) -> Environment:
    """Returns the run's environment, made on first use.

    Raises:
        pytest.UsageError: no device fits the selection.
    """
    if ENVIRONMENT not in config.stash:
        from pytest_gpukern.gpu.errors import DeviceError
        from pytest_gpukern.run.device_session import DeviceSession
        from pytest_gpukern.run.environment import Environment

        given = getattr(config, "workerinput", {})  # which xdist adds after the options were read
        if given.get("gpukern_seed") is not None:
            config.stash[SETTINGS] = dataclasses.replace(settings_of(config), seed=given["gpukern_seed"])
        gpu = DeviceSession(
            settings_of(config),
            simulator_of(config),
            device_spec=given.get("gpukern_device"),
            on_wait=lambda message: tell(config, message),
            waiting=lambda: waiting(config),
        )
        config.add_cleanup(gpu.close)
        try:
            gpu.device  # noqa: B018 - chosen and pinned now, before anybody initialises CUDA
        except DeviceError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[ENVIRONMENT] = Environment(
            settings_of(config),
            gpu,
            children=lambda: children_of(config),
            datasets=config.stash.get(DATASETS, None),
            rootdir=config.rootpath,
        )
    return config.stash[ENVIRONMENT]


def environment_for_test(config: pytest.Config) -> Environment:
    """Returns the same for a test; bad options of a run that did not ask for the plugin fail it."""
    try:
        return environment_of(config)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


def children_of(config: pytest.Config) -> ChildSessions:
    """Returns what starts child sessions of a run's tests; the controller gives it to xdist's workers."""
    from pytest_gpukern.processes.child_sessions import ChildSessions

    if config.pluginmanager.has_plugin(CHILD):
        raise RuntimeError("a child session starts no others: it neither records nor judges")
    measuring = config.stash.get(MEASURING, None)
    given = getattr(config, "workerinput", {}).get("gpukern_children")
    if measuring is not None:
        given = measuring.children
    if given is not None:
        return ChildSessions.from_json(given)
    return ChildSessions.of(config, device=device_uuid(config))


def device_uuid(config: pytest.Config) -> str | None:
    """Returns the UUID of the run's GPU, or None if there is none."""
    device = environment_of(config).gpu.device
    return None if device is None or device.is_simulated else device.uuid


def rootdir_of(config: pytest.Config) -> Path:
    """Returns the rootdir of the process that reports, which tells its own to all others."""
    given = getattr(config, "workerinput", {}).get("gpukern_rootdir")
    return config.stash.get(ROOTDIR, config.rootpath) if given is None else Path(given)


def waiting(config: pytest.Config) -> AbstractContextManager[None]:
    """Stops the clock of `--gpukern-timeout` while a test waits for something else."""
    minding = config.stash.get(WAITS, None)
    return nullcontext() if minding is None else minding.waiting()


def captures(config: pytest.Config) -> bool:
    """Returns whether pytest captures what tests print; `-p no:capture` takes the option away, too."""
    return bool(config.getoption("capture", "no") != "no")


def tell(config: pytest.Config, message: str) -> None:
    """Shows a line at once, despite pytest's capture."""
    measuring = config.stash.get(MEASURING, None)
    if measuring is not None:
        measuring.tell_user(message)
        return
    capture = config.pluginmanager.get_plugin("capturemanager")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    controller = config.pluginmanager.get_plugin("gpukern-controller")
    if controller is not None:
        controller.clear_progress()
    line = f"gpukern: {printable_lines(message)}\n"
    if reporter is None:  # in an xdist worker: the terminal's last line may be dots
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
