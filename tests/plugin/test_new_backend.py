"""A new backend is one file in `backends/` and one row in the table; nothing else is touched."""

import csv
import functools
import importlib.util
import io

import pytest
from doubling import CASES, of_size

from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.recorded import read_all
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.backend_table import BACKENDS, BackendRow

from .conftest import HOST_PROBLEM

needs_simulator = pytest.mark.skipif(not importlib.util.find_spec("numba_cuda"), reason="needs numba-cuda")

ROW = """
from pytest_gpukern.values.backend_table import BACKENDS, BackendRow

BACKENDS["opencl"] = BackendRow(
    "opencl:OpenclBackend", needs=(("json", "opencl-of-json"), ("{needed}", "{needed}-wheel")),
    simulated_by="opencl:OpenclBackend", arrays=(("opencl_arrays", "Buffer"),), packages=("opencl_arrays",),
    distributions=("pluggy",),
)
"""

BACKEND = """
from pytest_gpukern.backends.numba import SimulatedBackend

class OpenclBackend(SimulatedBackend):
    name = "opencl"
"""

TESTS = f"""{of_size(8, 10**9)}{CASES}
import opencl_arrays
from pytest_gpukern.backends.foreign_array import backend_of
from pytest_gpukern.gpu.fingerprint import library_versions

@doubling.variant("opencl")
def right(x, y):
    return lambda: y.copy_to_device(2 * x.copy_to_host())

@doubling.variant("host")
def numpy(x, y):
    return lambda: np.multiply(x, 2, out=y)

def test_its_arrays_and_its_versions_are_known():
    assert backend_of(opencl_arrays.Buffer) == "opencl"
    assert "pluggy" in library_versions()
"""


@pytest.fixture
def run(beside_a_row):
    """Runs the tests beside a backend whose second library is called `needed`."""

    def run(*options, needed="math"):
        tests = {"test_it": TESTS, "opencl_arrays": "class Buffer: pass"}
        run = beside_a_row("backends", {"opencl": BACKEND}, ROW.format(needed=needed), **tests)
        return run("--gpukern-simulator=always", "-v", "-rs", *options)

    return run


@needs_simulator
def test_a_file_and_a_row_are_enough(run):
    result = run("--gpukern-backend=opencl")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*opencl.right*PASSED*"])


@needs_simulator
def test_its_missing_library_is_named(run):
    result = run(needed="nobody_has_this")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*nobody_has_this-wheel is not installed*"])


@needs_simulator
def test_it_is_among_the_names_that_can_be_selected(run):
    result = run("--gpukern-backend=openc")
    result.stderr.fnmatch_lines(["*'openc' is none of host, *, opencl*"])


HOST_ROW = """
from pytest_gpukern.values.backend_table import BACKENDS, BackendRow

BACKENDS["threads"] = BackendRow(
    "threads:ThreadsBackend", on_gpu=False, needs=(("pluggy", "pluggy"),), distributions=("pluggy",)
)
"""

HOST_BACKEND = """
from pytest_gpukern.backends.host import HostBackend

class ThreadsBackend(HostBackend):
    name = "threads"
"""

HOST_TESTS = HOST_PROBLEM.replace('"host")', '"threads")', 1).replace(
    "    version=1,", '    version=1,\n    scopes=("kernel", "end_to_end"),'
)


@pytest.fixture
def run_on_host(beside_a_row):
    """Runs the tests where there is no GPU, beside a second backend that runs on the host."""
    run = beside_a_row("backends", {"threads": HOST_BACKEND}, HOST_ROW, test_it=HOST_TESTS)
    return functools.partial(run, "--gpu-benchmark", "--gpukern-axis=n=8", "-v")


def test_one_that_runs_on_the_host_is_reported_and_recorded_as_numpy_is(run_on_host, pytester, monkeypatch):
    create = ("--gpukern-baseline=create", "--gpukern-sessions=1")
    run = run_on_host("--gpukern-report=run.json", *create)
    run.assert_outcomes(passed=2)
    run.stdout.fnmatch_lines(["doubling · n=8 · end_to_end by host, hot"])
    run.stdout.no_fnmatch_line("*kernel by host*")
    stored = read_run(pytester.path / "run.json")
    threads, numpy = stored.results
    assert (threads.case.backend, numpy.case.backend) == ("threads", "host")
    monkeypatch.setitem(BACKENDS, "threads", BackendRow("threads:ThreadsBackend", on_gpu=False))
    assert not threads.case.on_gpu
    assert not threads.simulated
    assert [each.key for each in threads.measurements] == [each.key for each in numpy.measurements]
    assert [each.key for each in threads.measurements] == ["end_to_end/host/hot"]
    first, second = csv.DictReader(io.StringIO(csv_text([stored])))
    for column in ("device", "device_uuid", "driver", "simulated", "scope", "timer", "verdict"):
        assert first[column] == second[column]
    (baseline,) = (pytester.path / "baselines").iterdir()
    recorded = {(result.case.backend, result.case.variant) for result in read_all([baseline])[0].results}
    assert recorded == {("threads", "multiply"), ("host", "add")}


def test_a_selection_of_it_alone_has_no_gpu_to_trace_or_to_miss(run_on_host):
    for asked in (("--gpukern-trace", "--gpukern-report=run.json"), ("--gpukern-fail-on=no-gpu",)):
        refused = run_on_host("--gpukern-backend=threads,host", *asked)
        refused.stderr.fnmatch_lines(["*only host variants are selected*"])
