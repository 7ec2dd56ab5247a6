"""Judges whether the device was fit while samples were taken: clocks, heat, power, other processes.

A disturbance is what a pause can cure: the card is too hot, loses power, wakes up, or another program uses
it. The time then belongs to that moment, so we repeat the batch. A power limit, or a clock that somebody set,
is how this kernel runs on this card. A pause would even make it look too fast: a power-limited matrix product
took 1.40 ms on a rested H200 and 1.60 ms back to back. We record and report that with the clocks, and never
repeat for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from pytest_gpukern.gpu.nvml import DeviceState, GpuProcess
from pytest_gpukern.measure.observers import Instruments, Look, Observation, ObservedCall, Observer, Seen
from pytest_gpukern.timers.timer import Batch, Timer
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Measurement, Value

_LOOK_EVERY_S = 0.1  # a look through NVML takes 5 to 28 ms on an H200

CLOCKS = "clocks"


class ClockObserver(Observer):
    """Looks at the device's state and clocks around batches."""

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        instruments = self.bench.instruments if call.on_gpu else None
        return None if instruments is None else ClockObservation(instruments)


class ClockObservation(Observation):
    """Says which batches count, pauses after those that do not, and finally gives up."""

    def __init__(self, instruments: Instruments, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._instruments = instruments
        self._sleep = sleep
        self._disturbed, self._paused_s, self._last = 0, 0.0, ""
        self._states: list[DeviceState] = []
        self._clocks: list[float | None] = []

    def before(self) -> None:
        if not self._states:
            self._states.append(self._instruments.state())

    def after(self, batch: Batch, *, last: bool) -> Look:  # noqa: ARG002
        """Says whether the samples since the last look count; pauses if they do not.

        We ask NVML every tenth of a second, at the end, and at once if the measured SM clock is low. Its
        counters also show what came and went between.
        """
        clock = self._instruments.probe.read() if self._instruments.probe is not None else None
        before, highest = self._states[-1], self._instruments.max_sm_mhz
        slow = bool(clock and highest and clock < LOWEST_CLOCK_SHARE * highest)
        self._clocks.append(clock)
        if not (last or slow or self._instruments.age_s > _LOOK_EVERY_S):
            return Look(settled=False)
        now = self._instruments.state(within_s=0.0)
        disturbance = batch_fault(
            before, now, sm_mhz=clock, max_sm_mhz=highest, max_memory_mhz=self._instruments.max_memory_mhz
        )
        self._states.append(now)
        if disturbance is None:
            return Look()
        hopeless = self._pause(disturbance)
        self._states.append(self._instruments.state())
        return Look(fault=disturbance, hopeless=hopeless)

    def _pause(self, disturbance: str) -> str | None:
        """Pauses after a disturbed batch; says why we give up instead, once the pauses add up."""
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._disturbed)
        self._disturbed, self._last = self._disturbed + 1, disturbance
        if self._paused_s + pause_s > _PAUSES_S:
            paused = f"even after {self._paused_s:.3g} s of pauses"
            return f"could not be measured cleanly: {self._counted}, {paused}, the last time: {disturbance}"
        self._paused_s += pause_s
        self._sleep(pause_s)
        return None

    @property
    def _counted(self) -> str:
        return f"{'1 batch was' if self._disturbed == 1 else f'{self._disturbed} batches were'} disturbed"

    def finish(self, measurement: Measurement) -> Seen:  # noqa: ARG002
        left_out = [f"{self._counted} and left out, the last time: {self._last}"] if self._disturbed else []
        notes = tuple(Note(text, About.NOISE) for text in (*left_out, *device_notes(self._states)))
        last = self._states[-1]
        clocks = [clock for clock in self._clocks if clock is not None]
        sm_mhz = None if last.sm_clock_mhz is None else float(last.sm_clock_mhz)
        values: dict[str, Value] = {
            "sm_mhz": round(statistics.median(clocks), 1) if clocks else sm_mhz,
            "sm_mhz_low": round(min(clocks), 1) if clocks else None,
            "sm_mhz_high": round(max(clocks), 1) if clocks else None,
            "memory_mhz": last.memory_clock_mhz,
            "clock_events": last.clock_events or (),
            "temperature_c": last.temperature_c,
            "memory_temperature_c": last.memory_temperature_c,
            "power_w": last.power_w,
            "memory_used_bytes": last.memory_used_bytes,
        }
        return Seen(values, notes)


