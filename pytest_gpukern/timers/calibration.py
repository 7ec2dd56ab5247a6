"""What the timers read for an empty kernel, beyond its own time.

That time is the slope of the replay time of graphs over their number of empty kernels, in which every fixed
cost cancels: on an H200, kernels in a graph took within 0.04 µs of what CUPTI records.
"""

from __future__ import annotations

import functools
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gpu import kernel_source as cuda_source
from pytest_gpukern.timers.event_queue import EventQueue
from pytest_gpukern.timers.graph_capture import captured
from pytest_gpukern.timers.timer import Iteration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpukern.gpu.runtime import CudaRuntime

_SAMPLES = 32
_REPLAYS = 5
_EMPTY_COUNTS = (16, 32, 64)


@dataclass(frozen=True)
class ReplayLine:
    """The straight line of replay times over the number of calls in the graph.

    Attributes:
        call_ns: its slope: the time of one call.
        fixed_ns: its intercept: what a replay costs beside its calls.
    """

    call_ns: float
    fixed_ns: float


def replay_line(queue: EventQueue, stream: Any, run: Callable[[], Any], counts: Sequence[int]) -> ReplayLine:
    """Fits the median replay times of graphs that hold `run` so many times, by least squares.

    The graphs take turns, so that a drift of the clocks does not look like a slope.

    Args:
        queue: times the replays.
        stream: where `run` launches, as a cuda.core stream.
        run: executed once before, so that it compiles and loads nothing.
        counts: at least two different numbers of calls.

    Raises:
        TimerUnavailable: `run` cannot be captured.
        ValueError: the counts are too few or not positive.
    """
    if len(set(counts)) < 2 or min(counts) < 1:
        raise ValueError(f"two different numbers of calls, at least 1 each, are needed, got {tuple(counts)}")
    with ExitStack() as graphs:
        replays = [graphs.enter_context(captured(stream, [run] * count))[0] for count in counts]
        times: list[list[float]] = [[] for _ in counts]
        for _ in range(_REPLAYS):
            for replay, taken in zip(replays, times, strict=True):
                taken += queue.collect([Iteration(replay)], cold=False).samples_ns
    medians = [statistics.median(taken) for taken in times]
    slope, intercept = statistics.linear_regression(counts, medians)
    return ReplayLine(slope, intercept)


@functools.cache
def empty_kernel_line(runtime: CudaRuntime) -> ReplayLine:
    """The line of an empty kernel on the runtime's stream; measured once a process, in a few milliseconds."""
    stream = runtime.stream
    return replay_line(EventQueue(runtime, stream), stream, empty_kernel(runtime, stream), _EMPTY_COUNTS)


@functools.cache
def event_cost_ns(runtime: CudaRuntime, *, legacy: bool, cold: bool) -> float | None:
    """What a pair of events reads for an empty kernel beyond its own time, in nanoseconds.

    With a cold cache that includes fetching the kernel's code from memory, as every cold kernel has to.
    Measured once a process for each kind of stream and cache policy, in a few milliseconds.

    Args:
        runtime: context and kernels of the pinned device.
        legacy: on the legacy default stream, rather than on one of its own.
        cold: with a flush of the L2 before each kernel.

    Returns:
        The median, or None where the kernels could not be queued.
    """
    stream = runtime.device.default_stream if legacy else runtime.stream
    iteration = Iteration(empty_kernel(runtime, stream))
    batch = EventQueue(runtime, stream).collect([iteration] * _SAMPLES, cold=cold)
    if batch.launch_included:
        return None
    return statistics.median(batch.samples_ns) - empty_kernel_line(runtime).call_ns


def empty_kernel(runtime: CudaRuntime, stream: Any) -> Callable[[], None]:
    """Launches an empty kernel on the stream; it was loaded and run once."""
    from cuda.core import LaunchConfig, launch

    kernel = runtime.kernel(cuda_source.TIMING, "gpukern_empty")
    config = LaunchConfig(grid=1, block=1)

    def empty() -> None:
        launch(stream, config, kernel)

    empty()
    runtime.synchronize()
    return empty
