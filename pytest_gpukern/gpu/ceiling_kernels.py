"""Measures the ceilings of the pinned device, and launches its canaries.

A ceiling is how fast the device copies or computes at best: the fastest of several samples. A disturbance
(rising clocks, another process, a memory refresh) makes a sample slower, never faster. Only the timer's error
could make it faster, and it is small: an event costs about 3 µs, a sample at least 1 ms.

A canary is a kernel that does the same work in every session. If its time changes, the machine changed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.gpu.runtime import CudaRuntime, DeviceArray, checked, cuda_source, launcher, runtime

Call = Callable[[], None]
BLOCK = 256
"""Threads a block of the FMA and copy kernels."""
CHAINS = 8
"""Independent chains of multiply-adds a thread. With eight warps a scheduler they cover ten FMA latencies."""
UNROLLED = 64
"""Links of each chain in the loop's body: 512 multiply-adds for three instructions of the loop."""
WORDS = 4
"""16-byte words that a thread of the copy kernel has in flight at once."""
_TILE = 16 * BLOCK * WORDS
"""Bytes that a block of it copies."""

_SAMPLES = 10
_SHORTEST_NS = 1e6
_WARM_UP_S = 0.2
"""Idle clocks rise within about 0.1 s of work."""

_DEVICE_COPY_BYTES = 1 << 30
_PINNED_BYTES = 64 << 20
_PAGEABLE_BYTES = 256 << 20
"""More than most processors' last-level caches, yet little for a run."""
_WAITED_SAMPLES = 4


def fma_source(c_type: str) -> str:
    """Returns the source of `gpukern_fma` for `float`, `double`, `unsigned`, `half2x`, `float2x` (sm_100)."""
    return cuda_source("fma.cu", T=c_type, BLOCK=BLOCK, CHAINS=CHAINS, UNROLLED=UNROLLED)


def copy_source() -> str:
    return cuda_source("copy.cu", BLOCK=BLOCK, WORDS=WORDS)


class NotMeasuredError(Exception):
    """A ceiling could not be measured here; the message says why."""


@dataclass(frozen=True)
class Measured:
    """The result of measuring all ceilings, or all canaries.

    Attributes:
        values: field of `measure.ceilings.Ceilings` → value, or canary → time in nanoseconds, for those that
            were measured.
        complaints: what could not be measured and why, in words.
    """

    values: Mapping[str, float]
    complaints: tuple[str, ...] = ()


def measure_ceilings() -> Measured:
    """Measures every ceiling of the pinned device, in about two seconds; nothing else may run on it."""
    cuda = runtime()
    values: dict[str, float] = {}
    complaints = []
    _fma_rate(cuda, _FMAS[0])  # compiles, during which clocks may fall again
    end = time.monotonic() + _WARM_UP_S
    while time.monotonic() < end:
        _fma_rate(cuda, _FMAS[0])
    for what, measure in (
        ("FMA rates", _fma_rates),
        ("copies within the device", _device_copy),
        ("copies of pinned memory", _pinned_copies),
        ("copies of pageable memory", _pageable_copies),
    ):
        try:
            values.update(measure(cuda))
        except (CudaError, NotMeasuredError) as error:
            complaints.append(f"the ceiling of {what} could not be measured: {error}")
    return Measured(values, tuple(complaints))


# multiply-adds


@dataclass(frozen=True)
class _Fma:
    """One kernel of multiply-adds: the figure it measures, its C type, and the dtype and lanes in that."""

    figure: str
    c_type: str
    dtype: str
    lanes: int = 1

    def runs_on(self, compute_capability: tuple[int, int]) -> bool:
        """Says whether the hardware has it: float16 since 5.3, float32 in pairs only on 10.x."""
        if self.c_type == "float2x":
            return compute_capability[0] == 10
        return compute_capability >= (5, 3) or self.c_type != "half2x"


_FMAS = (
    _Fma("float32_flop_per_s", "float", "float32"),
    _Fma("float32_flop_per_s", "float2x", "float32", lanes=2),
    _Fma("float64_flop_per_s", "double", "float64"),
    _Fma("float16_flop_per_s", "half2x", "float16", lanes=2),
    _Fma("int32_op_per_s", "unsigned", "uint32"),
)


def _fma_rates(cuda: CudaRuntime) -> dict[str, float]:
    """Returns operations a second, an FMA counted as two, of the fastest kernel for each dtype."""
    best: dict[str, float] = {}
    for fma in _FMAS:
        if fma.runs_on(tuple(cuda.device.compute_capability)):
            best[fma.figure] = max(best.get(fma.figure, 0.0), _fma_rate(cuda, fma))
    return best


