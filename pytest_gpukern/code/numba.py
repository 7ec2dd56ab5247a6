"""Stands in for the device in Numba: kernels are compiled, not executed, and there is no GPU and no driver.

Numba's own code runs down to its calls of the driver, which end in memory of the host. All that rests on
internals of numba-cuda is here; it was tried with 0.30.4, numba 0.68.1 and CUDA's wheels 13.5.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pytest_gpukern.code.launches import CannotBeKnown, Compiled, Dimensions, DoesNotCompile, Launch, require
from pytest_gpukern.gpu import cubin
from pytest_gpukern.problems.call_by_name import place_of

_OLDEST, _NEXT = "0.30.4", "0.31"
"""The versions of numba-cuda that the extra `code` allows."""
_REMEDY = "pip install 'pytest-gpukern[code]'"

# Host code gets the answers of an H200, so that what it derives from SMs or shared memory is as usual.
_CAPABILITY = (9, 0)
_MEMORY_BYTES = 141 * 10**9
_ATTRIBUTES = """
    CAN_MAP_HOST_MEMORY 1 CLOCK_RATE 1980000 COMPUTE_CAPABILITY_MAJOR 9 COMPUTE_CAPABILITY_MINOR 0
    CONCURRENT_KERNELS 1 CONCURRENT_MANAGED_ACCESS 1 COOPERATIVE_LAUNCH 1 GLOBAL_MEMORY_BUS_WIDTH 6144
    L2_CACHE_SIZE 62914560 MANAGED_MEMORY 1 MAX_BLOCKS_PER_MULTIPROCESSOR 32 MAX_BLOCK_DIM_X 1024
    MAX_BLOCK_DIM_Y 1024 MAX_BLOCK_DIM_Z 64 MAX_GRID_DIM_X 2147483647 MAX_GRID_DIM_Y 65535
    MAX_GRID_DIM_Z 65535 MAX_REGISTERS_PER_BLOCK 65536 MAX_REGISTERS_PER_MULTIPROCESSOR 65536
    MAX_SHARED_MEMORY_PER_BLOCK 49152
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN 232448 MAX_SHARED_MEMORY_PER_MULTIPROCESSOR 233472
    MAX_THREADS_PER_BLOCK 1024 MAX_THREADS_PER_MULTIPROCESSOR 2048 MEMORY_CLOCK_RATE 3201000
    MULTIPROCESSOR_COUNT 132 TOTAL_CONSTANT_MEMORY 65536 UNIFIED_ADDRESSING 1 WARP_SIZE 32
