"""Stands in for the device in Numba: kernels are compiled, not executed, and there is no GPU and no driver.

Numba's own code runs down to its calls of the driver, which end in memory of the host. All that rests on
internals of numba-cuda is here; it was tried with 0.30.4, numba 0.68.1 and CUDA's wheels 13.5. So is what
rests on internals of numba-cuda-mlir, which calls the driver in the same way; it was tried with 0.6.0.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pytest_gpukern.code.launches import (
    H200,
    CannotBeKnown,
    CapturedLaunch,
    Compiled,
    Dimensions,
    DoesNotCompile,
    StandIn,
    Unknown,
    require,
)
from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu.kernel_facts import threads_by_registers
from pytest_gpukern.gpu.simulator.patching import ImportHook
from pytest_gpukern.problems.call_by_name import place_of

# Host code gets the answers of an H200, so that what it derives from SMs or shared memory is as usual.
_ATTRIBUTES = f"""
    CAN_MAP_HOST_MEMORY 1 CLOCK_RATE 1980000 COMPUTE_CAPABILITY_MAJOR 9 COMPUTE_CAPABILITY_MINOR 0
    CONCURRENT_KERNELS 1 CONCURRENT_MANAGED_ACCESS 1 COOPERATIVE_LAUNCH 1 GLOBAL_MEMORY_BUS_WIDTH 6144
    L2_CACHE_SIZE {H200.l2_bytes} MANAGED_MEMORY 1 MAX_BLOCKS_PER_MULTIPROCESSOR 32 MAX_BLOCK_DIM_X 1024
    MAX_BLOCK_DIM_Y 1024 MAX_BLOCK_DIM_Z 64 MAX_GRID_DIM_X 2147483647 MAX_GRID_DIM_Y 65535
    MAX_GRID_DIM_Z 65535 MAX_REGISTERS_PER_BLOCK 65536 MAX_REGISTERS_PER_MULTIPROCESSOR 65536
    MAX_SHARED_MEMORY_PER_BLOCK 49152 MAX_SHARED_MEMORY_PER_BLOCK_OPTIN 232448 MEMORY_CLOCK_RATE 3201000
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR 233472 MAX_THREADS_PER_BLOCK 1024 MAX_THREADS_PER_MULTIPROCESSOR 2048
    MULTIPROCESSOR_COUNT {H200.multiprocessors} TOTAL_CONSTANT_MEMORY 65536 UNIFIED_ADDRESSING 1 WARP_SIZE 32
