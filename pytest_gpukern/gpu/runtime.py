"""Holds the CUDA layer under every GPU library: one primary context, one stream, our own kernels.

All libraries read its arrays through `__cuda_array_interface__` (version 3), so a case's inputs exist only
once.
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gpukern.arrays.memory import GUARD_BYTES, Damage, Placed, Placement
from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.values.options import sanitizing_tool

_BLOCK = 256


def checked(call: str, *arguments: Any) -> Any:
    """Calls `call` of the CUDA driver API and returns its results without the status.

    Raises:
        CudaError: the status is not success.
    """
    from cuda.bindings import driver

    status, *values = getattr(driver, call)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{call}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def cuda_source(file: str, **defines: object) -> str:
    """Returns the CUDA C++ of a file in `gpu/kernels`, with a `#define` for each keyword argument."""
    lines = [f"#define {name} {value}\n" for name, value in defines.items()]
    return "".join(lines) + (Path(__file__).parent / "kernels" / file).read_text(encoding="utf-8")


def launcher(stream: Any, kernel: Any, grid: int, block: int) -> Callable[..., None]:
    """Returns a function that queues `kernel` on a cuda.core stream with the arguments it is called with."""
    from cuda.core import LaunchConfig, launch

    return functools.partial(launch, stream, LaunchConfig(grid=grid, block=block), kernel)


def fill_memory(pointer: int, nbytes: int, word: int, stream: Any = None) -> None:
    """Fills device memory that begins at a multiple of four; on a cuda.core stream it is only queued."""
    sync, queue = ("", ()) if stream is None else ("Async", (int(stream.handle),))
    if nbytes // 4:
        checked(f"cuMemsetD32{sync}", pointer, word, nbytes // 4, *queue)
    for offset in range(nbytes // 4 * 4, nbytes):  # at most three bytes, least significant first
        checked(f"cuMemsetD8{sync}", pointer + offset, word >> 8 * (offset % 4) & 0xFF, 1, *queue)


class DeviceArray:
    """An array in device memory, visible to every library, in C order unless `placement` says otherwise.

    The word `guard` fills guard zones around it; None for no zones. Under a sanitizer, which sees only
    accesses beyond an allocation, there are none either.

    Attributes:
        pointer: device address.
        nbytes: size of the contents.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        guard: int | None = None,
        placement: Placement = Placement(),  # noqa: B008 - it cannot change
    ) -> None:
        self.shape = tuple(int(length) for length in shape)
        self.dtype = np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        zone_bytes = 0 if guard is None or sanitizing_tool() is not None else GUARD_BYTES
        self._placed = Placed(self.shape, self.dtype, placement, guard or 0, zone_bytes)
        self.allocated_bytes = max(1, self._placed.nbytes)
        self._allocation = int(checked("cuMemAlloc", self.allocated_bytes))
        self.pointer = self._allocation + self._placed.start
        for start, pattern in self._placed.zones():
            if pattern.size:
                checked("cuMemcpyHtoD", self._allocation + start, pattern.ctypes.data, pattern.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": self._placed.strides if self._placed.placement.step > 1 else None,
            "version": 3,
        }

    def free(self) -> None:
        """Gives the memory back; a second call does nothing."""
        if self.pointer:
            checked("cuMemFree", self._allocation)
            self.pointer = self._allocation = 0

    def damage(self, name: str) -> list[Damage]:
        """Returns the damage to the guard zones of array `name`; the device must be idle."""
        return self._placed.damage(name, self._bytes)

    def _bytes(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        host = np.empty(stop - start, np.uint8)
        if host.size:
            checked("cuMemcpyDtoH", host.ctypes.data, self._allocation + start, host.nbytes)
        return host

    def upload(self, host: np.ndarray[Any, Any]) -> None:
        """Copies from pageable host memory; call `synchronize` before a launch, as the copy may still run."""
        source = np.ascontiguousarray(host, dtype=self.dtype)
        if self.nbytes:
            checked("cuMemcpyHtoD", self.pointer, source.ctypes.data, self.nbytes)

    def copy_from(self, other: DeviceArray, stream: Any = None) -> None:
        """Queues a copy of an array of the same size, on a cuda.core stream or the default one."""
        if self.nbytes and stream is None:
            checked("cuMemcpyDtoD", self.pointer, other.pointer, self.nbytes)
        elif self.nbytes:
            checked("cuMemcpyDtoDAsync", self.pointer, other.pointer, self.nbytes, int(stream.handle))

    def fill(self, word: int, stream: Any = None) -> None:
        """Fills the contents with a word again and again; on a cuda.core stream it is only queued."""
        fill_memory(self.pointer, self.nbytes, word, stream)

    def download(self, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies to pageable host memory and waits."""
        host = np.empty(self.shape, self.dtype) if into is None else into
        if self.nbytes:
            checked("cuMemcpyDtoH", host.ctypes.data, self.pointer, self.nbytes)
        return host


class CudaRuntime:
    """The primary context of the pinned device, its timed stream and the plugin's own kernels.

    Attributes:
        device: cuda.core's device, ordinal 0 after pinning.
        context: the driver's handle of the primary context.
        stream: the non-blocking stream for variants' launches and our events.
    """

    def __init__(self) -> None:
        from cuda.core import Device

        self.device = Device(0)
        self.device.set_current()
        self.context = checked("cuCtxGetCurrent")
        self._context_id = int(checked("cuCtxGetId", self.context))
        self.stream = self.device.create_stream()  # it does not wait for copies on the legacy default stream
        self._flush_buffer: DeviceArray | None = None
        self._copies: dict[int, tuple[weakref.ref[Any], DeviceArray]] = {}

    @functools.cached_property
    def l2_bytes(self) -> int:
        return int(self.device.properties.l2_cache_size)

    @functools.cached_property
    def multiprocessors(self) -> int:
        return int(self.device.properties.multiprocessor_count)

    @functools.cached_property
    def resident_threads(self) -> int:
        return self.multiprocessors * int(self.device.properties.max_threads_per_multiprocessor)

    @functools.cache  # noqa: B019 - one runtime lives as long as the process
    def kernel(self, source: str, name: str) -> Any:
        """Returns the kernel `name` of `source`, compiled on first use."""
        return self._compiled(source).get_kernel(name)

    @functools.cache  # noqa: B019 - as above
    def _compiled(self, source: str) -> Any:
        from cuda.core import Program, ProgramOptions

        options = ProgramOptions(arch=f"sm_{self.device.arch}", std="c++17")
        return Program(source, "c++", options).compile("cubin")

    def launch(self, kernel: Any, threads: int, *arguments: Any, stream: Any = None) -> None:
        """Launches a grid-stride kernel for `threads` elements on `stream`, by default the timed one."""
        blocks = max(1, min(-(-threads // _BLOCK), 4 * self.resident_threads // _BLOCK))
        launcher(stream or self.stream, kernel, blocks, _BLOCK)(*arguments)

    @functools.cached_property
    def _aside(self) -> Any:
        """A stream that no other stream waits for."""
        return self.device.create_stream()

    def occupy(self, ns: float) -> None:
        """Occupies every thread of the device for `ns` nanoseconds: kernels have to wait, copies do not."""
        kernel = self.kernel(cuda_source("launch.cu"), "gpukern_wait")
        launcher(self._aside, kernel, self.resident_threads // _BLOCK, _BLOCK)(np.uint64(ns))

    def synchronize(self) -> None:
        """Waits for all work in the context, on every stream."""
        self.device.sync()

    def free_bytes(self) -> int:
        return int(checked("cuMemGetInfo")[0])

    def flush_l2(self, stream: Any = None) -> None:
        """Queues a read of twice the L2: dirty lines of a memset would be written back in the timed call."""
        if self._flush_buffer is None:
            self._flush_buffer = DeviceArray((2 * self.l2_bytes // 16 + 2, 16), np.uint8)
            self._flush_buffer.fill(0)
        count = self._flush_buffer.nbytes // 16 - 1  # the last 16 bytes are the sink
        kernel = self.kernel(cuda_source("timing.cu"), "gpukern_flush")
        pointer = self._flush_buffer.pointer
        self.launch(kernel, count, pointer, np.uint64(count), pointer + 16 * count, stream=stream)

    def reset_persisting_l2(self) -> None:
        """Frees the part of the L2 that an access-policy window may have reserved; memsets do not free it."""
        from cuda.bindings import driver

        checked("cuCtxResetPersistingL2Cache")
        checked("cuCtxSetLimit", driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)

    def copy_of(self, host: np.ndarray[Any, Any]) -> DeviceArray:
        """Returns a device copy of an input or reference; all variants share it and none may change it.

        We keep a copy while its array lives and all copies take at most a quarter of the memory. Copies of
        dead arrays are freed before another one is made. Several are asked for around each checked launch,
        so finding one does not go through some 700 of a problem's corners: 0.4 instead of 127 µs.
        """
        held = self._copies.get(id(host))
        if held is None or held[0]() is not host:  # an array that is gone may have had this id
            self.forget_dead_copies()
            _, total_bytes = checked("cuMemGetInfo")
            copies = self._copies
            while (
                copies and sum(c.allocated_bytes for _, c in copies.values()) + host.nbytes > total_bytes / 4
            ):
                copies.pop(next(iter(copies)))[1].free()
            copy = DeviceArray(host.shape, host.dtype)
            copy.upload(host)
            held = weakref.ref(host), copy
        self._copies.pop(id(host), None)
        self._copies[id(host)] = held  # the one last used comes last
        return held[1]

    def forget_dead_copies(self) -> None:
        """Frees the copies of inputs and references that no longer exist."""
        for number, (reference, copy) in list(self._copies.items()):
            if reference() is None:
                copy.free()
                del self._copies[number]

    def forget_copies(self) -> None:
        while self._copies:
            self._copies.popitem()[1][1].free()

    @functools.cached_property
    def _hash(self) -> DeviceArray:
        """Memory in which a hash is summed: a case takes over 100 hashes, most quicker than an allocation."""
        return DeviceArray((1,), np.uint64)

    @functools.cached_property
    def figures(self) -> DeviceArray:
        """Memory in which a comparison counts; to allocate it each time took 1 s of the suites on an H200."""
        return DeviceArray((11,), np.uint64)

    def hash(self, array: DeviceArray) -> int:
        """Returns a 64-bit hash of the contents, computed on the device."""
        return self.hash_at(array.pointer, array.nbytes)

    def hash_at(self, pointer: int, nbytes: int) -> int:
        """Returns a 64-bit hash of memory from an address divisible by four; the same in every process."""
        self.synchronize()  # the timed stream does not wait for others
        total, whole = self._hash, nbytes // 4
        total.fill(0, self.stream)
        kernel = self.kernel(cuda_source("hash.cu"), "gpukern_hash")
        self.launch(kernel, whole, pointer, np.uint64(whole), total.pointer)
        self.synchronize()
        rest = nbytes - 4 * whole
        tail = np.zeros(rest, np.uint8)
        if rest:
            checked("cuMemcpyDtoH", tail.ctypes.data, pointer + 4 * whole, rest)
        return int(total.download()[0]) ^ int.from_bytes(tail.tobytes(), "little")


@functools.cache
def runtime() -> CudaRuntime:
    """Returns the one runtime of this process, made on first use, after the device was pinned."""
    return CudaRuntime()


def context_fault() -> str | None:
    """Returns CUDA's name of the error that made this thread's context unusable, or None.

    Waits for all work in the context, to catch errors of asynchronous launches. Such an error is permanent,
    so only another process goes on: after a reset of the primary context, Numba fails with error 709.
    """
    from cuda.bindings import driver

    if not current_context():
        return None  # this process has not used the device
    (status,) = driver.cuCtxSynchronize()
    closed = (driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED, driver.CUresult.CUDA_ERROR_INVALID_CONTEXT)
    fine = status == driver.CUresult.CUDA_SUCCESS or status in closed  # `context_change` reports that
    return None if fine else str(status.name)


def context_change(*, another_may_stay: bool) -> str | None:
    """Says why this process cannot go on in its first primary context, or returns None.

    `numba.cuda.close()` leaves a new one without our stream; a test may leave its own context current.
    """
    ours, closed = runtime_in_use(), "the primary context was closed"
    if ours is None:
        return None
    try:
        if not current_context():  # set ours again
            checked("cuCtxSetCurrent", ours.context)
        if int(checked("cuCtxGetCurrent")) != int(ours.context):
            return None if another_may_stay else "it left another context current"
        # A newer context may have the address of one that was closed, but never its number.
        return closed if int(checked("cuCtxGetId", ours.context)) != ours._context_id else None
    except CudaError:
        return closed


def current_context() -> int:
    """Returns the address of this thread's CUDA context; 0 if there is none or CUDA was never used."""
    from cuda.bindings import driver

    status, context = driver.cuCtxGetCurrent()
    return int(context) if status == driver.CUresult.CUDA_SUCCESS else 0


def in_own_context() -> bool:
    """Says whether this thread works in a test's own CUDA context, where nothing of ours can run."""
    ours = runtime_in_use()
    return ours is not None and current_context() not in (0, int(ours.context))


@contextmanager
def at_home() -> Iterator[None]:
    """Makes our context current while entered, also if a test works in its own."""
    if not in_own_context():
        yield
        return
    checked("cuCtxPushCurrent", runtime().context)
    try:
        yield
    finally:
        checked("cuCtxPopCurrent")


def runtime_in_use() -> CudaRuntime | None:
    return runtime() if runtime.cache_info().currsize else None
