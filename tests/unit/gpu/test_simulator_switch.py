"""Tests in fresh processes when the simulator is used, and switching it on and back."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpukern.gpu import simulator
from pytest_gpukern.gpu.simulator import switch
from pytest_gpukern.gpu.simulator.errors import SimulatorError
from pytest_gpukern.gpu.simulator.switch import SimulatorState

VARIABLE = "NUMBA_ENABLE_CUDASIM"


def never_called():
    raise AssertionError("gpu_missing was asked although its answer was not needed")


def decide(mode="auto", *, requested=True, gpu=lambda: None, value=None, modules=None, installed=True):
    return switch.decide(
        mode,
        requested=requested,
        gpu_missing=gpu,
        environ={} if value is None else {VARIABLE: value},
        modules=modules or {},
        installed=lambda package: installed is True or package in installed,
    )


def no_driver():
    return "no driver"


def loaded(switch_value):
    return {"numba.core.config": SimpleNamespace(ENABLE_CUDASIM=switch_value)}


@pytest.mark.parametrize("mode", ["auto", "always", "never"])
@pytest.mark.parametrize("value", [None, "0", "1", "yes"])
def test_a_run_that_did_not_ask_is_never_touched_whatever_the_environment(mode, value):
    state = decide(mode, requested=False, gpu=never_called, value=value, modules=loaded(1))
    assert state == SimulatorState(False, "off: this run did not ask for pytest-gpukern")


@pytest.mark.parametrize(
    ("mode", "situation", "active", "reason"),
    [
        ("auto", {"gpu": no_driver}, True, "no GPU: no driver"),
        ("auto", {}, False, "off: a GPU is there"),
        ("auto", {"value": "1", "gpu": never_called}, True, f"{VARIABLE}=1"),
        ("auto", {"value": "0", "gpu": no_driver}, False, f"off: {VARIABLE}=0 (no GPU: no driver)"),
        (
            "auto",
            {"modules": loaded(1), "gpu": never_called},
            True,
            "Numba was already loaded as the simulator",
        ),
        ("auto", {"modules": loaded(0)}, False, "off: a GPU is there"),
        ("always", {"gpu": never_called}, True, "--gpukern-simulator=always"),
        ("never", {"gpu": never_called}, False, "off: --gpukern-simulator=never"),
    ],
)
def test_it_is_on_or_off_with_the_reason_and_a_gpu_is_looked_for_only_where_that_decides(
    mode, situation, active, reason
):
    assert decide(mode, **situation) == SimulatorState(active, reason)


ALREADY = "numba is already loaded with ENABLE_CUDASIM"
BEFORE_PYTHON = f"{VARIABLE}=1 in the environment before Python starts"
AS_DEVICE = {**loaded(1), "numba.cuda": SimpleNamespace(), "numba.cuda.device_init": SimpleNamespace()}
AS_SIMULATOR = {**loaded(0), "numba.cuda": SimpleNamespace(), "numba.cuda.simulator_init": SimpleNamespace()}
"""A compilation reads ENABLE_CUDASIM again once the environment has changed; numba.cuda stays what it is."""
OF_MLIR = {"numba_cuda_mlir": SimpleNamespace(), "numba_cuda_mlir.mlir": SimpleNamespace()}


@pytest.mark.parametrize(
    ("mode", "situation", "said"),
    [
        *(("never", {"value": value}, f"{VARIABLE}={value} ") for value in ("2", " 1 ", "-1", "01")),
        ("never", {"value": "1"}, f"--gpukern-simulator=never, but {VARIABLE}=1 in *. Unset it, or use "),
        ("always", {"value": "0"}, f"--gpukern-simulator=always, but {VARIABLE}=0 in *, or set {VARIABLE}=1"),
        ("auto", {"modules": loaded(0)}, f"{ALREADY}=0, *{BEFORE_PYTHON}"),
        ("always", {"modules": loaded(0)}, f"{ALREADY}=0, *{BEFORE_PYTHON}"),
        ("auto", {"modules": loaded(0), "value": "1"}, "this run needs the CUDA simulator on"),
        ("never", {"modules": loaded(1)}, f"{ALREADY}=1, *this run needs the CUDA simulator off"),
        ("always", {"modules": AS_DEVICE}, "numba.cuda is already loaded with ENABLE_CUDASIM=0"),
        ("auto", {"modules": OF_MLIR}, "numba_cuda_mlir is already loaded *keep it from being imported"),
    ],
)
def test_what_contradicts_the_option_or_is_loaded_the_other_way_is_an_error_with_a_remedy(
    mode, situation, said
):
    with pytest.raises(SimulatorError) as caught:
        decide(mode, gpu=no_driver, **situation)
    assert fnmatch.fnmatchcase(str(caught.value), f"*{said}*")


def test_what_is_loaded_is_no_error_where_it_fits():
    assert decide("always", modules=AS_SIMULATOR).active
    assert not decide(modules=OF_MLIR).active


@pytest.mark.parametrize("value", ["", "yes", "true", "on", "1.0"])
def test_what_numba_cannot_read_counts_as_not_set_as_for_numba(value):
    assert not decide("never", value=value).active
    assert decide("always", value=value).active
    assert decide("auto", value=value, gpu=no_driver).active
    assert not decide("auto", value=value).active


@pytest.mark.parametrize(
    ("installed", "reason"), [((), "Numba is not installed"), (("numba",), "numba-cuda is not installed")]
)
def test_without_numba_there_is_no_simulator_and_the_reason_says_so(installed, reason):
    for mode in ("auto", "always"):
        assert decide(mode, gpu=no_driver, installed=installed) == SimulatorState(False, reason)


PRELUDE = """
import os, sys
import pytest
from pytest_gpukern.gpu.simulator import switch as simulator
from pytest_gpukern.gpu.simulator.errors import SimulatorError
from pytest_gpukern.gpu.simulator.switch import SimulatorState
ON = SimulatorState(True, "test")
OFF = SimulatorState(False, "test")
VARIABLE = "NUMBA_ENABLE_CUDASIM"
"""


def run(script, value=None):
    pytest.importorskip("numba_cuda")
    environ = {k: v for k, v in os.environ.items() if k != VARIABLE}
    environ["PYTHONPATH"] = str(Path(simulator.__file__).parents[3])
    if value is not None:
        environ[VARIABLE] = value
    command = [sys.executable, "-c", PRELUDE + script]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]) if result.stdout else None


def test_activating_sets_the_variable_loads_the_simulator_and_can_be_repeated_and_undone():
    run("""
