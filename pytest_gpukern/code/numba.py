"""Stands in for the device in Numba, so that kernels are compiled and not executed, without GPU and driver.

Numba's own code runs down to its calls of the driver, which end in memory of the host. All that rests on internals
of numba-cuda is here, and was tried with 0.30.4, numba 0.68.1 and CUDA's wheels 13.5.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pytest_gpukern.code.launches import CannotBeKnown, Compiled, Dimensions, DoesNotCompile, Launch
from pytest_gpukern.gpu import cubin

_OLDEST, _NEXT = "0.30.4", "0.31"
"""The versions of numba-cuda that the extra `code` allows."""
_REMEDY = "pip install 'pytest-gpukern[code]'"

# Host code gets the answers of an H200: a loop over SMs or a limit of shared memory should take its usual way.
_CAPABILITY = (9, 0)
_MEMORY_BYTES = 141 * 10**9
_REGISTERS_PER_SM = 65536
_THREADS_PER_SM = 2048
_BLOCKS_PER_SM = 32
_MULTIPROCESSORS = 132
_LARGEST_BLOCK = 1024
_ATTRIBUTES = {
    "ASYNC_ENGINE_COUNT": 3,
    "CAN_MAP_HOST_MEMORY": 1,
    "CLOCK_RATE": 1_980_000,
    "COMPUTE_CAPABILITY_MAJOR": _CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": _CAPABILITY[1],
    "CONCURRENT_KERNELS": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "INTEGRATED": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "L2_CACHE_SIZE": 60 << 20,
    "MANAGED_MEMORY": 1,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": _BLOCKS_PER_SM,
    "MAX_BLOCK_DIM_X": _LARGEST_BLOCK,
    "MAX_BLOCK_DIM_Y": _LARGEST_BLOCK,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_REGISTERS_PER_BLOCK": _REGISTERS_PER_SM,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": _REGISTERS_PER_SM,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
    "MAX_THREADS_PER_BLOCK": _LARGEST_BLOCK,
    "MAX_THREADS_PER_MULTIPROCESSOR": _THREADS_PER_SM,
    "MEMORY_CLOCK_RATE": 3_201_000,
    "MULTIPROCESSOR_COUNT": _MULTIPROCESSORS,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
    "PCI_DOMAIN_ID": 0,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "TCC_DRIVER": 0,
    "TOTAL_CONSTANT_MEMORY": 64 << 10,
    "UNIFIED_ADDRESSING": 1,
    "WARP_SIZE": 32,
}

_UFUNC = re.compile(r"__(?:vectorized|gufunc)_(\w+)")
"""Name of the kernel that Numba writes around a function of `@vectorize` or `@guvectorize`."""
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
        self._device: Any = None
        self._record: Callable[[Launch], None] = lambda launch: None
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
            ImportError: numba-cuda or a wheel of CUDA is missing or of another version, or the simulator is on.
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
        driver._to_core_stream = partial(_to_core_stream, driver)

        device = driver.Device.__new__(driver.Device)
        device.id, device.name, device.uuid = 0, "NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000000"
        device.compute_capability = _CAPABILITY
        calls.devices[0] = self._device = device
        device.primary_context = self._context = driver.Context(
            calls.get_device(0), driver.binding.CUcontext(1)
        )
        self._context.prepare_for_use()
        runtime = devices._runtime
        runtime.get_or_create_context = lambda number: self._context
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
        # Reading such memory is no call that we see, so any error of the test can come of what a kernel left out.
        seen = self._launched and (self._fills_host_arrays or self._shares_memory)
        if isinstance(error, DoesNotCompile) or not seen:
            return None
        return "kernels do not run here, and the test can read memory of the host that they fill"

    def _replace_launches(self) -> None:
        """Has dispatchers make recorded kernels; what stays Numba's: types, signatures, launch configurations."""
        from numba.core.errors import NumbaError
        from numba.cuda import dispatcher

        self._compile, dispatcher._Kernel = dispatcher._Kernel, self._recorded_kernel
        of = dispatcher.CUDADispatcher
        of.enable_caching = lambda this: None  # a cubin of yesterday, and a file of a kernel that is none
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

        # Numba takes the largest block that the registers of the compiled kernel allow. Which one that is differs by
        # architecture, so it is found when the kernel is compiled.
        dispatcher.ForAll.__call__ = launched_for_all
        dispatcher.ForAll._compute_thread_per_block = lambda this, _: this.thread_per_block or _LARGEST_BLOCK

    def _recorded_kernel(self, py_func: Any, argtypes: Any, **options: Any) -> _RecordedKernel:
        if options.get("device"):
            raise RuntimeError("Cannot compile a device function as a kernel")
        key = py_func, argtypes, tuple(sorted((name, repr(value)) for name, value in options.items()))
        return self._kernels.setdefault(key, _RecordedKernel(self, py_func, argtypes, options))

    def launched(self, kernel: _RecordedKernel, args: Any, grid: Any, block: Any, shared_bytes: int) -> None:
        """Records a launch of a kernel."""
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

        def ignore(*args: Any) -> None:
            pass

        def allocate(size: int, *flags: Any) -> int:
            import numpy as np

            memory = np.zeros(size, np.uint8)  # takes no memory before it is written
            address: int = memory.ctypes.data
            self._memory[address] = memory
            return address

        def free(pointer: Any) -> None:
            self._memory.pop(int(pointer), None)

        def copy(to: Any, source: Any, size: int, stream: Any = 0) -> None:
            ctypes.memmove(int(to), int(source), size)

        def copy_to_host(to: Any, source: Any, size: int, stream: Any = 0) -> None:
            if self._launched:
                raise CannotBeKnown(
                    "the test reads what only a device computes: the contents of a device array"
                )
            copy(to, source, size)

        def fill(to: Any, byte: int, count: int, stream: Any = 0) -> None:
            ctypes.memset(int(to), byte, count)

        def attribute(code: Any, device: int) -> int:
            name = code.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
            if name not in _ATTRIBUTES:
                raise CannotBeKnown(f"the test reads what only a device knows: {name}")
            return _ATTRIBUTES[name]

        def elapsed(start: Any, end: Any) -> NoReturn:
            raise CannotBeKnown("the test reads what only a device measures: the time between two events")

        def shared_allocation(size: int, *flags: Any) -> int:
            self._shares_memory = True
            return allocate(size)

        def resident_blocks(function: _RecordedKernel, threads: int, shared_bytes: int) -> int:
            warps = -(-threads // 32)
            fit = _warps_of_registers(function.attrs.regs) // warps
            return min(fit, _THREADS_PER_SM // (warps * 32), _BLOCKS_PER_SM)

        nothing = "CtxPushCurrent CtxSynchronize EventDestroy EventQuery EventRecord EventSynchronize MemHostRegister"
        nothing += (
            " MemHostUnregister ProfilerStart ProfilerStop StreamDestroy StreamSynchronize StreamWaitEvent"
        )
        calls: dict[str, Callable[..., Any]] = {f"cu{name}": ignore for name in nothing.split()}
        for name, function in (("HtoD", copy), ("DtoH", copy_to_host), ("DtoD", copy)):
            calls[f"cuMemcpy{name}"] = calls[f"cuMemcpy{name}Async"] = function
        return calls | {
            "cuCtxGetCurrent": lambda: binding.CUcontext(1),
            "cuCtxGetDevice": lambda: 0,
            "cuCtxPopCurrent": lambda: binding.CUcontext(1),
            "cuDeviceGetAttribute": attribute,
            "cuDeviceGetCount": lambda: 1,
            "cuDriverGetVersion": lambda: 13000,
            "cuEventCreate": lambda flags: next(self._handles),
            "cuEventElapsedTime": elapsed,
            "cuMemAlloc": lambda size: binding.CUdeviceptr(allocate(size)),
            "cuMemAllocManaged": lambda size, flags: binding.CUdeviceptr(shared_allocation(size)),
            "cuMemFree": free,
            "cuMemFreeHost": free,
            "cuMemGetInfo": lambda: (_MEMORY_BYTES, _MEMORY_BYTES),
            "cuMemHostAlloc": lambda size, flags: shared_allocation(size) if flags & 2 else allocate(size),
            "cuMemHostGetDevicePointer": lambda pointer, flags: binding.CUdeviceptr(int(pointer)),
            "cuMemsetD8": fill,
            "cuMemsetD8Async": fill,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": resident_blocks,
            "cuStreamCreate": lambda flags: binding.CUstream(next(self._handles)),
        }


class _RecordedKernel:
    """Stands for a kernel with its argument types, as Numba's `_Kernel` does; compiles it when somebody asks.

    It is its own code library and function, too: host code asks those for registers and block sizes.
    """

    objectmode = False
    entry_point = None
    launch_config_sensitive = False

    def __init__(self, device: NumbaStandIn, py_func: Any, argtypes: Any, options: dict[str, Any]) -> None:
        from numba.cuda import types, typing

        self._device = device
        self._options = options
        self._numba_kernel: Any = None
        self._images: dict[str, bytes | DoesNotCompile] = {}
        self.py_func = py_func
        self.argtypes = argtypes
        self.signature = typing.signature(types.void, *argtypes)
        self.name = _name(py_func)

    def bind(self) -> None:
        """Loads nothing."""

    def launch(self, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> None:
        """Has the launch recorded, if the arguments fit the kernel's signature."""
        if not self._options.get("extensions"):  # they turn arguments into others
            self._check(args)
        self._device.launched(self, args, griddim, blockdim, sharedmem)

    def compiled(
        self, block: Dimensions, shared_bytes: int, architecture: str, *, by_occupancy: bool
    ) -> Compiled:
        """Compiles for an architecture, once. Globals of the kernel are read when it first compiles."""
        image = self._images.get(architecture)
        if image is None:
            try:
                image = self._image(architecture)
            except DoesNotCompile as error:
                image = error
            self._images[architecture] = image
        if isinstance(image, DoesNotCompile):
            raise DoesNotCompile(*image.args)
        entry = self._lowered().entry_name
        if by_occupancy:
            block = (self._largest_block(cubin.registers(image)[entry]), 1, 1)
        return Compiled(image, entry, block, shared_bytes)

    def _lowered(self) -> Any:
        """Returns Numba's kernel, which is typed and lowered to LLVM's code.

        One does for all architectures: numba-cuda 0.30.4 asks for the capability in `nvvmutils` (6.0) and `mathimpl`
        (7.5) only, and CUDA 13 begins at 7.5.
        """
        if self._numba_kernel is None:
            options = self._options | {"link": list(self._options.get("link") or ())}  # Numba adds to it
            with self._device._compiles(self.py_func):
                self._numba_kernel = self._device._compile(self.py_func, self.argtypes, **options)
        return self._numba_kernel

    def _image(self, architecture: str) -> bytes:
        capability = _capability(architecture)
        library = self._lowered()._codelibrary
        with self._device._compiles(self.py_func):
            return bytes(library.get_cubin(cc=capability).code)

    def _check(self, args: Any) -> None:
        """Numba passes what it is given to a kernel of one explicit signature: bits of other types."""
        from numba.cuda import types
        from numba.cuda.descriptor import cuda_target
        from numba.cuda.typing.typeof import Purpose, typeof

        wanted = [each for each in self.argtypes if not isinstance(each, types.Omitted)]
        given = [typeof(arg, Purpose.argument) for arg in args]
        convert = cuda_target.typing_context.can_convert
        if len(given) != len(wanted) or any(
            convert(has, wants) is None for has, wants in zip(given, wanted, strict=True)
        ):
            raise DoesNotCompile(
                f"{_place(_author_wrote(self.py_func))}: {self.name} has the signature ({_listed(wanted)}) "
                f"and is called with ({_listed(given)})"
            )

    def _largest_block(self, registers: int) -> int:
        bounds = self._options.get("launch_bounds") or _LARGEST_BLOCK
        bound = bounds if isinstance(bounds, int) else bounds[0]
        return min(_warps_of_registers(registers) * 32, bound, _LARGEST_BLOCK)

    @property
    def _codelibrary(self) -> _RecordedKernel:
        return self

    def get_cufunc(self) -> _RecordedKernel:
        """Returns the loaded function."""
        return self

    handle = kernel = attributes = property(get_cufunc)

    @property
    def attrs(self) -> Any:
        """The driver's facts of the function, as far as they follow from registers."""
        image = self.compiled((1, 1, 1), 0, "sm_90", by_occupancy=False)
        regs = cubin.registers(image.image)[image.entry]
        return SimpleNamespace(regs=regs, maxthreads=self._largest_block(regs))

    @property
    def regs_per_thread(self) -> int:
        """Registers of a thread."""
        return int(self.attrs.regs)

    @property
    def max_threads_per_block(self) -> int:
        """Threads of the largest block that can be launched."""
        return int(self.attrs.maxthreads)

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Returns how many blocks the device holds at once."""
        threads = math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim
        return (
            int(self._device._context.get_active_blocks_per_multiprocessor(self, threads, dynsmemsize))
            * _MULTIPROCESSORS
        )

    def __getattr__(self, name: str) -> Any:
        """What is asked of Numba's kernel beyond this, such as its PTX."""
        if name.startswith("__") or name in (
            "shared_mem_per_block",
            "local_mem_per_thread",
            "const_mem_size",
        ):
            raise CannotBeKnown(f"the test reads what only a device knows: {name} of a kernel")
        return getattr(self._lowered(), name)


def _require_tested_libraries() -> None:
    """Raises ImportError with value, rule and remedy if what this file rests on is not there."""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.version import Version

    try:
        installed = version("numba-cuda")
    except PackageNotFoundError:
        raise ImportError(f"numba-cuda is not installed: {_REMEDY}") from None
    if not Version(_OLDEST) <= Version(installed) < Version(_NEXT):
        raise ImportError(f"numba-cuda {installed}: machine code needs >={_OLDEST},<{_NEXT}: {_REMEDY}")
    from numba.cuda.core import config
    from numba.cuda.cudadrv import driver, nvrtc, nvvm

    if config.ENABLE_CUDASIM:
        raise ImportError(
            "NUMBA_ENABLE_CUDASIM is on: the simulator has no compiler; start this process without it"
        )
    if not driver._have_nvjitlink():
        raise ImportError(f"nvJitLink is missing, by which Numba links kernels on a device: {_REMEDY}")
    for name, loads in (("NVVM", nvvm.NVVM), ("NVRTC", nvrtc._get_nvrtc_version)):
        try:
            loads()
        except Exception as error:  # each loader has errors of its own
            raise ImportError(f"{name} does not load ({error}): {_REMEDY}") from error


def _refuse(name: str) -> NoReturn:
    raise CannotBeKnown(f"the test asks the driver for what only a device does: {name}")


def _to_core_stream(driver: Any, stream: Any) -> Any:
    """Stands for the conversion of a launch's stream to one of `cuda.core`, which needs a context."""
    if stream and not isinstance(stream, (driver.Stream, driver.ExperimentalStream)):
        raise TypeError(f"Expected a Stream object, ExperimentalStream or 0, got {type(stream).__name__}")
    return stream or driver.Stream(driver.binding.CUstream(0))


def _capability(architecture: str) -> tuple[int, int, str]:
    """Returns the capability that Numba compiles for on a device of an architecture such as `sm_90`.

    Raises:
        ValueError: the compilers do not know it.
    """
    from numba.cuda.cudadrv import nvrtc

    known = nvrtc.get_supported_ccs()
    digits = re.fullmatch(r"sm_(\d+)(\d)[af]?", architecture)
    capability = (int(digits[1]), int(digits[2])) if digits else None
    if capability not in known:
        names = ", ".join(f"sm_{major}{minor}" for major, minor in known)
        raise ValueError(f"{architecture}: Numba compiles for {names} with the CUDA compilers installed here")
    # As `CUDACodeLibrary._ensure_cc` does on a device.
    return (*capability, "a" if capability >= (9, 0) else "")


def _warps_of_registers(registers: int) -> int:
    """Returns how many warps the registers of an SM hold: by 256 for a warp, in fours, one for each quarter of it."""
    return _REGISTERS_PER_SM // (-(-registers * 32 // 256) * 256) // 4 * 4


def _author_wrote(py_func: Any) -> Any:
    """Returns the function of `@vectorize` or `@guvectorize` for the kernel that Numba writes around it."""
    core = py_func.__globals__.get("__core__")
    return core.py_func if core is not None and _UFUNC.fullmatch(py_func.__name__) else py_func


def _name(py_func: Any) -> str:
    function = _author_wrote(py_func)
    of_numba = function.__module__.startswith("numba.")  # assignment to an array's elements, `cuda.reduce`
    return f"{function.__module__}.{function.__name__}" if of_numba else str(function.__name__)


def _listed(types: Any) -> str:
    return ", ".join(map(str, types))


def _place(function: Any) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _message(error: Exception, py_func: Any) -> str:
    """Returns what the compiler said first, after the user's line that it speaks of."""
    from numba.core.errors import NumbaError

    function = _author_wrote(py_func)
    text = re.sub(r"'_Z\w+'", function.__name__, str(error))
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
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
    """Returns the user's line that an error is about, or None.

    Messages of an inner function come first. Where Numba names no line, the steps of its compiler hold it as `loc`:
    0.30.4 loses it if an error is one of numba's classes instead of its own.
    """
    places = [(name, int(line)) for name, line in _PLACE.findall(str(error))]
    places += [
        (loc.filename, loc.line)
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__)))
        if hasattr(loc := getattr(frame.f_locals.get("self"), "__dict__", {}).get("loc"), "filename")
    ]
    for name, line in places:
        path = Path(name).absolute()
        if line and path.is_file() and not {"numba", "numba_cuda"} & set(path.parts):
            return f"{os.path.normpath(path)}:{line}"
    return None
