"""Keeps the plugin's objects on those of pytest, and makes them on first use."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE, SettingsError, plugin_requested

if TYPE_CHECKING:
    from pytest_gpukern.baseline.store import KnownCases
    from pytest_gpukern.gpu.simulator.switch import SimulatorState
    from pytest_gpukern.processes.sessions import ChildSessions
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.run.measured_test import MeasuredTest
    from pytest_gpukern.values.result import JsonDict
    from pytest_gpukern.values.settings import Settings

SETTINGS = pytest.StashKey["Settings"]()
SIMULATOR = pytest.StashKey["SimulatorState"]()
ENVIRONMENT = pytest.StashKey["Environment"]()
CHILD = pytest.StashKey[Any]()
"""The plugin of a process that another one started to run tests, and replaces if its context is lost."""
KNOWN_CASES: pytest.StashKey[tuple[tuple[KnownCases, ...], bool]] = pytest.StashKey()
"""The cases of the selected files, and whether nothing was left out."""
LOST = pytest.StashKey["LostContext"]()
"""Why this process's CUDA context is unusable, once it is."""
NEW_TEST: pytest.StashKey[Callable[..., MeasuredTest]] = pytest.StashKey()
"""Makes what follows a test of this process, where that is no plain `MeasuredTest`."""
BEGAN_WITH = pytest.StashKey[dict[str, str]]()
"""The environment variables of a run before it loaded any conftest."""
OPENED = pytest.StashKey[Any]()
"""Sees what tests of this process open, in a run that measures in a repository of git."""
UNCHANGED = pytest.StashKey[Any]()
"""Which tests this run left out, if it was asked to."""
UNCHANGED_OF_A_WORKER = "gpukern_unchanged"
"""Where a worker's output has the same."""
ISOLATED_WHEN_MEASURED = True
"""Whether GPU tests run in a measuring process by default, when they are measured."""
_INSIDE = ("--pdb", "--trace", "--setup-show", "--setup-only", "--setup-plan")
"""pytest's options that need the tests in its own process."""


class LostContext(NamedTuple):
    """Says what made a CUDA context unusable: the test after which we found that, and why.

    It is a fault if CUDA itself says so. Then errors of fixtures that are torn down only follow from it.
    """

    nodeid: str
    error: str
    is_fault: bool = False


@dataclass(frozen=True)
class Assignment:
    """Holds what the controller tells a worker of xdist, in values that execnet sends.

    Attributes:
        seed: drawn once, where it is random.
        children: starts the worker's measuring process and child sessions, as JSON.
        card: UUID of the worker's GPU, or None.
        others: the GPUs on which it goes on if its own fails.
        run_folder: temporary folder of a run whose workers have a GPU each, or None.
    """

    seed: int | None
    children: JsonDict
    card: str | None = None
    others: tuple[str, ...] = ()
    run_folder: str | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> Assignment | None:
        """Returns that of this process; None if it is no worker of a run that asked for this plugin."""
        given = getattr(config, "workerinput", {}).get("gpukern")
        return None if given is None else cls(**given)


def reports(config: pytest.Config) -> bool:
    """Returns whether this process gathers a run's results and writes its files."""
    return CHILD not in config.stash and not hasattr(config, "workerinput")


def judges(config: pytest.Config) -> bool:
    """Returns whether verdicts fail tests here; of a confirming session, they do so where it was started."""
    child = config.stash.get(CHILD, None)
    return child is None or child.judges


def isolates(config: pytest.Config) -> bool:
    """Returns whether tests that may use the GPU run in a measuring process beside this one, one at a time.

    They do if we measure on a GPU, if somebody asks for it, or if the time of a test is limited: nothing else
    stops a crash or a hang of the simulator. Workers of xdist decide for themselves.

    Raises:
        pytest.UsageError: isolation was asked for, and also an option that needs the tests in this process.
    """
    if CHILD in config.stash or distributes(config) or not plugin_requested(config):
        return False
    settings = settings_of(config)
    if settings.against or settings.sanitize or settings.code:  # they run in sessions before the test loop
        return False
    inside = next((option for option in _INSIDE if config.getoption(option, False)), None)
    if config.pluginmanager.is_blocked("reports"):  # which sends reports from process to process
        inside = "-p no:reports"
    if settings.isolate and inside is not None:
        raise pytest.UsageError(
            f"--gpukern-isolate=on: {inside} needs the tests in pytest's own process; drop one"
        )
    wanted = settings.isolate
    if wanted is None and inside is None:
        given = Assignment.of(config)
        of_run = given is not None and given.run_folder is not None  # then a worker need not open NVML first
        wanted = settings.bounds_tests or (
            ISOLATED_WHEN_MEASURED and (of_run or environment_of(config).gpu.measures)
        )
    return bool(wanted)


def distributes(config: pytest.Config) -> bool:
    """Returns whether this process has workers of xdist run the tests."""
    return config.getoption("dist", "no") != "no" and bool(config.getoption("tx", None))


def workers_of(config: pytest.Config) -> Any:
    return config.pluginmanager.get_plugin("gpukern-workers")


