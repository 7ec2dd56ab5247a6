"""Prepares a session under a tool: no memory pools, and line numbers in kernels."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from pytest_gpukern.values.backend_table import installed


def prepare_libraries() -> None:
    """Has CuPy ask the driver for each array, and Numba compile with line information, to the end.

    Call it once the device is chosen: libraries look at the device when they are imported. PyTorch's pool and
    nvcc's flags have environment variables, which were set before this process began.
    """
    cupy = _imported("cupy")
    if cupy is not None:
        cupy.cuda.set_allocator(None)
    for cuda in filter(None, map(_imported, ("numba.cuda", "numba_cuda_mlir.cuda"))):
        cuda.jit = with_lines(cuda.jit)


def with_lines(jit: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Numba's `cuda.jit` with `lineinfo=True` by default, which changes no machine code.

    Kernels that are compiled for debugging have their lines already. Functions that Numba makes for a ufunc
    have no source: asked for their lines, Numba warns, and if warnings are errors a test fails.
    """

    @functools.wraps(jit)
    def jit_with_lines(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("debug") or "lineinfo" in kwargs:
            return jit(*args, **kwargs)
        compiled = args[0] if args else kwargs.get("func_or_sig")
        if callable(compiled):  # which no signature is
            return jit(*args, **kwargs, **_lines_of(compiled))
        return lambda function: jit(*args, **kwargs, **_lines_of(function))(function)

    return jit_with_lines


def _lines_of(function: Any) -> dict[str, bool]:
    """Returns the option that keeps the lines of a function, where it has a source."""
    if getattr(getattr(function, "__code__", None), "co_filename", None) == "<string>":
        return {}  # from Python 3.13 on, `python -c` gives this name the lines of its own command
    try:
        inspect.getsourcelines(function)
    except (OSError, TypeError):
        return {}
    return {"lineinfo": True}


def _imported(module: str) -> Any:
    """Imports a library, or returns None if that fails: then no test can use it either."""
    if not installed(module):
        return None
    try:
        return importlib.import_module(module)
    except Exception:  # noqa: BLE001 - from an unresolved symbol to a NumPy that is too new
        return None
