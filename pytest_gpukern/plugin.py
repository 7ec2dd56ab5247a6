"""Holds pytest's hooks, each a few lines that delegate, and the fixtures that users see.

Loads only the standard library and pytest. Hooks import the rest where a run needs it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.session.item import (
    attach,
    attempt_at,
    begin,
    conclude,
    end_observing,
    failing_where_wrong,
    may_use_gpu,
    new_test,
    note_context,
    saying_what_is_missing,
    skip_subtest,
)
from pytest_gpukern.session.stash import (
    BEGAN_WITH,
    OPENED,
    distributes,
    environment_for_test,
    environment_of,
    isolates,
    judges,
    reports,
    settings_of,
    simulator_of,
    watch_files,
)
from pytest_gpukern.values.options import (
    add_options,
    measures,
    plugin_requested,
    refuse_misspelt,
    sanitizing_tool,
)

if TYPE_CHECKING:
    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.measure.measure import WarmUp
    from pytest_gpukern.processes.sessions import Ending
    from pytest_gpukern.run.measured_test import GpuBenchmark
    from pytest_gpukern.session.plan import Plan


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers options and ini values."""
    add_options(parser)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Prepares Numba's simulator and scikit-cuda before conftests import them; refuses misspelt options."""
    if plugin_requested(early_config):
        from pytest_gpukern.backends.skcuda_imports import supply

        early_config.stash[BEGAN_WITH] = dict(os.environ)
        simulator_of(early_config)
        supply()
        if settings_of(early_config).benchmark:
            watch_files(early_config)
        if settings_of(early_config).code:
            from pytest_gpukern.code.captured_test import install

            install(early_config)
    outcome = yield
    refuse_misspelt(early_config, parser, args)
    return outcome


def pytest_configure(config: pytest.Config) -> None:
    """Checks the options, chooses the device and gives the controller its collector."""
    config.addinivalue_line(
        "markers",
        "gpu_benchmark(bytes=, flops=, threshold=, timer=, cache=, group=, timeout=, outputs=, inout=, "
        "written=, determinism=, scope=, reads=): pytest-gpukern checks, measures and judges the test. Every "
        "argument is optional. outputs=3 or outputs=(2, 'out') names the arguments that a call writes; we "
        "poison them before it. inout= names those that it updates in place. written={'out': index} says "
        "which part of an output it writes. reads= names files that the test loads. With --gpu-benchmark, "
        "the marker also holds for tests of pytest-benchmark's fixture",
    )
    config.addinivalue_line("markers", "thread_unsafe(reason=): pytest-run-parallel runs it in one thread")
    isolation = None
    if isolates(config):
        from pytest_gpukern.session.isolation import Isolation

        isolation = Isolation(config)
    if plugin_requested(config):
        environment = environment_of(config)
        if sanitizing_tool() is not None and environment.gpu.has_gpu:
            from pytest_gpukern.sanitizer.child_setup import prepare_libraries

            prepare_libraries()
        if measures(config) and judges(config):
            environment.beside = functools.partial(_beside, config)
    if reports(config):
        from pytest_gpukern.session.controller import Controller, end_on_sigterm

        plan = _plan(config)
        controller = Controller(config, plan)
        config.pluginmanager.register(controller, "gpukern-controller")
        if plugin_requested(config):
            end_on_sigterm(config, controller)
        if plan is not None:
            config.pluginmanager.register(plan, "gpukern-plan")
    elif plugin_requested(config) and settings_of(config).code:
        from pytest_gpukern.code.captured_test import CapturePlugin

        config.pluginmanager.register(CapturePlugin(config), "gpukern-capture")
    if isolation is not None:
        config.pluginmanager.register(isolation, "gpukern-isolation")
    if plugin_requested(config) and distributes(config):
        from pytest_gpukern.session.workers import Workers

        config.pluginmanager.register(Workers(config), "gpukern-workers")


def _beside(config: pytest.Config, *asked: Any) -> Mapping[str, Ending | str]:
    from pytest_gpukern.revisions.comparison import measured_beside  # 70 ms, which few runs need

    return measured_beside(config, *asked)


