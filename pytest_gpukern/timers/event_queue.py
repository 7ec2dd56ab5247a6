"""Pairs of CUDA events around executions that are queued behind a blocking kernel."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from pytest_gpukern.timers.launch_queue import LARGEST_PART, LAUNCH_COST, LaunchQueue
from pytest_gpukern.timers.timer import Batch, Iteration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpukern.gpu.runtime import CudaRuntime

_DOCUMENTED_RESOLUTION_NS = 500.0

Pairs = list[tuple[Any, Any]]


class EventQueue:
    """Times executions on one stream with pairs of events.

    Args:
        runtime: context, kernels and L2 of the pinned device.
        stream: the stream that the executions launch on, as a cuda.core stream.
        queues: whether calls are queued; those that are known to wait for the device need not be tried.
    """

    def __init__(self, runtime: CudaRuntime, stream: Any, *, queues: bool = True) -> None:
        self._runtime = runtime
        self._stream = stream
        self._queue = LaunchQueue(runtime, stream, queues=queues)
        self._events: Pairs = []

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes a sample of each iteration; `LaunchQueue.execute` says how. The batch says where it was not
        possible to queue them."""
        marks = _EventMarks(self._stream, self._pairs)
        if self._queue.execute(iterations, marks, cold=cold):
            return Batch(marks.samples_ns)
        return Batch(marks.samples_ns, launch_included=True, warnings=[LAUNCH_COST])

    @property
    def queues(self) -> bool:
        """Whether calls are queued, as far as is known by now."""
        return self._queue.queues

    @property
    def resolution_ns(self) -> float:
        """The smallest step between readings."""
        return event_tick_ns(self._runtime)

    def _pairs(self, count: int) -> Pairs:
        from cuda.core import EventOptions

        options = EventOptions(timing_enabled=True)
        create = self._runtime.device.create_event
        while len(self._events) < count:
            self._events.append((create(options), create(options)))
        return self._events[:count]


@functools.cache
def event_tick_ns(runtime: CudaRuntime) -> float:
    """The smallest step between readings of an empty pair; what CUDA documents if none is seen.

    Measured once a process, in a few milliseconds.
    """
    empty = [Iteration(lambda: None)] * LARGEST_PART
    readings = sorted(set(EventQueue(runtime, runtime.stream).collect(empty, cold=False).samples_ns))
    steps = [later - earlier for earlier, later in itertools.pairwise(readings) if later - earlier > 1]
    return min(steps, default=_DOCUMENTED_RESOLUTION_NS)


class _EventMarks:
    """Records an event before and behind each execution."""

    def __init__(self, stream: Any, pairs: Callable[[int], Pairs]) -> None:
        self._stream = stream
        self._make_pairs = pairs
        self._pairs: Pairs = []
        self.samples_ns: list[float] = []

    def open(self, count: int) -> None:
        self._pairs = self._make_pairs(count)

    def start(self, number: int) -> None:
        self._stream.record(self._pairs[number][0])

    def end(self, number: int) -> None:
        self._stream.record(self._pairs[number][1])

    def close(self) -> None:
        """Nothing to do: events stay where they were recorded."""

    def take(self, count: int) -> None:
        self.samples_ns += [(end - start) * 1e6 for start, end in self._pairs[:count]]

    def restart(self) -> None:
        self.samples_ns.clear()
