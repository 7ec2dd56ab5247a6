"""Times a CUDA graph of captured calls by its replay, divided by the number of calls."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from pytest_gpukern.gpu.runtime import CudaRuntime, runtime
from pytest_gpukern.timers.launch_queue import ENTRIES_OF_BEFORE, EventQueue, escaped_work
from pytest_gpukern.timers.replay import captured, empty_kernel_line, replay_line
from pytest_gpukern.timers.timer import Batch, Iteration, TimerUnavailable
from pytest_gpukern.values.note import Note

_SHORTEST_REPLAY_NS = 200_000.0
"""In shorter replays the few microseconds that a replay itself costs would weigh too much."""
_SHORTEST_CALL_NS = 500.0
"""No kernel is shorter; this limits how often we capture a call."""
_BATCH_NS = 20_000_000.0
"""Replays longer than a share of this are repeated less often."""
_MOST_REPLAYS = 16
_SLOPE_COUNTS = (4, 8, 16, 32)  # calls in the graphs; the slope over them is free of a replay's own cost


def sets_needed(footprint_bytes: int, l2_bytes: int) -> int:
    """Returns how many buffer sets calls must take turns on, so that the L2 is cold without a flush.

    Between two uses of one set, the others then touch at least twice the L2. A replay of ten warm calls read
    36 % too fast (flashinfer #4468). A call that reads and writes nothing needs one set.
    """
    return 1 + math.ceil(2 * l2_bytes / footprint_bytes) if footprint_bytes else 1


class GraphTimer:
    """Times on the device by replaying a CUDA graph of the calls.

    A pair of events times a replay, as in `EventTimer`, so their cost too is divided by the number of calls.
    """

    name = "graph"
    measures = "GPU time of a call in a replayed CUDA graph: no launch cost, no pause between the calls"
    queues = True
    jitter_ns = 9.0
    """Noise of a session's median: eight processes that timed one 1.3 µs kernel on an H200 in graphs of 20
    had medians within 1.8 % of 1.35 µs, a range of 2.85 standard deviations."""

    def __init__(self, runtime: CudaRuntime, stream: Any = None) -> None:
        self._runtime = runtime
        self._stream = stream or runtime.stream
        self._queue = EventQueue(runtime, self._stream)
        self._call_ns: float | None = None  # of the last batch
        self._iterations = 1  # calls in a sample of the last batch

    @classmethod
    def on_stream(cls, stream: Any, *, any_stream: bool, queues: bool) -> GraphTimer:  # noqa: ARG003
        return cls(runtime(), stream)

    @property
    def resolution_ns(self) -> float:
        return self._queue.resolution_ns / self._iterations

    @property
    def fixed_cost_ns(self) -> float | None:
        """The cost of a replay itself, divided by its calls; None before the first batch.

        The first read in a process waits a few milliseconds for the calibration.
        """
        if self._call_ns is None:
            return None
        return empty_kernel_line(self._runtime).intercept / self._iterations

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Captures the calls in order; a sample is a replay of the graph, divided by its calls.

        If a replay would be shorter than 200 µs, we capture the iterations several times over. The number of
        samples depends on the time of a replay, not on the number of iterations.

        Before each replay we queue every different `before` once, and flush the L2 if `cold`. Nothing is
        flushed between the calls of a graph. So for cold numbers the iterations must take turns on as many
        buffer sets as `sets_needed` says; the batch warns if they are all the same call.

        Raises:
            TimerUnavailable: a call could not be captured, or each needs fresh arguments.
        """
        if not iterations:
            return Batch([])
        _refuse_fresh(iterations)
        if self._call_ns is None:
            self._call_ns = self._trial_ns(iterations, cold=cold)
        times_over = _times_over(self._call_ns, len(iterations))
        replays = int(_BATCH_NS / max(self._call_ns * len(iterations) * times_over, 1.0))
        replays = max(1, min(replays, _MOST_REPLAYS))
        batch = self._replayed(iterations, times_over, replays=replays, cold=cold)
        if cold and batch.iterations > 1 and len({iteration.run for iteration in iterations}) == 1:
            batch.notes.append(
                Note("the graph's calls shared their buffers: data that fit into the L2 were not cold")
            )
        self._call_ns, self._iterations = statistics.median(batch.samples_ns), batch.iterations
        return batch

    def suspicion(self, iteration: Iteration) -> str | None:
        return escaped_work(self._runtime, self._stream, iteration)

    def node_time_ns(self, iteration: Iteration) -> float:
        """Returns the time of a call with a hot cache: the slope of the replay time over the calls.

        Fits least squares over graphs of 4 to 32 calls, so fixed costs of a replay cancel. Skips `before`.

        Raises:
            TimerUnavailable: the call cannot be captured, or it needs fresh arguments each time.
        """
        _refuse_fresh([iteration])
        return replay_line(self._queue, self._stream, iteration.run, _SLOPE_COUNTS).slope

    def _trial_ns(self, iterations: Sequence[Iteration], *, cold: bool) -> float:
        """Returns the time of a call in replays that grow to 200 µs; in short ones their cost counts too."""
        times_over, needed = 0, 1
        while needed > times_over:
            times_over = needed
            (call_ns,) = self._replayed(iterations, times_over, replays=1, cold=cold).samples_ns
            needed = _times_over(call_ns, len(iterations))
        return call_ns

    def _replayed(
        self, iterations: Sequence[Iteration], times_over: int, *, replays: int, cold: bool
    ) -> Batch:
        """Samples replays of one graph that holds the iterations several times over."""
        runs = [iteration.run for iteration in iterations] * times_over
        befores = list(dict.fromkeys(filter(None, (iteration.before for iteration in iterations))))

        def before() -> None:
            for queue in befores:
                queue()

        with captured(self._stream, runs) as (replay, nodes):
            one = Iteration(replay, before, launches=nodes + ENTRIES_OF_BEFORE * len(befores))
            batch = self._queue.collect([one] * replays, cold=cold)
        samples = [sample / len(runs) for sample in batch.samples_ns]
        return dataclasses.replace(batch, samples_ns=samples, iterations=len(runs))


def _times_over(call_ns: float, calls: int) -> int:
    """Returns how often to capture so many calls for a replay of 200 µs."""
    return math.ceil(_SHORTEST_REPLAY_NS / (max(call_ns, _SHORTEST_CALL_NS) * calls))


def _refuse_fresh(iterations: Sequence[Iteration]) -> None:
    if any(iteration.fresh is not None for iteration in iterations):
        raise TimerUnavailable("each call needs fresh arguments, but a graph replays the same ones")
