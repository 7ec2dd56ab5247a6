"""What makes the samples of a batch invalid, and what is only worth a note.

The line is drawn where a pause can help. A card that is too hot, loses its supply, wakes up or is shared with
another program gives a time that belongs to that moment: the batch is repeated. A power limit or a clock that
somebody set is how this kernel runs on this card: after a pause a rested card would even read faster than it
is (a power-limited matrix product took 1.40 ms rested and 1.60 ms back to back on an H200). That is recorded
and reported, with the clocks, and never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpukern.gpu.nvml import DeviceState, GpuProcess

INVALIDATING = {
    "sw_thermal_slowdown": "the driver lowered the clocks because the GPU or its memory was too hot",
    "hw_thermal_slowdown": "the hardware at least halved the clocks because the GPU was too hot",
    "hw_power_brake_slowdown": "the power supply made the hardware at least halve the clocks",
    "hw_slowdown": "the hardware at least halved the clocks, for heat or power",
}
"""Clock event → what happened. While one of these is active, or was counted, the samples are invalid."""

ORDINARY = {
    "sw_power_cap": "the power limit",
    "applications_clocks_setting": "a clock setting (nvidia-smi -ac or -lgc)",
    "display_clock_setting": "a display's clock setting",
    "sync_boost": "the slowest GPU of a sync-boost group",
    "board_limit": "the board's limits",
    "reliability": "the voltage limit",
}
"""Clock event → what holds the clocks down, for a note."""

_REMEDIES = {
    "sw_thermal_slowdown": "improve the cooling or measure when the machine is less busy",
    "hw_thermal_slowdown": "improve the cooling or measure when the machine is less busy",
    "hw_power_brake_slowdown": "check the power supply",
    "hw_slowdown": "check cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
}

LOWEST_CLOCK_SHARE = 0.75
"""As NVBench: below this share of the highest SM clock a sample is discarded."""

_COUNTED_SHARE = 0.01  # what lasts a hundredth of a batch cannot move its median
_SAME_CLOCK = 0.01  # NVML's steps are up to 0.8 %
_BUSY_PERCENT = 5  # what a program that merely polls stays below


@dataclass(frozen=True)
class Disturbance:
    """Why the samples of a batch are invalid.

    Attributes:
        kind: a word or two, the same for all of its kind: a clock event, `SM clock`, `memory clock`,
            `other process`.
        seen: what was seen, with values.
        remedy: what somebody can do about it.
    """

    kind: str
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.seen}; {self.remedy}"


def batch_fault(
    before: DeviceState,
    after: DeviceState,
    *,
    sm_mhz: float | None = None,
    max_sm_mhz: float | None = None,
    max_memory_mhz: float | None = None,
) -> Disturbance | None:
    """Why the samples taken between two states are invalid, or None; what is not told is not judged.

    Args:
        before: state of the device right before the batch, its clocks up.
        after: state right after it.
        sm_mhz: SM clock measured right after it; without it, what NVML said then.
        max_sm_mhz: highest SM clock of the device.
        max_memory_mhz: highest memory clock of the device.
    """
    return (
        _throttled(before, after)
        or _slow_clock(before, after, sm_mhz, max_sm_mhz)
        or _memory_clock(before, after, max_memory_mhz)
        or _other_process(before, after)
    )


def device_notes(
    states: Sequence[DeviceState],
    clocks_mhz: Sequence[float | None] = (),
    *,
    max_sm_mhz: float | None = None,
) -> tuple[str, ...]:
    """What a reader should know of the device during a whole measurement that was valid all the same.

    Args:
        states: those before, between and after its batches, in order.
        clocks_mhz: SM clocks measured after its batches.
        max_sm_mhz: highest SM clock of the device.
    """
    if not states:
        return ()
    notes = []
    seen = {event for state in states for event in state.clock_events or ()}
    held = [words for event, words in ORDINARY.items() if event in seen or _held(states, event)]
    if held:
        clocks = _clock_range(states, clocks_mhz, max_sm_mhz)
        notes.append(f"clocks held down by {' and '.join(held)}{clocks}")
    foreign = states[-1].foreign
    if foreign:
        notes.append(f"on the device besides this run, as far as can be told idle: {_named(foreign)}")
    return tuple(notes)


def _throttled(before: DeviceState, after: DeviceState) -> Disturbance | None:
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
        return Disturbance(event, f"{words} ({', '.join(details)})", _REMEDIES[event])
    return None


def _slow_clock(
    before: DeviceState, after: DeviceState, measured_mhz: float | None, max_mhz: float | None
) -> Disturbance | None:
    idle = "gpu_idle" in (after.clock_events or ())
    mhz = measured_mhz
    if mhz is None and not idle:  # NVML's clock of an idle GPU is not that of the batch before
        mhz = after.sm_clock_mhz
    if mhz is None or not max_mhz or mhz >= LOWEST_CLOCK_SHARE * max_mhz:
        return None
    if any(event in (after.clock_events or ()) or _held((before, after), event) for event in ORDINARY):
        return None
    seen = f"the SM clock was {mhz:.0f} MHz, {100 * mhz / max_mhz:.0f} % of {max_mhz:.0f} MHz"
    remedy = (
        "the driver saw an idle GPU: give it more work between pauses or lock its clocks (nvidia-smi -lgc)"
        if idle
        else "see what lowers it with nvidia-smi -q -d PERFORMANCE,CLOCK"
    )
    return Disturbance("SM clock", seen, remedy)


def _memory_clock(before: DeviceState, after: DeviceState, max_mhz: float | None) -> Disturbance | None:
    first, last = before.memory_clock_mhz, after.memory_clock_mhz
    if last is None:
        return None
    remedy = "lock the memory clock (nvidia-smi -lmc) or keep the GPU from idling"
    if first is not None and abs(last - first) > _SAME_CLOCK * first:
        seen = f"the memory clock changed from {first} to {last} MHz during the batch"
        return Disturbance("memory clock", seen, remedy)
    set_by_somebody = "applications_clocks_setting" in (after.clock_events or ())
    if max_mhz and last < LOWEST_CLOCK_SHARE * max_mhz and not set_by_somebody:
        seen = f"the memory clock was {last} MHz, {100 * last / max_mhz:.0f} % of {max_mhz:.0f} MHz"
        return Disturbance("memory clock", seen, remedy)
    return None


def _other_process(before: DeviceState, after: DeviceState) -> Disturbance | None:
    there = {process.pid for process in before.foreign}
    new = [process for process in after.foreign if process.pid not in there]
    busy = [process for process in after.foreign if (process.sm_percent or 0) >= _BUSY_PERCENT]
    if not (new or busy):
        return None
    what = "ran kernels" if busy else "began to use the device"
    seen = f"another process {what} during the batch: {_named(busy or new)}"
    return Disturbance("other process", seen, "stop it or choose another device (--gpukern-device)")


def _held(states: Sequence[DeviceState], event: str) -> bool:
    return _limited_share(states[0], states[-1], event) >= _COUNTED_SHARE


def _limited_share(before: DeviceState, after: DeviceState, event: str) -> float:
    """Share of the time between two states in which an event held the clocks down, as far as counted."""
    passed = after.at_ns - before.at_ns
    if passed <= 0 or event not in before.limited_ns or event not in after.limited_ns:
        return 0.0
    return min(1.0, (after.limited_ns[event] - before.limited_ns[event]) / passed)


def _clock_range(
    states: Sequence[DeviceState], clocks_mhz: Iterable[float | None], max_mhz: float | None
) -> str:
    known = [mhz for mhz in clocks_mhz if mhz is not None]
    known = known or [float(state.sm_clock_mhz) for state in states[1:] if state.sm_clock_mhz is not None]
    if not known:
        return ""
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    between = low if low == high else f"{low} to {high}"
    return f": SM clock {between} MHz" + (f" of {max_mhz:.0f}" if max_mhz else "")


def _named(processes: Iterable[GpuProcess]) -> str:
    return ", ".join(str(process) for process in processes)
