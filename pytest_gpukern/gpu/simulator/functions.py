"""Makes every name of `numba.cuda` work in simulated code, or refuses it by name."""

import inspect
import operator
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.launch import HERE
from pytest_gpukern.gpu.simulator.patching import add, original, publish, replace

_FEATURES = {
    "warp shuffles": ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"),
    "warp votes": ("all_sync", "any_sync", "eq_sync", "ballot_sync"),
    "warp matches": ("match_any_sync", "match_all_sync"),
    "warp synchronisation": ("syncwarp",),
    "masks of active threads": ("activemask", "lanemask_lt"),
    "sleeping threads": ("nanosleep",),
    # The fake counts the sign as a digit and takes integers as 32 bits; fma rounds twice; cbrt needs x ≥ 0.
    "counting and reversing bits": ("popc", "clz", "brev", "ffs"),
    "fused multiply-add": ("fma",),
    "cube root": ("cbrt",),
    "cache-hinted loads and stores": (
        *("ldca", "ldcg", "ldcs", "ldlu", "ldcv"),
        *("stcg", "stcs", "stwb", "stwt"),
    ),
    "compiling for a GPU": (
        *("compile", "compile_all", "compile_for_current_device"),
        *("compile_ptx", "compile_ptx_for_current_device"),
    ),
    "memory shared between processes": ("open_ipc_array", "GetIpcHandleMixin", "IpcHandle"),
    "memory from elsewhere": (
        *("from_cuda_array_interface", "MemoryPointer", "MappedMemory", "PinnedMemory", "MemoryInfo"),
        *("set_memory_manager", "BaseCUDAMemoryManager", "HostOnlyCUDAMemoryManager"),
    ),
}
# Public names that the fake has in other modules alone.
_ELSEWHERE = (
    *("errors.KernelRuntimeError", "misc.special.literal_unroll", "api_util.prepare_shape_strides_dtype"),
    *("cudadrv.devices", "cudadrv.driver", "cudadrv.nvvm", "misc.literal"),
)
_KERNEL_FACTS = (
    *("get_const_mem_size", "get_local_mem_per_thread", "get_max_threads_per_block"),
    *("get_regs_per_thread", "get_shared_mem_per_block"),
    *("inspect_asm", "inspect_llvm", "inspect_lto_ptx", "inspect_sass", "inspect_types"),
    *("inspect_mlir", "inspect_mlir_optimized", "inspect_ptx", "get_metadata"),
    *("compile", "compile_device", "compile_for", "recompile"),
)


def refusal(feature: str) -> Callable[..., Any]:
    """Returns a function that raises SimulatorUnsupported for any arguments."""

    def refuse(*args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        raise SimulatorUnsupported(feature)

    return refuse


class OutsideKernelError(RuntimeError, AttributeError):
    """A name of the kernel API was used on the host. It is an AttributeError so that `hasattr` works."""


class InKernel:
    """A name imported ahead of time, such as "grid" or "shared.array"; looks it up in the running kernel."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _value(self) -> Any:
        context = HERE.kernel
        if context is None:
            raise OutsideKernelError(f"cuda.{self._name} means something only inside a kernel")
        return operator.attrgetter(self._name)(context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._value()(*args, **kwargs)

    def __index__(self) -> int:
        return int(self._value())


def mend_namespace() -> None:
    """Refuses by name what cannot be simulated, and makes every way to import the rest work.

    Names of kernels alone are looked up in the running kernel, also after ``from numba.cuda import grid``.
    """
    from numba import cuda
    from numba.cuda import bf16, libdevice
    from numba.cuda.simulator import kernel as simulated
    from numba.cuda.simulator import kernelapi

    module_class = original(kernelapi, "FakeCUDAModule")
    for feature, names in _FEATURES.items():
        for name in names:
            refuse = refusal(f"{feature} (cuda.{name})")
            if hasattr(module_class, name):
                replace(module_class, name, staticmethod(refuse))
            else:  # users derive from classes
                add(cuda, name, type(name, (), {"__new__": refuse}) if name[0].isupper() else refuse)
    for path in _ELSEWHERE:
        add(cuda, path.rpartition(".")[2], pkgutil.resolve_name(f"numba.cuda.{path}"))
    publish("declare_device", lambda name, *_, **__: refusal(f"other code (cuda.declare_device({name!r}))"))
    # Stubs of libdevice return None, and a float array stores that as NaN. The fake's functions of half
    # precision round twice, round the wrong way (`hfloor` by ceil) and mistreat NaN and −0.
    _refuse_functions(libdevice, "libdevice", "libdevice")
    _refuse_functions(original(kernelapi, "FakeCUDAFp16"), "half-precision intrinsics", "cuda.fp16")
    # The fake's barrier of a grid is that of a block.
    groups = original(kernelapi, "FakeCUDACg")
    replace(groups, "this_grid", refusal("cooperative groups (cuda.cg.this_grid)"))
    for name in _KERNEL_FACTS:
        add(simulated.FakeCUDAKernel, name, refusal(f"compiled code and its resources ({name})"))
    in_kernels = {name for name in dir(module_class((1, 1, 1), (1, 1, 1), 0)) if not name.startswith("_")}

    def from_kernel(name: str) -> Any:  # the module's own __getattr__
        if name in in_kernels:
            return InKernel(name) if HERE.kernel is None else getattr(HERE.kernel, name)
        if name == "fp8":
            raise SimulatorUnsupported("8-bit floats (numba.cuda.fp8)")
        raise AttributeError(f"module 'numba.cuda' has no attribute {name!r}")

    cuda.__getattr__ = from_kernel
    refuse_all("bfloat16", bf16)  # the fake has an empty module, and None as the type
    add(bf16, "bfloat16", bf16.__getattr__("bfloat16"))


def _refuse_functions(owner: Any, feature: str, module: str) -> None:
    for name, _ in inspect.getmembers(owner, inspect.isfunction):
        if not name.startswith("_"):
            replace(owner, name, staticmethod(refusal(f"{feature} ({module}.{name})")))


def refuse_all(feature: str, module: ModuleType) -> None:
    """Refuses by name, where it is called, whatever somebody takes from a module that has nothing itself."""

    def refuse(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return refusal(f"{feature} ({module.__name__.replace('.simulator', '')}.{name})")

    add(module, "__getattr__", refuse)