INVALIDATING = {
    "sw_thermal_slowdown": "the driver lowered the clocks because the GPU or its memory was too hot",
    "hw_thermal_slowdown": "the hardware at least halved the clocks because the GPU was too hot",
    "hw_power_brake_slowdown": "the power supply made the hardware at least halve the clocks",
    "hw_slowdown": "the hardware at least halved the clocks, for heat or power",
}
"""Clock event → what happened. Samples are invalid while one is active or was counted."""

ORDINARY = {
    "sw_power_cap": "the power limit",
    "applications_clocks_setting": "a clock setting (nvidia-smi -ac or -lgc)",
    "display_clock_setting": "a display's clock setting",
    "sync_boost": "the slowest GPU of a sync-boost group",
    "board_limit": "the board's limits",
    "reliability": "the voltage limit",
}
"""Clock event → what holds the clocks down; worth a note only."""

_REMEDIES = {
    "sw_thermal_slowdown": "improve the cooling or measure when the machine is less busy",
    "hw_thermal_slowdown": "improve the cooling or measure when the machine is less busy",
    "hw_power_brake_slowdown": "check the power supply",
    "hw_slowdown": "check cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
}

LOWEST_CLOCK_SHARE = 0.75
"""We discard samples below this share of the highest SM clock, as NVBench does."""

_COUNTED_SHARE = 0.01  # an event in a hundredth of a batch cannot move its median
_SAME_CLOCK = 0.01  # NVML's steps are up to 0.8 %
_BUSY_PERCENT = 5  # a program that merely polls stays below
_COPIES_BYTES_PER_S = 1e9  # a fiftieth of an H200's link; a neighbour that used all of it cost 23 %

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
"""Pauses double from the first to the longest, as in NVBench."""
_PAUSES_S = 3.0
"""Once the pauses add up to this, no batch is repeated."""


def batch_fault(
    before: DeviceState,
    after: DeviceState,
    *,
    sm_mhz: float | None = None,
    max_sm_mhz: float | None = None,
    max_memory_mhz: float | None = None,
) -> str | None:
    """Says why the samples taken between two states are invalid, with the remedy, or returns None.

    Unknown values are not judged.

    `sm_mhz` is the SM clock measured right after the batch; without it we use NVML's.
    """
    return (
        _throttled(before, after)
        or _slow_clock(before, after, sm_mhz, max_sm_mhz)
        or _memory_clock(before, after, max_memory_mhz)
        or _other_process(before, after)
    )


def device_notes(states: Sequence[DeviceState]) -> tuple[str, ...]:
    """Says what the device did during a whole valid measurement, a text a note.

    The states were taken before, between and after its batches. Its clocks are figures, and no note.
    """
    notes = []
    seen = {event for state in states for event in state.clock_events or ()}
    held = [words for event, words in ORDINARY.items() if event in seen or _held(states, event)]
    if held:
        notes.append(f"clocks held down by {' and '.join(held)}")
    foreign = states[-1].foreign
    if foreign:
        notes.append(f"other processes on the device, idle as far as we can tell: {_named(foreign)}")
    copied = _copied(states)
    if copied >= _COPIES_BYTES_PER_S and not foreign:
        notes.append(
            f"up to {copied / 1e9:.1f} GB/s were copied over PCIe while this run waited, by one of its "
            "threads or by a process that NVML does not name: kernels may look slower"
        )
    return tuple(notes)


def _copied(states: Sequence[DeviceState]) -> float:
    """Returns the highest rate over PCIe while this process waited, in bytes a second; 0 if unknown."""
    return max(state.pcie_bytes_per_s or 0.0 for state in states)