"""
_ATTRIBUTE = dict(zip(_ATTRIBUTES.split()[::2], map(int, _ATTRIBUTES.split()[1::2]), strict=True))
_LARGEST_BLOCK = _ATTRIBUTE["MAX_THREADS_PER_BLOCK"]

_PLACE = re.compile(r'File "([^"]+)", line (\d+):')
_ASSEMBLER = re.compile(r"ptxas (?:error|fatal)\s*: (.+)")


class NumbaStandIn:
    """Records launches of Numba's CUDA kernels in the device's place. Implements `StandIn`.

    Attributes:
        stream: a `numba.cuda` stream, as a variant gets it. None before `install`.
    """

    def __init__(self) -> None:
        self.stream: Any = None
        self._context: Any = None
        self._record: Any = None
        self._kernels: dict[Any, _RecordedKernel] = {}
        self._memory: dict[int, Any] = {}
        self._handles = itertools.count(0x1000)  # 0, 1 and 2 are CUDA's default streams
        self._compile: Any = None
        self._launched = False
        self._fills_host_arrays = False
        self._shares_memory = False
        self._compiling = False
        self._by_occupancy = False

    def begin(self) -> None:
        """Forgets what was launched: the next test starts, and host code may read what it writes itself."""
        self._launched = self._fills_host_arrays = False

    def install(self, record: Callable[[Launch], None]) -> None:
        """Takes the device's place in this process, once, before modules of the user are imported.

        Raises:
            ImportError: numba-cuda is missing or of another version, a wheel of CUDA is missing, or the
                simulator is on.
        """
        _require_tested_libraries()
        from numba.cuda.core import config
        from numba.cuda.cudadrv import devices, driver

        self._record = record
        config.DISABLE_PERFORMANCE_WARNINGS = 1  # on small grids: nothing is slow here
        driver._logger = driver.make_logger()  # made when the driver is initialised, which is left out
        calls = driver.driver
        calls.is_initialized, calls.initialization_error = True, None
        calls._cuda_python_wrap_fn = _refuse
        vars(calls).update(self._driver_calls(driver.binding))
        driver._to_core_stream = lambda stream: stream  # to a stream of `cuda.core`, which needs a context

        device = driver.Device.__new__(driver.Device)
        device.id, device.name, device.uuid = 0, "NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000000"
        device.compute_capability = _CAPABILITY
        calls.devices[0] = device
        self._context = driver.Context(calls.get_device(0), driver.binding.CUcontext(1))
        device.primary_context = self._context
        self._context.prepare_for_use()
        runtime = devices._runtime
        runtime.get_or_create_context = lambda _: self._context
        runtime.ensure_context = lambda: nullcontext(self._context)
        runtime.reset = lambda: None
        self.stream = self._context.create_external_stream(next(self._handles))
        self._replace_launches()

    def given(self, array: Any) -> Any:
        """Returns a Numba device array on the memory of a NumPy array, with its strides."""
        from numba.cuda.cudadrv import devicearray, driver

        address = driver.binding.CUdeviceptr(array.__array_interface__["data"][0])
        pointer = driver.MemoryPointer(self._context, address, driver.host_memory_size(array), array)
        return devicearray.from_array_like(array, gpu_data=pointer)

    def why_unknown(self, error: BaseException) -> str | None:
        """Says why an error of the user's code means `CannotBeKnown`, or returns None."""
        if isinstance(error, CannotBeKnown):
            return str(error)
        # No call tells us that such memory is read, so any error can come of what a kernel did not write.
        unseen = self._launched and (self._fills_host_arrays or self._shares_memory)
        if isinstance(error, DoesNotCompile) or not unseen:
            return None
        return "kernels do not run here, and host code can read memory of its own that they fill"

    def _replace_launches(self) -> None:
        """Has dispatchers make recorded kernels; types, signatures and launch configurations stay Numba's."""
        from numba.core.errors import NumbaError
        from numba.cuda import codegen, dispatcher

        self._compile, dispatcher._Kernel = dispatcher._Kernel, self._recorded_kernel
        of = dispatcher.CUDADispatcher
        of.enable_caching = lambda _: None  # a cubin of yesterday, and a file of a kernel that is none
        codegen.CUDACodeLibrary.get_cufunc = lambda library: _Function(library)
        compile_device, call = of.compile_device, of.call

        def compiled_device_function(this: Any, args: Any, return_type: Any = None) -> Any:
            with self._compiles(this.py_func):
                return compile_device(this, args, return_type)

        def called(this: Any, args: Any, launch_config: Any) -> Any:
            try:
                return call(this, args, launch_config)
            except (TypeError, ValueError, NumbaError) as error:
                raise DoesNotCompile(_message(error, this.py_func)) from None

        of.compile_device, of.call = compiled_device_function, called
        launch_all = dispatcher.ForAll.__call__

        def launched_for_all(this: Any, *args: Any) -> Any:
            self._by_occupancy = not this.thread_per_block
            try:
                return launch_all(this, *args)
            finally:
                self._by_occupancy = False

        # Numba takes the largest block that the registers of the compiled kernel allow. These differ by
        # architecture, so the block is found when the kernel is compiled.
        dispatcher.ForAll.__call__ = launched_for_all
        dispatcher.ForAll._compute_thread_per_block = lambda this, _: this.thread_per_block or _LARGEST_BLOCK

    def _recorded_kernel(self, py_func: Any, argtypes: Any, **options: Any) -> _RecordedKernel:
        key = py_func, argtypes, tuple(sorted((name, repr(value)) for name, value in options.items()))
        return self._kernels.setdefault(key, _RecordedKernel(self, py_func, argtypes, options))

    def _launch(self, kernel: _RecordedKernel, args: Any, grid: Any, block: Any, shared_bytes: int) -> None:
        from numpy import ndarray

        self._launched = True
        # `cuda.Out(array)` and its like hold the array as their value.
        self._fills_host_arrays |= any(isinstance(getattr(arg, "value", arg), ndarray) for arg in args)
        compiled = partial(kernel.compiled, tuple(block), shared_bytes, by_occupancy=self._by_occupancy)
        self._record(Launch(kernel.name, tuple(grid), compiled))

    @contextmanager
    def _compiles(self, py_func: Any) -> Iterator[None]:
        """Tells errors of the compiler as `DoesNotCompile`, once for a kernel with all that it calls."""
        if self._compiling:
            yield
            return
        self._compiling = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what compiles; they are told on a device, too
                yield
        except Exception as error:  # Numba raises what it likes: KeyError, AssertionError, RuntimeError
            if isinstance(error, (CannotBeKnown, DoesNotCompile)):
                raise
            raise DoesNotCompile(_message(error, py_func)) from None
        finally:
            self._compiling = False

    def _driver_calls(self, binding: Any) -> dict[str, Callable[..., Any]]:
        """Returns the driver's functions that Numba calls, by name, on memory of the host."""

        def allocate(size: int, *, shared: bool = False) -> int:
            import numpy as np

            self._shares_memory |= shared
            memory = np.zeros(size, np.uint8)  # takes no memory before it is written
            address: int = memory.ctypes.data
            self._memory[address] = memory
            return address

        def copy(to: Any, source: Any, size: int, *_: Any) -> None:
            ctypes.memmove(int(to), int(source), size)

        def copy_to_host(*args: Any) -> None:
            if self._launched:
                _refuse("the contents of a device array")
            copy(*args)

        def fill(to: Any, byte: int, count: int, *_: Any) -> None:
            ctypes.memset(int(to), byte, count)

        def attribute(code: Any, _: Any) -> int:
            name = code.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
            return _ATTRIBUTE[name] if name in _ATTRIBUTE else _refuse(name)

        nothing = (
            "CtxPushCurrent CtxSynchronize EventDestroy EventQuery EventRecord EventSynchronize ProfilerStart"
            " ProfilerStop MemHostRegister MemHostUnregister StreamDestroy StreamSynchronize StreamWaitEvent"
        )
        calls: dict[str, Callable[..., Any]] = {f"cu{name}": lambda *_: None for name in nothing.split()}
        moves = {"MemcpyHtoD": copy, "MemcpyDtoH": copy_to_host, "MemcpyDtoD": copy, "MemsetD8": fill}
        for name, move in moves.items():
            calls[f"cu{name}"] = calls[f"cu{name}Async"] = move
        calls["cuMemFree"] = calls["cuMemFreeHost"] = lambda pointer: self._memory.pop(int(pointer), None)
        calls["cuCtxGetCurrent"] = calls["cuCtxPopCurrent"] = lambda: binding.CUcontext(1)
        mapped = int(binding.CU_MEMHOSTALLOC_DEVICEMAP)
        return calls | {
            "cuCtxGetDevice": lambda: 0,
            "cuDeviceGetAttribute": attribute,
            "cuDeviceGetCount": lambda: 1,
            "cuEventCreate": lambda _: next(self._handles),
            "cuEventElapsedTime": lambda *_: _refuse("the time between two events"),
            "cuMemAlloc": lambda size: binding.CUdeviceptr(allocate(size)),
            "cuMemAllocManaged": lambda size, _: binding.CUdeviceptr(allocate(size, shared=True)),
            "cuMemGetInfo": lambda: (_MEMORY_BYTES, _MEMORY_BYTES),
            "cuMemHostAlloc": lambda size, flags: allocate(size, shared=bool(flags & mapped)),
            "cuMemHostGetDevicePointer": lambda pointer, _: binding.CUdeviceptr(int(pointer)),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": _resident_blocks,
            "cuStreamCreate": lambda _: binding.CUstream(next(self._handles)),
        }


