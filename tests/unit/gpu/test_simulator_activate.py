"""Switching on and back, in fresh processes because the switch belongs to the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpukern.gpu import simulator

pytest.importorskip("numba_cuda")

VARIABLE = "NUMBA_ENABLE_CUDASIM"
PRELUDE = """
import os, sys
from pytest_gpukern.gpu.simulator import switch as simulator
from pytest_gpukern.gpu.simulator.errors import SimulatorError
from pytest_gpukern.gpu.simulator.switch import SimulatorState
ON = SimulatorState(True, "test")
OFF = SimulatorState(False, "test")
VARIABLE = "NUMBA_ENABLE_CUDASIM"
"""


def run(script, value=None):
    environ = {k: v for k, v in os.environ.items() if k != VARIABLE}
    environ["PYTHONPATH"] = str(Path(simulator.__file__).parents[3])
    if value is not None:
        environ[VARIABLE] = value
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, check=False, env=environ
    )
    assert result.returncode == 0, result.stderr


def test_activating_sets_the_variable_loads_the_simulator_and_can_be_repeated_and_undone():
    run("""
simulator.activate(OFF)
assert VARIABLE not in os.environ and "numba" not in sys.modules and not simulator.is_active()
simulator.activate(ON)
from numba import cuda
jit = cuda.jit
simulator.activate(ON)
assert cuda.jit is jit, "mended twice"
assert os.environ[VARIABLE] == "1" and simulator.is_active() and cuda.is_available()
simulator.deactivate()
assert VARIABLE not in os.environ
simulator.deactivate()
assert VARIABLE not in os.environ

import numba
numba.njit(lambda x: x)(1)  # a compilation re-reads the environment
assert simulator.is_active(), "numba.cuda is still the simulator"
simulator.activate(ON)
assert os.environ[VARIABLE] == "1"
""")


def test_a_variable_that_the_user_set_is_left_alone():
    run('simulator.activate(ON); simulator.deactivate(); assert os.environ[VARIABLE] == "2"', value="2")


def test_a_value_that_numba_cannot_read_is_put_back():
    run(
        """
simulator.activate(ON)
assert os.environ[VARIABLE] == "1"
simulator.deactivate()
assert os.environ[VARIABLE] == "yes"
""",
        value="yes",
    )


def test_numba_loaded_for_a_gpu_is_refused_by_decide_and_by_activate():
    run("""
import numba
assert not simulator.is_active()
arguments = dict(asked=True, gpu_missing=lambda: "none", environ=os.environ, modules=sys.modules)
try:
    simulator.decide("auto", **arguments)
except SimulatorError as exc:
    assert "numba is already loaded with ENABLE_CUDASIM=0" in str(exc)
else:
    raise AssertionError("a half state")
try:
    simulator.activate(ON)
except SimulatorError as exc:
    assert "before Python starts" in str(exc)
else:
    raise AssertionError("a half state")
assert VARIABLE not in os.environ, "the environment was not put back"
""")


def test_a_numba_cuda_without_what_is_mended_is_an_error_naming_the_version():
    run("""
os.environ[VARIABLE] = "1"
from importlib import metadata
from numba.cuda.simulator import kernel
del kernel.FakeCUDAKernel.forall
try:
    simulator.activate(ON)
except SimulatorError as exc:
    assert metadata.version("numba-cuda") in str(exc) and "FakeCUDAKernel.forall" in str(exc)
else:
    raise AssertionError("it was silently not mended")
""")
