"""Checks which backends can run here, and when the loading of machine code is observed."""

from __future__ import annotations

import fnmatch
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from made_up_records import case_of, path_in, record, result_of
from repositories import Repository

from pytest_gpukern.arrays.compare import draw_poisons
from pytest_gpukern.backends import backend as backends
from pytest_gpukern.baseline.code_file import CodeFile, rendered
from pytest_gpukern.run.device_session import DeviceSession
from pytest_gpukern.run.environment import Environment
from pytest_gpukern.run.loaded_files import Project
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.settings import Settings


@pytest.fixture
def opened(monkeypatch):
    """Makes every library open; the dict says, by backend, what opening it raises."""
    behaviour = {}

    def open_backend(name, *, simulated):
        behaviour.setdefault("opened", []).append(name)
        if name in behaviour:
            raise behaviour[name]
        return SimpleNamespace(name=name)

    def runtime():
        if "device" in behaviour:
            raise behaviour["device"]

    monkeypatch.setattr("pytest_gpukern.run.environment.missing_library", lambda name, *, compiles: None)
    monkeypatch.setattr(backends, "open_backend", open_backend)
    monkeypatch.setattr("pytest_gpukern.gpu.runtime.runtime", runtime)
    return behaviour


def environment(monkeypatch, *, gpu=True, simulating=False, **settings):
    monkeypatch.setattr(DeviceSession, "has_gpu", gpu)
    monkeypatch.setattr(DeviceSession, "missing_gpu", None if gpu else "no driver")
    state = SimpleNamespace(active=simulating, reason="asked for")
    settings = Settings(requested=True, **settings)
    return Environment(settings, DeviceSession(settings, state))


def test_records_are_no_part_of_what_a_test_loads_wherever_they_are_and_whoever_opens_them(
    tmp_path, monkeypatch
):
    repository, data, here = Repository(tmp_path / "project"), "tests/data.json", tmp_path / "project/tests"
    repository.write(tests__test_it="import os", conftest="")
    (repository.top / data).write_text("1")
    record("create", result_of(case_of(here / "baselines")), result_of(case_of(tmp_path / "project/others")))
    records = [path_in(here / "baselines"), path_in(repository.top / "others"), here / "exp.code.json"]
    records[-1].write_bytes(rendered(CodeFile("exp")))
    repository.commit()
    seen = {data}
    opened = {"why_blind": "", "of_test": lambda: seen, "looking_away": nullcontext}

    def hashed(test=here / "test_it.py"):
        found = environment(monkeypatch)
        found.opened = SimpleNamespace(project=Project.around(repository.top), **opened)
        return found.files_of(test, ())

    first, of_all = hashed(), hashed(repository.top / "conftest.py")
    seen |= {of.relative_to(repository.top).as_posix() for of in records}  # of problems that ran before
    for of in records:
        of.write_text(of.read_text().replace("exp", "log"))
    assert first == hashed()
    (repository.top / data).write_text("2")
    assert first != hashed()
    assert of_all != hashed(repository.top / "conftest.py"), "of the top folder all is below it"


ON_HOST_ONLY = {"gpu": False}
SIMULATING = {"gpu": False, "simulating": True}
COMPILING = {"gpu": False, "code": ("sm_90",)}
CHOOSING = {"backends": ("cupy", "host")}


@pytest.mark.parametrize(
    ("made", "name", "why", "opens"),
    [
        ({}, "cupy", None, True),
        ({}, "pycuda", "the backend pycuda *: ImportError: libcurand.so.10: cannot open it", True),
        ({}, "skcuda", "the backend skcuda cannot be opened: RuntimeError: no reason given", True),
        ({}, "dask", "dask is not installed", False),
        (CHOOSING, "torch", "not selected: --gpukern-backend=cupy,host", False),
        (CHOOSING, "cupy", None, True),
        (ON_HOST_ONLY, "pycuda", "no GPU: no driver", False),
        (ON_HOST_ONLY, "host", None, True),
        (SIMULATING, "numba", None, False),
        (SIMULATING, "skcuda", "no GPU: the simulator runs kernels of Numba *", False),
        # a run that compiles covers only whose launches it can record
        (COMPILING, "numba", None, False),
        (COMPILING, "cupy", "*kernels of cupy*", False),
        (COMPILING, "host", "*variants of the host*", False),
    ],
)
def test_a_backend_that_is_of_no_use_says_why_and_is_opened_once_if_that_may_tell(
    monkeypatch, opened, made, name, why, opens
):
    opened |= {"pycuda": ImportError("libcurand.so.10: cannot\nopen it"), "skcuda": RuntimeError()}
    missing = {"dask": "dask is not installed"}
    monkeypatch.setattr(
        "pytest_gpukern.run.environment.missing_library", lambda name, *, compiles: missing.get(name)
    )
    tested = environment(monkeypatch, **made)
    for _ in range(2):
        found = tested.unusable(name)
        assert found is None if why is None else fnmatch.fnmatchcase(found, why)
    if why is None and opens:
        assert tested.backend(name).name == name
    assert opened.get("opened", []) == [name] * opens


