"""PyCUDA's backend and scikit-cuda's, on stand-ins: context, stream, what is supplied from outside."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import host_cuda
import numpy as np
import pytest

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.backends import pycuda as backend_module
from pytest_gpukern.backends import skcuda_imports
from pytest_gpukern.gpu.libcuda import CudaError

OWN_STREAM = 0x9C00
"""Handle of the stream that PyCUDA makes."""


class Context:
    """PyCUDA's context: a stack of what was pushed."""

    def __init__(self, handle=host_cuda.PRIMARY):
        self.handle, self.depth = handle, 1

    def push(self):
        self.depth += 1

    def pop(self):
        self.depth -= 1


class GPUArray:
    """PyCUDA's array; it copies nothing."""

    def __init__(self, shape, dtype, base=None, gpudata=None, strides=None):
        assert base is not None, "an array without base would allocate"
        self.shape, self.dtype, self.base, self.gpudata = shape, dtype, base, gpudata
        self.__cuda_array_interface__ = {
            **base.__cuda_array_interface__,
            "data": (gpudata, False),
            "strides": strides,
        }


@pytest.fixture
def pycuda(monkeypatch):
    """PyCUDA's modules, importable once; `.context` and `.environment` tell what its import saw."""
    host_cuda.install(monkeypatch, backend_module)
    state = SimpleNamespace(context=Context(), device=None)
    host_cuda.put_module(monkeypatch, "pycuda")
    stream = SimpleNamespace(handle=OWN_STREAM)
    host_cuda.put_module(monkeypatch, "pycuda.driver", Stream=lambda: stream)
    host_cuda.put_module(monkeypatch, "pycuda.compiler", DEFAULT_NVCC_FLAGS=[])
    host_cuda.put_module(monkeypatch, "pycuda.gpuarray", GPUArray=GPUArray)
    host_cuda.put_module(monkeypatch, "pycuda.autoprimaryctx", context=state.context)
    host_cuda.put_module(
        monkeypatch,
        "cuda.core",
        Stream=SimpleNamespace(from_handle=lambda handle: SimpleNamespace(handle=handle)),
    )
    monkeypatch.setattr(backend_module, "put_nvcc_on_path", lambda: None)
    monkeypatch.setattr(backend_module, "missing_include_folder", lambda header, library: None)
    return state


@pytest.fixture
def opened(pycuda):
    return backend_module.PycudaBackend()


# stream and context


def test_the_stream_is_pycudas_and_its_context_is_pushed_while_current_and_popped_after_an_error(
    opened, pycuda
):
    assert opened.stream.handle == opened.timed_stream.handle == OWN_STREAM
    with opened.current():
        assert pycuda.context.depth == 2
    assert pycuda.context.depth == 1
    with pytest.raises(RuntimeError), opened.current():
        raise RuntimeError
    assert pycuda.context.depth == 1


def test_arrays_lie_on_the_workspaces_memory(opened, pycuda):
    made = opened.workspace({"x": np.arange(4.0), "k": 3}, {"y": Output((4,), "float32")})
    array = made.arrays["x"]
    assert isinstance(array, GPUArray)
    assert (array.gpudata, array.shape, array.dtype) == (array.base.pointer, (4,), np.dtype("float64"))
    assert array.base.download().tolist() == [0, 1, 2, 3]
    assert made.arrays["k"] == 3
    assert made.compare("y", np.zeros(4), Tolerance()).unwritten == 4
    assert pycuda.context.depth == 1
    assert isinstance(array.gpudata, int), "as memcpy_dtod and the like want it"
    assert int(np.uintp(array.gpudata.gpudata)) == array.base.pointer, "a kernel is given what has a gpudata"


def test_another_context_is_refused(pycuda):
    pycuda.context.handle += 1
    with pytest.raises(CudaError, match="PyCUDA is not in the primary context"):
        backend_module.PycudaBackend()


def test_autoinit_is_refused_with_what_to_import_instead(pycuda, monkeypatch):
    host_cuda.put_module(monkeypatch, "pycuda.autoinit")
    with pytest.raises(CudaError, match=r"pycuda\.autoinit .* import pycuda\.autoprimaryctx instead"):
        backend_module.PycudaBackend()


class Executes:
    """Finds a module of PyCUDA, and executes it by a function."""

    def __init__(self, monkeypatch, name, function):
        self.name, self.exec_module = f"pycuda.{name}", function
        monkeypatch.delitem(sys.modules, self.name)
        monkeypatch.delattr(sys.modules["pycuda"], name)
        monkeypatch.setattr(sys.modules["pycuda"], "__path__", [], raising=False)
        monkeypatch.setattr(sys, "meta_path", [self, *sys.meta_path])

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == self.name else None

    def create_module(self, spec):
        return None


@pytest.mark.parametrize("chosen", ["1", None])
def test_pycuda_takes_the_pinned_device_whatever_its_own_variable_says(pycuda, monkeypatch, chosen):
    def imported(module):
        pycuda.device = os.environ.get("CUDA_DEVICE")
        module.context = pycuda.context

    Executes(monkeypatch, "autoprimaryctx", imported)
    if chosen is None:
        monkeypatch.delenv("CUDA_DEVICE", raising=False)
    else:
        monkeypatch.setenv("CUDA_DEVICE", chosen)
    backend_module.PycudaBackend()
    assert pycuda.device == "0"
    assert os.environ.get("CUDA_DEVICE") == chosen


# what is supplied


