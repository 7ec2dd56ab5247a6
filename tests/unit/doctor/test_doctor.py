"""`gpukern doctor`: what it finds on machines that have something wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from pytest_gpukern.cli import doctor
from pytest_gpukern.cli import main as cli
from pytest_gpukern.doctor import checks, machine
from pytest_gpukern.doctor.checks import Severity, advise
from pytest_gpukern.doctor.machine import Gpu, Machine
from pytest_gpukern.gpu.errors import NvmlUnavailable
from pytest_gpukern.gpu.nvml import Configuration, GpuProcess, PowerLimits
from pytest_gpukern.sanitizer.tool import Tool, ToolMissingError
from pytest_gpukern.values.backend_table import BACKENDS, BackendRow
from tests.unit.fake_nvml import HEALTHY as HEALTHY_SETUP
from tests.unit.fake_nvml import UUIDS, FakeNvml, gpu, split_gpu, state

H200 = Gpu(record=gpu(0), setup=HEALTHY_SETUP, state=state(), limits=PowerLimits(700.0, 1980, 3201))
HEALTHY = Machine(
    gpus=(H200,),
    driver_there=True,
    driver="580.159.04",
    cuda=(13, 0),
    nvcc=(13, 0),
    python="3.12.3",
    versions={
        "pytest": "9.2.0",
        "pytest-benchmark": "5.3.1",
        "numpy": "2.4.6",
        "numba": "0.68.0",
        "numba-cuda": "0.30.4",
        "cupy-cuda13x": "14.2.0",
        "cuda-bindings": "13.0.3",
        "cupti-python": "13.0.1",
        "pycuda": "2026.1",
        "nvidia-ml-py": "13.615.71",
    },
    backends={"numba": None, "cupy": None},
    sanitizer="2025.3.1.0",
)


PYTHON = GpuProcess(4242, "python", 900)


def with_gpu(setup=None, **changes):
    found = dataclasses.replace(H200, setup=dataclasses.replace(HEALTHY_SETUP, **(setup or {})), **changes)
    return dataclasses.replace(HEALTHY, gpus=(found,))


def with_versions(**versions):
    changed = {name.replace("_", "-"): version for name, version in versions.items()}
    return dataclasses.replace(HEALTHY, versions={**HEALTHY.versions, **changed})


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def but(**changes):
    return dataclasses.replace(HEALTHY, **changes)


def test_a_healthy_machine_has_nothing_to_complain_of():
    assert advise(HEALTHY) == []
    assert advise(with_versions(pynvml="13.0.1")) == [], "from 12 on it has no module pynvml"
    newest = dataclasses.replace(with_versions(numpy="2.5.1"), no_gpu="no NVIDIA driver library")
    assert "numba-cuda" not in {advice.subject for advice in advise(newest)}, "the simulator takes it"
    silent = dataclasses.replace(H200, setup=Configuration(), limits=PowerLimits())
    assert advise(but(gpus=(silent,))) == [], "nor of what NVML does not tell"


def test_the_sanitizer_is_looked_for_and_shown_a_fault(examined, monkeypatch):
    def missing(environ):
        raise ToolMissingError("it is not installed")

    for find, asked in (
        (lambda environ: Tool("/x/compute-sanitizer", "2025.3"), ("2025.3", "it finds nothing")),
        (missing, (None, "it is not installed")),
    ):
        monkeypatch.setattr(machine, "find_tool", find)
        told, _ = examined(FakeNvml(records=(gpu(0),)))
        assert (told.sanitizer, told.sanitizer_problem) == asked


@pytest.mark.parametrize("variable", checks._SWITCHES)
def test_variables_that_change_what_is_timed_are_named_with_their_value(variable):
    (advice,) = advise(but(environ={variable: "/opt/profiler.so"}))
    assert f"{variable}=/opt/profiler.so" in advice.text
    assert advise(but(environ={variable: "0"})) == advise(but(environ={variable: ""})) == []


LACKED = ("a.py", "cupy is not installed; pip install 'pytest-gpukern[cu13]'")
NO_TOOL = "compute-sanitizer is not installed; pip install nvidia-cuda-sanitizer-api"


NO_GPU, LACKING = {"no_gpu": "", "driver_there": False, "gpus": ()}, {"lacks": {"cupy": LACKED}}
MISSED, SANITIZER = "memcheck did not find the fault", 'pip install "nvidia-cuda-sanitizer-api==13.0.*"'
CUDA_12 = {"cuda": (12, 8), "versions": {"cupy-cuda13x": "14.2.0"}, "nvcc": None}
OF_THE_MACHINE = [
    (Machine(no_gpu="no NVIDIA driver library"), NOTE, "driver", "simulator", None),
    (but(no_gpu="RM version mismatch", gpus=()), ERROR, "driver", "mismatch", "reboot after an upgrade"),
    (but(**NO_GPU, **LACKING), NOTE, "driver", "untimed", None),
    (but(**LACKING), WARNING, "cupy", "a.py uses it, and cupy is not installed", "pip i"),
    (but(backends={"cupy": "ImportError: libnvrtc.so.13"}), ERROR, "cupy", "libnvrtc", ""),
    (but(timer="another profiler"), WARNING, "timer", "events stand in", ""),
    (but(lock="no flock"), WARNING, "lock", "not kept apart", ""),
    (but(sanitizer=None, sanitizer_problem=NO_TOOL), NOTE, "sanitizer", f"does not work: {NO_TOOL}", None),
    (but(sanitizer_problem=MISSED), WARNING, "sanitizer", f"sanitizer 2025.3.1.0: {MISSED}", SANITIZER),
    # versions that do not go together
    (with_versions(numpy="2.5.1"), ERROR, "numba-cuda", "np.row_stack", ""),
    (with_versions(cupy_cuda12x="14.2.0"), ERROR, "cupy", "overwrite", ""),
    (with_versions(cupti_python="12.8.0"), WARNING, "cupti-python", "is for CUDA 12", ""),
    (with_versions(cuda_bindings="14.0.0"), ERROR, "cuda-bindings", "is for CUDA 14", ""),
    (with_versions(pynvml="11.5.3"), WARNING, "nvidia-ml-py", "both bring a module pynvml", ""),
    (but(**CUDA_12), ERROR, "cupy-cuda13x", "is for CUDA 13", ""),
    (but(nvcc=(14, 0)), ERROR, "nvcc", "newer than the driver", ""),
    (but(nvcc=(13, 2)), NOTE, "nvcc", "machine code can", ""),
    (but(nvcc=None), NOTE, "pycuda", "SourceModule", ""),
    (but(versions={"numba": "0.68.0"}), WARNING, "numba", "without numba-cuda", ""),
]
OF_A_GPU = [
    (with_gpu({"persistence": False}), WARNING, "persistence mode is off"),
    (with_gpu({"ecc": False}), WARNING, "ECC is off and will be on"),
    (with_gpu({"ecc": False, "ecc_pending": False}), NOTE, "wrong bits"),
    (with_gpu({"mig_pending": True}), WARNING, "MIG is off and will be on"),
    (with_gpu({"mig_pending": True}, record=split_gpu(0, instances=0)), ERROR, "there is no instance"),
    (with_gpu({"compute_mode": "prohibited"}), ERROR, "PROHIBITED"),
    (with_gpu({"compute_mode": "exclusive_process"}), WARNING, "confirm"),
    (with_gpu({"uncorrected_errors": 3}), ERROR, "3 uncorrected"),
    (with_gpu({"row_remap_pending": True}), ERROR, "wait to be replaced"),
    (with_gpu({"row_remap_failed": True}), ERROR, "could not be replaced"),
    (with_gpu({"default_power_w": 750.0}), NOTE, "below its own 750 W"),
    (with_gpu(state=state(clock_events=("hw_thermal_slowdown",))), WARNING, "held down now"),
    (with_gpu(processes=(PYTHON,)), WARNING, "pid 4242 (python, 900 MiB)"),
    (with_gpu(state=state(memory_used_bytes=5 * 2**30)), WARNING, "5120 MiB are in use"),
]


@pytest.mark.parametrize(
    ("found", "level", "subject", "words", "remedy"),
    [*OF_THE_MACHINE, *((found, level, "GPU 0", words, "") for found, level, words in OF_A_GPU)],
)
def test_what_is_wrong_is_said_of_its_subject_with_its_remedy(found, level, subject, words, remedy):
    (advice,) = advise(found)
    assert (advice.level, advice.subject) == (level, subject)
    assert words in advice.text
    assert bool(advice.remedy) is (remedy is not None)
    assert (remedy or "") in advice.remedy
    assert "{" not in advice.remedy


def test_the_worst_comes_first():
    found = with_gpu({"persistence": False, "uncorrected_errors": 1, "default_power_w": 800.0})
    assert [advice.level for advice in advise(found)] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]


@pytest.fixture
def examined(monkeypatch):
    """Examines a machine with this NVML, or none; returns it, and what was opened."""

    def run(nvml, environ=None):
        def open_nvml():
            if nvml is None:
                raise NvmlUnavailable("no NVIDIA driver library")
            return nvml

        asked = []
        monkeypatch.setattr(machine.os, "environ", environ or {})
        monkeypatch.setattr(machine.nvml, "open_nvml", open_nvml)
        monkeypatch.setattr(machine, "missing_gpu_reason", lambda environ: None if nvml else "no GPU")
        monkeypatch.setattr(machine, "_probe", lambda name, how: asked.append(name))
        monkeypatch.setattr(machine, "missed_fault", lambda *_: "it finds nothing")
        return machine.examine(), asked

    return run


def test_a_machine_is_asked_for_every_gpu_and_each_installed_backend(examined):
    nvml = FakeNvml(records=(gpu(0), gpu(1)))
    found, asked = examined(nvml, {"CUDA_VISIBLE_DEVICES": UUIDS[1]})
    assert [each.visible for each in found.gpus] == [False, True]
    assert found.driver == "580.159.03"
    assert found.cuda == (13, 0)
    asked_to_open = [name for name in found.backends if BACKENDS[name].needs]
    assert asked == [*asked_to_open, "cupti"]
    assert nvml.closed


def test_what_the_project_uses_and_is_not_installed_is_lacking(examined, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "on_gpu.py").write_text(
        "@p.variant('made_up')\ndef f(): ...\n\n@p.variant('host')\ndef g(): ...\n"
    )
    monkeypatch.setitem(BACKENDS, "made_up", BackendRow("", needs=(("no_such", "such"),), extra="x"))
    found, _ = examined(FakeNvml())
    assert found.lacks == {"made_up": ("on_gpu.py", "such is not installed; pip install 'pytest-gpukern[x]'")}


@pytest.mark.parametrize("folder", ["relative", "/dev/null/locks"])
def test_a_folder_in_which_nothing_can_be_locked_is_a_problem_of_the_machine(examined, folder):
    found, _ = examined(FakeNvml(), {"GPUKERN_LOCK_DIR": folder})
    assert "GPUKERN_LOCK_DIR" in found.lock


def test_without_nvml_there_are_no_gpus_and_no_timer_is_tried(examined):
    found, asked = examined(None)
    assert found.gpus == ()
    assert "cupti" not in asked


@pytest.mark.parametrize(
    ("status", "said", "problem"),
    [
        (0, "a library says hello\n\n\n", None),
        (1, "noise\n\nImportError: x\n", "ImportError: x"),
        (-11, "", "the process that opened it died of signal 11: it said nothing"),
        (3, "first\nlast words\n", "last words"),
    ],
)
def test_the_answer_of_a_probe_is_its_status_and_its_last_words(status, said, problem):
    assert machine.read_answer(status, said) == problem


@pytest.mark.parametrize(("module", "problem"), [("json", None), ("antigravity_", "ModuleNotFoundError: ")])
def test_a_library_is_opened_in_a_process_of_its_own(module, problem):
    code = (
        "import runpy, sys\n"
        "from pytest_gpukern.values.backend_table import BACKENDS, BackendRow\n"
        f"BACKENDS['cupy'] = BackendRow('', needs=(({module!r}, 'cupy'),))\n"
        "sys.argv[1:] = ['cupy', 'import']\n"
        "runpy.run_module('pytest_gpukern.doctor.machine', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    answer = machine.read_answer(done.returncode, done.stderr)
    assert answer is None if problem is None else answer.startswith(problem)


def test_a_backend_of_a_users_that_needs_no_library_works_under_its_own_name(examined, monkeypatch):
    monkeypatch.setitem(BACKENDS, "threads", BackendRow("threads:ThreadsBackend", on_gpu=False))
    (found, asked) = examined(FakeNvml(records=(gpu(0),)))
    assert "threads" not in asked
    (line,) = (line for line in doctor.facts(found) if line.startswith("backends"))
    assert line.startswith("backends   host works")
    assert "threads works" in " ".join(doctor.facts(found))


@pytest.mark.parametrize(
    ("said", "release"),
    [("Cuda compilation tools, release 13.0, V13.0.88", (13, 0)), ("no such thing", None)],
)
def test_nvccs_release_is_read(examined, tmp_path, said, release):
    (tmp_path / "nvcc").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "nvcc").chmod(0o755)
    assert examined(FakeNvml(), {"PATH": str(tmp_path)})[0].nvcc == release


@pytest.mark.parametrize(
    ("found", "status"),
    [(HEALTHY, 0), (with_gpu({"persistence": False}), 0), (with_gpu({"uncorrected_errors": 1}), 1)],
)
def test_the_status_says_whether_something_is_broken(found, status, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().out.splitlines()[-1].startswith("gpukern doctor: ")


def test_machines_get_json(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda **_: with_gpu({"persistence": False}))
    cli.main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["advice"][0]["subject"] == "GPU 0"
    assert said["gpus"][0]["record"]["uuid"] == UUIDS[0]
    assert "environ" not in said, "it may hold secrets"


def test_devices_are_listed_with_what_the_device_option_takes(monkeypatch, capsys):
    split = dataclasses.replace(H200, record=split_gpu(1), visible=False)
    monkeypatch.setattr(doctor, "examine", lambda **_: dataclasses.replace(HEALTHY, gpus=(H200, split)))
    cli.main(["doctor"])
    listed = capsys.readouterr().out
    assert UUIDS[0] in listed
    assert "MIG-" in listed
    assert "hidden by CUDA_VISIBLE_DEVICES" in " ".join(listed.split())
