"""Skips the tests here without a real GPU; each says why."""

import contextlib
import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from cupti_scenarios import Gpu
from made_up_runs import whole_run

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    from pytest_gpukern.gpu.selection import missing_gpu_reason

    reason = missing_gpu_reason(os.environ)
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


@pytest.fixture(autouse=True, scope="session")
def _torch_and_triton_stay_imported():
    """`pytester` forgets what was imported during its test, and these cannot be imported a second time."""
    for library in ("torch", "triton"):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """What runs inside print is looked for in whole lines."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def plugin_option():
    """For an inner pytest, where the package is on the path but not installed."""
    from importlib.metadata import entry_points

    return () if entry_points(group="pytest11", name="gpukern") else ("-p", "pytest_gpukern.plugin")


@pytest.fixture
def measured(pytester, plugin_option):
    """Measures modules of tests in a process of its own; returns how that ended, and the file's results."""

    def run(source, *options, **modules):
        pytester.makepyfile(test_it=source, **modules)
        told = ("--gpu-benchmark", "--gpukern-report=run.json", *plugin_option, *options)
        done = pytester.runpytest_subprocess(*told)
        return done, whole_run(pytester.path / "run.json")["results"]

    return run


@pytest.fixture
def runtime():
    from pytest_gpukern.gpu.runtime import runtime

    return runtime()


@pytest.fixture
def calls():
    """Makes calls on the device, each loaded and run once, as the scenarios do that are recorded."""
    made = Gpu()
    with made.closing:
        yield made


@pytest.fixture
def spin(calls):
    return calls.spin


@pytest.fixture
def array(runtime):
    """Makes device arrays of zeros, freed at the end."""
    from pytest_gpukern.gpu.runtime import DeviceArray

    made = []

    def make(shape, dtype=np.float32):
        made.append(DeviceArray(shape, dtype))
        made[-1].fill(0)
        runtime.synchronize()
        return made[-1]

    yield make
    runtime.synchronize()
    for one in made:
        one.free()
