"""What the plugin's tests share: an environment without surprises, small problems, and ways to run them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import os
import pkgutil
import secrets
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy.random  # noqa: F401 - pytester forgets what a run imported, and NumPy loads only once
import pynvml  # noqa: F401
import pytest
import threadpoolctl  # noqa: F401
import xdist.dsession
import xdist.workermanage  # noqa: F401
from _pytest.config import default_plugins, essential_plugins
from doubling import CASES, PROBLEM, of_size
from made_up_runs import whole_run
from msgspec import structs

import pytest_gpukern
from pytest_gpukern.processes.sessions import Waiting

from . import fake_gpu

PREPARE = Waiting.prepare
"""Starts the sessions to come; most tests start none."""


def _load_the_package():
    """Every module that loads without Numba: a run that ends would take those it loaded with it."""
    for module in pkgutil.walk_packages(pytest_gpukern.__path__, "pytest_gpukern."):
        if ".simulator." not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


_load_the_package()


def pytest_collection_finish():
    """Leaves out of later garbage collections what was collected; each took a third of a second for it."""
    gc.collect()
    gc.freeze()


HOST_PROBLEM = f"""{PROBLEM}
@doubling.variant("host")
def multiply(x, y):
    return lambda: np.multiply(x, 2, out=y)

@doubling.variant("host")
def add(x, y):
    return lambda: np.add(x, x, out=y)
{CASES}"""
"""Two host variants at two sizes, right and measurable everywhere."""

GPU_PROBLEM = (
    of_size(8)
    + """
def launch_of(name, x, y):
    def launch():
        np.multiply(x, 2, out=y)
    launch.takes_ns = float(os.environ.get(f"{name}_TAKES_NS", 1000))
    launch.escapes = os.environ.get(f"{name}_ESCAPES")
    return launch

@doubling.variant("numba")
def first(x, y):
    return launch_of("FIRST", x, y)

@doubling.variant("numba")
def second(x, y):
    return launch_of("SECOND", x, y)
"""
    + CASES
)
"""Two variants for the fake GPU, whose times the environment sets: `FIRST_TAKES_NS=1100`."""

KERNEL_PROBLEM = GPU_PROBLEM.replace(
    "    return launch\n",
    """    launch.kernel = os.environ.get(f"{name}_KERNEL")
    return launch
""",
)
"""Variants that also say what kernel they launch: `FIRST_KERNEL='{"registers": 96, "code": "cafe"}'`."""

FIRST, SECOND = "doubling/numba.first/n=8", "doubling/numba.second/n=8"

IN_A_WORKERS_PROCESS = ("-n1", "--gpukern-isolate=on")
"""Results go from a measuring process to its worker, and from there to the run: over both wires there are."""


def without_pytests_plugins(*kept):
    """Options that block what can be blocked of pytest's own, but for these, and `python`, which collects."""
    kept = {*essential_plugins, "python", *kept}
    return [f"-pno:{name}" for name in default_plugins if name not in kept]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch, pytester, tmp_path_factory):
    """No CI, no GPU, no switch of the simulator, and a terminal wide enough for a table."""
    github = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE")
    for name in ("CI", "NUMBA_ENABLE_CUDASIM", "PYTEST_XDIST_WORKER", *github):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # where there is a GPU, these tests do not see it
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # every run would load all of it anew
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("GPUKERN_LOCK_DIR", str(tmp_path_factory.getbasetemp() / "locks"))
    here = str(Path(__file__).parent)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    )


