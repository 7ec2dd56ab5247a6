"""`cuda.fp16`: half-precision functions that take and return halves."""

import inspect
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.fused import fused_multiply_add
from pytest_gpukern.gpu.simulator.patching import add, original, replace

_NOT_EMULATED = {"atomicAdd", "htanh_approx"}


def mend_half_precision() -> None:
    """Correct the fake `cuda.fp16`, and make it importable as `numba.cuda.fp16`.

    The fake's `hfloor` rounds up, `hfma` rounds twice, `hne` is true for NaN, `hmax` and `hmin` return a NaN
    depending on the order, and everything runs at the precision of its arguments, where Numba converts each
    to float16 first. The definitions followed are those of CUDA's cuda_fp16.h.
    """
    from numba.cuda.simulator import kernelapi

    half_class = original(kernelapi, "FakeCUDAFp16")
    corrected = _corrected()
    for name in corrected.keys() - {"htanh"}:
        original(half_class, name)
    for name, method in inspect.getmembers(half_class, inspect.isfunction):
        if not name.startswith("_"):
            replace(half_class, name, _on_halves(corrected.get(name, _without_self(method))))
    add(half_class, "htanh", _on_halves(corrected["htanh"]))
    add(half_class, "__getattr__", _refuse)
    _make_importable(half_class())


def _corrected() -> dict[str, Callable[..., Any]]:
    import numpy as np

    half, wide = np.float16, np.float64
    return {
        "hfloor": lambda x: np.floor(x),
        "hfma": lambda a, b, c: fused_multiply_add(a, b, c, np.float16),
        "hne": lambda a, b: bool(a < b or a > b),  # false with a NaN, unlike !=
        "hmax": lambda a, b: _extreme(a, b, 1.0),
        "hmin": lambda a, b: _extreme(a, b, -1.0),
        "hrcp": lambda x: half(1 / wide(x)),
        "hrsqrt": lambda x: half(1 / np.sqrt(wide(x))),
        "hexp10": lambda x: half(np.power(10.0, wide(x))),
        "htanh": lambda x: half(np.tanh(wide(x))),
    }


def _extreme(a: Any, b: Any, sign: float) -> Any:
    """Return the maximum (sign 1) or minimum (−1): the number if one is a NaN, and +0 above −0."""
    if math.isnan(a):
        return b
    if math.isnan(b):
        return a
    if a == b == 0:
        return a if math.copysign(1.0, a) == sign else b
    return a if (a > b) == (sign > 0) else b


def _without_self(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: method(None, *args)  # the fake's methods hold no state


def _on_halves(function: Callable[..., Any]) -> Any:
    import numpy as np

    def on_halves(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*(np.float16(arg) for arg in args))

    return staticmethod(on_halves)


def _refuse(owner: Any, name: str) -> Any:  # noqa: ARG001 - a __getattr__
    real = name in _NOT_EMULATED or (name.startswith("__") and not name.endswith("__"))
    if real:
        raise SimulatorUnsupported(f"half-precision intrinsics (cuda.fp16.{name})")
    raise AttributeError(f"cuda.fp16 has no attribute {name!r}")


def _make_importable(functions: Any) -> None:
    """Put a module in the place of `numba.cuda.fp16`, whose import fails in the simulator."""
    import numba.cuda

    module = ModuleType("numba.cuda.fp16", "Half-precision functions of the CUDA simulator.")
    for name in dir(functions):
        if not name.startswith("_"):
            setattr(module, name, getattr(functions, name))
    module.__getattr__ = lambda name: _refuse(module, name)  # type: ignore[method-assign]
    sys.modules[module.__name__] = module
    numba.cuda.fp16 = module
