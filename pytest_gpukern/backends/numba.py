"""Runs kernels of numba-cuda and numba-cuda-mlir on a real GPU, and in Numba's simulator."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pytest_gpukern.backends.backend import Backend
from pytest_gpukern.backends.foreign_array import UsersArray
from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.backends.host import HostWorkspace
from pytest_gpukern.gpu.runtime import DeviceArray
from pytest_gpukern.values.backend_table import installed

_NUMBAS = ("numba.cuda", "numba_cuda_mlir.cuda")


class NumbaBackend(GpuBackend):
    """Runs Numba's CUDA target; arrays are those of numba-cuda-mlir if the suite has imported it."""

    name = "numba"

    def __init__(self) -> None:
        super().__init__()
        for cuda in _loaded_numbas():
            cuda.current_context()  # Numba takes the primary context, which is the runtime's too

    @property
    def stream(self) -> Any:
        """Numba uses it if a launch names it; where both are loaded, each takes it for its own."""
        first, *others = (cuda.external_stream(int(self.timed_stream.handle)) for cuda in _loaded_numbas())
        if not others:
            return first
        stream: Any = object.__new__(type("Stream", tuple(map(type, (first, *others))), {}))
        vars(stream).update(vars(first))
        return stream

    def wrap(self, array: DeviceArray) -> Any:
        return _loaded_numbas()[-1].as_cuda_array(array)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Silences Numba's advice on small grids: sizes are given, and some variants are slow on purpose."""
        with warnings.catch_warnings():
            for name in ("numba.core", "numba.cuda.core", "numba_cuda_mlir.numba_cuda.core"):  # three copies
                if (errors := sys.modules.get(f"{name}.errors")) is not None:
                    warnings.simplefilter("ignore", errors.NumbaPerformanceWarning)
            yield

    def release(self) -> None:
        for cuda in _loaded_numbas():
            cuda.current_context().memory_manager.deallocations.clear()


def _loaded_numbas() -> list[Any]:
    """Returns whichever of the two is loaded, or loads one that is installed."""
    loaded = [sys.modules[name] for name in _NUMBAS if hasattr(sys.modules.get(name), "jit")]
    return loaded or [importlib.import_module(next(filter(installed, _NUMBAS)))]


class SimulatedWorkspace(HostWorkspace):
    """Holds simulator arrays on the memory of a host workspace."""

    def _given(self, array: np.ndarray[Any, Any]) -> Any:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(array)

    def _taken(self, output: str, value: Any) -> UsersArray | None:
        return super()._taken(output, value._ary)


class SimulatedBackend(Backend):
    """Runs Numba's CUDA target in the simulator, where everything in a stream is synchronous."""

    name = "numba"
    simulated = True
    workspace_type = SimulatedWorkspace

    def __init__(self) -> None:
        from numba import cuda

        self.stream = cuda.stream()
