"""Patches Numba's simulator in memory, by name; a patch that finds no target is an error."""

from importlib import metadata
from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorError


def original(owner: Any, name: str) -> Any:
    """Returns an attribute that we rely on; SimulatorError if this numba-cuda lacks it."""
    try:
        return getattr(owner, name)
    except AttributeError:
        where = getattr(owner, "__name__", repr(owner))
        raise SimulatorError(
            f"numba-cuda {metadata.version('numba-cuda')} has no {where}.{name}, which pytest-gpukern must "
            "fix for the CUDA simulator to be right. Use numba-cuda 0.30.4, or --gpukern-simulator=never."
        ) from None


def replace(owner: Any, name: str, new: Any) -> None:
    """Replaces an attribute, which must exist, by `new`."""
    original(owner, name)
    setattr(owner, name, new)


def add(owner: Any, name: str, value: Any) -> None:
    """Gives `owner` an attribute that the simulator lacks; skips it if newer versions have it."""
    if getattr(owner, name, None) is None:
        setattr(owner, name, value)


def publish(name: str, value: Any) -> None:
    """Puts a name of the host API into each of the three modules that export it."""
    from numba import cuda
    from numba.cuda import simulator
    from numba.cuda.simulator import api

    for module in (cuda, simulator, api):
        setattr(module, name, value)
