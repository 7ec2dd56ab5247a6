"""Serves `numba_cuda_mlir` and its public modules from the simulated `numba.cuda`, installed or not.

numba-cuda-mlir has no simulator, and nearly the names of numba-cuda. So its modules are numba-cuda's, except
where the two differ: those are made here. What it refuses on a GPU raises the same type of error here; what
we cannot simulate raises SimulatorUnsupported. Names and rules are those of its version 0.6.0.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.functions import InKernel, refusal, refuse_all
from pytest_gpukern.values.nearest import did_you_mean

_VERSION = "0.6.0"
_ROOT = "numba_cuda_mlir"
_CUDA = f"{_ROOT}.cuda"
_OPTIONS = """
    _dbg_optnone _nrt abi abi_info annotations_as_signatures cache capi cc chip debug device dump dump_ast
    dump_ast_after_all dump_cubin dump_llvmir dump_mlir dump_numba_ir dump_ptx experimental_ast_transforms
    extensions fast_math fastmath features forceinline inline launch_bounds lineinfo link lto max_registers
    no_cpython_wrapper nopython opt opt_level print_after_all print_before_all profile_jit ptxas_options
    shared_memory_carveout signature
"""
_OPTION = frozenset(_OPTIONS.split())
"""Keywords of its `jit`; the simulator heeds `_HEEDED`, and the others steer the compiler."""
_HEEDED = {"debug", "device", "extensions", "link"}
_FEATURE = "a feature of numba-cuda-mlir"
_REFUSED_MODULES = ("ctypes", "experimental", "fp16", "intrin", "tensor_map", "vector")
_SUBMODULES = (*_REFUSED_MODULES, "kernels", "libdevicefuncs", "random", "vector_types")
_REFUSED_NAMES = re.compile(r"inline_ptx|compile_(cubin|for|mlir)|(float16x|half)[1-4]")
_REFUSED_TYPES = re.compile(
    r"f\d+E\w+|(B?Float\d|FloatTF32|NVFP4|CUTensorMap)\w*|bf16|tf32|nvfp4|complex32|ptr|ptr_to|byval_ptr|"
    r"ByValPointerType|AggregateType|alignas|grid_constant"
)


class _NotServed(SimulatorUnsupported, ImportError):  # noqa: N818 - a skip in the making
    """A module that the simulator lacks; code that can do without it catches an ImportError."""


class _Loader(Loader):
    """Fills a new module, or puts one that is there already in its place."""

    def __init__(self, fill: Callable[[ModuleType], object], module: ModuleType | None) -> None:
        self._fill, self._module = fill, module

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves it to importlib, which would write `spec` into a module that is there already."""

    def exec_module(self, module: ModuleType) -> None:
        if self._module is None:
            self._fill(module)
        sys.modules[module.__name__] = self._module or module


def find(name: str) -> ModuleSpec | None:
    """Returns how a module of numba-cuda-mlir is served; None for one that numba-cuda does not have.

    Raises SimulatorUnsupported, which is an ImportError as well, for parts of the compiler.
    """
    served = re.sub(rf"^{_ROOT}\.numba_cuda\b", _CUDA, name).replace(f"{_CUDA}.types", f"{_ROOT}.types")
    if served in _FILLED:
        module = None if served == name else importlib.import_module(served)
        return ModuleSpec(name, _Loader(_FILLED[served], module), is_package=True)
    if served == f"{_ROOT}.errors":
        served = f"{_CUDA}.core.errors"
    elif not served.startswith((f"{_CUDA}.", f"{_ROOT}.types.")):
        raise _NotServed(f"a part of the compiler ({name})")
    target = re.sub(rf"^({_CUDA}|{_ROOT})", "numba.cuda", served)
    try:
        return ModuleSpec(name, _Loader(vars, importlib.import_module(target)), is_package=True)
    except ModuleNotFoundError as error:
        if error.name != target:
            raise
        return None


def _fill_root(root: ModuleType) -> None:
    from numba.cuda.np import numpy_support

    vars(root).update(__version__=_VERSION, carray=numpy_support.carray, farray=numpy_support.farray)


