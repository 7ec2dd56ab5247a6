"""Calls captured into a CUDA graph, whose replay is timed as a whole and divided by their number."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gpu.runtime import runtime
from pytest_gpukern.timers.launch_queue import ENTRIES_OF_BEFORE, EventQueue, escaped_work
from pytest_gpukern.timers.replay import captured, empty_kernel_line, replay_line
from pytest_gpukern.timers.timer import Batch, Iteration, TimerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gpu.runtime import CudaRuntime

_SHORTEST_REPLAY_NS = 200_000.0
"""Shorter ones would hold too much of the few microseconds that a replay costs beside its calls."""
_SHORTEST_CALL_NS = 500.0
"""No kernel ends sooner: it bounds how often a call is captured."""
_BATCH_NS = 20_000_000.0
"""Longer replays than a share of this are repeated less often."""
_MOST_REPLAYS = 16
_SLOPE_COUNTS = (4, 8, 16, 32)


def sets_needed(footprint_bytes: int, l2_bytes: int) -> int:
    """Sets of buffers that calls have to take turns on for the L2 to be cold without a flush between them.

    Between two uses of the same set, the others then touch at least twice the L2.

    Args:
        footprint_bytes: what one call reads and writes; of 0, nothing can be cold, and one set will do.
        l2_bytes: size of the L2.
    """
    return 1 + math.ceil(2 * l2_bytes / footprint_bytes) if footprint_bytes else 1


class GraphTimer:
    """Times on the device by replaying a CUDA graph of the calls.

    A replay is timed with a pair of events as `EventTimer` does, so what those cost is divided by the number
    of calls too.

    Args:
        runtime: context, kernels and L2 of the pinned device.
        stream: the stream that the calls launch on, as a cuda.core stream; by default the runtime's.
    """

    name = "graph"
    measures = "GPU time of a call in a replayed CUDA graph: no launch cost, no pause between the calls"
    queues = True
    jitter_ns = 9.0
    """What the median of a session moves without any cause: eight processes timing one 1.3 µs kernel on an
    H200 in graphs of 20 had medians within 1.8 % of 1.35 µs, a range of 2.85 standard deviations."""

    def __init__(self, runtime: CudaRuntime, stream: Any = None) -> None:
        self._runtime = runtime
        self._stream = stream or runtime.stream
        self._queue = EventQueue(runtime, self._stream)
        self._call_ns: float | None = None  # of the last batch
        self._iterations = 1  # calls in a sample of the last batch

    @classmethod
    def on_stream(cls, stream: Any, *, any_stream: bool, queues: bool) -> GraphTimer:  # noqa: ARG003
        """Makes one for work on a stream of the pinned device."""
        return cls(runtime(), stream)

    @property
    def resolution_ns(self) -> float:
        """The step of the events, spread over the calls of a sample."""
        return self._queue.resolution_ns / self._iterations

    @property
    def fixed_cost_ns(self) -> float | None:
        """The share of a call in what a replay costs beside its calls; None before the first batch.

        The first to ask in a process waits a few milliseconds for the calibration.
        """
        if self._call_ns is None:
            return None
        return empty_kernel_line(self._runtime).fixed_ns / self._iterations

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Captures the calls in their order and takes each replay of the graph, divided by them, as a sample.

        The iterations are captured several times over where their replay would be shorter than 200 µs. The
        number of samples is up to the time a replay takes, not to the number of iterations.

        Ahead of each replay every different `before` is queued once, and the L2 is flushed where `cold`.
        Nothing is flushed between the calls of a graph. For numbers that are cold, the iterations must
        therefore take turns on as many sets of buffers as `sets_needed` says; the batch warns where they
        are all the same call.

        Raises:
            TimerUnavailable: the calls cannot be captured, not all were, or each needs fresh arguments.
        """
        if not iterations:
            return Batch([])
        for iteration in iterations:
            _refuse_fresh(iteration)
        if self._call_ns is None:
            self._call_ns = self._trial_ns(iterations, cold=cold)
        times_over = _times_over(self._call_ns, len(iterations))
        replays = int(_BATCH_NS / max(self._call_ns * len(iterations) * times_over, 1.0))
        replays = max(1, min(replays, _MOST_REPLAYS))
        batch = self._replayed(iterations, times_over, replays=replays, cold=cold)
        if cold and batch.iterations > 1 and len({iteration.run for iteration in iterations}) == 1:
            batch.warnings.append(
                "the graph's calls shared their buffers: data that fit into the L2 were not cold"
            )
        self._call_ns, self._iterations = statistics.median(batch.samples_ns), batch.iterations
        return batch

    def suspicion(self, iteration: Iteration) -> str | None:
        """Looks for work that was still running after the end event: it was on another stream."""
        return escaped_work(self._runtime, self._stream, iteration)

    def node_time_ns(self, iteration: Iteration) -> float:
        """Time of one call with a hot cache: the slope of the replay time over the number of calls.

        Least squares over graphs of 4 to 32 calls; everything that a replay costs once cancels. `before` is
        not run.

        Raises:
            TimerUnavailable: the call cannot be captured, or it needs fresh arguments each time.
        """
        _refuse_fresh(iteration)
        return replay_line(self._queue, self._stream, iteration.run, _SLOPE_COUNTS).call_ns

    def _trial_ns(self, iterations: Sequence[Iteration], *, cold: bool) -> float:
        """Time of a call in replays that grow to 200 µs: in short ones, what they cost makes it look long."""
        times_over, needed = 0, 1
        while needed > times_over:
            times_over = needed
            (call_ns,) = self._replayed(iterations, times_over, replays=1, cold=cold).samples_ns
            needed = _times_over(call_ns, len(iterations))
        return call_ns

    def _replayed(
        self, iterations: Sequence[Iteration], times_over: int, *, replays: int, cold: bool
    ) -> Batch:
        """A sample of each of so many replays of one graph of the iterations, times over."""
        runs = [iteration.run for iteration in iterations] * times_over
        befores = list(dict.fromkeys(each.before for each in iterations if each.before is not None))

        def before() -> None:
            for queue in befores:
                queue()

        with captured(self._stream, runs) as (replay, nodes):
            one = Iteration(replay, before, launches=nodes + ENTRIES_OF_BEFORE * len(befores))
            batch = self._queue.collect([one] * replays, cold=cold)
        samples = [sample / len(runs) for sample in batch.samples_ns]
        return dataclasses.replace(batch, samples_ns=samples, iterations=len(runs))


def _times_over(call_ns: float, calls: int) -> int:
    """How often so many calls have to be captured for a replay of 200 µs."""
    return math.ceil(_SHORTEST_REPLAY_NS / (max(call_ns, _SHORTEST_CALL_NS) * calls))


def _refuse_fresh(iteration: Iteration) -> None:
    if iteration.fresh is not None:
        raise TimerUnavailable("each call needs fresh arguments, but a graph replays the same ones")
