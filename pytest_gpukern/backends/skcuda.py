"""Runs scikit-cuda on a real GPU: cuBLAS under PyCUDA arrays."""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
import sys
import warnings
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends.pycuda import PycudaBackend, load_library

if TYPE_CHECKING:
    from collections.abc import Iterator


class SkcudaBackend(PycudaBackend):
    """scikit-cuda with its global cuBLAS handle on the timed stream; arrays are GPUArrays.

    Raises:
        ImportError, OSError: scikit-cuda or one of the CUDA libraries it wraps is missing.
    """

    name = "skcuda"

    def __init__(self) -> None:
        super().__init__()
        changes = apply()
        from skcuda import linalg
        from skcuda.version import __version__

        if changes:
            self.notes += (f"scikit-cuda {__version__}: {'; '.join(changes)}",)
        linalg.init()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the primary context current, and cuBLAS launch on the timed stream."""
        from skcuda import cublas, misc

        handle = misc._global_cublas_handle  # that of every function which is given no other
        with super().current():
            before = cublas.cublasGetStream(handle)
            cublas.cublasSetStream(handle, self.stream.handle)
            try:
                yield
            finally:
                cublas.cublasSetStream(handle, before)


_MODULES = ("skcuda.cublas", "skcuda.misc", "skcuda.linalg")
_ABSENT = object()


@functools.cache
def apply() -> tuple[str, ...]:
    """Imports scikit-cuda's BLAS and linear algebra; returns what had to stand in for what, in words.

    A second call does nothing and returns the same; so does the first where somebody has imported them. A
    context is current: scikit-cuda asks cuBLAS for its version.

    Raises:
        ImportError, OSError: scikit-cuda or a CUDA library is missing; the message is theirs.
    """
    if all(module in sys.modules for module in _MODULES):
        return ()
    changes: list[str] = []
    with ExitStack() as stand_ins:
        stand_ins.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # invalid escapes in its source, and a cuBLAS context made in passing
        stand_ins.enter_context(_package_metadata(changes))
        stand_ins.enter_context(_type_codes(changes))
        stand_ins.enter_context(_unversioned_libraries(changes))
        for module in _MODULES:
            importlib.import_module(module)
    return tuple(changes)


@contextmanager
def _package_metadata(changes: list[str]) -> Iterator[None]:
    """`pkg_resources`, which setuptools 82 dropped, reduced to what is asked of it: the installed version.

    It stands in for the real one too, which warns, and refuses a package whose dependencies have other names.
    """
    stand_in = ModuleType("pkg_resources")
    vars(stand_in).update(declare_namespace=lambda _: None, require=_required)
    present = sys.modules.get("pkg_resources")
    sys.modules["pkg_resources"] = stand_in
    changes.append("pkg_resources is stood in for")
    try:
        yield
    finally:
        if present is None:
            del sys.modules["pkg_resources"]
        else:
            sys.modules["pkg_resources"] = present


def _required(name: str) -> list[SimpleNamespace]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [SimpleNamespace(version=version(name))]
    except PackageNotFoundError:  # on the path without having been installed
        return [SimpleNamespace(version="unknown")]


@contextmanager
def _type_codes(changes: list[str]) -> Iterator[None]:
    """`numpy.typeDict`, which NumPy has dropped, with the one-letter codes that are looked up in it."""
    import numpy as np

    if hasattr(np, "typeDict"):
        yield
        return
    codes = {code: np.dtype(code).type for code in np.typecodes["All"]}
    np.typeDict = codes  # type: ignore[attr-defined]
    changes.append("numpy.typeDict is supplied")
    try:
        yield
    finally:
        del np.typeDict  # type: ignore[attr-defined]


@contextmanager
def _unversioned_libraries(changes: list[str]) -> Iterator[None]:
    """`ctypes.cdll.LoadLibrary`, which finds "libcublas.so" where there is only a wheel's libcublas.so.13."""
    before = vars(ctypes.cdll).get("LoadLibrary", _ABSENT)
    load = ctypes.cdll.LoadLibrary

    def load_library_of_wheel(name: str) -> Any:
        try:
            return load(name)
        except OSError:
            found = _versioned(name)
            if found is None:
                raise
            library = load(found)
            changes.append(f"{name} is {found}")
            return library

    ctypes.cdll.LoadLibrary = load_library_of_wheel  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is _ABSENT:
            del ctypes.cdll.LoadLibrary
        else:
            ctypes.cdll.LoadLibrary = before  # type: ignore[method-assign]


def _versioned(name: str) -> str | None:
    """Returns where a library is that scikit-cuda asks for without a version, or None for any other name."""
    if name == "libcuda.so":
        return "libcuda.so.1"
    short = re.fullmatch(r"lib(cudart|cublas|cusolver)\.so", name)
    return load_library(short[1]) if short else None