def _fill_cuda(module: ModuleType) -> None:
    from numba import cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    _take_names(cuda, module)
    vars(module).update(
        types=importlib.import_module(f"{_ROOT}.types"),
        carray=importlib.import_module(_ROOT).carray,
        farray=importlib.import_module(_ROOT).farray,
        DeviceNDArray=DeviceNDArray,
        jit=_jit,
        vectorize=_no_ufuncs("vectorize", NotImplementedError),
        guvectorize=_no_ufuncs("guvectorize", TypeError),
        shared_array=InKernel("shared.array"),
        local_array=InKernel("local.array"),
    )


def _fill_types(module: ModuleType) -> None:
    from numba.cuda import types, typing

    _take_names(types, module)
    vars(module)["signature"] = typing.signature
    for short, kind in {"f": "float", "i": "int", "u": "uint"}.items():
        vars(module).update({f"{short}{bits}": getattr(types, f"{kind}{bits}") for bits in (16, 32, 64)})


def _fill_vector_types(module: ModuleType) -> None:
    from numba.cuda.simulator.vector_types import vector_types

    for name, kind in vector_types.items():
        vars(module).update(dict.fromkeys((name, *kind.aliases), kind))
    vars(module)["__getattr__"] = vars(importlib.import_module(_CUDA))["__getattr__"]  # of half precision


def _fill_memory_space(module: ModuleType) -> None:
    space = module.__name__.rpartition(".")[2]
    name = "array_like" if space == "const" else "array"
    setattr(module, name, InKernel(f"{space}.{name}"))


def _take_names(source: ModuleType, module: ModuleType) -> None:
    """Gives a module the names of numba-cuda's, and refuses those that numba-cuda lacks."""

    def look_up(name: str) -> Any:
        if _REFUSED_TYPES.fullmatch(name):  # nothing that is called
            raise SimulatorUnsupported(f"{_FEATURE} ({module.__name__}.{name})")
        if _REFUSED_NAMES.fullmatch(name):
            return refusal(f"{_FEATURE} (cuda.{name})")
        if module.__name__ == _CUDA and name in _SUBMODULES:
            return importlib.import_module(f"{_CUDA}.{name}")
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return getattr(source, name)

    vars(module).update({name: value for name, value in vars(source).items() if not name.startswith("__")})
    vars(module)["__getattr__"] = look_up


_FILLED: dict[str, Callable[[ModuleType], object]] = {
    _ROOT: _fill_root,
    _CUDA: _fill_cuda,
    f"{_ROOT}.types": _fill_types,
    f"{_CUDA}.vector_types": _fill_vector_types,
    f"{_CUDA}.print": lambda module: setattr(module, "print", print),
    **dict.fromkeys((f"{_CUDA}.{space}" for space in ("const", "local", "shared")), _fill_memory_space),
    **{f"{_CUDA}.{name}": functools.partial(refuse_all, _FEATURE) for name in _REFUSED_MODULES},
}
"""The modules that are made here → what fills them."""


def _jit(func_or_sig: Any = None, **options: Any) -> Any:
    """Makes a kernel or a device function, and refuses the options that the real `jit` refuses."""
    from numba import cuda

    for name in options.keys() - _OPTION:
        remedy = did_you_mean(name, _OPTION) or "; leave it out"
        raise ValueError(f"jit({name}=…): numba-cuda-mlir {_VERSION} has no such option{remedy}")
    if "opt" in options and "opt_level" in options:
        raise ValueError("jit(opt=…, opt_level=…): both say the same; give one of them")
    optimised = options.get("opt_level", 3) if options.get("opt") is None else options["opt"]
    if options.get("debug") and optimised:
        raise ValueError("jit(debug=True): numba-cuda-mlir debugs no optimised code; add opt=False")
    if not callable(func_or_sig):  # a signature, or nothing
        return functools.partial(_jit, **options)
    kernel = cuda.jit(func_or_sig, **{name: options[name] for name in _HEEDED & options.keys()})
    kernel.takes_clusters = True
    return kernel


def _no_ufuncs(name: str, kind: type[Exception]) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        remedy = "write a kernel with cuda.jit, or take it from numba.cuda"
        raise kind(f"numba-cuda-mlir {_VERSION} has no cuda.{name}: {remedy}")

    return refuse
