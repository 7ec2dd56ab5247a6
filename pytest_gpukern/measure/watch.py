"""Looks at the device and the host around the batches of one measurement, never inside them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.measure.live_threads import running_threads, thread_fault, thread_note
from pytest_gpukern.measure.measure import Watched
from pytest_gpukern.measure.validity import (
    LOWEST_CLOCK_SHARE,
    ClockGuard,
    Recovery,
    batch_fault,
    below_floor,
    device_notes,
    device_time_fault,
)

if TYPE_CHECKING:
    from pytest_gpukern.gpu.clock_probe import ClockProbe
    from pytest_gpukern.gpu.nvml import DeviceState
    from pytest_gpukern.gpu.processes import DeviceWatch
    from pytest_gpukern.gpu.theory import Floor
    from pytest_gpukern.measure.device_memory import MemoryWatch
    from pytest_gpukern.timers.timer import Batch
    from pytest_gpukern.values.result import JsonDict


_LOOK_EVERY_S = 0.1
_FRESH_S = 0.02


@dataclass
class Instruments:
    """What a device is looked at with; one a process.

    Attributes:
        states: asks NVML.
        probe: measures the SM clock; None where it cannot be launched.
        max_sm_mhz: highest SM clock of the device, where it is told.
        max_memory_mhz: highest memory clock.
    """

    states: DeviceWatch
    probe: ClockProbe | None = None
    max_sm_mhz: float | None = None
    max_memory_mhz: float | None = None

    def __post_init__(self) -> None:
        self._last: DeviceState | None = None
        self._asked = float("-inf")

    @property
    def age_s(self) -> float:
        """Seconds since NVML was asked."""
        return time.monotonic() - self._asked

    def state(self, *, within_s: float = _FRESH_S) -> DeviceState:
        """The device's state: one of 20 ms ago will do, since asking takes some, unless a newer is wanted."""
        if self._last is None or self.age_s > within_s:
            self._last = self.states.state()
            self._asked = time.monotonic()
        return self._last


class BatchWatch:
    """Says which batches count, pauses after those that do not, and gives up at last; see `measure.Watch`.

    Make it once the call is warm: threads that libraries keep must have been started.

    Args:
        instruments: None on the host, where only clocks and threads are looked at.
        floor: the least time that the declared work can take, where that is known.
        device_timed: whether samples are the device's own times of one stream, which cannot add up to more
            than the host saw pass.
        beside: whether a main timer's samples were taken just before, and looked after: then that look will
            do for a tenth of a second, and the end alone is no reason for another.
        recovery: pauses after disturbed batches.
        memory: follows the device's memory; None on the host.
    """

    def __init__(
        self,
        instruments: Instruments | None = None,
        *,
        floor: Floor | None = None,
        device_timed: bool = False,
        beside: bool = False,
        recovery: Recovery | None = None,
        memory: MemoryWatch | None = None,
    ) -> None:
        self._instruments = instruments
        self._floor = floor
        self._device_timed = device_timed
        self._beside = beside
        self._recovery = recovery or Recovery()
        self.settled = instruments is None
        self._guard = ClockGuard()
        self._threads = running_threads()
        self._began = self._batch_began = self._guard.read()
        self._states: list[DeviceState] = []
        self._clocks: list[float | None] = []
        self._fault: str | None = None
        self._given_up: str | None = None
        self._memory = memory.series() if memory is not None else None

    def before(self) -> None:
        """Notes the device's state, unless the last one is fresh, and the time."""
        if self._instruments is not None and not self._states:
            self._states.append(self._instruments.state(within_s=_LOOK_EVERY_S if self._beside else _FRESH_S))
        self._batch_began = self._guard.read()

    def after(self, batch: Batch, *, last: bool) -> str | None:
        """Why the samples since the last look do not count, or None; pauses after such.

        NVML is asked every tenth of a second and at the end: its counters tell of what came and went between.
        Beside a main timer it is asked every tenth of a second only.
        The SM clock is measured after each batch, and a low one has NVML asked at once.
        """
        if self._device_timed and self._fault is None:
            passed_ns = self._guard.read().perf_ns - self._batch_began.perf_ns
            self._fault = device_time_fault(sum(batch.samples_ns) * batch.iterations, passed_ns)
        if self._memory is not None:
            self._memory.note(len(batch.samples_ns) * batch.iterations)
        if self._instruments is None:
            return None
        clock = self._instruments.probe.read() if self._instruments.probe is not None else None
        before, highest = self._states[-1], self._instruments.max_sm_mhz
        slow = bool(clock and highest and clock < LOWEST_CLOCK_SHARE * highest)
        ends = last and not self._beside
        self.settled = ends or slow or self._instruments.age_s > _LOOK_EVERY_S
        self._clocks.append(clock)
        if not self.settled:
            return None
        now = self._instruments.state(within_s=0.0)
        disturbance = batch_fault(
            before,
            now,
            sm_mhz=clock,
            max_sm_mhz=self._instruments.max_sm_mhz,
            max_memory_mhz=self._instruments.max_memory_mhz,
        )
        self._states.append(now)
        if disturbance is None:
            return None
        if not self._recovery.pause(disturbance):
            self._given_up = self._recovery.reason
        self._states.append(self._instruments.state())
        return str(disturbance)

    def hopeless(self) -> str | None:
        """Why the measurement is given up, or None."""
        return self._given_up

    def finish(self, samples_ns: list[float], *, resolution_ns: float) -> Watched:
        """The device's state over all batches, and what else was found."""
        if self._memory is not None:
            self._memory.end()
        threads = running_threads()
        found = (
            self._guard.fault(self._began),
            self._fault,
            thread_fault(self._threads, threads),
            below_floor(statistics.median(samples_ns), self._floor, resolution_ns=resolution_ns),
        )
        warnings = (
            self._recovery.note,
            thread_note(self._threads, threads) if self._instruments is None else None,
            *device_notes(
                self._states,
                self._clocks,
                max_sm_mhz=self._instruments.max_sm_mhz if self._instruments else None,
            ),
        )
        return Watched(
            state=self._state(),
            warnings=tuple(warning for warning in warnings if warning),
            invalid=next((fault for fault in found if fault), None),
        )

    def _state(self) -> JsonDict:
        """What a record keeps: measured clocks, and what NVML said after the last batch."""
        if not self._states:
            return {}
        last = self._states[-1]
        clocks = [clock for clock in self._clocks if clock is not None]
        state: dict[str, Any] = {
            "memory_mhz": last.memory_clock_mhz,
            "temperature_c": last.temperature_c,
            "memory_temperature_c": last.memory_temperature_c,
            "power_w": last.power_w,
            "clock_events": list(last.clock_events or ()),
            "memory_used_bytes": last.memory_used_bytes,
        }
        if clocks:
            state["sm_mhz"] = round(statistics.median(clocks), 1)
            state["sm_mhz_range"] = [round(min(clocks), 1), round(max(clocks), 1)]
        elif last.sm_clock_mhz is not None:
            state["sm_mhz"] = float(last.sm_clock_mhz)
        return {name: value for name, value in state.items() if value is not None}
