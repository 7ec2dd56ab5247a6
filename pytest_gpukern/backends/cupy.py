"""Runs CuPy kernels, and Dask arrays of CuPy chunks, on a real GPU."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.backends.gpu_backend import CudaWorkspace, GpuBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpukern.arrays.memory import Placement
    from pytest_gpukern.gpu.runtime import DeviceArray
    from pytest_gpukern.problems.problem import Output


class CupyBackend(GpuBackend):
    """Runs CuPy; arrays are `cupy.ndarray`, and the timed stream is current during a launch."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        super().__init__()
        if hasattr(cupy.cuda.Stream, "from_external"):
            self.stream = cupy.cuda.Stream.from_external(self.timed_stream)
        else:  # CuPy < 14
            self.stream = cupy.cuda.ExternalStream(int(self.timed_stream.handle))

    def wrap(self, array: DeviceArray) -> Any:
        """Returns a CuPy array on the memory of `array`."""
        return self._cupy.asarray(array)

    def current(self) -> AbstractContextManager[Any]:
        """Makes the timed stream CuPy's current one."""
        return self.stream  # type: ignore[no-any-return]

    def release(self) -> None:
        """Empties CuPy's memory pools."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()


class DaskWorkspace(CudaWorkspace):
    """Holds inputs as Dask arrays of one CuPy chunk each, and outputs as CuPy arrays: Dask cannot write.

    A variant chooses its chunks with `rechunk`, which copies nothing: pieces of one chunk are views.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        wrap: Callable[[DeviceArray], Any],
        placed: Mapping[str, Placement] | None = None,
        poisons: tuple[int, int] = POISONS,
    ) -> None:
        import dask.array

        super().__init__(inputs, outputs, wrap, placed, poisons)
        for name in self._inputs:
            chunk = self.arrays[name]
            key = f"{name}-{uuid.uuid4().hex}"
            # Not `from_array`: it copies, so the graph would never see what is loaded later.
            graph = {(key, *(0 for _ in chunk.shape)): chunk}
            self.arrays[name] = dask.array.Array(graph, key, [(n,) for n in chunk.shape], meta=chunk)


class DaskBackend(CupyBackend):
    """Runs Dask over CuPy in the calling thread, whose current CuPy stream is the timed one."""

    name = "dask"
    workspace_type = DaskWorkspace

    def __init__(self) -> None:
        super().__init__()
        import dask.array

        self._dask = dask

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the timed stream CuPy's current one and Dask compute in this thread."""
        with super().current(), self._dask.config.set(scheduler="synchronous"):
            yield
