"""Patches libraries in memory: as they are loaded, or by name, and a name that is not there is an error."""

import importlib.util
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorError


class ImportHook(MetaPathFinder):
    """Has modules loaded by what `mends` returns for their names, whoever imports them; others as ever.

    It is given a function that loads the module, and does what has to be done before or after that.
    """

    def __init__(self, mends: Callable[[str], Callable[[Callable[[], None]], None] | None]) -> None:
        self._mends = mends

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        mend = self._mends(name)
        if mend is None:
            return None
        sys.meta_path.remove(self)  # meanwhile, since numba-cuda has a finder that asks all of them
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: mend(lambda: execute(module))  # type: ignore[method-assign]
        return spec


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
