"""Kernels that spin on the GPU's global timer and say how long: truth that is no timer of ours."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gpu.runtime import DeviceArray
from pytest_gpukern.timers.timer import Iteration

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.gpu.runtime import CudaRuntime
    from pytest_gpukern.timers.timer import Timer

_SOURCE = r"""
extern "C" __global__ void gpukern_spin(unsigned long long ns, unsigned long long *own_ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
  *own_ns = now - start;
}
"""
_SLOTS = 64


@dataclass(frozen=True)
class SpinReading:
    """What a timer read for kernels that spin equally long, and what they say themselves.

    Attributes:
        own_ns: median of the kernels' own times.
        reading_ns: median of the timer's samples.
        beyond_ns: median of what a sample is beyond its kernel's own time.
    """

    own_ns: float
    reading_ns: float
    beyond_ns: float


class SpinningKernel:
    """One thread that spins on %globaltimer and writes out its last reading less its first.

    What the device does before the first and after the last reading (starting the block, storing the result,
    ending) is real time of the kernel and not in its own time: compare differences between two spins.

    Args:
        runtime: context and stream of the pinned device.

    Attributes:
        step_ns: smallest difference that was seen between two of the kernels' own times, or None.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        import numpy as np

        self._runtime = runtime
        self._kernel = runtime.kernel(_SOURCE, "gpukern_spin")
        self._own = DeviceArray((_SLOTS,), np.uint64)
        self._seen: set[int] = set()
        self.call(0)()  # loaded and run once before anything can be blocked
        runtime.synchronize()

    def call(self, ns: float, slot: int = 0) -> Callable[[], Any]:
        """Launches the kernel on the runtime's stream; its own time goes to `slot`, from 0 to 63."""
        import numpy as np
        from cuda.core import LaunchConfig, launch

        stream, kernel, config = self._runtime.stream, self._kernel, LaunchConfig(grid=1, block=1)
        arguments = (np.uint64(ns), self._own.pointer + 8 * slot)
        return lambda: launch(stream, config, kernel, *arguments)

    def read(self, timer: Timer, ns: float, count: int) -> SpinReading:
        """Times so many spins with a hot cache.

        Args:
            timer: on the runtime's stream.
            ns: how long to spin.
            count: samples, up to 64.

        Raises:
            ValueError: too many samples.
            TimerUnavailable: the timer cannot time them.
        """
        if not 1 <= count <= _SLOTS:
            raise ValueError(f"1 to {_SLOTS} samples are possible, got {count}")
        iterations = [Iteration(self.call(ns, slot), launches=1) for slot in range(count)]
        samples = timer.collect(iterations, cold=False).samples_ns
        own = [int(value) for value in self._own.download()[:count]]
        self._seen.update(own)
        return SpinReading(
            own_ns=statistics.median(own),
            reading_ns=statistics.median(samples),
            beyond_ns=statistics.median(sample - true for sample, true in zip(samples, own, strict=True)),
        )

    @property
    def step_ns(self) -> float | None:
        """Of the global timer, as far as the kernels' own times show it."""
        steps = [later - earlier for earlier, later in itertools.pairwise(sorted(self._seen))]
        return float(min(steps)) if steps else None

    def free(self) -> None:
        """Gives the memory of the kernels' own times back."""
        self._own.free()
