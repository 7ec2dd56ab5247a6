"""Numba's CUDA simulator: when it stands in for a GPU, and what it needs so that it never lies.

Importing this package loads the standard library only; Numba and NumPy are imported by `activate`.
"""

from pytest_gpukern.simulator.absence import missing_gpu_reason
from pytest_gpukern.simulator.errors import SimulatorError, SimulatorUnsupported
from pytest_gpukern.simulator.switch import SimulatorState, activate, deactivate, decide, is_active

__all__ = [
    "SimulatorError",
    "SimulatorState",
    "SimulatorUnsupported",
    "activate",
    "deactivate",
    "decide",
    "is_active",
    "missing_gpu_reason",
]
