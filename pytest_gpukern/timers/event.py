"""CUDA events around each call, with everything queued behind a blocking kernel.

The host queues a batch while a kernel keeps the stream busy, so Python's launch cost is not in the number.
Events themselves cost about 3 µs on an H200 and an empty pair reads 1.3 µs: short kernels read too long.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from pytest_gpukern.timers import Batch, bind
from pytest_gpukern.timers.blocking import blocking_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.backends.cuda import CudaRuntime
    from pytest_gpukern.timers import Setup

_LARGEST_BATCH = 64
"""The launch queue holds about 1000 entries; a sample takes three and what the call launches itself."""
_LARGEST_BATCH_WITH_SETUP = 8
"""Each sample of such a batch holds its own arguments in memory."""
_DOCUMENTED_RESOLUTION_NS = 500.0
_LAGS = 5
_LONG_CALL_NS = 1e7
_ESCAPE_NS = 20_000.0
_ESCAPE_SHARE = 0.005
"""Work seen later than both after the end event was not on the timed stream: 20 µs, 0.5 % of the call."""


class EventTimer:
    """Times on the device with pairs of CUDA events.

    Args:
        runtime: context, kernels and L2 of the pinned device.
        stream: the stream that the call launches on, as a cuda.core stream; by default the runtime's.
    """

    name = "event"
    measures = "GPU time between two events: launch and kernel, without the host's launch cost"
    jitter_ns = 165.0
    """What the median of a session moves without any cause: eight processes timing one 1.3 µs kernel on an
    H200 had medians within 10 % of 4.7 µs, a range of 2.85 standard deviations."""

    def __init__(self, runtime: CudaRuntime, stream: Any = None) -> None:
        self._runtime = runtime
        self._stream = stream or runtime.stream
        self._blocking = blocking_kernel()
        self._limit = _LARGEST_BATCH
        self._events: list[tuple[Any, Any]] = []
        runtime.reset_persisting_l2()
        runtime.flush_l2(self._stream)  # compiled and loaded before anything can be blocked
        runtime.synchronize()
        self.resolution_ns = self._tick()

    def collect(
        self, call: Callable[..., Any], count: int, *, cold: bool, setup: Setup | None = None
    ) -> Batch:
        """Takes up to `count` samples: as many as fit into the launch queue behind one blocking kernel.

        A call that waits for the device itself cannot be queued: the blocking kernel times out, and the call
        is timed as it runs, launch cost included; the batch says so.
        """
        count = min(count, _LARGEST_BATCH if setup is None else _LARGEST_BATCH_WITH_SETUP)
        while self._limit:
            samples = self._queued(bind(call, min(count, self._limit), setup), cold=cold)
            if samples is not None:
                return Batch(samples)
            self._limit = 0 if self._limit == 1 else 1 if self._limit < 8 else self._limit // 8
        warning = "the call waits for the device, so the host's launch cost is in the number"
        samples = self._unqueued(bind(call, count, setup), cold=cold)
        return Batch(samples, launch_included=True, warnings=[warning])

    def suspicion(self, call: Callable[..., Any], setup: Setup | None = None) -> str | None:
        """Looks for work that was still running after the end event: it was on another stream."""
        shortest_lag = shortest_call = float("inf")
        for bound in bind(call, _LAGS, setup):
            lag, whole = self._lag(bound)
            shortest_lag, shortest_call = min(shortest_lag, lag), min(shortest_call, whole)
            if whole > _LONG_CALL_NS:
                break
        idle = min(self._lag(_nothing)[0] for _ in range(_LAGS))
        escaped = shortest_lag - idle
        if escaped <= max(_ESCAPE_NS, _ESCAPE_SHARE * shortest_call):
            return None
        return f"{escaped / 1e3:.0f} µs of work ran outside the timed stream; launch it on the given stream"

    def _queued(self, calls: list[Callable[[], Any]], *, cold: bool) -> list[float] | None:
        """Samples behind a blocking kernel, or None where it timed out before all was queued."""
        pairs = self._pairs(len(calls))
        self._runtime.synchronize()
        self._blocking.block(self._stream)
        try:
            for call, (start, end) in zip(calls, pairs, strict=True):
                if cold:
                    self._runtime.flush_l2(self._stream)
                self._stream.record(start)
                call()
                self._stream.record(end)
        finally:
            self._blocking.release()
        self._runtime.synchronize()
        if self._blocking.timed_out:
            return None
        return [(end - start) * 1e6 for start, end in pairs]

    def _unqueued(self, calls: list[Callable[[], Any]], *, cold: bool) -> list[float]:
        pairs = self._pairs(len(calls))
        for call, (start, end) in zip(calls, pairs, strict=True):
            if cold:
                self._runtime.flush_l2(self._stream)
            self._runtime.synchronize()
            self._stream.record(start)
            call()
            self._stream.record(end)
        self._runtime.synchronize()
        return [(end - start) * 1e6 for start, end in pairs]

    def _tick(self) -> float:
        """The smallest step between readings of an empty pair; what CUDA documents if none is seen."""
        readings = sorted(set(self._queued([_nothing] * _LARGEST_BATCH, cold=False) or []))
        steps = [later - earlier for earlier, later in itertools.pairwise(readings) if later - earlier > 1]
        return min(steps, default=_DOCUMENTED_RESOLUTION_NS)

    def _lag(self, call: Callable[[], Any]) -> tuple[float, float]:
        """Time from the end event to an idle device, and from the call to there, in nanoseconds."""
        self._runtime.synchronize()
        ((_, end),) = self._pairs(1)
        start = time.perf_counter_ns()
        call()
        self._stream.record(end)
        end.sync()
        ended = time.perf_counter_ns()
        self._runtime.synchronize()
        idle = time.perf_counter_ns()
        return float(idle - ended), float(idle - start)

    def _pairs(self, count: int) -> list[tuple[Any, Any]]:
        from cuda.core import EventOptions

        options = EventOptions(timing_enabled=True)
        create = self._runtime.device.create_event
        while len(self._events) < count:
            self._events.append((create(options), create(options)))
        return self._events[:count]


def _nothing() -> None:
    """An empty call, to time the timer itself."""