class _RecordedKernel:
    """Stands for Numba's `_Kernel`, one of given argument types. It is compiled when somebody asks."""

    objectmode = False
    entry_point = None
    launch_config_sensitive = False

    def __init__(self, device: NumbaStandIn, py_func: Any, argtypes: Any, options: dict[str, Any]) -> None:
        from numba.cuda import types, typing

        self._device = device
        self._options = options
        self._numba_kernel: Any = None
        self._compiled: dict[str, bytes | DoesNotCompile] = {}
        self.py_func = py_func
        self.argtypes = argtypes
        self.signature = typing.signature(types.void, *argtypes)
        self.name = _name(py_func)

    def bind(self) -> None:
        """Loads nothing."""

    def launch(self, args: Any, griddim: Any, blockdim: Any, _: Any = 0, sharedmem: int = 0) -> None:
        """Has the launch recorded, if the arguments fit the kernel's signature."""
        if not self._options.get("extensions"):  # they turn arguments into others
            self._check(args)
        self._device._launch(self, args, griddim, blockdim, sharedmem)

    def compiled(
        self, block: Dimensions, shared_bytes: int, architecture: str, *, by_occupancy: bool
    ) -> Compiled:
        """Compiles for an architecture, once. Globals of the kernel are read when it first compiles."""
        if architecture not in self._compiled:
            capability = _capability(architecture)
            try:
                library = self._lowered()._codelibrary
                with self._device._compiles(self.py_func):
                    self._compiled[architecture] = bytes(library.get_cubin(cc=capability).code)
            except DoesNotCompile as error:
                self._compiled[architecture] = error
        image = self._compiled[architecture]
        if isinstance(image, DoesNotCompile):
            raise DoesNotCompile(*image.args)
        entry = self._lowered().entry_name
        if by_occupancy:
            bounds = self._options.get("launch_bounds") or _LARGEST_BLOCK
            bound = bounds if isinstance(bounds, int) else bounds[0]
            block = (min(_threads(cubin.registers(image)[entry]), bound, _LARGEST_BLOCK), 1, 1)
        return Compiled(image, entry, block, shared_bytes)

    def _lowered(self) -> Any:
        """Returns Numba's kernel, which is typed and lowered to LLVM's code.

        One does for all architectures: numba-cuda 0.30.4 asks for the capability in `nvvmutils` (6.0) and
        `mathimpl` (7.5) only, and CUDA 13 begins at 7.5.
        """
        if self._numba_kernel is None:
            options = self._options | {"link": list(self._options.get("link") or ())}  # Numba adds to it
            with self._device._compiles(self.py_func):
                self._numba_kernel = self._device._compile(self.py_func, self.argtypes, **options)
        return self._numba_kernel

    def _check(self, args: Any) -> None:
        """Compares types: Numba hands to a kernel of one explicit signature whatever it is given."""
        from numba.cuda import types
        from numba.cuda.descriptor import cuda_target
        from numba.cuda.typing.typeof import Purpose, typeof

        wanted = [each for each in self.argtypes if not isinstance(each, types.Omitted)]
        given = [typeof(arg, Purpose.argument) for arg in args]
        converted = map(cuda_target.typing_context.can_convert, given, wanted)
        if len(given) != len(wanted) or None in converted:
            wants, has = (", ".join(map(str, each)) for each in (wanted, given))
            said = f"{self.name} has the signature ({wants}) and is called with ({has})"
            raise DoesNotCompile(f"{_place(_author_wrote(self.py_func))}: {said}")

    def __getattr__(self, name: str) -> Any:
        """Has Numba's kernel answer the rest, such as its PTX or registers."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._lowered(), name)


class _Function:
    """Stands for a function loaded on the device: the driver's facts of it that follow from its registers."""

    def __init__(self, library: Any) -> None:
        self.regs = cubin.registers(library.get_cubin().code)[library._entry_name]
        self.maxthreads = self.max_threads_per_block = min(_threads(self.regs), _LARGEST_BLOCK)
        self.attrs = self.attributes = self.kernel = self.handle = self

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"{name} of a kernel")


