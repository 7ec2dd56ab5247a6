"""Numba kernels on a real GPU."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends.cuda_workspace import CudaWorkspace
from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.gpu.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpukern.arrays.layouts import Placement
    from pytest_gpukern.problems.outputs import Output


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