simulator.activate(OFF)
assert VARIABLE not in os.environ and "numba" not in sys.modules and not simulator._loaded_switch(sys.modules)
simulator.activate(ON)
assert "numba" not in sys.modules, "nobody needs it yet"
from numba import cuda
jit = cuda.jit
assert jit.__module__.startswith("pytest_gpukern."), "not mended"
simulator.activate(ON)
assert cuda.jit is jit, "mended twice"
assert os.environ[VARIABLE] == "1" and simulator._loaded_switch(sys.modules) and cuda.is_available()
simulator.deactivate()
assert VARIABLE not in os.environ
simulator.deactivate()
assert VARIABLE not in os.environ

import numba
numba.njit(lambda x: x)(1)  # a compilation re-reads the environment
assert simulator._loaded_switch(sys.modules), "numba.cuda is still the simulator"
simulator.activate(ON)
assert os.environ[VARIABLE] == "1"
""")


@pytest.mark.parametrize("value", ["2", "yes"], ids=["a switch already", "none that Numba can read"])
def test_a_variable_that_the_user_set_is_put_back(value):
    run(
        f'simulator.activate(ON); simulator.deactivate(); assert os.environ[VARIABLE] == "{value}"',
        value=value,
    )


def test_numba_loaded_for_a_gpu_is_refused_by_activate():
    run("""
import numba
assert not simulator._loaded_switch(sys.modules)
with pytest.raises(SimulatorError, match="before Python starts"):
    simulator.activate(ON)
assert VARIABLE not in os.environ, "the environment was not put back"
""")


def test_a_simulator_that_cannot_be_mended_is_an_error_at_each_import():
    run("""
from pytest_gpukern.gpu.simulator import launch
def refuse():
    raise SimulatorError("too old")
launch.mend_jit = refuse
simulator.activate(ON)
for _ in range(2):
    with pytest.raises(SimulatorError, match="too old"):
        from numba import cuda
""")


def test_a_numba_cuda_without_what_is_mended_is_an_error_naming_the_version():
    run("""
os.environ[VARIABLE] = "1"
from importlib import metadata
from numba.cuda.simulator import kernel
del kernel.FakeCUDAKernel.forall
with pytest.raises(SimulatorError, match=f"{metadata.version('numba-cuda')}.*FakeCUDAKernel.forall"):
    simulator.activate(ON)
""")