def refuse_distribution(config: pytest.Config, option: str, what: str) -> None:
    """Raises pytest.UsageError if tests are distributed: under `option`, `what` takes turns on one GPU."""
    if distributes(config):
        raise pytest.UsageError(
            f"{option}: {what} take turns on one GPU, so tests cannot be distributed; drop -n, or add -n 0"
        )


@contextmanager
def refusing(*errors: type[Exception], option: str = "") -> Iterator[None]:
    """Raises pytest.UsageError for one of these errors, with the option that it is about."""
    try:
        yield
    except errors as error:
        raise pytest.UsageError(f"{option}: {error}" if option else str(error)) from error


def runs_tests(session: pytest.Session) -> bool:
    collected = not session.testsfailed or session.config.option.continue_on_collection_errors
    return bool(collected and not session.config.option.collectonly)


def settings_of(config: pytest.Config) -> Settings:
    """Returns the parsed options of a run; pytest.UsageError if one is impossible or contradicts another."""
    if SETTINGS not in config.stash:
        from pytest_gpukern.values.settings import Settings

        with refusing(SettingsError):
            config.stash[SETTINGS] = Settings.from_config(config)
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
        with refusing(SimulatorError, DeviceError):
            state = decide(
                "never" if settings.code else settings.simulator,
                requested=settings.requested,
                gpu_missing=lambda: missing_gpu_reason(os.environ),
                environ=os.environ,
                modules=sys.modules,
            )
            config.add_cleanup(deactivate)  # also if the run ends before it is configured
            activate(state)
        config.stash[SIMULATOR] = state
    return config.stash[SIMULATOR]


def watch_files(config: pytest.Config) -> None:
    """Begins to see what is opened, before conftests are loaded, where tests of this process are measured."""
    from pytest_gpukern.run.loaded_files import OpenedFiles, Project

    project = Project.around(config.rootpath)
    if project is not None:
        config.stash[OPENED] = OpenedFiles(project, config.rootpath)
        config.add_cleanup(config.stash[OPENED].close)


def environment_of(config: pytest.Config) -> Environment:
    """Returns the run's environment, made on first use; pytest.UsageError if no device fits the selection."""
    if ENVIRONMENT not in config.stash:
        from pytest_gpukern.gpu.errors import DeviceError
        from pytest_gpukern.processes.sessions import seeing
        from pytest_gpukern.run.device_session import DeviceSession
        from pytest_gpukern.run.environment import Environment

        given, child = Assignment.of(config), config.stash.get(CHILD, None)
        datasets = child.begin.request.datasets if child is not None else None
        if given is not None:
            config.stash[SETTINGS] = dataclasses.replace(settings_of(config), seed=given.seed)
            os.environ |= seeing(given.card) if given.card is not None else {}  # the controller sees another
            os.environ |= {RUN_FOLDER_VARIABLE: given.run_folder} if given.run_folder is not None else {}
        gpu = DeviceSession(
            settings_of(config),
            simulator_of(config),
            device_spec=given.card if given is not None else None,
            on_wait=lambda message: tell(config, message),
            clock_stopped=nullcontext if child is None else child.clock_stopped,
        )
        config.add_cleanup(gpu.close)
        with refusing(DeviceError):
            gpu.device  # noqa: B018 - chosen and pinned now, before anybody initialises CUDA
        config.stash[ENVIRONMENT] = Environment(
            settings_of(config),
            gpu,
            children=lambda: children_of(config),
            datasets=Path(datasets) if datasets is not None else None,
            rootdir=config.rootpath,
            opened=config.stash.get(OPENED, None),
        )
    return config.stash[ENVIRONMENT]


def environment_for_test(config: pytest.Config) -> Environment:
    """Returns the same for a test; bad options of a run that did not ask for the plugin fail it."""
    try:
        return environment_of(config)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


def children_of(config: pytest.Config) -> ChildSessions:
    """Returns what starts processes that run a run's tests; a worker and a measuring process are told it."""
    from pytest_gpukern.processes.sessions import ChildSessions
    from pytest_gpukern.session.arguments import sessions_of

    if (child := config.stash.get(CHILD, None)) is not None:
        assert child.begin.children is not None, "a child session starts no others: it does not judge"
        return ChildSessions.from_json(child.begin.children)
    if (given := Assignment.of(config)) is not None:
        return ChildSessions.from_json(given.children)
    environ = config.stash.get(BEGAN_WITH, os.environ)  # a conftest may choose no tests
    return sessions_of(config, device=device_uuid(config), seed=settings_of(config).seed, environ=environ)


def device_uuid(config: pytest.Config) -> str | None:
    device = environment_of(config).gpu.device
    return None if device is None or device.is_simulated else device.uuid


def tell(config: pytest.Config, message: str) -> None:
    """Shows a line at once, despite pytest's capture."""
    child = config.stash.get(CHILD, None)
    if child is not None:
        child.tell_user(message)
        return
    from pytest_gpukern.values.untrusted_json import printable_lines

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    line = f"gpukern: {printable_lines(message)}\n"
    if reporter is None:  # in an xdist worker: the terminal's last line may be dots
        line = f"\n{line}"
    else:
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:
            reporter.write_line("")
        reporter.flush()
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        sys.stderr.write(line)
        sys.stderr.flush()
