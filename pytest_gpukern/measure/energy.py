"""Measures the energy of a call: calls back to back for a second, between two readings of the counter."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_gpukern.measure.observers import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.gpu.nvml import DeviceState
    from pytest_gpukern.measure.observers import Call
    from pytest_gpukern.timers.timer import Executions
    from pytest_gpukern.values.result import Measurement


NOT_ASKED = "NVML cannot be asked"
OF_INVALID = "the time is INVALID"
OF_UPDATES = "the call updates its arguments, so it cannot run back to back"
OF_CALLABLES = "only cases of a Problem run for another second, not calls of a test's own"

_LONG_ENOUGH_S = 1.2
"""The counter moves about every 0.1 s, so here one update more or less is under a tenth."""
_QUEUED_S = 0.02
_MOST_QUEUED = 256
_TRIED = 4
"""So many batches get the host ahead of the device if launching takes up to three quarters of a call."""


class Mark(Protocol):
    """A place in the queue of the timed stream, such as a cuda.core event."""

    @property
    def is_done(self) -> bool:
        """Whether the device has reached it."""

    def sync(self) -> None:
        """Waits until the device reaches it."""


class EnergyObserver(Observer):
    """Runs a timed call for another second, if the run asks for energy."""

    def measured(self, call: Call, measurement: Measurement) -> Measurement:
        """Adds the energy of a kernel's call, or the reason why it is unknown."""
        if not self.bench.settings.energy or call.scope != "kernel" or not call.on_gpu:
            return measurement
        energy = self._of(call, measurement)
        return dataclasses.replace(
            measurement, energy_mj=energy.call_mj, mean_power_w=energy.power_w, energy_untold=energy.untold
        )

    def _of(self, call: Call, measurement: Measurement) -> Energy:
        if call.executions is None or call.synchronize is None or call.mark is None:
            return Energy(untold=OF_CALLABLES)
        if call.executions.take(1, cold=False)[0].fresh is not None:
            return Energy(untold=OF_UPDATES)
        if measurement.invalid is not None:  # what disturbs a time also disturbs this
            return Energy(untold=OF_INVALID)
        instruments = self.bench.instruments
        if instruments is None:
            return Energy(untold=NOT_ASKED)
        return energy_of_a_call(
            call.executions,
            instruments.states.state,
            call.synchronize,
            call.mark,
            call_ns=measurement.summary.median_ns,
        )


def energy_of_a_call(
    executions: Executions,
    state: Callable[[], DeviceState],
    synchronize: Callable[[], None],
    mark: Callable[[], Mark],
    *,
    call_ns: float,
    clock: Callable[[], float] = time.monotonic,
) -> Energy:
    """Measures the energy that the whole board draws for a call, with calls back to back and no flushes.

    So the cache is hot, unless the call's data do not fit into it. If the device has no counter, or launching
    takes longer than the call, it returns a reason instead.
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
    return energy_per_call(before, state(), feed.calls, starved_ns=1e9 * feed.starved_s)


class _Feed:
    """Queues batches of calls, each while the one before still runs, if the host is fast enough.

    Attributes:
        calls: number of queued calls.
        starved_s: how long the host queued while the device may have been idle: the time to queue each batch
            before whose end the previous one had finished.
    """

    def __init__(self, executions: Executions, mark: Callable[[], Mark], clock: Callable[[], float]) -> None:
        self._executions, self._mark, self._clock = executions, mark, clock
        self._queued: Mark | None = None
        self.calls = 0
        self.starved_s = 0.0

    def batch(self, count: int) -> bool:
        """Queues so many calls, then waits for the batch before; returns whether that still ran."""
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
    """Returns how many calls to queue at a time, at most `largest`.

    A full launch queue holds the host up, so that it looks too slow; fewer calls avoid that. If the host is
    too slow for every size, we return `largest`.
    """
    count = largest
    while count > 1:
        synchronize()
        trial = feed()
        if any(trial.batch(count) for _ in range(_TRIED)):
            return count
        count //= 2
    return largest


UPDATE_S = 0.1
"""How often NVML's energy counter moves: about every 100 ms on recent data-centre GPUs, 20 ms on a V100
(https://ml.energy/blog/energy/measurement/thermally-stable-profiling-for-accurate-gpu-energy-measurement)."""

NO_COUNTER = "NVML has no energy counter for this device; MIG instances and cards before Volta have none"
COUNTER_STANDS = "NVML's energy counter did not move while the calls ran"
TOO_SHORT = "the calls ran too briefly: NVML's energy counter moves about every 0.1 s"
HOST_BOUND = (
    "launching takes longer than the call, or the call waits for the device: the GPU was idle in between, "
    "so the board's energy is not the call's"
)

_WORST = 0.1


@dataclass(frozen=True)
class Energy:
    """Energy of a call, or the reason why it is unknown.

    Attributes:
        call_mj: energy that the whole board drew per call, in millijoules.
        power_w: the board's average power meanwhile, in watts.
        untold: why there is neither; the same words for all such cases.
    """

    call_mj: float | None = None
    power_w: float | None = None
    untold: str | None = None


def energy_per_call(before: DeviceState, after: DeviceState, calls: int, *, starved_ns: float) -> Energy:
    """Returns the energy that the whole board drew per call, if known to 10 %, else why not.

    The counter moves every 0.1 s, so the calls must run for ten of its updates. The device must have had
    calls to execute for nine tenths of the time. `starved_ns` is the time in which its queue may have been
    empty, for example because the calls wait for the device. On A100 and H100 the sensor samples only a
    quarter of the time (arXiv:2312.02741), which evens out over repeated calls.
    """
    passed_ns = after.at_ns - before.at_ns
    if before.energy_mj is None or after.energy_mj is None:
        return Energy(untold=NO_COUNTER)
    if calls < 1 or _WORST * passed_ns < UPDATE_S * 1e9:
        return Energy(untold=TOO_SHORT)
    if starved_ns > _WORST * passed_ns:
        return Energy(untold=HOST_BOUND)
    drawn_mj = after.energy_mj - before.energy_mj
    if drawn_mj <= 0:
        return Energy(untold=COUNTER_STANDS)
    return Energy(drawn_mj / calls, 1e6 * drawn_mj / passed_ns)
