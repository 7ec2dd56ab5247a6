"""Times by CUDA events around each call, with everything queued behind a blocking kernel.

Events themselves cost about 3 µs on an H200, and an empty pair reads 1.3 µs. So short kernels read too long:
4.2 µs for a kernel of 1.3 µs. We report what events cost in this session beside the number.
"""

from __future__ import annotations

from typing import Any

from pytest_gpukern.gpu.runtime import runtime
from pytest_gpukern.timers.launch_queue import EventQueue, escaped_work
from pytest_gpukern.timers.replay import LEGACY_STREAMS, event_cost_ns
from pytest_gpukern.timers.timer import Iteration


class EventTimer(EventQueue):
    """Times on the device with pairs of CUDA events."""

    name = "event"
    measures = "GPU time between two events: launch and kernel, without the host's launch cost"
    jitter_ns = 165.0
    """Noise of a session's median: eight processes that timed one 1.3 µs kernel on an H200 had medians within
    10 % of 4.7 µs, a range of 2.85 standard deviations."""

    @classmethod
    def on_stream(cls, stream: Any, *, any_stream: bool, queues: bool) -> EventTimer:  # noqa: ARG003
        return cls(runtime(), stream, queues=queues)

    @property
    def fixed_cost_ns(self) -> float | None:
        """What the events cost under the cache policy of the last batch; None if that was not queued.

        The first read in a process waits a few milliseconds for the calibration.
        """
        if not self.queues:
            return None
        legacy = int(self._stream.handle) in LEGACY_STREAMS
        return event_cost_ns(self._runtime, legacy=legacy, cold=self._cold)

    def suspicion(self, iteration: Iteration) -> str | None:
        return escaped_work(self._runtime, self._stream, iteration)
