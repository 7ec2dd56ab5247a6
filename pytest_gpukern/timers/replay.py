"""Captures calls into a CUDA graph and replays it; finds out from replays what an empty kernel costs.

We begin the capture on the timed stream, so it captures launches of any library. A call that cannot be
captured is refused with the reason, and the stream works afterwards.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#creating-a-graph-using-stream-capture

The time of an empty kernel is the slope of the replay time over the number of empty kernels in the graph, so
fixed costs cancel. On an H200, kernels in a graph took within 0.04 µs of what CUPTI records.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.gpu.runtime import CudaRuntime, checked, cuda_source, launcher
from pytest_gpukern.timers.launch_queue import EventQueue
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable
from pytest_gpukern.values.garbage import gc_paused

_SAMPLES = 32
_REPLAYS = 5
_EMPTY_COUNTS = (16, 32, 64)


def replay_line(
    queue: EventQueue, stream: Any, run: Callable[[], Any], counts: Sequence[int]
) -> statistics.LinearRegression:
    """Fits a line to the median replay times of graphs that hold `run` `counts` times, by least squares.

    Its slope is the time of one call, and its intercept the cost of a replay itself, in nanoseconds. The
    graphs take turns, so that a drift of the clocks does not look like a slope.

    Args:
        run: a call that ran once before, so that it compiles and loads nothing; it launches on the stream.
        counts: at least two different numbers of calls.

    Raises:
        TimerUnavailable: `run` cannot be captured.
    """
    with ExitStack() as graphs:
        replays = [graphs.enter_context(captured(stream, [run] * count))[0] for count in counts]
        times: list[list[float]] = [[] for _ in counts]
        for _ in range(_REPLAYS):
            for replay, samples in zip(replays, times, strict=True):
                samples += queue.collect([Iteration(replay)], cold=False).samples_ns
    return statistics.linear_regression(counts, [statistics.median(samples) for samples in times])


@functools.cache
def empty_kernel_line(runtime: CudaRuntime) -> statistics.LinearRegression:
    """Returns the line of an empty kernel on the runtime's stream, measured once a process (milliseconds)."""
    stream = runtime.stream
    return replay_line(EventQueue(runtime, stream), stream, empty_kernel(runtime, stream), _EMPTY_COUNTS)


@functools.cache
def event_cost_ns(runtime: CudaRuntime, *, legacy: bool, cold: bool) -> float | None:
    """Returns what a pair of events reads for an empty kernel beyond its own time, in nanoseconds.

    It is the median, or None if the kernels could not be queued. With a cold cache it includes fetching the
    kernel's code from memory, as for every cold kernel. We measure it once a process for each kind of stream
    and cache policy, in a few milliseconds.
    """
    stream = runtime.device.default_stream if legacy else runtime.stream
    iteration = Iteration(empty_kernel(runtime, stream))
    batch = EventQueue(runtime, stream).collect([iteration] * _SAMPLES, cold=cold)
    if batch.launch_included:
        return None
    return statistics.median(batch.samples_ns) - empty_kernel_line(runtime).slope


def empty_kernel(runtime: CudaRuntime, stream: Any) -> Callable[[], None]:
    """Returns a function that launches an empty kernel on the stream, already loaded and run once."""
    empty = launcher(stream, runtime.kernel(cuda_source("timing.cu"), "gpukern_empty"), 1, 1)
    empty()
    runtime.synchronize()
    return empty


LEGACY_STREAMS = (0, 1)
"""Handles of the legacy default stream: NULL and CU_STREAM_LEGACY."""


@contextmanager
def captured(stream: Any, runs: Sequence[Callable[[], Any]]) -> Iterator[tuple[Callable[[], None], int]]:
    """Captures calls that ran before; yields a function that replays them all, and the number of nodes.

    Capturing does not execute them. We keep their results until the end, since the graph may write to them.

    Raises:
        TimerUnavailable: a call was not captured, or the calls were not captured alike.
    """
    graph, nodes, _kept = _capture(stream, runs)
    with ExitStack() as made:
        made.callback(checked, "cuGraphDestroy", graph)
        refusal = _refusal([later - earlier for earlier, later in itertools.pairwise(nodes)], graph)
        if refusal is not None:
            raise TimerUnavailable(refusal)
        try:
            executable = checked("cuGraphInstantiate", graph, 0)
        except CudaError as error:
            raise TimerUnavailable(f"the captured graph cannot be replayed: {error}") from error
        made.callback(checked, "cuGraphExecDestroy", executable)
        checked("cuGraphUpload", executable, stream.handle)  # else the first replay would contain that
        yield lambda: checked("cuGraphLaunch", executable, stream.handle), nodes[-1]


def _capture(stream: Any, runs: Sequence[Callable[[], Any]]) -> tuple[Any, list[int], list[Any]]:
    """Returns a graph of the calls, its number of nodes before and after each, and what the calls returned.

    We capture only this thread, and strictly: a call that allocates, frees or waits is refused. Otherwise a
    replay could use memory that the call has given back.
    """
    from cuda.bindings import driver

    if int(stream.handle) in LEGACY_STREAMS:
        raise TimerUnavailable(
            "work on the legacy default stream cannot be captured; launch on another stream"
        )
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    kept: list[Any] = []
    nodes = [0]
    with gc_paused():  # freeing an array would end the capture
        try:
            checked("cuStreamBeginCapture", stream.handle, mode)
            try:
                for run in runs:
                    kept.append(run())
                    nodes.append(_nodes_so_far(stream))
            except BaseException:
                # In any state of the capture, so that the stream executes again.
                status, unfinished = driver.cuStreamEndCapture(stream.handle)
                if status == driver.CUresult.CUDA_SUCCESS:
                    checked("cuGraphDestroy", unfinished)
                raise
            graph = checked("cuStreamEndCapture", stream.handle)
        except TimerUnavailable:
            raise
        except Exception as error:  # the call ran before: only its capture can fail, as cuBLAS's by CuPy
            why = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            raise TimerUnavailable(f"the call cannot be captured: {why}") from error
    return graph, nodes, kept


def _nodes_so_far(stream: Any) -> int:
    """Returns the number of nodes captured so far; refuses if the capture became invalid."""
    from cuda.bindings import driver

    status, _, graph, *_ = checked("cuStreamGetCaptureInfo", stream.handle)
    if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        raise TimerUnavailable("the call cannot be captured: it waits for the device, allocates or frees")
    return int(checked("cuGraphGetNodes", graph)[1])


def _refusal(added: Sequence[int], graph: Any) -> str | None:
    """Says why a graph does not hold the calls, which added so many nodes each, or returns None."""
    from cuda.bindings import driver

    calls, complete = len(added), sum(1 for count in added if count)
    if complete < calls:  # a graph that captured nothing would read as 0.1 µs a call
        return (
            f"{complete} of {calls} calls were captured: work is launched on another stream or waits for "
            "the host"
        )
    total = checked("cuGraphGetNodes", graph)[1]
    if total != sum(added):
        return f"{sum(added)} operations were captured, but the graph holds {total}"
    kinds = Counter(
        checked("cuGraphNodeGetType", node) for node in checked("cuGraphGetNodes", graph, total)[0]
    )
    if kinds[driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC]:
        return "the call allocates memory, which a replayed graph cannot do"
    kernels = kinds[driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL]
    if len(set(added)) > 1 or kernels % calls:
        return (
            f"the calls are not alike: {calls} calls gave {kernels} kernels and {total} operations, between "
            f"{min(added)} and {max(added)} operations a call"
        )
    return None
