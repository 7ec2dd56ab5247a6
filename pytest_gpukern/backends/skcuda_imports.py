"""Supplies scikit-cuda 0.5.3, while it is imported, with what Python and NumPy have dropped since 2019."""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

_ABSENT = object()


class _SkcudaFinder(MetaPathFinder):
    """Finds scikit-cuda, and supplies what it needs while one of its modules is executed.

    Attributes:
        changes: what we supplied so far, in words.
    """

    def __init__(self) -> None:
        self.changes: list[str] = []
        self._supplying = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "skcuda":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:  # of this module only: each has a loader of its own
            execute = functools.partial(self._execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        if self._supplying:  # imported by another module of it
            execute(module)
            return
        self._supplying = True
        try:
            with ExitStack() as stand_ins:
                stand_ins.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # invalid escapes, and a cuBLAS context made in passing
                stand_ins.enter_context(_package_metadata(self.changes))
                stand_ins.enter_context(_type_codes(self.changes))
                stand_ins.enter_context(_unversioned_libraries(self.changes))
                execute(module)
        finally:
            self._supplying = False


_FINDER = _SkcudaFinder()


def supply() -> None:
    """Supplies what scikit-cuda needs at each import from now on, whoever imports it."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def notes() -> tuple[str, ...]:
    """Returns what we supplied while scikit-cuda was imported, with its version; else nothing."""
    if not _FINDER.changes:
        return ()
    from skcuda.version import __version__

    return (f"scikit-cuda {__version__}: {'; '.join(dict.fromkeys(_FINDER.changes))}",)


@contextmanager
def _package_metadata(changes: list[str]) -> Iterator[None]:
    """Supplies a `pkg_resources`, which setuptools 82 dropped, that only knows installed versions.

    It replaces a real one too, which warns, and refuses a package whose dependencies have other names.
    """
    stand_in = ModuleType("pkg_resources")
    vars(stand_in).update(declare_namespace=lambda _: None, require=_required)
    present = sys.modules.get("pkg_resources")
    sys.modules["pkg_resources"] = stand_in
    changes.append("pkg_resources is replaced")
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
    """Supplies `numpy.typeDict`, which NumPy has dropped, with the one-letter codes that it needs."""
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
    """Makes `ctypes.cdll.LoadLibrary` find "libcublas.so" if there is only a wheel's libcublas.so.13."""
    before = vars(ctypes.cdll).get("LoadLibrary", _ABSENT)
    load = ctypes.cdll.LoadLibrary

    def load_library_of_wheel(name: str) -> Any:
        try:
            return load(name)
        except OSError:
            path = _versioned(name)
            if path is None:
                raise
            library = load(path)
            changes.append(f"{name} is {path}")
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
    """Returns the path of a library that scikit-cuda asks for without a version, or None for others."""
    if name == "libcuda.so":
        return "libcuda.so.1"
    from pytest_gpukern.backends.pycuda import load_library

    short = re.fullmatch(r"lib(cudart|cublas|cufft|cusolver)\.so", name)
    return load_library(short[1]) if short else None
