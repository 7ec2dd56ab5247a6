"""Serves `numba_cuda_mlir` and its public modules from the simulated `numba.cuda`, installed or not.

Its modules are numba-cuda's, except where the two differ: those are made here, after its version 0.6.0. What
it refuses raises the same type of error; what we cannot simulate raises SimulatorUnsupported.
"""

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
"""Keywords of its `jit`."""
_FEATURE = "a feature of numba-cuda-mlir"
_REFUSED_MODULES = ("ctypes", "experimental", "intrin", "tensor_map", "vector")
_SUBMODULES = (*_REFUSED_MODULES, "kernels", "libdevicefuncs", "random", "vector_types")
_COMPILER = """
    annotations ast_transforms caching codegen compiler decorators descriptor device_declarations extending
    install_registry linker logging lowering lowering_registry lowering_utilities memory_management mlir
    mlir_compiler mlir_debuginfo mlir_lowering mlir_optimization models nrt_context numbair_transforms
    optimization runtime struct_pointees testing tools type_defs typing ufunc_db
"""
"""Its public modules beside `cuda`, `types` and `errors`."""
_LACKED = """
    const fp16 fp16funcs fp8 local mappings ndarray print shared struct tcgen05_descriptors testing union
"""
"""Its modules inside `cuda` that numba-cuda lacks."""
_REFUSED_NAMES = re.compile(r"inline_ptx|compile_(cubin|for|mlir)|(float16x|half)[1-4]")
_DRAWS = re.compile(r"xoroshiro128p_(next|jump|uniform_\w+|normal_\w+)")
_OF_NUMBA = "write a kernel, or take it from numba.cuda"
_REFUSED_TYPES = re.compile(
    r"f\d+E\w+|(B?Float\d|FloatTF32|NVFP4|CUTensorMap)\w*|bf16|tf32|nvfp4|complex32|ptr|ptr_to|byval_ptr|"
    r"ByValPointerType|AggregateType|alignas|grid_constant"
)


class _NotServed(SimulatorUnsupported, ImportError):  # noqa: N818 - a skip in the making
    """A module that the simulator lacks; code that can do without it catches an ImportError."""


def find(name: str) -> ModuleSpec | None:
    """Returns how a module of numba-cuda-mlir is served: ours, or numba-cuda's; None if there is no such.

    Raises SimulatorUnsupported, which is an ImportError as well, for a module that only it has.
    """
    served = re.sub(rf"^{_ROOT}\.numba_cuda\b", _CUDA, name).replace(f"{_CUDA}.types", f"{_ROOT}.types")
    served = served.replace(f"{_ROOT}.errors", f"{_CUDA}.core.errors")
    loader: Any = Loader()
    if served == name in _FILLED:
        loader.exec_module = _FILLED[name]
        return ModuleSpec(name, loader, is_package=True)
    part = served.split(".")[1:2]
    if part and part[0] not in ("cuda", "types"):
        if part[0] not in _COMPILER.split():
            return None
        raise _NotServed(f"a part of the compiler ({name})")
    try:
        target = served if served in _FILLED else re.sub(rf"^({_CUDA}|{_ROOT})", "numba.cuda", served)
        module = importlib.import_module(target)
    except ModuleNotFoundError as error:
        if name.rpartition(".")[2] not in _LACKED.split():
            return None
        raise _NotServed(f"{_FEATURE} ({name})") from error
    loader.exec_module = lambda made: sys.modules.update({made.__name__: module})
    return ModuleSpec(name, loader, is_package=True)


def _fill_root(root: ModuleType) -> None:
    from numba.cuda.np.numpy_support import carray, farray

    vars(root).update(__version__=_VERSION, carray=carray, farray=farray)


def _fill_cuda(module: ModuleType) -> None:
    from numba import cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    _take_names(cuda, module)
    _fill_root(module)
    vars(module).update(
        types=importlib.import_module(f"{_ROOT}.types"),
        DeviceNDArray=DeviceNDArray,
        jit=_jit,
        vectorize=_lacking("vectorize", NotImplementedError, _OF_NUMBA),
        guvectorize=_lacking("guvectorize", TypeError, _OF_NUMBA),
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


def _fill_random(module: ModuleType) -> None:
    """Refuses what kernels call: its module has them only as Python functions, which it cannot compile."""
    from numba.cuda import random
    from numba.cuda.core.errors import TypingError

    _take_names(random, module)
    vars(module).update(
        {
            name: _lacking(f"random.{name} for kernels", TypingError, "draw on the host, or with numba.cuda")
            for name in vars(random)
            if _DRAWS.fullmatch(name)
        }
    )


def _take_names(source: ModuleType, module: ModuleType) -> None:
    """Gives a module the names of numba-cuda's, and refuses those that numba-cuda lacks."""

    def look_up(name: str) -> Any:
        if _REFUSED_TYPES.fullmatch(name):  # nothing that is called
            raise SimulatorUnsupported(f"{_FEATURE} ({module.__name__}.{name})")
        if _REFUSED_NAMES.fullmatch(name):
            return refusal(f"{_FEATURE} (cuda.{name})")
        if module.__name__ == _CUDA and name in _SUBMODULES:
            return importlib.import_module(f"{_CUDA}.{name}")
        return getattr(source, name)

    vars(module).update({name: value for name, value in vars(source).items() if not name.startswith("__")})
    vars(module)["__getattr__"] = look_up


_FILLED: dict[str, Callable[[ModuleType], object]] = {
    _ROOT: _fill_root,
    _CUDA: _fill_cuda,
    f"{_ROOT}.types": _fill_types,
    f"{_CUDA}.random": _fill_random,
    f"{_CUDA}.vector_types": _fill_vector_types,
    **{f"{_CUDA}.{name}": functools.partial(refuse_all, _FEATURE) for name in _REFUSED_MODULES},
}
"""The modules that are made here → what fills them."""


def _jit(func_or_sig: Any = None, **options: Any) -> Any:
    """Makes a kernel or a device function, and refuses the options that the real `jit` refuses."""
    from numba import cuda

    for name in options.keys() - set(_OPTIONS.split()):
        remedy = did_you_mean(name, _OPTIONS.split()) or "; leave it out"
        raise ValueError(f"jit({name}=…): numba-cuda-mlir {_VERSION} has no such option{remedy}")
    if "opt" in options and "opt_level" in options:
        raise ValueError("jit(opt=…, opt_level=…): both say the same; give one of them")
    optimised = options.get("opt_level", 3) if options.get("opt") is None else options["opt"]
    if options.get("debug") and optimised:
        raise ValueError("jit(debug=True): numba-cuda-mlir debugs no optimised code; add opt=False")
    if not callable(func_or_sig):  # a signature, or nothing
        return functools.partial(_jit, **options)
    heeded = {"debug", "device", "extensions", "link"} & options.keys()  # the others steer the compiler
    kernel = cuda.jit(func_or_sig, **{name: options[name] for name in heeded})
    kernel.takes_clusters = True
    return kernel


def _lacking(name: str, kind: type[Exception], remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise kind(f"numba-cuda-mlir has no cuda.{name}: {remedy}")

    return refuse