@pytest.fixture
def on_fake_gpu(pytester, monkeypatch):
    """Runs pytest in this process with `-p fake_gpu`; the processes that it starts are real."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr("xdist.workermanage._sys_path", list(sys.path))  # which workers get

    def run(*options):
        return pytester.runpytest_inprocess("-p", "fake_gpu", *options)

    return run


@pytest.fixture(autouse=True)
def _no_further_processes(request, monkeypatch):
    """Runs in this process record one session and isolate nothing; child sessions find what was found here.

    Nor do they wait to learn what else this host does.

    Not those of `on_fake_gpu`, nor runs in a process of their own.
    """
    if "on_fake_gpu" in request.fixturenames:
        return
    from pytest_gpukern.processes.sessions import ChildRun, ChildSessions, Ending
    from pytest_gpukern.run import spine as settling
    from pytest_gpukern.session import stash as state
    from pytest_gpukern.values import settings

    last = {}
    judged = settling.judged_by_record

    def noted(result, *args):
        last[result.nodeid] = result
        return judged(result, *args)

    def replay(self, request, progress, started):
        process = secrets.token_hex(4)
        found = {
            nodeid: Ending("passed", "", structs.replace(last[nodeid], session=process, verdicts={}))
            for nodeid in request.nodeids
        }
        return ChildRun(found, status=0)

    monkeypatch.setattr("pytest_gpukern.measure.host_load.read", lambda: None)
    monkeypatch.setattr(settings, "SESSIONS_TO_RECORD", 1)
    monkeypatch.setattr(state, "ISOLATED_WHEN_MEASURED", False)
    monkeypatch.setattr(settling, "judged_by_record", noted)
    monkeypatch.setattr(ChildSessions, "run", replay)
    monkeypatch.setattr(Waiting, "prepare", lambda self, coming: None)


@pytest.fixture
def host(pytester):
    """Runs the host problem in this process, where the simulator must stay off."""
    pytester.makepyfile(test_doubling=HOST_PROBLEM)

    def run(*options):
        return pytester.runpytest_inprocess("--gpukern-simulator=never", "-p", "no:cacheprovider", *options)

    return run


@pytest.fixture
def gpu(pytester, monkeypatch):
    """Measures the GPU problem on the fake GPU, in this process."""
    fake_gpu.install(monkeypatch)
    pytester.makepyfile(test_doubling=GPU_PROBLEM)

    def run(*options):
        return pytester.runpytest_inprocess("--gpu-benchmark", *options)

    return run


@pytest.fixture
def with_cupti(gpu, monkeypatch):
    """As `gpu`, on a machine with CUPTI."""
    fake_gpu.install(monkeypatch, cupti=True)
    return gpu


@pytest.fixture
def beside_a_row(pytester, monkeypatch):
    """Prepares runs in another process, with a plugin that adds modules and a row to a room, and files."""

    def prepare(room, library, row, **files):
        path = f"pytest_gpukern.{room}.__path__.append({str(pytester.path / 'library')!r})"
        pytester.makepyfile(row=f"import pytest_gpukern.{room}\n{path}\n{row}", **files)
        for name, source in library.items():
            pytester.mkdir("library").joinpath(f"{name}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
        return functools.partial(pytester.runpytest_subprocess, "-p", "row", "-p", "no:cacheprovider")

    return prepare


@pytest.fixture(scope="session")
def _kept(tmp_path_factory):
    """A folder for what only the first test measures that wants it."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def files(_kept, request, tmp_path, monkeypatch):
    """A folder with two runs, `before.json` and `after.json`, the second with a slower first variant.

    The folders `before` and `after` hold them as baselines.
    """
    if not (_kept / "files").exists():
        gpu, pytester = request.getfixturevalue("gpu"), request.getfixturevalue("pytester")
        gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
        gpu("--gpukern-report=before.json").assert_outcomes(passed=2)
        (pytester.path / "baselines").rename(pytester.path / "before")
        with monkeypatch.context() as patch:
            patch.setenv("FIRST_TAKES_NS", "1100")
            gpu("--gpukern-report=after.json", "--gpukern-baseline=create", "--gpukern-baseline-dir=after")
        shutil.copytree(pytester.path, _kept / "files")
    return shutil.copytree(_kept / "files", tmp_path / "files")


@pytest.fixture
def record(gpu, pytester, _kept):
    """Records three sessions of each test in the current folder, as many as gating needs, under a name."""

    def of(name, count):
        if not (_kept / name).exists():
            gpu("--gpukern-baseline=create").assert_outcomes(passed=count)
            repeat_sessions(pytester.path, 3)
            shutil.copytree("baselines", _kept / name)
        shutil.copytree(_kept / name, "baselines", dirs_exist_ok=True)

    return of


@pytest.fixture
def recorded(gpu, record):
    """As `gpu`, with a baseline of three sessions of 1 µs for both variants."""
    record("doubling", 2)
    return gpu


def repeat_sessions(folder, times):
    """Makes every session of the baselines beside a test as many, by processes of their own."""
    from pytest_gpukern.baseline.codec import load, render

    for path in (folder / "baselines").iterdir():
        found = load(path)

        def repeated(session):
            return [
                structs.replace(session, session=session.session and f"{session.session[:-1]}{number:x}")
                for number in range(times)
            ]

        def longer(epoch):
            sessions = tuple(each for session in epoch.sessions for each in repeated(session))
            return structs.replace(epoch, sessions=sessions)

        cases = {
            name: structs.replace(record, epochs=tuple(map(longer, record.epochs)))
            for name, record in found.cases.items()
        }
        path.write_bytes(render(dataclasses.replace(found, cases=cases)))


def refused(result, *lines):
    """Asserts that pytest refused to run, with these lines and nothing that looks like a crash."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {lines[0]}", *lines[1:]])
    for text in (result.stdout.str(), result.stderr.str()):
        assert "INTERNALERROR" not in text
        assert "Traceback" not in text


def properties_in(path):
    """The properties in a JUnit file: name of a test → name without `gpukern.` → value."""
    return {
        case.get("name"): {
            each.get("name").removeprefix("gpukern."): each.get("value") for each in case.iter("property")
        }
        for case in ElementTree.parse(path).iter("testcase")
        if case.find("properties") is not None
    }


def results_in(path):
    """The results of a run file, by case id."""
    found = whole_run(path)["results"]
    by_id = {result["case"]["id"]: result for result in found}
    assert len(by_id) == len(found), "no case is there twice"
    return by_id
