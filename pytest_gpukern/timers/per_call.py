"""Another timer's samples of several calls each, as the mean of one call."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.timers.timer import Batch, Iteration, Timer


class PerCall:
    """Divides what another timer finds by the number of calls that each iteration makes.

    Args:
        timer: takes the times.
        calls: made by the `run` of each iteration.
    """

    def __init__(self, timer: Timer, calls: int) -> None:
        self._timer = timer
        self._calls = calls
        self.name = timer.name
        self.jitter_ns = timer.jitter_ns / calls

    @property
    def measures(self) -> str:
        """As the timer's."""
        return self._timer.measures

    @property
    def resolution_ns(self) -> float:
        """The timer's own, spread over the calls."""
        return self._timer.resolution_ns / self._calls

    @property
    def queues(self) -> bool:
        """As the timer's."""
        return self._timer.queues

    @property
    def fixed_cost_ns(self) -> float | None:
        """The timer's own, spread over the calls."""
        cost = self._timer.fixed_cost_ns
        return None if cost is None else cost / self._calls

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes one sample of each iteration, the mean of its calls."""
        calls = self._calls
        batch = self._timer.collect(iterations, cold=cold)
        return dataclasses.replace(
            batch,
            samples_ns=[sample / calls for sample in batch.samples_ns],
            iterations=batch.iterations * calls,
            busy_ns=[busy / calls for busy in batch.busy_ns],
            work=tuple(
                dataclasses.replace(
                    work,
                    count=work.count / calls,
                    time_ns=work.time_ns / calls,
                    size_bytes=work.size_bytes / calls,
                )
                for work in batch.work
            ),
        )

    def suspicion(self, iteration: Iteration) -> str | None:
        """As the timer's."""
        return self._timer.suspicion(iteration)
