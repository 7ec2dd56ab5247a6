"""Measures the clock at which the multiprocessors really run, with a short kernel between batches."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Sequence

import numpy as np

from pytest_gpukern.gpu.runtime import CudaRuntime, checked, cuda_source, launcher

_DEVICEMAP = 2  # CU_MEMHOSTALLOC_DEVICEMAP
_BLOCKS = 8
"""Each of so few blocks runs on a multiprocessor of its own. We take the median over the blocks."""
_WORDS = 3
_SHORTEST_NS, _LONGEST_NS = 50_000, 1_000_000
_COARSE = 0.002  # findings show changes of a clock from 0.3 % on
_PATIENCE_CLOCKS = 20_000_000
"""10 ms at 2 GHz: no global timer steps more slowly."""


class ClockProbe:
    """Measures the SM clock as Δclock64 ÷ Δglobaltimer, as NVBench does, but from step to step of the timer.

    NVML reports the clock in steps of 15 MHz, at a moment that it chooses. The probe is a kernel of eight
    warps that lasts 50 µs. Call it right after a batch, and never while something is timed. If slow polling
    lifts the relative error above 0.2 %, later probes last longer, up to 1 ms.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._stream = runtime.stream
        kernel = runtime.kernel(cuda_source("clock_probe.cu"), "gpukern_clock")
        self._launch = launcher(self._stream, kernel, _BLOCKS, 32)
        # Mapped pinned memory: no copy is needed to read it, and none can be queued behind other work.
        self._mailbox = int(checked("cuMemHostAlloc", 8 * _WORDS * _BLOCKS, _DEVICEMAP))
        self._words = (ctypes.c_uint64 * (_WORDS * _BLOCKS)).from_address(self._mailbox)
        self._duration_ns = _SHORTEST_NS
        self.read()  # loads the module now: later that may wait for an idle device

    def read(self) -> float | None:
        """Waits for the stream and the probe; returns the SM clock in MHz, or None if the timer stood still.

        Raises:
            CUDAError: (of cuda.core) the launch failed, for example because the context was lost before.
        """
        self._launch(self._mailbox, np.uint64(self._duration_ns), np.int64(_PATIENCE_CLOCKS))
        self._stream.sync()
        reading = median_clock(list(self._words))
        if reading is None:
            return None
        mhz, error = reading
        if error > _COARSE:
            self._duration_ns = min(2 * self._duration_ns, _LONGEST_NS)
        return mhz


def median_clock(words: Sequence[int]) -> tuple[float, float] | None:
    """Returns the median clock in MHz over the blocks that measured, and its relative error.

    `words` are each block's nanoseconds, clocks and uncertain clocks; zeros if its timer stood still.
    """
    readings = [
        (1e3 * clocks / ns, doubt / clocks)
        for ns, clocks, doubt in zip(words[0::3], words[1::3], words[2::3], strict=True)
        if ns and clocks
    ]
    if not readings:
        return None
    return statistics.median(mhz for mhz, _ in readings), statistics.median(doubt for _, doubt in readings)