def _throttled(before: DeviceState, after: DeviceState) -> str | None:
    active = {*(before.clock_events or ()), *(after.clock_events or ())}
    for event, words in INVALIDATING.items():
        share = _limited_share(before, after, event)
        if event not in active and share < _COUNTED_SHARE:
            continue
        details = [event] if event in active else [f"{event} for {100 * share:.0f} % of the batch"]
        if after.temperature_c is not None:
            details.append(f"GPU at {after.temperature_c} °C")
        if after.memory_temperature_c is not None:
            details.append(f"memory at {after.memory_temperature_c} °C")
        return f"{words} ({', '.join(details)}); {_REMEDIES[event]}"
    return None


def _slow_clock(
    before: DeviceState, after: DeviceState, measured_mhz: float | None, max_mhz: float | None
) -> str | None:
    idle = "gpu_idle" in (after.clock_events or ())
    mhz = measured_mhz
    if mhz is None and not idle:  # NVML's clock of an idle GPU is not the batch's
        mhz = after.sm_clock_mhz
    if mhz is None or not max_mhz or mhz >= LOWEST_CLOCK_SHARE * max_mhz:
        return None
    if any(event in (after.clock_events or ()) or _held((before, after), event) for event in ORDINARY):
        return None
    remedy = (
        "the driver saw an idle GPU: give it more work a call, or lock its clocks (nvidia-smi -lgc)"
        if idle
        else "see what lowers it with nvidia-smi -q -d PERFORMANCE,CLOCK"
    )
    share = f"{100 * mhz / max_mhz:.0f} % of {max_mhz:.0f} MHz"
    return f"the SM clock was {mhz:.0f} MHz, {share}; {remedy}"


def _memory_clock(before: DeviceState, after: DeviceState, max_mhz: float | None) -> str | None:
    first, last = before.memory_clock_mhz, after.memory_clock_mhz
    if last is None:
        return None
    set_by_somebody = "applications_clocks_setting" in (after.clock_events or ())
    if first is not None and abs(last - first) > _SAME_CLOCK * first:
        seen = f"changed from {first} to {last} MHz during the batch"
    elif max_mhz and last < LOWEST_CLOCK_SHARE * max_mhz and not set_by_somebody:
        seen = f"was {last} MHz, {100 * last / max_mhz:.0f} % of {max_mhz:.0f} MHz"
    else:
        return None
    return f"the memory clock {seen}; lock it (nvidia-smi -lmc) or keep the GPU from idling"


def _other_process(before: DeviceState, after: DeviceState) -> str | None:
    there = {process.pid for process in before.foreign}
    new = [process for process in after.foreign if process.pid not in there]
    busy = [process for process in after.foreign if (process.sm_percent or 0) >= _BUSY_PERCENT]
    copied = _copied((before, after))
    if busy:
        seen = f"ran kernels during the batch: {_named(busy)}"
    elif copied >= _COPIES_BYTES_PER_S and after.foreign:  # else our own thread may have copied: only a note
        seen = f"copied {copied / 1e9:.1f} GB/s over PCIe while this one waited: {_named(after.foreign)}"
    elif new:
        seen = f"began to use the device during the batch: {_named(new)}"
    else:
        return None
    return f"another process {seen}; stop it or choose another device (--gpukern-device)"


def _held(states: Sequence[DeviceState], event: str) -> bool:
    return _limited_share(states[0], states[-1], event) >= _COUNTED_SHARE


def _limited_share(before: DeviceState, after: DeviceState, event: str) -> float:
    """Returns the share of the time between two states in which an event was counted."""
    passed = after.at_ns - before.at_ns
    if passed <= 0 or event not in before.limited_ns or event not in after.limited_ns:
        return 0.0
    return min(1.0, (after.limited_ns[event] - before.limited_ns[event]) / passed)


def _named(processes: Iterable[GpuProcess]) -> str:
    return ", ".join(str(process) for process in processes)