"""
_ATTRIBUTE = dict(zip(_ATTRIBUTES.split()[::2], map(int, _ATTRIBUTES.split()[1::2]), strict=True))
_MOST_THREADS = _ATTRIBUTE["MAX_THREADS_PER_BLOCK"]

_CUDA = ("nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc")
_COMPILERS = ("numba", "numba-cuda", *_CUDA)
_MLIR_COMPILERS = ("numba-cuda-mlir", *_CUDA)
_LOWEST = (7, 5)  # what CUDA 13 begins at

_PLACE = re.compile(r'File "([^"]+)", line (\d+):')
_ASSEMBLER = re.compile(r"(?:ptxas|error log:)\s+(?:error|fatal)\s*: (.+)")
_AROUND = re.compile(r"(?m)^\s*(Failed in \w+ mode .*|(There are |File |During: |- Of which )[\s\S]*)")
"""What stands before what Numba says, and the candidates, source and steps that follow it."""


class NumbaStandIn(StandIn):
    """Records launches of Numba's CUDA kernels in the device's place."""

    def __init__(self) -> None:
        self._kernels: dict[Any, _RecordedKernel] = {}
        self._memory: dict[int, Any] = {}
        self._handles = itertools.count(0x1000)  # 0, 1 and 2 are CUDA's default streams
        self.launched = self.fills_host_arrays = self._shares_memory = self._compiling = False

    def begin(self) -> None:
        """Forgets what was launched: the next test starts, and host code may read what it writes itself."""
        self.launched = self.fills_host_arrays = False

    def install(self, record: Callable[[CapturedLaunch], None]) -> None:
        """Takes the device's place in this process, once; raises ImportError as `StandIn` says."""
        require("numba-cuda", "0.30.4", "0.31", "code")  # as the extra `code` does
        from numba import cuda
        from numba.cuda.core import config

        if config.ENABLE_CUDASIM:
            raise ImportError("NUMBA_ENABLE_CUDASIM is on, and the simulator compiles nothing: unset it")
        self.record = record
        self._replace_driver(cuda)
        self._replace_launches()
        sys.meta_path.insert(0, ImportHook({"numba_cuda_mlir.cuda": self._replace_mlir}.get))

    def _replace_driver(self, cuda: Any) -> None:
        """Takes the place of the driver in `numba.cuda`, or in the copy of it that numba-cuda-mlir has."""
        config, self._cudadrv = cuda.core.config, cuda.cudadrv
        devices, driver = self._cudadrv.devices, self._cudadrv.driver
        config.DISABLE_PERFORMANCE_WARNINGS = 1  # on small grids: nothing is slow here
        driver._logger = driver.make_logger()  # made when the driver is initialised, which is left out
        calls = driver.driver
        calls.is_initialized, calls.initialization_error = True, None
        answers = self._driver_answers(driver.binding)
        vars(calls).update(answers)  # a driver's own, if somebody has asked it before
        calls._cuda_python_wrap_fn = lambda name: answers.get(name.removesuffix("Async")) or _refuse(name)
        driver._to_core_stream = lambda stream: stream  # to a stream of `cuda.core`, which needs a context

        device = driver.Device.__new__(driver.Device)
        device.id, device.name, device.uuid = 0, H200.name, H200.uuid
        device.compute_capability = (9, 0)
        vars(device).update(_ATTRIBUTE)
        calls.devices[0] = device
        self._context = driver.Context(calls.get_device(0), driver.binding.CUcontext(1))
        device.primary_context = self._context
        devices._runtime.reset = lambda: None
        self.stream = self._context.create_external_stream(next(self._handles))

    def given(self, array: Any) -> Any:
        """Returns a device array on the memory of a NumPy array, with its strides.

        It is numba-cuda-mlir's if the suite has imported that, as on a device.
        """
        devicearray, driver = self._cudadrv.devicearray, self._cudadrv.driver
        address = driver.binding.CUdeviceptr(array.__array_interface__["data"][0])
        pointer = driver.MemoryPointer(self._context, address, driver.host_memory_size(array), array)
        return devicearray.from_array_like(array, gpu_data=pointer)

    def why_unknown(self, error: BaseException) -> str | None:
        """Says why an error of the user's code means `CannotBeKnown`, or returns None."""
        # No call tells us that such memory is read, so any error can come of what a kernel did not write.
        unseen = self.launched and (self.fills_host_arrays or self._shares_memory)
        if isinstance(error, DoesNotCompile) or not unseen:
            return None
        return "kernels do not run here, and host code can read memory of its own that they fill"

    def _replace_launches(self) -> None:
        """Has dispatchers make recorded kernels; types, signatures and launch configurations stay Numba's."""
        from numba.core.errors import NumbaError
        from numba.cuda import codegen, dispatcher

        self.make, dispatcher._Kernel = dispatcher._Kernel, self._recorded_kernel
        of = dispatcher.CUDADispatcher
        of.enable_caching = lambda _: None  # a cubin of yesterday, and a file of a kernel that is none
        codegen.CUDACodeLibrary.get_cufunc = lambda _: _refuse("registers and occupancy of a kernel")
        compile_device, call = of.compile_device, of.call

        def compiled_device_function(this: Any, args: Any, return_type: Any = None) -> Any:
            with self.compiles(this.py_func):
                return compile_device(this, args, return_type)

        def called(this: Any, args: Any, launch_config: Any) -> Any:
            try:
                return call(this, args, launch_config)
            except (TypeError, ValueError, NumbaError) as error:
                raise DoesNotCompile(_message(error, this.py_func)) from None

        of.compile_device, of.call = compiled_device_function, called
        dispatcher.ForAll._compute_thread_per_block = _threads_for_all

    def _replace_mlir(self, load: Callable[[], None]) -> None:
        """Has numba-cuda-mlir record launches; types, signatures and launch configurations stay its own.

        What we replace does not import its `cuda`, which is loaded last.
        """
        require("numba-cuda-mlir", "0.6", "0.7", "mlir")
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
        from numba.cuda.typing.typeof import typeof_impl
        from numba_cuda_mlir import compiler, descriptor, numba_cuda, tools

        self._replace_driver(numba_cuda)
        # Tests of both share this process, and a variant's arrays may be the other's.
        typed = DeviceNDArray._numba_type_.func
        typeof_impl.register(descriptor.DeviceNDArrayBase)(lambda array, _: typed(array))
        tools._cached_cc = _LOWEST  # code for a lower one would silently be linked for this one
        compiler.CodeLibrary.get_cufunc = lambda _: _refuse("registers and occupancy of a kernel")
        of = descriptor.MLIRDispatcher
        of.enable_caching = of._apply_shared_memory_carveout = lambda *_: None
        of._new_kernel_dispatcher = lambda this: this._compile  # in place of what loads the code, too
        descriptor.LaunchConfiguration = _compiles
        launch = descriptor._ArgMarshaller._launch

        def recorded(this: Any, types: Any, args: Any, values: Any = None) -> None:
            dispatcher, shape = this._dispatcher, this._available_launch_config
            grid, block, *memory = shape.values()

            def compiled(architecture: str) -> Compiled:
                _capability(architecture)  # is known
                with self.compiles(dispatcher.py_func):
                    configured = _mlir_for(architecture, dispatcher).configure(grid, block, None, *memory)
                    code = launch(configured, types, args, values)
                return _fitted(code, dispatcher.targetoptions["launch_bounds"])

            self.launched = True
            self.fills_host_arrays |= bool(this._callbacks)  # they copy back
            this._callbacks.clear()
            if dispatcher._can_compile:
                dispatcher.overloads.setdefault(tuple(types), Unknown("a kernel"))
            name = _name(dispatcher.py_func)
            self.record(CapturedLaunch(name, tuple(grid), compiled, _MLIR_COMPILERS))

        descriptor._ArgMarshaller._launch = recorded
        descriptor._ForAll._compute_thread_per_block = _threads_for_all
        load()

    def _recorded_kernel(self, py_func: Any, argtypes: Any, **options: Any) -> _RecordedKernel:
        key = py_func, argtypes, repr(sorted(options.items()))
        return self._kernels.setdefault(key, _RecordedKernel(self, py_func, argtypes, options))

    @contextmanager
    def compiles(self, py_func: Any) -> Iterator[None]:
        """Tells errors of the compiler as `DoesNotCompile`, once for a kernel with all that it calls."""
        if self._compiling:
            yield
            return
        self._compiling = True
        try:
            with warnings.catch_warnings(action="ignore"):  # of what compiles; they are told on a device, too
                yield
        except (CannotBeKnown, DoesNotCompile):
            raise
        except Exception as error:  # noqa: BLE001 - of Numba: also KeyError, AssertionError, RuntimeError
            raise DoesNotCompile(_message(error, py_func)) from None
        finally:
            self._compiling = False

    def _driver_answers(self, binding: Any) -> dict[str, Callable[..., Any]]:
        """Returns the driver's functions that Numba calls, by name, on memory of the host."""

        def allocate(size: int, shared: int = 0) -> int:
            self._shares_memory |= bool(shared)
            memory = np.zeros(size, np.uint8)  # takes no memory before it is written
            self._memory[memory.ctypes.data] = memory
            return memory.ctypes.data

        def copy(to: Any, source: Any, size: int, *_: Any) -> None:
            ctypes.memmove(int(to), int(source), size)

        def copy_to_host(*args: Any) -> None:
            return _refuse("the contents of a device array") if self.launched else copy(*args)

        nothing = (
            "CtxPushCurrent CtxSynchronize EventDestroy EventQuery EventRecord EventSynchronize ProfilerStart"
            " ProfilerStop MemHostRegister MemHostUnregister StreamDestroy StreamSynchronize StreamWaitEvent"
        )
        return {f"cu{name}": lambda *_: None for name in nothing.split()} | {
            "cuCtxGetCurrent": lambda: binding.CUcontext(1),
            "cuCtxGetDevice": lambda: 0,
            "cuCtxPopCurrent": lambda: binding.CUcontext(1),
            "cuDeviceGetAttribute": lambda code, _: _refuse(code.name.removeprefix("CU_DEVICE_ATTRIBUTE_")),
            "cuDeviceGetCount": lambda: 1,
            "cuEventCreate": lambda _: next(self._handles),
            "cuEventElapsedTime": lambda *_: _refuse("the time between two events"),
            "cuMemAlloc": lambda size: binding.CUdeviceptr(allocate(size)),
            "cuMemAllocManaged": lambda size, _: binding.CUdeviceptr(allocate(size, shared=1)),
            "cuMemFree": lambda pointer: self._memory.pop(int(pointer), None),
            "cuMemFreeHost": lambda pointer: self._memory.pop(int(pointer), None),
            "cuMemGetInfo": lambda: (H200.memory_bytes, H200.memory_bytes),
            "cuMemHostAlloc": lambda size, flags: allocate(size, flags & binding.CU_MEMHOSTALLOC_DEVICEMAP),
            "cuMemHostGetDevicePointer": lambda pointer, _: binding.CUdeviceptr(int(pointer)),
            "cuMemcpyDtoD": copy,
            "cuMemcpyDtoH": copy_to_host,
            "cuMemcpyHtoD": copy,
            "cuMemsetD8": lambda to, byte, count, *_: ctypes.memset(int(to), byte, count),
            "cuStreamCreate": lambda _: binding.CUstream(next(self._handles)),
        }


