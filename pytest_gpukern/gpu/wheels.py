"""What CUDA's wheels bring, for libraries older than they are, which ask the loader and PATH alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class ToolkitError(Exception):
    """A part of the CUDA toolkit is missing; the message says which, what needs it and what brings it."""


def load_library(name: str) -> str | None:
    """Loads lib`name`, such as "cublas", for as long as the process lives; returns its path, or None."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return str(load_nvidia_dynamic_lib(name).abs_path)
    except DynamicLibNotFoundError:
        return None


def nvcc_on_path() -> str | None:
    """Sees to it that nvcc is on PATH; returns the folder that had to be appended, or None.

    Raises:
        ToolkitError: there is no nvcc.
    """
    if shutil.which("nvcc") is not None:
        return None
    from cuda.pathfinder import find_nvidia_binary_utility

    nvcc = find_nvidia_binary_utility("nvcc")
    if nvcc is None:
        raise ToolkitError(
            "nvcc is missing, with which PyCUDA compiles: it is neither on PATH nor among CUDA's wheels; "
            "install the CUDA toolkit or the wheel nvidia-cuda-nvcc"
        )
    folder = str(Path(nvcc).parent)
    os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), folder)))
    return folder


def missing_include_folder(header: str, library: str) -> str | None:
    """The folder of a wheel that holds `header` where the toolkit of the nvcc on PATH lacks it, or None.

    Args:
        header: file name, such as "curand_kernel.h".
        library: which it belongs to, by NVIDIA's short name, such as "curand".
    """
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        toolkit = Path(nvcc).resolve().parent.parent
        if any(
            (folder / header).is_file()
            for folder in (toolkit / "include", *toolkit.glob("targets/*/include"))
        ):
            return None
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory(library)
    return str(found) if found and (Path(found) / header).is_file() else None
