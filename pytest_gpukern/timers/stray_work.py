"""Work that a call launched outside the timed stream, found by how long the device stays busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_gpukern.timers.timer import Iteration

if TYPE_CHECKING:
    from pytest_gpukern.gpu.runtime import CudaRuntime

_LAGS = 5
_LONG_CALL_NS = 1e7
_ESCAPE_NS = 40_000.0
_ESCAPE_SHARE = 0.005
"""Work seen later than both after the end event was not on the timed stream: 40 µs, 0.5 % of the call."""


def escaped_work(runtime: CudaRuntime, stream: Any, iteration: Iteration) -> str | None:
    """Looks for work that was still running after an event behind the call: it was on another stream.

    Args:
        runtime: context of the pinned device.
        stream: the timed stream, as a cuda.core stream.
        iteration: one that was executed; others like it are, a few times.

    Returns:
        How much work was found, in words, or None. Work of less than 40 µs, or of less than 0.5 % of the
        call, is not found.
    """
    shortest_lag = shortest_call = float("inf")
    for _ in range(_LAGS):
        iteration = iteration.again()
        lag, whole = _lag(runtime, stream, iteration)
        shortest_lag, shortest_call = min(shortest_lag, lag), min(shortest_call, whole)
        if whole > _LONG_CALL_NS:
            break
    nothing = Iteration(lambda: None)
    idle = min(_lag(runtime, stream, nothing)[0] for _ in range(_LAGS))
    escaped = shortest_lag - idle
    if escaped <= max(_ESCAPE_NS, _ESCAPE_SHARE * shortest_call):
        return None
    return f"{escaped / 1e3:.0f} µs of work ran outside the timed stream; launch it on the given stream"


def _lag(runtime: CudaRuntime, stream: Any, iteration: Iteration) -> tuple[float, float]:
    """Time from the end event to an idle device, and from the call to there, in nanoseconds."""
    end = runtime.device.create_event()
    if iteration.before is not None:
        iteration.before()
    runtime.synchronize()
    start = time.perf_counter_ns()
    iteration.run()
    stream.record(end)
    end.sync()
    ended = time.perf_counter_ns()
    runtime.synchronize()
    idle = time.perf_counter_ns()
    return float(idle - ended), float(idle - start)