def _threads(registers: int) -> int:
    """Returns the threads that an SM has registers for. A warp gets them by 256, the four quarters alike."""
    return _ATTRIBUTE["MAX_REGISTERS_PER_MULTIPROCESSOR"] // (-(-registers // 8) * 256) // 4 * 4 * 32


def _resident_blocks(function: _Function, threads: int, _: int) -> int:
    """Returns how many blocks of a kernel a multiprocessor holds, if shared memory suffices."""
    fit = min(_threads(function.regs), _ATTRIBUTE["MAX_THREADS_PER_MULTIPROCESSOR"])
    return min(fit // (-(-threads // 32) * 32), _ATTRIBUTE["MAX_BLOCKS_PER_MULTIPROCESSOR"])


def _require_tested_libraries() -> None:
    """Raises ImportError with value, rule and remedy if what this file rests on is not there."""
    require("numba-cuda", _OLDEST, _NEXT, "code")
    from numba.cuda.core import config
    from numba.cuda.cudadrv import driver, nvrtc, nvvm

    if config.ENABLE_CUDASIM:
        raise ImportError("NUMBA_ENABLE_CUDASIM is on, and the simulator compiles nothing: unset it")
    if not driver._have_nvjitlink():
        raise ImportError(f"nvJitLink is missing, by which Numba links kernels on a device: {_REMEDY}")
    for name, loads in (("NVVM", nvvm.NVVM), ("NVRTC", nvrtc._get_nvrtc_version)):
        try:
            loads()
        except Exception as error:  # each loader has errors of its own
            raise ImportError(f"{name} does not load ({error}): {_REMEDY}") from error


def _refuse(name: str) -> NoReturn:
    raise CannotBeKnown(f"host code reads what only a device computes: {name}")


def _capability(architecture: str) -> tuple[int, int, str]:
    """Returns what Numba compiles for on such a device; ValueError if its compilers do not know it."""
    from numba.cuda.cudadrv import nvrtc

    named = {f"sm_{major}{minor}": (major, minor) for major, minor in nvrtc.get_supported_ccs()}
    if architecture not in named:
        names = ", ".join(named)
        raise ValueError(f"{architecture}: Numba compiles for {names} with the CUDA compilers installed here")
    major, minor = named[architecture]
    return major, minor, "a" if major >= 9 else ""  # as `CUDACodeLibrary._ensure_cc` says on a device


def _author_wrote(py_func: Any) -> Any:
    """Returns the function of `@vectorize` or `@guvectorize` for the kernel that Numba writes around it."""
    written = py_func.__name__.startswith(("__vectorized_", "__gufunc_"))
    return py_func.__globals__["__core__"].py_func if written else py_func


def _name(py_func: Any) -> str:
    function = _author_wrote(py_func)
    of_numba = function.__module__.startswith("numba.")  # assignment to an array's elements, `cuda.reduce`
    return f"{function.__module__}.{function.__name__}" if of_numba else str(function.__name__)


def _place(function: Any) -> str:
    return place_of(function.__code__.co_filename, function.__code__.co_firstlineno)


def _message(error: Exception, py_func: Any) -> str:
    """Returns what the compiler said first, after the user's line that it speaks of."""
    from numba.core.errors import NumbaError

    function = _author_wrote(py_func)
    text = re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"'_Z\w+'", function.__name__, str(error)))
    said = _ASSEMBLER.findall(text) or list(_told(text))
    place = _place_of(error) or _place(function)
    clear = isinstance(error, (NumbaError, TypeError, ValueError)) or _ASSEMBLER.search(text)
    return f"{place}: {function.__name__}: {'' if clear else f'{type(error).__name__}: '}{' '.join(said)}"


def _told(text: str) -> Iterator[str]:
    """Yields the lines of Numba's message, up to the candidates, source and steps that follow it."""
    for line in map(str.strip, text.splitlines()):
        if line.startswith(("There are ", "File ", "During: ", "- Of which ")):
            return
        if line and not line.startswith("Failed in cuda mode pipeline"):
            yield line


def _place_of(error: Exception) -> str | None:
    """Returns the user's line that an error is about, in the innermost function, or None.

    Where the message has none, the compiler's steps do: 0.30.4 loses it if the error's class is numba's.
    """
    import numba.cuda

    places = [(name, int(line)) for name, line in _PLACE.findall(str(error))]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    steps = [getattr(frame.f_locals.get("self"), "__dict__", {}) for frame in reversed(frames)]
    locs = [step["loc"] for step in steps if isinstance(step.get("loc"), numba.cuda.core.ir.Loc)]
    places += [(loc.filename, loc.line) for loc in locs]
    libraries = tuple(str(Path(library.__file__).parent) for library in (numba, numba.cuda))
    for name, line in places:
        path = os.path.abspath(name)  # noqa: PTH100 - Path's has no answer to Numba's ../..
        if line and Path(path).is_file() and not path.startswith(libraries):
            return place_of(path, line)
    return None
