"""Canaries: kernels whose work is the same in every session; a change of their time is the machine's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpukern.gpu import ceiling_source
from pytest_gpukern.gpu.ceiling_kernels import NotMeasuredError, allocated, fma_values, launcher
from pytest_gpukern.gpu.ceiling_source import BLOCK, WORDS
from pytest_gpukern.gpu.runtime import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpukern.gpu.runtime import CudaRuntime

    Call = Callable[[], None]

COPY, FMA, LAUNCH = "copy", "fma", "launch"

_COPY_BYTES = 256 << 20
_PAST_THE_L2 = 4
"""So many times the L2 at least: nothing of a copy is left in it for the next."""
_FMA_ITERATIONS = 48
"""Of 512 multiply-adds a thread: 200 µs where all threads of a multiprocessor share 128 lanes at 1.98 GHz."""


@contextmanager
def _copy(cuda: CudaRuntime) -> Iterator[Call]:
    """Copies memory far past the L2, on the device."""
    import numpy as np

    tile = 16 * BLOCK * WORDS
    size = max(_COPY_BYTES, _PAST_THE_L2 * cuda.l2_bytes) // tile * tile
    if cuda.free_bytes() < 2 * size:
        cuda.forget_copies()
    if cuda.free_bytes() < 2 * size:
        raise NotMeasuredError(f"{cuda.free_bytes() / 2**20:.0f} MiB of device memory are free, too few")
    with allocated(size) as source, allocated(size) as target:
        fill = cuda.kernel(ceiling_source.FILL, "gpukern_fill")
        cuda.launch(fill, size // 4, source.pointer, np.uint64(size // 4))
        checked("cuMemsetD32", target.pointer, 0, size // 4)
        cuda.synchronize()
        copy = launcher(cuda, cuda.kernel(ceiling_source.COPY, "gpukern_copy"), size // tile, BLOCK)
        yield lambda: copy(source.pointer, target.pointer)


@contextmanager
def _fma(cuda: CudaRuntime) -> Iterator[Call]:
    """Float32 multiply-adds by as many threads as the device holds."""
    import numpy as np

    values, iterations = fma_values("float32"), np.uint32(_FMA_ITERATIONS)
    with allocated(values.nbytes) as array:
        checked("cuMemcpyHtoD", array.pointer, values.ctypes.data, values.nbytes)
        cuda.synchronize()  # the timed stream does not wait for the copy
        kernel = cuda.kernel(ceiling_source.fma_source("float"), "gpukern_fma")
        fma = launcher(cuda, kernel, cuda.resident_threads // BLOCK, BLOCK)
        yield lambda: fma(array.pointer, iterations)


@contextmanager
def _launch(cuda: CudaRuntime) -> Iterator[Call]:
    """A kernel that does nothing."""
    yield launcher(cuda, cuda.kernel(ceiling_source.LAUNCH, "gpukern_empty"), 1, 1)


CANARIES: Mapping[str, Callable[[CudaRuntime], AbstractContextManager[Call]]] = {
    FMA: _fma,
    COPY: _copy,
    LAUNCH: _launch,
}
"""Name → what makes its call, and gives its memory back. The FMAs come first: they raise the clocks."""
