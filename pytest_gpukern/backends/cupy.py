"""Runs CuPy kernels, and Dask arrays of CuPy chunks, on a real GPU."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.gpu.runtime import DeviceArray


class CupyBackend(GpuBackend):
    """Runs CuPy; arrays are `cupy.ndarray`, and the timed stream is current during a launch."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        super().__init__()
        self.stream = cupy.cuda.Stream.from_external(self.timed_stream)

    def wrap(self, array: DeviceArray) -> Any:
        return self._cupy.asarray(array)

    def current(self) -> AbstractContextManager[Any]:
        return self.stream  # type: ignore[no-any-return]

    def release(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()


class DaskBackend(CupyBackend):
    """Runs Dask over CuPy in the calling thread, whose current CuPy stream is the timed one.

    Inputs are Dask arrays of one CuPy chunk each, and outputs are CuPy arrays: Dask cannot write. A variant
    chooses its chunks with `rechunk`, which copies nothing: pieces of one chunk are views.
    """

    name = "dask"

    def __init__(self) -> None:
        super().__init__()
        import dask.array

        self._dask = dask

    def wrap_input(self, array: DeviceArray) -> Any:
        chunk = self.wrap(array)
        key = f"input-{uuid.uuid4().hex}"
        # Not `from_array`: it copies, so the graph would never see what is loaded later.
        graph = {(key, *(0 for _ in chunk.shape)): chunk}
        return self._dask.array.Array(graph, key, [(n,) for n in chunk.shape], meta=chunk)

    @contextmanager
    def current(self) -> Iterator[None]:
        with super().current(), self._dask.config.set(scheduler="synchronous"):
            yield
