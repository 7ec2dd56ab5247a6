"""What is looked up among CUDA's wheels, and only where the loader, PATH or nvcc lacks it."""

from __future__ import annotations

import os

import pytest
from host_cuda import put_module

from pytest_gpukern.backends import pycuda as wheels


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

    return put_module(
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
    assert wheels.load_library("cublas") == "/wheels/libcublas.so.13"
    assert wheels.load_library("cusolver") is None


def test_nvcc_on_path_is_left_where_it_is(pathfinder, toolkit):
    before = os.environ["PATH"]
    assert wheels.nvcc_on_path() is None
    assert os.environ["PATH"] == before


def test_nvcc_of_a_wheel_is_appended_to_path(pathfinder, toolkit, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    pathfinder.find_nvidia_binary_utility = lambda name: str(toolkit / "bin" / name)
    assert wheels.nvcc_on_path() == str(toolkit / "bin")
    assert os.environ["PATH"] == f"/nowhere{os.pathsep}{toolkit / 'bin'}"
    assert wheels.nvcc_on_path() is None


def test_without_any_nvcc_the_error_says_what_brings_it(pathfinder, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(wheels.ToolkitError, match=r"nvcc is missing.*nvidia-cuda-nvcc"):
        wheels.nvcc_on_path()


@pytest.mark.parametrize("folder", ["include", "targets/x86_64-linux/include"])
def test_headers_of_the_toolkit_are_enough(pathfinder, toolkit, tmp_path, folder):
    (toolkit / folder).mkdir(parents=True, exist_ok=True)
    (toolkit / folder / "curand_kernel.h").touch()
    pathfinder.find_nvidia_header_directory = lambda name: pytest.fail("nothing is missing")
    assert wheels.missing_include_folder("curand_kernel.h", "curand") is None


def test_headers_of_a_wheel_are_found_where_the_toolkit_has_none(pathfinder, toolkit, tmp_path):
    assert wheels.missing_include_folder("curand_kernel.h", "curand") is None
    pathfinder.find_nvidia_header_directory = lambda name: str(tmp_path / name)
    assert wheels.missing_include_folder("curand_kernel.h", "curand") is None
    (tmp_path / "curand").mkdir()
    (tmp_path / "curand" / "curand_kernel.h").touch()
    assert wheels.missing_include_folder("curand_kernel.h", "curand") == str(tmp_path / "curand")
