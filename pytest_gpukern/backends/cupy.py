"""CuPy kernels on a real GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends.cuda_workspace import CudaWorkspace
from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.gpu.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pytest_gpukern.arrays.layouts import Placement
    from pytest_gpukern.problems.outputs import Output


class CupyBackend(GpuBackend):
    """CuPy; arrays are `cupy.ndarray`, and the timed stream is current during a launch."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        stream = runtime().stream
        if hasattr(cupy.cuda.Stream, "from_external"):
            self._stream = cupy.cuda.Stream.from_external(stream)
        else:  # CuPy < 14
            self._stream = cupy.cuda.ExternalStream(int(stream.handle))

    @property
    def stream(self) -> Any:
        """The timed stream as a CuPy stream."""
        return self._stream

    def workspace(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> CudaWorkspace:
        """CuPy arrays, inputs loaded and outputs poisoned."""
        return CudaWorkspace(inputs, outputs, self._cupy.asarray, placed)

    def current(self) -> AbstractContextManager[Any]:
        """Makes the timed stream CuPy's current one."""
        return self._stream  # type: ignore[no-any-return]

    def release(self) -> None:
        """Empties CuPy's memory pools."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()
