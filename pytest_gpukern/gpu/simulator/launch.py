"""Makes kernels of the simulator launch, fail and share memory as they do on a GPU."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np

from pytest_gpukern.arrays.compare import POISON, poison_bytes
from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.patching import add, original, publish, replace

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the same since 3.0.
MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK_DIM = (1024, 1024, 64)
MAX_GRID_DIM = (2**31 - 1, 65535, 65535)
# Without the opt-in that numba-cuda never makes.
MAX_SHARED_BYTES_PER_BLOCK = 49152

# On a GPU the driver picks the block size of `forall`, so any will do. With whole blocks there are threads
# beyond the last task, as on a GPU, which catches a kernel without a bounds check.
_FORALL_BLOCK = 128


class SimulatedLaunches:
    """Counts what this process has launched in the simulator.

    Attributes:
        turn: held by the host thread that launches; the others wait, since the interpreters share state.
        made: launches from the host so far.
        backwards: whether the newest begins with its last block, and its first block with the last thread.
        shares: whether a launch of the current test used shared memory.
    """

    turn: ClassVar[Any] = threading.RLock()
    made = 0
    backwards = shares = False
    _of_kernel: ClassVar[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()

    @classmethod
    def count(cls, kernel: Any) -> None:
        """Counts a launch of this function; those that one factory makes count together.

        Bits of the count, and not the count, make it even or odd (Thue and Morse): a kernel that is launched
        twice in each call has both orders in both places.
        """
        code = kernel.__code__
        before = cls._of_kernel.get(code, 0)
        cls._of_kernel[code] = before + 1
        cls.made += 1
        cls.backwards = before.bit_count() % 2 == 1


class _HostThread(threading.local):
    kernel: Any = None  # the module `cuda` of the kernel that runs in this host thread, or None


HERE = _HostThread()


@contextmanager
def in_kernel(module: Any) -> Iterator[None]:
    """Gives the names of `cuda` their values in a kernel; other host threads are on the host meanwhile."""
    HERE.kernel = module
    try:
        yield
    finally:
        HERE.kernel = None


def launch_fault(grid: tuple[int, ...], block: tuple[int, ...], dynamic_shared_bytes: int) -> str | None:
    """Says which hardware limit a launch exceeds, or returns None."""
    for what, sizes, limits in (("grid", grid, MAX_GRID_DIM), ("block", block, MAX_BLOCK_DIM)):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if not 1 <= size <= limit:
                return f"{what}.{axis} is {size}; it must be between 1 and {limit}"
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS_PER_BLOCK:
        return f"{threads} threads in a block; the limit is {MAX_THREADS_PER_BLOCK}"
    if not 0 <= dynamic_shared_bytes <= MAX_SHARED_BYTES_PER_BLOCK:
        limit = MAX_SHARED_BYTES_PER_BLOCK
        return f"{dynamic_shared_bytes} bytes of dynamic shared memory; the limit is {limit}"
    return None


def mend_launches() -> None:
    """Makes each `kernel[grid, block]` a separate launcher, and refuses what no GPU would launch.

    Numba's fake kernel stores the configuration in itself, so the last of two launchers would win. It has one
    kernel a process, and puts its module into the kernel's globals, where other host threads find it: here
    `numba.cuda` itself looks its names up.
    """
    from numba.cuda.simulator import kernel as simulated
    from numba.cuda.simulator.cudadrv import driver

    from pytest_gpukern.gpu.simulator.arithmetic import typed_as_on_a_gpu

    fake = original(simulated, "FakeCUDAKernel")
    # Both the class that tests catch on a GPU, which is no ValueError, and a ValueError.
    invalid_value = type("CudaAPIError", (original(driver, "CudaAPIError"), ValueError), {"code": 1})
    make, run = original(fake, "__init__"), original(fake, "__call__")

    def init(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        make(self, fn, *args, **kwargs)
        self.fn = typed_as_on_a_gpu(fn)

    def call(self: Any, *args: Any) -> Any:
        launches_itself = HERE.kernel is not None and self.grid_dim is not None
        if reason := "a kernel that launches a kernel" if launches_itself else self.refused:
            raise SimulatorUnsupported(reason)
        if self._device or HERE.kernel is not None:
            return self.fn(*args)
        if self.grid_dim is not None:
            fault = launch_fault(self.grid_dim, self.block_dim, self.dynshared_size)
            if fault is not None:
                what = "[1] Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE"
                raise invalid_value(f"{what}: {fault}")
        with SimulatedLaunches.turn:  # else another thread's kernel runs once, not per program
            SimulatedLaunches.count(self.fn)
            return run(self, *args)

    def getitem(self: Any, configuration: Any) -> Any:
        if len(configuration) not in range(2, 6 if self.takes_clusters else 5):
            raise ValueError("must specify at least the griddim and blockdim")
        return configure(self, *configuration)

    def forall(self: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or _FORALL_BLOCK
        grid = (ntasks + block - 1) // block
        return self[grid, block, stream, sharedmem] if ntasks else lambda *_: None

    replace(simulated, "_get_kernel_context", lambda: HERE.kernel)
    replace(simulated, "_push_kernel_context", in_kernel)
    replace(simulated, "swapped_cuda_module", lambda *_: nullcontext())
    add(fake, "refused", None)
    add(fake, "takes_clusters", False)
    replace(fake, "__init__", init)
    replace(fake, "__call__", call)
    replace(fake, "__getitem__", getitem)
    replace(fake, "forall", forall)
    add(fake, "configure", configure)


def configure(
    kernel: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: Any = 0, cluster: Any = None
) -> Any:
    """Returns a copy of a fake kernel with this launch configuration, under the names of fake and real."""
    from numba.cuda.errors import normalize_kernel_dimensions

    launcher = copy.copy(kernel)
    launcher.dispatcher = getattr(kernel, "dispatcher", kernel)
    launcher.griddim, launcher.blockdim = normalize_kernel_dimensions(griddim, blockdim)
    launcher.grid_dim, launcher.block_dim = launcher.griddim, launcher.blockdim
    launcher.stream = stream
    launcher.sharedmem = launcher.dynshared_size = sharedmem or 0  # numba-cuda-mlir takes None
    if cluster is not None:
        launcher.refused = "a launch of clusters (kernel[grid, block, stream, shared, cluster])"
    return launcher


# Keywords of the real jit in **kws (its docstring, and `_Kernel.__init__` in numba.cuda.dispatcher).
_KEYWORDS_BEHIND_KWS = {"boundscheck", "extensions", "fastmath", "max_registers"}
# Keywords that change what a kernel does → what such a kernel is.
_REFUSED = {"link": "a kernel linked with other code", "extensions": "extensions of a kernel"}


def mend_jit() -> None:
    """Accepts the keywords of the installed numba-cuda's own `jit`, and refuses others at once.

    They steer the compiler, so the simulator ignores them. A kernel that it cannot run is refused where it is
    launched or called. `boundscheck` raises NotImplementedError, as on a GPU.
    """
    from numba.cuda import decorators
    from numba.cuda.simulator import api

    fake_jit = original(api, "jit")
    fakes, reals = (set(inspect.signature(of).parameters) for of in (fake_jit, original(decorators, "jit")))
    fakes -= {"argtypes", "bind", "restype"}  # deprecated
    known = fakes | reals | _KEYWORDS_BEHIND_KWS

    def jit(func_or_sig: Any = None, device: bool = False, **options: Any) -> Any:
        for name in options:
            if name not in known:
                raise TypeError(f"jit() got an unexpected keyword argument {name!r}")
        if not callable(func_or_sig):  # a signature, or nothing
            return functools.partial(jit, device=device, **options)
        passed = {name: value for name, value in options.items() if name in fakes - set(_REFUSED)}
        kernel = fake_jit(func_or_sig, device=device, **passed)
        reasons = (f"{what} (cuda.jit({key}=…))" for key, what in _REFUSED.items() if options.get(key))
        kernel.refused = next(reasons, None)
        return kernel

    publish("jit", jit)


def mend_shared_memory() -> None:
    """Replaces the fake's `shared.array`, and accepts an alignment for `local.array`, which changes no value.

    The fake fails for dynamic memory of a NumPy dtype class, gives two arrays on one source line the same
    memory, may give two threads different arrays, and allocates any size. Arrays hold a poison at first.
    """
    from numba.cuda.simulator import kernelapi
    from numba.cuda.simulator.cudadrv import driver

    shared_class = original(kernelapi, "FakeCUDAShared")
    local_class = original(kernelapi, "FakeCUDALocal")
    linker_error = original(driver, "LinkerError")

    def shared_array(self: Any, shape: Any, dtype: Any, alignment: Any = None, alignas: Any = 8) -> Any:  # noqa: ARG001
        dtype, SimulatedLaunches.shares = as_numpy_dtype(dtype), True
        if shape == 0:  # dynamic shared memory: every such array is all of it
            count = self._dynshared_size // dtype.itemsize
            return np.frombuffer(self._dynshared.data, dtype=dtype, count=count)
        frame: Any = sys._getframe(1)
        while frame.f_globals.get("__package__") == __package__:  # a name that was imported ahead of time
            frame = frame.f_back
        place = (frame.f_code, frame.f_lasti)  # the call itself: two on one line are two
        array = self._allocations.get(place)
        if array is None:
            array = self._allocations[place] = unwritten(shape, dtype)
            used = sum(shared.nbytes for shared in self._allocations.values())
            if used > MAX_SHARED_BYTES_PER_BLOCK:
                raise linker_error(
                    f"ptxas would refuse this kernel: uses too much shared data ({used} bytes, "
                    f"{MAX_SHARED_BYTES_PER_BLOCK} max)"
                )
        return array

    def local_array(self: Any, shape: Any, dtype: Any, alignment: Any = None, alignas: Any = 8) -> Any:  # noqa: ARG001
        return unwritten(shape, as_numpy_dtype(dtype))

    replace(shared_class, "array", shared_array)
    replace(local_class, "array", local_array)


def mend_atomics() -> None:
    """Has atomic operations take any number for an array of whole numbers, and wrap; floats as an index."""
    from numba.cuda.simulator import kernelapi

    from pytest_gpukern.gpu.simulator.arithmetic import fitting

    def fitted(operate: Any, indices: int) -> Any:
        def atomic(self: Any, array: Any, *given: Any) -> Any:
            values = (fitting(value, array.dtype) for value in given[indices:])
            places = (tuple(map(int, at)) if isinstance(at, tuple) else int(at) for at in given[:indices])
            return operate(self, array, *places, *values)

        return atomic

    owner = original(kernelapi, "FakeCUDAAtomic")
    for name, operate in inspect.getmembers(owner, inspect.isfunction):
        replace(owner, name, fitted(operate, int(name != "compare_and_swap")))


def unwritten(shape: Any, dtype: Any) -> Any:
    """Returns memory that nobody has written: each word is a poison, NaN as floating-point number."""
    size_bytes = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
    return poison_bytes(POISON, size_bytes).view(dtype).reshape(shape)


def as_numpy_dtype(dtype: Any) -> Any:
    """Returns the NumPy dtype of a Numba type, a NumPy scalar type or anything NumPy accepts as a dtype."""
    from numba.cuda import types
    from numba.cuda.np import numpy_support

    return np.dtype(numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
