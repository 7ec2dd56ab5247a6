"""Runs PyCUDA on a real GPU: SourceModule, ElementwiseKernel, gpuarray, cumath and curandom."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.gpu.runtime import DeviceArray, checked


class PycudaBackend(GpuBackend):
    """Runs PyCUDA in the primary context, on its own stream; arrays are `pycuda.gpuarray.GPUArray`.

    PyCUDA launches only on its own streams, so it makes the timed stream. By default that is a blocking one.
    Operators of gpuarray launch on the legacy default stream. That and blocking streams wait for each other,
    so these launches are timed too.

    Raises:
        ImportError: PyCUDA does not import; the message is the loader's.
        ToolkitError: there is no nvcc.
        CudaError: PyCUDA is in another context than the other libraries.
    """

    name = "pycuda"

    def __init__(self) -> None:
        super().__init__()  # makes the primary context current, which PyCUDA then takes
        _import_driver()
        self._context = _primary_context()
        import pycuda.driver
        from cuda.core import Stream

        self.stream = pycuda.driver.Stream()  # PyCUDA launches on the default stream unless given it
        self.timed_stream = Stream.from_handle(int(self.stream.handle))

    def wrap(self, array: DeviceArray) -> Any:
        """Returns a GPUArray on the memory of `array`, which it does not own."""
        from pycuda.gpuarray import GPUArray

        strides = array.__cuda_array_interface__["strides"]
        with self.current():
            return GPUArray(
                array.shape, array.dtype, base=array, gpudata=_Address(array.pointer), strides=strides
            )

    @contextmanager
    def current(self) -> Iterator[None]:
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()


class _Address(int):
    """Holds an address as `GPUArray.gpudata`, which kernels are given too.

    PyCUDA takes no plain integer there, but an object whose `gpudata` is one.
    """

    @property
    def gpudata(self) -> int:
        return int(self)


def _import_driver() -> None:
    """Imports `pycuda.driver`, and supplies what it lacks from CUDA's wheels."""
    try:
        import pycuda.driver
    except ImportError as error:
        if "libcurand" not in str(error) or load_library("curand") is None:
            raise
        import pycuda.driver  # noqa: F401

    put_nvcc_on_path()
    from pycuda.compiler import DEFAULT_NVCC_FLAGS

    headers = missing_include_folder("curand_kernel.h", "curand")
    if headers is not None and f"-I{headers}" not in DEFAULT_NVCC_FLAGS:
        DEFAULT_NVCC_FLAGS.append(f"-I{headers}")


def _primary_context() -> Any:
    """Returns PyCUDA's primary context, which is current on this thread from now on.

    Raises:
        CudaError: it is not the context that cuda.core made current.
    """
    if "pycuda.autoinit" in sys.modules:
        raise CudaError(
            "pycuda.autoinit has made a context of its own, which shares no memory with other libraries; "
            "import pycuda.autoprimaryctx instead"
        )
    shared = int(checked("cuCtxGetCurrent"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CUDA_DEVICE", "0")  # PyCUDA obeys it, and this process sees one device only
        import pycuda.autoprimaryctx
    context = pycuda.autoprimaryctx.context
    if int(checked("cuCtxGetCurrent")) != shared or int(context.handle) != shared:
        raise CudaError("PyCUDA is not in the primary context: import it after the device is chosen")
    return context


class ToolkitError(Exception):
    """Says which part of the CUDA toolkit is missing, what needs it and how to install it."""


def load_library(name: str) -> str | None:
    """Loads lib`name`, such as "cublas", until the process ends; returns its path, or None."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return str(load_nvidia_dynamic_lib(name).abs_path)
    except DynamicLibNotFoundError:
        return None


def put_nvcc_on_path() -> None:
    """Puts nvcc on PATH if it is not there; raises ToolkitError if there is none."""
    if shutil.which("nvcc") is not None:
        return
    from cuda.pathfinder import find_nvidia_binary_utility

    nvcc = find_nvidia_binary_utility("nvcc")
    if nvcc is None:
        raise ToolkitError(
            "PyCUDA compiles with nvcc, which is neither on PATH nor among CUDA's wheels; install the CUDA "
            "toolkit or the wheel nvidia-cuda-nvcc"
        )
    folder = str(Path(nvcc).parent)
    os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), folder)))


def missing_include_folder(header: str, library: str) -> str | None:
    """Returns a wheel's folder that holds `header`; None if nvcc's own toolkit or no wheel has it."""
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        toolkit = Path(nvcc).resolve().parent.parent
        includes = (toolkit / "include", *toolkit.glob("targets/*/include"))
        if any((include / header).is_file() for include in includes):
            return None
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory(library)
    return str(folder) if folder and (Path(folder) / header).is_file() else None