@pytest.fixture
def without_curand(pycuda, monkeypatch):
    """PyCUDA on a machine where libcurand is in a wheel; the list holds what was loaded."""
    loaded = []

    def imported(module):
        if not loaded:
            raise ImportError("libcurand.so.10: cannot open shared object file: No such file or directory")
        module.Stream = lambda: SimpleNamespace(handle=OWN_STREAM)

    Executes(monkeypatch, "driver", imported)
    return loaded


def test_libcurand_of_a_wheel_is_loaded_where_the_loader_finds_none(without_curand, monkeypatch):
    def load(name):
        without_curand.append(name)
        return "/wheels/libcurand.so.10"

    monkeypatch.setattr(backend_module, "load_library", load)
    backend_module.PycudaBackend()
    assert without_curand == ["curand"]


def test_the_loaders_error_is_kept_where_there_is_no_libcurand_at_all(without_curand, monkeypatch):
    monkeypatch.setattr(backend_module, "load_library", lambda name: None)
    with pytest.raises(ImportError, match=r"libcurand\.so\.10: cannot open"):
        backend_module.PycudaBackend()


def test_headers_of_wheels_are_supplied_once(pycuda, monkeypatch):
    monkeypatch.setattr(backend_module, "missing_include_folder", lambda header, library: "/wheels/include")
    backend_module.PycudaBackend()
    backend_module.PycudaBackend()
    assert sys.modules["pycuda.compiler"].DEFAULT_NVCC_FLAGS == ["-I/wheels/include"]


# scikit-cuda


@pytest.fixture
def skcuda(pycuda, monkeypatch):
    """scikit-cuda's modules; `.stream` is what its cuBLAS handle is set to."""
    state = SimpleNamespace(stream=None, initialized=0, handle="a handle")

    def initialize():
        state.initialized += 1

    def set_stream(handle, stream):
        assert handle == state.handle
        state.stream = stream

    host_cuda.put_module(monkeypatch, "skcuda")
    host_cuda.put_module(monkeypatch, "skcuda.misc", _global_cublas_handle=state.handle)
    host_cuda.put_module(monkeypatch, "skcuda.linalg", init=initialize)
    host_cuda.put_module(
        monkeypatch, "skcuda.cublas", cublasGetStream=lambda handle: state.stream, cublasSetStream=set_stream
    )
    monkeypatch.setattr(skcuda_imports, "supply", lambda: None)
    return state


def test_cublas_is_initialized_and_on_the_timed_stream_while_the_backend_is_current(skcuda, pycuda):
    from pytest_gpukern.backends.skcuda import SkcudaBackend

    backend = SkcudaBackend()
    assert skcuda.initialized == 1
    skcuda.stream = 0x77
    with backend.current():
        assert (skcuda.stream, pycuda.context.depth) == (OWN_STREAM, 2)
    assert (skcuda.stream, pycuda.context.depth) == (0x77, 1)
    with pytest.raises(RuntimeError), backend.current():
        raise RuntimeError
    assert skcuda.stream == 0x77


class DynamicLibNotFoundError(RuntimeError):
    """As cuda.pathfinder's."""


class Found:
    abs_path = "/wheels/libcublas.so.13"


@pytest.fixture
def pathfinder(monkeypatch):
    def load(name):
        if name != "cublas":
            raise DynamicLibNotFoundError(name)
        return Found

    return host_cuda.put_module(
        monkeypatch,
        "cuda.pathfinder",
        DynamicLibNotFoundError=DynamicLibNotFoundError,
        load_nvidia_dynamic_lib=load,
        find_nvidia_binary_utility=lambda name: None,
        find_nvidia_header_directory=lambda name: None,
    )


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A toolkit on PATH whose nvcc is a link, as /usr/local/cuda often is."""
    real = tmp_path / "cuda-13.0"
    (real / "bin").mkdir(parents=True)
    (real / "include").mkdir()
    nvcc = real / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").symlink_to(nvcc)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return real


def test_a_library_is_loaded_and_its_path_returned(pathfinder):
    assert backend_module.load_library("cublas") == "/wheels/libcublas.so.13"
    assert backend_module.load_library("cusolver") is None


def test_nvcc_of_a_wheel_is_appended_to_path(pathfinder, toolkit, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    pathfinder.find_nvidia_binary_utility = lambda name: str(toolkit / "bin" / name)
    backend_module.put_nvcc_on_path()
    backend_module.put_nvcc_on_path()
    assert os.environ["PATH"] == f"/nowhere{os.pathsep}{toolkit / 'bin'}"


def test_without_any_nvcc_the_error_says_what_brings_it(pathfinder, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(backend_module.ToolkitError, match=r"PyCUDA compiles with nvcc, .*nvidia-cuda-nvcc"):
        backend_module.put_nvcc_on_path()


@pytest.mark.parametrize("folder", ["include", "targets/x86_64-linux/include"])
def test_headers_of_the_toolkit_are_enough(pathfinder, toolkit, tmp_path, folder):
    (toolkit / folder).mkdir(parents=True, exist_ok=True)
    (toolkit / folder / "curand_kernel.h").touch()
    pathfinder.find_nvidia_header_directory = lambda name: pytest.fail("nothing is missing")
    assert backend_module.missing_include_folder("curand_kernel.h", "curand") is None


def test_headers_of_a_wheel_are_found_where_the_toolkit_has_none(pathfinder, toolkit, tmp_path):
    assert backend_module.missing_include_folder("curand_kernel.h", "curand") is None
    pathfinder.find_nvidia_header_directory = lambda name: str(tmp_path / name)
    assert backend_module.missing_include_folder("curand_kernel.h", "curand") is None
    (tmp_path / "curand").mkdir()
    (tmp_path / "curand" / "curand_kernel.h").touch()
    assert backend_module.missing_include_folder("curand_kernel.h", "curand") == str(tmp_path / "curand")