@functools.cache
def _mlir_for(architecture: str, dispatcher: Any) -> Any:
    """Returns a dispatcher of the same kernel that compiles for an architecture."""
    options = dispatcher.targetoptions
    if options["chip"] not in (None, architecture, "sm_{}{}".format(*_LOWEST)):
        wrong = f"jit(chip={options['chip']!r}) compiles for that alone: leave it out"
        raise DoesNotCompile(f"{_place(dispatcher.py_func)}: {_name(dispatcher.py_func)}: {wrong}")
    twin = type(dispatcher)(dispatcher.py_func, {**options, "chip": architecture})
    if not dispatcher._can_compile:  # anything but its explicit signatures
        for types in dispatcher.overloads:
            twin.compile(types)
        twin.disable_compile()
    return twin


def _compiles(
    compiled: Callable[[Any], Any], _grid: Any, block: Any, _stream: Any, shared_bytes: Any, *_cluster: Any
) -> Callable[..., Compiled]:
    """Stands for the `LaunchConfiguration` of numba-cuda-mlir, which would launch what it compiles."""

    def launch(*args: Any) -> Compiled:
        image, entry, *_ = compiled(args)
        return Compiled(image, entry, block, shared_bytes or 0)

    return launch


class _LargestBlock(int):
    """Stands for the largest block that the registers of a kernel allow; these differ by architecture."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # no launch configuration of 1024 threads is this one


_LARGEST = _LargestBlock(_MOST_THREADS)


def _threads_for_all(launch: Any, *_: Any) -> int:
    """Returns the threads of a block as the `ForAll` of a Numba would find them on a device."""
    return launch.thread_per_block or _LARGEST


def _fitted(compiled: Compiled, launch_bounds: Any) -> Compiled:
    """Returns what was compiled with the block that it would be launched with."""
    if not isinstance(compiled.block[0], _LargestBlock):
        return compiled
    bounds = launch_bounds or _MOST_THREADS
    bound = bounds if isinstance(bounds, int) else bounds[0]
    registers = cubin.registers(compiled.image)[compiled.entry]
    return compiled._replace(block=(min(threads_by_registers(registers), bound), 1, 1))


class _RecordedKernel:
    """Stands for Numba's `_Kernel`, one of given argument types. It is compiled when somebody asks."""

    entry_point = objectmode = launch_config_sensitive = None

    def __init__(self, device: NumbaStandIn, py_func: Any, argtypes: Any, options: dict[str, Any]) -> None:
        from numba.cuda import types, typing

        self._device, self._options = device, options
        self.py_func, self.argtypes = py_func, argtypes
        self.signature = typing.signature(types.void, *argtypes)

    def bind(self) -> None:
        """Loads nothing."""

    def launch(self, args: Any, grid: Any, block: Any, _: Any, shared_bytes: int) -> None:
        """Has the launch recorded. As on a device, nobody compares arguments with one explicit signature."""
        self._device.launched = True
        held = (getattr(arg, "value", arg) for arg in args)  # of `cuda.Out(array)` and its like
        self._device.fills_host_arrays |= any(isinstance(each, np.ndarray) for each in held)
        compiled = partial(self.compiled, tuple(block), shared_bytes)
        self._device.record(CapturedLaunch(_name(self.py_func), tuple(grid), compiled, _COMPILERS))

    def compiled(self, block: Dimensions, shared_bytes: int, architecture: str) -> Compiled:
        """Compiles for an architecture, once. Globals of the kernel are read when it first compiles."""
        capability, kernel = _capability(architecture), self._lowered
        with self._device.compiles(self.py_func):
            image = kernel._codelibrary.get_cubin(cc=capability).code  # Numba keeps it
        compiled = Compiled(image, kernel.entry_name, block, shared_bytes)
        return _fitted(compiled, self._options.get("launch_bounds"))

    @cached_property
    def _lowered(self) -> Any:
        """Numba's kernel, which is typed and lowered to LLVM's code.

        One does for all architectures: numba-cuda 0.30.4 asks for the capability in `nvvmutils` (6.0) and
        `mathimpl` (7.5) only, and CUDA 13 begins at 7.5.
        """
        with self._device.compiles(self.py_func):
            options = self._options | {"link": list(self._options.get("link") or ())}  # Numba adds to it
            return self._device.make(self.py_func, self.argtypes, **options)

    def __getattr__(self, name: str) -> Any:
        """Has Numba's kernel answer the rest, such as its PTX."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._lowered, name)


def _refuse(name: str) -> NoReturn:
    raise CannotBeKnown(f"host code reads what only a device computes: {name}")


def _capability(architecture: str) -> tuple[int, int, str]:
    """Returns what Numba compiles for on such a device; ValueError if its compilers do not know it."""
    from numba.cuda.cudadrv import nvrtc

    known = {f"sm_{major}{minor}": (major, minor) for major, minor in nvrtc.get_supported_ccs()}
    if architecture not in known:
        names = ", ".join(known)
        raise ValueError(f"{architecture}: Numba compiles for {names} with the CUDA compilers installed here")
    major, minor = known[architecture]
    return major, minor, "a" if major >= 9 else ""  # as `CUDACodeLibrary._ensure_cc` says on a device


def _author_wrote(py_func: Any) -> Any:
    """Returns the function of `@vectorize` or `@guvectorize` for the kernel that Numba writes around it."""
    written = py_func.__name__.startswith(("__vectorized_", "__gufunc_"))
    return py_func.__globals__["__core__"].py_func if written else py_func


def _name(py_func: Any) -> str:
    function = _author_wrote(py_func)
    module = function.__module__ or ""  # what `exec` makes may have none
    of_numba = module.startswith(("numba.", "numba_cuda_mlir."))  # an array's assignment, `cuda.reduce`
    return f"{module}.{function.__name__}" if of_numba else str(function.__name__)


def _message(error: Exception, py_func: Any) -> str:
    """Returns what the compiler said first, after the user's line that it speaks of."""
    name = _author_wrote(py_func).__name__
    text = re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"'_Z\w+'", name, str(error)))
    refused = _ASSEMBLER.findall(text)
    words = " ".join(refused or _AROUND.sub("", text).split())
    of_numba = any(base.__name__ == "NumbaError" for base in type(error).__mro__)  # of one of three classes
    clear = refused or of_numba or isinstance(error, (TypeError, ValueError))
    kind = "" if clear else f"{type(error).__name__}: "
    return f"{_place(py_func, error)}: {name}: {kind}{words}"


def _place(py_func: Any, error: Exception | None = None) -> str:
    """Returns the user's line that an error is about, in the innermost function; else a kernel's first line.

    Where the message has none, the compiler's steps do: 0.30.4 loses it if the error's class is numba's.
    """
    import numba.cuda

    code = _author_wrote(py_func).__code__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__ if error else None)]
    steps = [getattr(frame.f_locals.get("self"), "__dict__", {}).get("loc") for frame in reversed(frames)]
    locs = [(loc.filename, loc.line) for loc in steps if isinstance(loc, numba.cuda.core.ir.Loc)]
    loaded = (numba, numba.cuda, sys.modules.get("numba_cuda_mlir", numba))
    libraries = tuple(str(Path(library.__file__).parent) for library in loaded)
    for name, line in (*_PLACE.findall(str(error)), *locs):
        path = os.path.abspath(name)  # noqa: PTH100 - Path's has no answer to Numba's ../..
        if int(line or 0) and Path(path).is_file() and not path.startswith(libraries):
            return place_of(path, int(line))
    return place_of(code.co_filename, code.co_firstlineno)