def _fma_rate(cuda: CudaRuntime, fma: _Fma) -> float:
    """Fills each multiprocessor once, so that all end together."""
    kernel = cuda.kernel(fma_source(fma.c_type), "gpukern_fma")
    resident = kernel.occupancy.max_active_blocks_per_multiprocessor(BLOCK, 0)
    blocks = int(cuda.multiprocessors * resident)
    with _multiply_adds(cuda, fma, blocks) as work:
        operations = 2.0 * fma.lanes * CHAINS * UNROLLED * BLOCK * blocks
        return operations / _best_ns(cuda, work) * 1e9


@contextmanager
def _multiply_adds(cuda: CudaRuntime, fma: _Fma, blocks: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that queues so many iterations of 512 multiply-adds a thread."""
    values = fma_values(fma.dtype, fma.lanes)
    with allocated(values.nbytes) as array:
        checked("cuMemcpyHtoD", array.pointer, values.ctypes.data, values.nbytes)
        cuda.synchronize()  # the timed stream does not wait for the copy
        kernel = launcher(cuda.stream, cuda.kernel(fma_source(fma.c_type), "gpukern_fma"), blocks, BLOCK)
        yield lambda iterations: kernel(array.pointer, np.uint32(iterations))


def fma_values(dtype: str, lanes: int = 1) -> np.ndarray[Any, Any]:
    """Returns factor, addend, a sum that no thread reaches, room for it, and random starting values."""
    rng = np.random.default_rng(0)
    shape = (4 + CHAINS * BLOCK, lanes)
    if dtype == "uint32":
        values = rng.integers(0, 2**32, shape, dtype=np.uint32)
        values[:2, 0] = 1664525, 1013904223  # of a linear congruential generator (Numerical Recipes)
        return values
    values = rng.random(shape).astype(dtype)
    values[:4] = np.array([1 - 2**-10, 2**-11, np.nan, 0])[:, None]  # sums stay between 0 and 8
    return values


# copies


def _device_copy(cuda: CudaRuntime) -> dict[str, float]:
    """Returns bytes read and written a second, far beyond the L2, by a kernel or the driver's copy."""
    size = min(max(_DEVICE_COPY_BYTES, 8 * cuda.l2_bytes), cuda.free_bytes() // 4) // _TILE * _TILE
    if size < 2 * cuda.l2_bytes or not size:
        raise _too_little(cuda)
    with _copied_buffers(cuda, size) as (source, target, copy):
        by_driver = ("cuMemcpyDtoDAsync", target.pointer, source.pointer, size, cuda.stream.handle)
        fastest = math.inf
        for work in (_repeated(copy), _repeated(checked, *by_driver)):
            checked("cuMemsetD32", target.pointer, 0, size // 4)
            cuda.synchronize()
            fastest = min(fastest, _best_ns(cuda, work))
            if cuda.hash(source) != cuda.hash(target):
                raise NotMeasuredError("source and target differ after the copy")
    return {"device_copy_bytes_per_s": 2.0 * size / fastest * 1e9}


@contextmanager
def _copied_buffers(cuda: CudaRuntime, size: int) -> Iterator[tuple[DeviceArray, DeviceArray, Call]]:
    """Yields an array without a pattern, one of the same size, and the kernel's copy from it to that."""
    with allocated(size) as source, allocated(size) as target:
        fill = cuda.kernel(copy_source(), "gpukern_fill")
        cuda.launch(fill, size // 4, source.pointer, np.uint64(size // 4))
        kernel = launcher(cuda.stream, cuda.kernel(copy_source(), "gpukern_copy"), size // _TILE, BLOCK)
        yield source, target, lambda: kernel(source.pointer, target.pointer)


def _too_little(cuda: CudaRuntime) -> NotMeasuredError:
    return NotMeasuredError(f"{cuda.free_bytes() / 2**20:.0f} MiB of device memory are free, too little")


def _pinned_copies(cuda: CudaRuntime) -> dict[str, float]:
    """Returns bytes a second between page-locked host memory and the device: each way, and both at once."""
    size, other = _PINNED_BYTES, cuda.device.create_stream()
    host = int(checked("cuMemHostAlloc", 2 * size, 0))
    try:
        with allocated(size) as array, allocated(size) as source:

            def both() -> None:
                checked("cuMemcpyHtoDAsync", array.pointer, host, size, cuda.stream.handle)
                checked("cuMemcpyDtoHAsync", host + size, source.pointer, size, other.handle)

            to_device = _repeated(checked, "cuMemcpyHtoDAsync", array.pointer, host, size, cuda.stream.handle)
            to_host = _repeated(checked, "cuMemcpyDtoHAsync", host, array.pointer, size, cuda.stream.handle)
            return {
                "pinned_to_device_bytes_per_s": size / _best_ns(cuda, to_device) * 1e9,
                "device_to_pinned_bytes_per_s": size / _best_ns(cuda, to_host) * 1e9,
                "duplex_pinned_bytes_per_s": 2 * size / _waited_ns(cuda, both) * 1e9,
            }
    finally:
        checked("cuMemFreeHost", host)
        other.close()


def _pageable_copies(cuda: CudaRuntime) -> dict[str, float]:
    """Returns bytes a second between an ordinary NumPy array and the device, for each direction.

    The host's clock times it, since the driver copies through its own buffers. A copy takes milliseconds.
    """
    host = np.ones(_PAGEABLE_BYTES, np.uint8)  # written, so that its pages exist
    with allocated(host.nbytes) as array:
        to_device, to_host = (lambda: array.upload(host)), (lambda: array.download(host))
        return {
            "pageable_to_device_bytes_per_s": host.nbytes / _waited_ns(cuda, to_device) * 1e9,
            "device_to_pageable_bytes_per_s": host.nbytes / _waited_ns(cuda, to_host) * 1e9,
        }


def _waited_ns(cuda: CudaRuntime, copy: Callable[[], object]) -> float:
    """Returns the shortest time by the host's clock until copies of milliseconds are done."""
    times = []
    for _ in range(1 + _WAITED_SAMPLES):
        cuda.synchronize()
        start = time.perf_counter_ns()
        copy()
        cuda.synchronize()
        times.append(time.perf_counter_ns() - start)
    return float(min(times[1:]))  # the first allocates the driver's buffers


# timing


def _repeated(call: Callable[..., object], *arguments: object) -> Callable[[int], None]:
    def work(times: int) -> None:
        for _ in range(times):
            call(*arguments)

    return work


def _best_ns(cuda: CudaRuntime, work: Callable[[int], None]) -> float:
    """Returns the shortest time of one unit of work, in samples of at least a millisecond."""
    amount = 1
    work(amount)  # loads the kernel
    cuda.synchronize()
    while (shortest := min(_samples_ns(cuda, work, amount))) < _SHORTEST_NS:
        amount = math.ceil(amount * min(1000.0, max(2.0, 1.5 * _SHORTEST_NS / max(shortest, 1.0))))
    return shortest / amount


def _samples_ns(cuda: CudaRuntime, work: Callable[[int], None], amount: int) -> list[float]:
    """Returns times of equal pieces of work, queued behind another one so that the device never waits."""
    events = _events(cuda, _SAMPLES + 1)
    for event in events:
        work(amount)
        cuda.stream.record(event)
    events[-1].sync()
    return [float((end - start) * 1e6) for start, end in itertools.pairwise(events)]


def _events(cuda: CudaRuntime, count: int) -> list[Any]:
    from cuda.core import EventOptions

    options = EventOptions(timing_enabled=True)
    return [cuda.device.create_event(options) for _ in range(count)]


@contextmanager
def allocated(nbytes: int) -> Iterator[DeviceArray]:
    array = DeviceArray((nbytes,), "uint8")
    try:
        yield array
    finally:
        array.free()


_COPY_BYTES = 256 << 20
_L2_SIZES = 4
"""Minimum size of a copy in L2 sizes, so that nothing of it is left in the L2 for the next."""
_FMA_ITERATIONS = 48
"""Iterations of 512 multiply-adds a thread: 200 µs with 128 lanes a multiprocessor at 1.98 GHz."""


@contextmanager
def _copy(cuda: CudaRuntime) -> Iterator[Call]:
    size = max(_COPY_BYTES, _L2_SIZES * cuda.l2_bytes) // _TILE * _TILE
    if cuda.free_bytes() < 2 * size:
        cuda.forget_copies()
    if cuda.free_bytes() < 2 * size:
        raise _too_little(cuda)
    with _copied_buffers(cuda, size) as (_, target, copy):
        checked("cuMemsetD32", target.pointer, 0, size // 4)
        cuda.synchronize()
        yield copy


@contextmanager
def _fma(cuda: CudaRuntime) -> Iterator[Call]:
    with _multiply_adds(cuda, _FMAS[0], cuda.resident_threads // BLOCK) as work:
        yield lambda: work(_FMA_ITERATIONS)


def _empty(cuda: CudaRuntime) -> Call:
    return launcher(cuda.stream, cuda.kernel(cuda_source("launch.cu"), "gpukern_empty"), 1, 1)


CANARIES: Mapping[str, Callable[[CudaRuntime], AbstractContextManager[Call]]] = {
    "fma": _fma,
    "copy": _copy,
    "launch": lambda cuda: nullcontext(_empty(cuda)),
}
"""Name → context manager that yields its call and frees its memory. FMAs come first: they raise clocks."""
