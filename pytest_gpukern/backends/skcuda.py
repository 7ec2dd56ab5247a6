"""Runs scikit-cuda on a real GPU: cuBLAS under PyCUDA arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_gpukern.backends.pycuda import PycudaBackend
from pytest_gpukern.backends.skcuda_imports import supply


class SkcudaBackend(PycudaBackend):
    """Runs scikit-cuda with its global cuBLAS handle on the timed stream; arrays are GPUArrays.

    Raises:
        ImportError, OSError: scikit-cuda or one of the CUDA libraries it wraps is missing.
    """

    name = "skcuda"

    def __init__(self) -> None:
        super().__init__()
        supply()
        from skcuda import linalg

        linalg.init()

    @contextmanager
    def current(self) -> Iterator[None]:
        from skcuda import cublas, misc

        handle = misc._global_cublas_handle  # used by every function that is given no other
        with super().current():
            before = cublas.cublasGetStream(handle)
            cublas.cublasSetStream(handle, self.stream.handle)
            try:
                yield
            finally:
                cublas.cublasSetStream(handle, before)
