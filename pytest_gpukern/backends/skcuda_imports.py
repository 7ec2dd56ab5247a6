"""Supplies scikit-cuda 0.5.3, while it is imported, with what Python and NumPy have dropped since 2019."""

from __future__ import annotations

import ctypes
import re
import sys
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_gpukern.gpu.simulator.patching import ImportHook


def _load(load: Callable[[], None]) -> None:
    """Loads a module of scikit-cuda, and supplies what it needs meanwhile."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")  # invalid escapes, and a cuBLAS context made in passing
        for holder, name, stand_in in _stand_ins():
            patched.setitem(holder, name, stand_in)
        load()


_HOOK = ImportHook(lambda name: _load if name.partition(".")[0] == "skcuda" else None)


def supply() -> None:
    """Supplies what scikit-cuda needs at each import from now on, whoever imports it."""
    if _HOOK not in sys.meta_path:
        sys.meta_path.insert(0, _HOOK)


def notes() -> tuple[str, ...]:
    """Returns what stood in while scikit-cuda was imported, with its version; else nothing."""
    if "skcuda.version" not in sys.modules:
        return ()
    from skcuda.version import __version__

    gone = "pkg_resources, numpy.typeDict and CUDA's libraries without a version"
    return (f"scikit-cuda {__version__}: we supplied {gone} while it was imported",)


def _stand_ins() -> Iterator[tuple[MutableMapping[str, Any], str, Any]]:
    """Yields what to replace while scikit-cuda is imported: where, the name, and by what."""
    import numpy as np

    # setuptools 82 dropped it. A real one is replaced too: it warns, and refuses a package whose dependencies
    # have other names.
    metadata = ModuleType("pkg_resources")
    vars(metadata).update(declare_namespace=lambda _: None, require=_required)
    yield sys.modules, metadata.__name__, metadata
    codes = {code: np.dtype(code).type for code in np.typecodes["All"]}  # as many as it needs
    yield vars(np), "typeDict", codes
    load = ctypes.cdll.LoadLibrary

    def load_library_of_wheel(name: str) -> Any:
        """Finds "libcublas.so" if there is only a wheel's libcublas.so.13."""
        try:
            return load(name)
        except OSError:
            path = _versioned(name)
            if path is None:
                raise
            return load(path)

    yield vars(ctypes.cdll), "LoadLibrary", load_library_of_wheel


def _required(name: str) -> list[SimpleNamespace]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [SimpleNamespace(version=version(name))]
    except PackageNotFoundError:  # on the path without having been installed
        return [SimpleNamespace(version="unknown")]


def _versioned(name: str) -> str | None:
    """Returns the path of a library that scikit-cuda asks for without a version, or None for others."""
    if name == "libcuda.so":
        return "libcuda.so.1"
    from pytest_gpukern.backends.pycuda import load_library

    short = re.fullmatch(r"lib(cudart|cublas|cufft|cusolver)\.so", name)
    return load_library(short[1]) if short else None