def _plan(config: pytest.Config) -> Plan | None:
    """Returns what runs this run's tests ahead of pytest's loop; None if they run in it."""
    if not plugin_requested(config):
        return None
    if settings_of(config).code:
        from pytest_gpukern.code.gate import CodeGate

        return CodeGate(config)
    if measures(config) and settings_of(config).against is not None:
        from pytest_gpukern.revisions.comparison import Against

        return Against(config)
    if settings_of(config).sanitize:
        from pytest_gpukern.sanitizer.sanitized_run import Sanitizer

        return Sanitizer(config)
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test item for each case."""
    declared = getattr(metafunc.function, "_gpukern_problem", None)
    if declared is not None:
        from pytest_gpukern.session.collection import parametrize_cases

        parametrize_cases(metafunc, *declared)


@pytest.hookimpl(wrapper=True)
def pytest_itemcollected(item: pytest.Item) -> Generator[None]:
    """Has pytest-run-parallel use one thread for what may use the GPU; older ones ask in this hook."""
    if may_use_gpu(item) or item.get_closest_marker("gpu_benchmark") is not None:
        item.add_marker(pytest.mark.thread_unsafe(reason="may use the GPU"))
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Tells what was opened before collecting apart from what collecting opens."""
    if (opened := session.config.stash.get(OPENED, None)) is not None:
        opened.enter()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that decorates for CUDA where there is no GPU is skipped with the reason.

    A run that did not ask for this plugin keeps its error, and is told of the simulator.
    """
    opened = collector.config.stash.get(OPENED, None) if isinstance(collector, pytest.Module) else None
    if opened is not None:
        opened.enter(collector.nodeid)
    report = yield
    if opened is not None:
        opened.enter()
    if report.failed:
        from pytest_gpukern.session.collection import explain_failure

        explain_failure(collector, report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Refuses unknown axes and unreadable baselines before anything runs."""
    from pytest_gpukern.session.collection import USAGE_ERROR, counted_as_benchmarks, prepare_tests

    collected = len(items)
    try:
        with counted_as_benchmarks(config, items):
            yield
        if plugin_requested(config):
            if (voucher := settings_of(config).voucher) is not None:
                from pytest_gpukern.session.unchanged import leave_out_unchanged

                leave_out_unchanged(config, items, voucher)
            prepare_tests(session, items, deselected=collected - len(items))
    except pytest.UsageError as error:
        # xdist takes a worker that stops while it collects for a crash, and fails an assertion.
        if hasattr(config, "workeroutput"):
            config.workeroutput[USAGE_ERROR] = str(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Forgets an earlier attempt, and fails a test whose marker is wrong; a fixture may need a GPU."""
    __tracebackhide__ = True  # a fixture's failure looks as it does without us
    begin(item)
    with failing_where_wrong(item), saying_what_is_missing(item):
        outcome = yield
    if "benchmark" in getattr(item, "fixturenames", ()) and measures(item.config):
        from pytest_gpukern.session.take_over_benchmark import warn_if_not_taken_over

        warn_if_not_taken_over(item)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Measures on the GPU what a marked test hands to pytest-benchmark's fixture."""
    __tracebackhide__ = True
    value = yield
    if fixturedef.argname == "benchmark" and plugin_requested(request.config):
        from pytest_gpukern.session.take_over_benchmark import take_over, unlist_simulated

        unlist_simulated(request.node, value)
        take_over(request.node, value)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judges inside the test: a regression fails it by name, where a teardown's is `1 passed, 1 error`."""
    __tracebackhide__ = True
    note_context(item)
    failed = item.session.testsfailed
    with failing_where_wrong(item):
        with saying_what_is_missing(item):
            outcome = yield
        conclude(item, subtest_failed=item.session.testsfailed > failed)
    return outcome


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """Ends observing once all fixtures of the test have given back what they hold."""
    __tracebackhide__ = True
    test = attempt_at(item).test
    if test is not None:
        test.stop_observing()  # before a teardown, which may fail
    with failing_where_wrong(item):
        outcome = yield
        end_observing(item, nextitem)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Puts the result on the report as plain JSON; what a subtest raises comes here alone."""
    skip_subtest(item, call)
    if call.excinfo is not None or getattr(item, "_excinfo", None):
        from pytest_gpukern.session.frames import shorten  # every run loads this module

        shorten(item, call)
    report = yield
    attach(item, report, call)
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Returns device, driver, CUDA, libraries, simulator state and BLAS; nothing if nobody asked for us."""
    if not plugin_requested(config):
        return []
    from pytest_gpukern.session.collection import header

    return header(config)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Returns what we supplied to libraries so that they work here; collecting opens them."""
    if not plugin_requested(config):
        return []
    return [f"gpukern note: {note}" for note in environment_of(config).library_notes]


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # asked before pytest_configure, for -n auto
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Returns one worker for each GPU that is measured on; without a GPU xdist decides."""
    return (len(environment_of(config).gpu.cards) or None) if measures(config) else None


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Adds the device to pytest-benchmark's JSON."""
    if plugin_requested(config):  # perhaps within pytest_configure: a fingerprint needs no CUDA context
        from pytest_gpukern.benchmark_interop.pytest_benchmark import machine_info as describe

        machine_info.update(describe(environment_of(config).gpu.fingerprint))


@pytest.fixture(scope="session")
def gpu_device(pytestconfig: pytest.Config) -> Device:
    """The GPU of this run: index, name, UUID, compute capability, memory, multiprocessors, L2 bytes.

    `is_simulated` where Numba's simulator stands in for it. With `--gpukern-code` it is an H200 that is not
    there. Without any of them the test is skipped, with the reason.
    """
    gpu = environment_for_test(pytestconfig).gpu
    if gpu.device is None:
        pytest.skip(gpu.why_no_gpu)
    return gpu.device


@pytest.fixture(scope="session")
def gpu_synchronize(gpu_device: Device) -> Callable[[], None]:
    """Returns a callable that waits for all work on the device, from any library and stream."""
    from pytest_gpukern.run.call_subject import waiting_for

    return waiting_for(gpu_device)


@pytest.fixture(scope="session")
def gpu_warmup(gpu_synchronize: Callable[[], None]) -> Callable[..., WarmUp]:
    """A callable that runs another until its time settles: `gpu_warmup(f, *args, **kwargs)`.

    Returns a `WarmUp` with the first call's time apart, in nanoseconds, since it may compile and load.
    """
    from pytest_gpukern.measure.measure import warm_up

    def run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> WarmUp:
        return warm_up(lambda: function(*args, **kwargs), gpu_synchronize)

    return run


@pytest.fixture
def gpu_benchmark(request: pytest.FixtureRequest) -> Generator[GpuBenchmark]:
    """Measures and verifies what a test launches; see `GpuBenchmark`."""
    from pytest_gpukern.run.measured_test import GpuBenchmark

    test = new_test(request.node)
    test.begin()
    yield GpuBenchmark(test)
    test.let_go()  # it keeps arrays
