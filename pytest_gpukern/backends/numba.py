"""Runs Numba kernels on a real GPU and in Numba's simulator."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends.gpu_backend import CudaWorkspace, GpuBackend
from pytest_gpukern.backends.host import HostWorkspace
from pytest_gpukern.gpu.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpukern.arrays.memory import Placement
    from pytest_gpukern.backends.backend import Form
    from pytest_gpukern.problems.problem import Output


class NumbaBackend(GpuBackend):
    """Numba's CUDA target; arrays are Numba device arrays."""

    name = "numba"

    def __init__(self) -> None:
        from numba import cuda

        self._cuda = cuda
        cuda.current_context()  # Numba takes the primary context, which is the runtime's too
        self._stream = cuda.external_stream(int(runtime().stream.handle))

    @property
    def stream(self) -> Any:
        """The timed stream as a Numba stream; Numba launches elsewhere unless a launch names it."""
        return self._stream

    def workspace(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> CudaWorkspace:
        """Numba device arrays, inputs loaded and outputs poisoned."""
        return CudaWorkspace(inputs, outputs, self._cuda.as_cuda_array, placed)

    def current(self) -> AbstractContextManager[Any]:
        """Silences Numba's advice on small grids: some variants are slow on purpose, and sizes are given."""
        return _without_advice()

    def release(self) -> None:
        """Frees what Numba holds back for later."""
        self._cuda.current_context().memory_manager.deallocations.clear()


@contextmanager
def _without_advice() -> Iterator[None]:
    from numba.core import errors
    from numba.cuda.core import errors as cuda_errors

    with warnings.catch_warnings():
        for module in (errors, cuda_errors):  # numba-cuda carries its own copy of the class
            warnings.simplefilter("ignore", module.NumbaPerformanceWarning)
        yield


class SimulatedWorkspace(HostWorkspace):
    """Simulator arrays over the memory of a host workspace."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> None:
        super().__init__(inputs, outputs, placed)
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        self.array_type = FakeCUDAArray
        for name in (*self._inputs, *self._outputs):
            self.arrays[name] = FakeCUDAArray(self._host[name])

    def adopt(self, output: str, value: Any) -> Form | None:
        """Takes a simulator array that a launch returned; None for anything else."""
        if type(value) is not self.array_type:
            return None
        return self._bind(output, value._ary)


class SimulatedBackend:
    """Numba's CUDA target in the simulator."""

    name = "numba"
    on_gpu = False
    simulated = True
    timed_stream = None
    notes = ()

    def __init__(self) -> None:
        from numba import cuda

        self._stream = cuda.stream()

    @property
    def stream(self) -> Any:
        """The simulator's stand-in for a stream: everything in it is synchronous."""
        return self._stream

    def workspace(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> SimulatedWorkspace:
        """Simulator arrays, inputs copied and outputs poisoned."""
        return SimulatedWorkspace(inputs, outputs, placed)

    def current(self) -> AbstractContextManager[Any]:
        """Nothing: there is one stream."""
        return nullcontext()

    def preparing(self) -> AbstractContextManager[Any]:
        """As while launching."""
        return self.current()

    def synchronize(self) -> None:
        """Nothing: a simulated launch has ended when it returns."""

    def release(self) -> None:
        """Nothing is pooled."""
