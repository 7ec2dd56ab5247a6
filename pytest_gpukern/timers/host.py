"""Times by the host's clock, until the device is idle or until the call returns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.timers.timer import Batch, Iteration
from pytest_gpukern.values.garbage import gc_paused

_SHORTEST_SAMPLE_NS = 20_000.0
"""Shorter calls repeat within a sample, so that reading the clock stays under 0.5 % of it."""
_MOST_LAUNCHED = 16
"""Calls in a sample whose work is only queued: the launch queue holds them even with 60 kernels each."""


class HostTimer:
    """Times with `time.perf_counter_ns`; the clock stops only when the device has finished.

    Args:
        synchronize: waits for the device; does nothing for calls that stay on the host.
        flush: evicts the device's L2; None without a device.
        clock: monotonic clock in nanoseconds, in place of the class's own.
    """

    name = "host"
    measures = "wall time from the call until the device is idle"
    jitter_ns = 100.0
    """Noise of a session's median in nanoseconds; the spread between sessions, 30 %, comes on top."""
    fixed_cost_ns = None
    queues = False
    clock_ns: Callable[[], int] = staticmethod(time.perf_counter_ns)
    _most_calls = 1 << 20

    def __init__(
        self,
        synchronize: Callable[[], None],
        flush: Callable[[], None] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._synchronize = synchronize
        self._flush = flush
        self._clock = clock = clock or self.clock_ns
        self._cpu_ns: list[float] = []
        self._calibrated = 0  # calls in a sample, if they may repeat
        self._iterations = 1  # calls in a sample of the last batch
        readings = [clock() for _ in range(300)]
        steps = [later - earlier for earlier, later in itertools.pairwise(readings) if later > earlier]
        self._tick_ns = min(steps, default=1.0)  # the smallest step of the clock

    @classmethod
    def on_stream(cls, stream: Any, *, any_stream: bool, queues: bool) -> HostTimer:  # noqa: ARG003
        runtime = cuda.runtime()
        return cls(runtime.synchronize, None if cuda.in_own_context() else lambda: runtime.flush_l2(stream))

    @property
    def resolution_ns(self) -> float:
        return self._tick_ns / self._iterations

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes a sample of each iteration, without garbage collection.

        A call under 20 µs repeats within its sample, unless each needs a cold cache or fresh arguments;
        `before` then runs once, before the sample.
        """
        flush = self._flush if cold else None
        samples: list[float] = []
        self._cpu_ns = []
        with gc_paused():
            if flush or any(iteration.fresh for iteration in iterations):
                self._iterations = 1
            elif iterations:
                self._calibrated = self._calibrated or self._calibrate(iterations[0], samples)
                self._iterations = self._calibrated
            samples += [
                self._sample(iteration, self._iterations, flush) for iteration in iterations[len(samples) :]
            ]
        return Batch(samples, self._iterations, cpu_ns=self._cpu_ns[len(self._cpu_ns) - len(samples) :])

    def suspicion(self, iteration: Iteration) -> str | None:  # noqa: ARG002
        """Returns None: it waits for the whole device, so no work can escape it."""
        return None

    def _sample(
        self, iteration: Iteration, iterations: int, flush: Callable[[], None] | None = None
    ) -> float:
        if iteration.before is not None:
            iteration.before()
        if flush:
            flush()
        run = iteration.run
        self._synchronize()
        cpu_ns = time.process_time_ns()  # a call of the system, outside of what the clock times
        start = self._clock()
        for _ in range(iterations):
            run()
        self._wait()
        elapsed_ns = self._clock() - start
        self._cpu_ns.append((time.process_time_ns() - cpu_ns) / iterations)
        return elapsed_ns / iterations

    def _wait(self) -> None:
        self._synchronize()

    def _calibrate(self, iteration: Iteration, samples: list[float]) -> int:
        """Returns how many calls lift a sample well above the clock's own cost.

        If one is enough, that call already becomes a sample.
        """
        iterations = 1
        while iterations < self._most_calls:
            elapsed = self._sample(iteration, iterations) * iterations
            if elapsed >= _SHORTEST_SAMPLE_NS:
                samples += [elapsed] if iterations == 1 else []
                break
            more = 2 if elapsed > _SHORTEST_SAMPLE_NS / 8 else 8
            iterations = min(iterations * more, self._most_calls)
        return iterations


class LaunchTimer(HostTimer):
    """Times what a launch costs the host, from an idle device until the call returns."""

    measures = "host time until the call returns; the device is not waited for"
    _most_calls = _MOST_LAUNCHED

    def _wait(self) -> None:
        """Does not wait: the next sample does, before it reads the clock."""
