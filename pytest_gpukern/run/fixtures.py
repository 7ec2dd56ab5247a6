"""Holds the fixtures that users see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.measure.measure import WarmUp
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.run.gpu_benchmark import GpuBenchmark


def _environment(config: pytest.Config) -> Environment:
    """The run's environment; in a run that did not ask for the plugin, nothing was refused at start-up."""
    from pytest_gpukern.run.stash import environment_of

    try:
        return environment_of(config)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def gpu_device(pytestconfig: pytest.Config) -> Device:
    """The GPU of this run: index, name, UUID, compute capability, memory, multiprocessors, L2 bytes.

    `is_simulated` where Numba's simulator stands in for it. Without either the test is skipped, with the
    reason.
    """
    environment = _environment(pytestconfig)
    if environment.gpu.device is None:
        pytest.skip(environment.gpu.why_no_gpu)
    return environment.gpu.device


@pytest.fixture(scope="session")
def gpu_synchronize(gpu_device: Device) -> Callable[[], None]:
    """A callable that waits for everything on the device, whatever library or stream it came from."""
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
    from pytest_gpukern.run.gpu_benchmark import GpuBenchmark
    from pytest_gpukern.run.stash import new_test

    test = new_test(request.node, _environment(request.config))
    test.begin()
    yield GpuBenchmark(test)
    test.let_go()


@pytest.fixture
def gpukern(gpu_benchmark: GpuBenchmark) -> GpuBenchmark:
    """The same object as `gpu_benchmark`, under the plugin's own name."""
    return gpu_benchmark
