"""Energy of a call: calls back to back for a second, between two readings of the device's counter."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Protocol

from pytest_gpukern.measure.validity.energy import NO_COUNTER, Energy, energy_per_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.gpu.nvml import DeviceState
    from pytest_gpukern.measure.measure import Executions
    from pytest_gpukern.values.result import Measurement

NOT_ASKED = "NVML cannot be asked"
OF_INVALID = "the time is INVALID"
OF_CALLABLES = "tests of callables of their own are not run for a second more"

_LONG_ENOUGH_S = 1.2
"""The counter moves about every 0.1 s: in so long, an update more or less is under a tenth."""
_QUEUED_S = 0.02
_MOST_QUEUED = 256
_TRIED = 4
"""Batches in which the host gets ahead of the device where launching takes up to three quarters of a call."""


class Mark(Protocol):
    """A place in the queue of the timed stream, as an event of cuda.core's."""

    @property
    def is_done(self) -> bool:
        """Whether the device got there."""

    def sync(self) -> None:
        """Waits until it does."""


def with_energy(measurement: Measurement, energy: Energy) -> Measurement:
    """The measurement with the energy of its call, or with why it cannot be told."""
    return dataclasses.replace(
        measurement, energy_mj=energy.call_mj, mean_power_w=energy.power_w, energy_untold=energy.untold
    )


def energy_of_a_call(
    executions: Executions,
    state: Callable[[], DeviceState],
    synchronize: Callable[[], None],
    mark: Callable[[], Mark],
    *,
    call_ns: float,
    busy_ns: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Energy:
    """Energy that the whole board draws for a call, calls back to back, nothing flushed between them.

    So the cache is hot, unless the call's data do not fit into it. There is a reason instead where the device
    has no counter, and for calls so short that launching them takes longer: then the board mostly waits, and
    what it draws is no call's.

    Args:
        executions: of the call, warm and checked.
        state: asks for the device's state now.
        synchronize: waits for the device.
        mark: marks the place in the queue behind all that was launched.
        call_ns: how long a call takes, in nanoseconds.
        busy_ns: for how long kernels run in it, where a timer saw that.
        clock: seconds.
    """
    if state().energy_mj is None:
        return Energy(untold=NO_COUNTER)
    largest = max(1, min(_MOST_QUEUED, executions.largest_batch, int(_QUEUED_S * 1e9 / max(call_ns, 1.0))))
    count = _batch_size(largest, lambda: _Feed(executions, mark, clock), synchronize)
    synchronize()
    before = state()
    feed, began = _Feed(executions, mark, clock), clock()
    while clock() - began < _LONG_ENOUGH_S:
        feed.batch(count)
    synchronize()
    return energy_per_call(before, state(), feed.calls, starved_ns=1e9 * feed.starved_s, busy_ns=busy_ns)


class _Feed:
    """Queues batches of calls, each while the one before it still runs, if the host is fast enough.

    Attributes:
        calls: that were queued.
        starved_s: how long the host was queueing while the device may have had nothing to do: the time of all
            batches at whose end the one before had ended already. In the others the device had that one to
            execute all the while, and then this one, so that it cannot have waited.
    """

    def __init__(self, executions: Executions, mark: Callable[[], Mark], clock: Callable[[], float]) -> None:
        self._executions, self._mark, self._clock = executions, mark, clock
        self._queued: Mark | None = None
        self.calls = 0
        self.starved_s = 0.0

    def batch(self, count: int) -> bool:
        """Queues so many calls, and then waits for the batch before; whether that was still running."""
        began = self._clock()
        for execution in self._executions.take(count, cold=False):
            execution.run()
        before, self._queued = self._queued, self._mark()
        ahead = before is not None and not before.is_done
        if not ahead:
            self.starved_s += self._clock() - began
        if before is not None:
            before.sync()
        self.calls += count
        return ahead


def _batch_size(largest: int, feed: Callable[[], _Feed], synchronize: Callable[[], None]) -> int:
    """How many calls to queue at a time, at most `largest`.

    The launch queue has about 1000 entries. Calls that need many of them would fill it: then the host is held
    up until the batch before has ended, which looks as if it were too slow; with fewer calls it is not. Where
    the host is too slow whatever the size, as for calls that wait for the device, `largest` stays.
    """
    count = largest
    while count > 1:
        synchronize()
        trial = feed()
        if any(trial.batch(count) for _ in range(_TRIED)):
            return count
        count //= 2
    return largest