def test_a_device_that_fails_raises_instead_of_skipping(monkeypatch, opened):
    opened["device"] = RuntimeError("CUDA_ERROR_UNKNOWN")
    with pytest.raises(RuntimeError, match="CUDA_ERROR_UNKNOWN"):
        environment(monkeypatch).unusable("cupy")


def test_a_host_variant_is_timed_alone_with_a_gpu_or_without_and_a_kernel_holds_its_gpu_only(monkeypatch):
    log = []

    def lock(name):
        return Mock(acquire=lambda on_wait, **_: log.append(name), release=lambda: log.append("released"))

    monkeypatch.setattr("pytest_gpukern.run.device_session.DeviceLock", lock)
    for device in (None, SimpleNamespace(uuid="GPU-1", is_simulated=False)):
        monkeypatch.setattr(DeviceSession, "device", device)
        found = environment(monkeypatch, gpu=device is not None).gpu
        for on_gpu in (True, False):
            with found.timing(on_gpu=on_gpu):
                log.append(f"times, on_gpu={on_gpu}")
    alone = ["the host", "times, on_gpu=False", "released"]
    assert log == ["the host", "times, on_gpu=True", "released", *alone, "times, on_gpu=True", *alone]


@pytest.mark.parametrize("folder", ["relative", "/dev/null/locks"])
def test_a_host_that_cannot_be_locked_is_a_warning_and_no_failure(monkeypatch, folder):
    monkeypatch.setenv("GPUKERN_LOCK_DIR", folder)
    monkeypatch.setattr(DeviceSession, "device", None)
    found = environment(monkeypatch).gpu
    for _ in range(2):
        with found.timing(on_gpu=False):
            pass
    (note,) = found.take_late_warnings()
    assert note.text.startswith("the host is not locked against other timings: ")
    assert "GPUKERN_LOCK_DIR" in note.text


def test_canaries_are_measured_once_a_session_and_missing_ones_are_noted(monkeypatch):
    from pytest_gpukern.gpu.ceiling_kernels import Measured

    why = "the canary copy could not be measured: too little memory"
    measure = Mock(return_value=Measured({"fma": 2e5}, (why,)))
    monkeypatch.setattr("pytest_gpukern.run.device_session.measure_canaries", measure)
    made = environment(monkeypatch)
    assert made.gpu.canaries == made.gpu.canaries == {"fma": 2e5}
    assert made.gpu.take_late_warnings() == (Note(why),)
    assert environment(monkeypatch, gpu=False).gpu.canaries == {}
    assert measure.call_count == 1


def test_a_child_is_told_which_processes_are_ours_once_this_one_has_looked_at_the_device(monkeypatch):
    found = environment(monkeypatch)
    assert found.gpu.for_children == {}, "without a CUDA context there is nothing to mistake"
    found.gpu.instruments = SimpleNamespace(states=SimpleNamespace(ours=frozenset({30, 7})))
    assert found.gpu.for_children == {"GPUKERN_FAMILY": "7,30"}


@pytest.mark.parametrize("without", ["", "gpu", "times", "on_gpu"])
def test_loading_of_code_is_observed_where_it_may_be_timed(monkeypatch, without):
    gpu, times, on_gpu = (name != without for name in ("gpu", "times", "on_gpu"))
    happened = []

    @contextmanager
    def observes(observation):
        happened.append(
            observation(SimpleNamespace(loading=lambda begins: begins, launches=lambda: "launches"))
        )
        yield

    monkeypatch.setattr("pytest_gpukern.timers.cupti.machine_code.observed", observes)
    tested = environment(monkeypatch, gpu=gpu, benchmark=times)
    for begins in (True, False):
        with tested.gpu.loading_observed(begins=begins, on_gpu=on_gpu):
            assert len(happened) == (0 if without else len({True, begins}))
    with tested.gpu.launches_observed() if on_gpu else nullcontext():
        assert happened == ([] if without else [True, False, "launches"])


def test_poisons_are_drawn_by_the_runs_seed_or_anew_and_backends_fill_outputs_with_them(monkeypatch, opened):
    seeded = environment(monkeypatch, seed=7)
    assert seeded.poisons == draw_poisons(7) == seeded.backend("host").poisons
    assert len({environment(monkeypatch).poisons for _ in range(20)}) > 10
