"""Runs Numba kernels on a real GPU and in Numba's simulator."""

from __future__ import annotations

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


class NumbaBackend(GpuBackend):
    """Runs Numba's CUDA target; arrays are Numba device arrays."""

    name = "numba"

    def __init__(self) -> None:
        from numba import cuda

        super().__init__()
        self._cuda = cuda
        cuda.current_context()  # Numba takes the primary context, which is the runtime's too
        # Numba uses it if a launch names it.
        self.stream = cuda.external_stream(int(self.timed_stream.handle))

    def wrap(self, array: DeviceArray) -> Any:
        return self._cuda.as_cuda_array(array)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Silences Numba's advice on small grids: sizes are given, and some variants are slow on purpose."""
        from numba.core import errors
        from numba.cuda.core import errors as cuda_errors

        with warnings.catch_warnings():
            for module in (errors, cuda_errors):  # numba-cuda carries its own copy of the class
                warnings.simplefilter("ignore", module.NumbaPerformanceWarning)
            yield

    def release(self) -> None:
        self._cuda.current_context().memory_manager.deallocations.clear()


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
