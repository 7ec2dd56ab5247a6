"""Runs `@vectorize` and `@guvectorize` for CUDA: numba-cuda's own rules around a loop on the host.

We keep the real classes that resolve types, broadcast, allocate and copy (`numba.cuda.vectorizers`,
`deviceufunc`), with their errors. We replace the few methods that compile for a GPU or build a device array
from a pointer.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_gpukern.gpu.simulator.arithmetic import fitting, typed_as_on_a_gpu
from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches, in_kernel
from pytest_gpukern.gpu.simulator.patching import add, original, replace

# In a core these would describe a launch that the user did not write and the simulator does not make.
_THREAD_NAMES = {
    *("threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "grid", "gridsize", "shared", "cg"),
    *("syncthreads", "syncthreads_and", "syncthreads_count", "syncthreads_or"),
}


class CoreModule:
    """The module `cuda` inside a core: the simulator's kernel module, without threads."""

    def __init__(self, kernel_module: Any) -> None:
        self._kernel_module = kernel_module

    def __getattr__(self, name: str) -> Any:
        if name in _THREAD_NAMES:
            raise SimulatorUnsupported(f"threads inside a vectorized function (cuda.{name})")
        return getattr(self._kernel_module, name)


class ElementIndex:
    """The `__cuda__` of numba-cuda's kernel template: `grid(1)` is the current element."""

    value = 0

    def grid(self, ndim: int) -> int:  # noqa: ARG002 - always 1
        return self.value


def host_loop(template: Callable[..., None]) -> Any:
    """Returns a "kernel" that runs numba-cuda's template once for each element of its arrays, on the host."""
    index: ElementIndex = template.__globals__["__cuda__"]

    def forall(ntasks: int, stream: Any = 0) -> Callable[..., None]:  # noqa: ARG001
        def run(*arrays: Any) -> None:
            from numba.cuda.simulator import kernelapi

            core_module = CoreModule(kernelapi.FakeCUDAModule((1, 1, 1), (1, 1, 1), 0))
            host_arrays = [array._ary for array in arrays]
            # A GPU raises no floating-point errors.
            with SimulatedLaunches.turn, in_kernel(core_module), np.errstate(all="ignore"):
                SimulatedLaunches.made += 1
                for index.value in range(ntasks):
                    template(*host_arrays)

        return run

    return SimpleNamespace(forall=forall)


def mend_ufuncs() -> None:
    """Makes `vectorize` and `guvectorize` with ``target="cuda"`` and of `numba.cuda` run on the host."""
    from numba.cuda import vectorizers

    def compile_core(self: Any, sig: Any) -> tuple[Callable[..., Any], Any]:
        return_type = sig.return_type
        if return_type is None:
            arguments = ", ".join(map(str, sig.args))
            raise SimulatorUnsupported(
                f"inferring the return type of {self.pyfunc.__name__}({arguments}) "
                f"(give it in the signature, as in 'float32({arguments})')"
            )
        return _scalar_core(typed_as_on_a_gpu(self.pyfunc), return_type), return_type

    def of_core(core: Callable[..., Any]) -> dict[str, Any]:
        return {"__cuda__": ElementIndex(), "__core__": core}

    scalar, general = (original(vectorizers, f"CUDA{kind}Vectorize") for kind in ("", "GUFunc"))
    replace(scalar, "_compile_core", compile_core)
    replace(scalar, "_get_globals", lambda _, core: of_core(core))
    replace(general, "_get_globals", lambda self, _: of_core(typed_as_on_a_gpu(self.pyfunc)))
    for builder in (scalar, general):
        replace(builder, "_compile_kernel", lambda _, template, sig: host_loop(template))  # noqa: ARG005
    _mend_broadcasting()


def _mend_broadcasting() -> None:
    """Lets the real methods make strided views of fake arrays.

    Their mistake is a GPU's, too: numba-cuda 0.30.4 adds an array's missing axes at the wrong end, so that
    (3, 4) with (4,) uses only the second array's first element.
    """
    from numba.cuda.simulator.cudadrv import devicearray

    fake_array = original(devicearray, "FakeCUDAArray")

    class Views(type):
        """Makes `DeviceNDArray(…, gpu_data=…)` a view of the memory at `gpu_data`; a fake array is one."""

        def __call__(cls, shape: Any, strides: Any, dtype: Any, gpu_data: Any, stream: Any = 0) -> Any:  # noqa: ARG002
            shape = (shape,) if isinstance(shape, int) else tuple(shape)
            return fake_array(np.lib.stride_tricks.as_strided(gpu_data, shape, tuple(strides)))

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, fake_array)

    add(fake_array, "gpu_data", property(lambda self: self._ary))
    add(devicearray, "DeviceNDArray", Views("DeviceNDArray", (), {}))


def _scalar_core(body: Callable[..., Any], return_type: Any) -> Callable[..., Any]:
    """Wraps a `vectorize` body so that its result has the signature's type, as in compiled code."""
    dtype = np.dtype(str(return_type))

    def core(*args: Any) -> Any:
        value = body(*args)
        if value is None:  # NumPy would store it as NaN
            raise TypeError(f"{body.__name__}() returned None where its signature promises {return_type}")
        return fitting(value, dtype)

    return core
