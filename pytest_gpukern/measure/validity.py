"""Decides whether the samples of a batch may be believed, from what was seen around it. Needs no hardware.

Samples are invalid where the device was disturbed, a time is shorter than the hardware allows, a clock of the
host was replaced or runs unevenly, or the device's times contradict the host's clock.

What counts as a disturbance is drawn where a pause can help. A card that is too hot, loses its supply, wakes
up or is shared with another program gives a time that belongs to that moment: the batch is repeated. A power
limit or a clock that somebody set is how this kernel runs on this card: after a pause a rested card would
even read faster than it is (a power-limited matrix product took 1.40 ms rested and 1.60 ms back to back on an
H200). That is recorded and reported, with the clocks, and never repeated.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import Counter
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpukern.gpu.nvml import DeviceState, GpuProcess
    from pytest_gpukern.gpu.theory import Floor


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


@dataclass(frozen=True)
class PausePolicy:
    """How long to pause after a disturbed batch: from `first_s`, doubling up to `longest_s`, as NVBench.

    Attributes:
        first_s: the first pause, in seconds.
        longest_s: no pause is longer.
        total_s: no batch is repeated once the pauses add up to this.

    Raises:
        ValueError: 0 < first_s ≤ longest_s ≤ total_s does not hold.
    """

    first_s: float = 0.05
    longest_s: float = 0.5
    total_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s <= self.total_s:
            raise ValueError(
                f"0 < first_s ≤ longest_s ≤ total_s is needed, "
                f"got {self.first_s!r}, {self.longest_s!r} and {self.total_s!r}"
            )

    def pause_s(self, number: int) -> float:
        """The pause after the `number`th disturbed batch, counted from 0."""
        return min(self.longest_s, self.first_s * 2.0 ** min(number, 64))


class Recovery:
    """Counts the disturbed batches of one measurement and pauses after each.

    After a pause the device has rested: make one call untimed before the next batch, so that clocks and
    caches are as they were.

    Args:
        policy: how long to pause.
        sleep: pauses, in seconds.
    """

    def __init__(
        self, policy: PausePolicy | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._policy = policy or PausePolicy()
        self._sleep = sleep
        self._paused_s = 0.0
        self._seen: list[Disturbance] = []

    @property
    def disturbed(self) -> int:
        """How many batches were disturbed so far."""
        return len(self._seen)

    def pause(self, disturbance: Disturbance) -> bool:
        """Notes a disturbed batch; pauses and returns True, or False once no pause is left."""
        pause_s = self._policy.pause_s(self.disturbed)
        self._seen.append(disturbance)
        if self._paused_s + pause_s > self._policy.total_s * (1 + 1e-9):
            return False
        self._paused_s += pause_s
        self._sleep(pause_s)
        return True

    @property
    def reason(self) -> str:
        """Why the measurement is given up: what was seen, how often, in spite of what, and the remedies."""
        remedies = "; ".join(dict.fromkeys(disturbance.remedy for disturbance in self._seen))
        return (
            f"could not be measured cleanly: {self._counted()}, "
            f"in spite of {self._paused_s:.3g} s of pauses: {self._causes()}. Remedy: {remedies}"
        )

    @property
    def note(self) -> str | None:
        """What was repeated in a measurement that became clean, or None."""
        return f"{self._counted()} and repeated: {self._causes()}" if self._seen else None

    def _counted(self) -> str:
        return f"{self.disturbed} {'batch was' if self.disturbed == 1 else 'batches were'} disturbed"

    def _causes(self) -> str:
        """Each kind once, as last seen, the most frequent first."""
        last = {disturbance.kind: disturbance.seen for disturbance in self._seen}
        counts = Counter(disturbance.kind for disturbance in self._seen)
        return ", ".join(f"{count} × {last[kind]}" for kind, count in counts.most_common())


MARGIN = 0.02
"""How far a time may lie below the floor: clocks are told in steps of up to 0.8 % and timers tick."""


def below_floor(median_ns: float, floor: Floor | None, *, resolution_ns: float = 0.0) -> str | None:
    """Why a median is impossible, in words, or None.

    Args:
        median_ns: the measured median of a call.
        floor: the least time that the declared work can take; None where nothing is known.
        resolution_ns: the smallest difference that the timer can show.
    """
    if floor is None or median_ns + resolution_ns >= (1 - MARGIN) * floor.ns:
        return None
    return (
        f"{_micros(median_ns)} is impossible: {floor.bound}, take {_micros(floor.ns)} at least. "
        "Either the timer missed work (on another stream, in a thread, not waited for), "
        "or the declared bytes or flops are more than the call needs, or its data were still in a cache"
    )


def _micros(ns: float) -> str:
    return f"{ns / 1e3:.3g} µs"


_NAMES = (
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "time",
    "time_ns",
    "process_time",
    "process_time_ns",
    "clock_gettime",
    "clock_gettime_ns",
)
_TIME = time
_KEPT: dict[str, Any] = {name: getattr(time, name) for name in _NAMES if hasattr(time, name)}
_PACKAGE = __name__.partition(".")[0]
_INSIDE = f"{_PACKAGE}."

_TRIES = 10
_SHARE, _SLACK_NS = 0.01, 1_000_000
"""Clocks of a host differ by the rate at which NTP slews one of them, at most 0.05 %, and by when each is
read; a device's clock differs from the host's by some parts in a million."""


@dataclass(frozen=True)
class ClockReading:
    """Two clocks of the host at one moment, in nanoseconds; `raw_ns` is None where there is only one."""

    perf_ns: int
    raw_ns: int | None


class ClockGuard:
    """Finds replaced and diverging clocks around a measurement.

    References are taken when this file is loaded and compared whenever somebody asks. What is compared: the
    clock functions of `time`, what this package's own modules use under their names, and what makes the
    events that times are read from. Events and streams of `cuda.core` are extension types that Python code
    cannot patch; event classes of other libraries time nothing here. Methods of our own timers are not
    compared.
    """

    def __init__(
        self,
        perf_counter_ns: Callable[[], int] = _KEPT["perf_counter_ns"],
        raw_ns: Callable[[], int] | None = None,
    ) -> None:
        self._perf_counter_ns = perf_counter_ns
        self._raw_ns = raw_ns or _raw_clock()

    def read(self) -> ClockReading:
        """Read both clocks, before what is guarded; again where this thread had to wait between them."""
        for _ in range(_TRIES):
            first = self._perf_counter_ns()
            raw = self._raw_ns() if self._raw_ns else None
            if raw is None or self._perf_counter_ns() - first < _SLACK_NS / 10:
                break
        return ClockReading(first, raw)

    def fault(self, since: ClockReading) -> str | None:
        """Why times taken since a reading cannot be trusted, naming the clock, or None."""
        for name, found in replaced_clocks():
            return (
                f"the clock {name} was replaced by {_described(found)}; undo the patch while measuring "
                "(freezegun, monkeypatch, mock)"
            )
        now = self.read()
        if now.raw_ns is None or since.raw_ns is None:
            return None
        perf_ns, raw_ns = now.perf_ns - since.perf_ns, now.raw_ns - since.raw_ns
        if abs(perf_ns - raw_ns) <= _SHARE * abs(raw_ns) + _SLACK_NS:
            return None
        return (
            f"the host's clocks disagree: by time.perf_counter_ns {perf_ns / 1e6:.1f} ms passed, "
            f"by CLOCK_MONOTONIC_RAW {raw_ns / 1e6:.1f} ms; "
            "measure on a host whose clock runs evenly, without libfaketime"
        )


def replaced_clocks() -> Iterator[tuple[str, object]]:
    """Each clock function that is not the one it was, by its full name, with what stands in its place."""
    if sys.modules.get("time") is not _TIME:
        yield "module time", sys.modules.get("time")
    for name, kept in _KEPT.items():
        found = getattr(_TIME, name, None)
        if found is not kept or not _genuine(name, kept):
            yield f"time.{name}", found
    for module_name, module in list(sys.modules.items()):  # thousands, before and after each measurement
        own = module_name.startswith(_INSIDE) or module_name == _PACKAGE
        if not own or module_name == __name__:
            continue
        for name, found in [(name, vars(module)[name]) for name in _KEPT if name in vars(module)]:
            # A function of the module's own may have the name: report.units.time formats a time.
            its_own = isinstance(found, FunctionType) and found.__globals__ is vars(module)
            if found is not _KEPT[name] and found is not _TIME and not its_own:
                yield f"{module_name}.{name}", found
    device = getattr(sys.modules.get("cuda.core"), "Device", None)
    make_event = getattr(device, "create_event", None)
    if make_event is not None and not str(make_event.__module__).startswith("cuda.core"):
        yield "cuda.core.Device.create_event", make_event


def _genuine(name: str, function: object) -> bool:
    """Whether what was found when this file was loaded was already what it says."""
    return isinstance(function, BuiltinFunctionType) and (function.__module__, function.__name__) == (
        "time",
        name,
    )


def device_time_fault(device_ns: float, wall_ns: float) -> str | None:
    """Why the device's times of a batch contradict the host's clock, or None.

    The samples of one stream follow each other inside the batch, so their sum cannot exceed the time that the
    host saw pass around it. The opposite proves nothing: flushes, launches and waiting are in the host's
    time too.

    Args:
        device_ns: sum of the batch's samples, each times its iterations.
        wall_ns: the host's time from before the first was queued until the device was idle.
    """
    if device_ns <= (1 + _SHARE) * wall_ns + _SLACK_NS:
        return None
    return (
        f"the samples of a batch add up to {device_ns / 1e6:.1f} ms, but the host saw it take "
        f"{wall_ns / 1e6:.1f} ms: the device's timer or the host's clock is wrong"
    )


def _raw_clock() -> Callable[[], int] | None:
    """A clock that nobody slews, read by another system call; None on systems without it."""
    clock, read = getattr(time, "CLOCK_MONOTONIC_RAW", None), _KEPT.get("clock_gettime_ns")
    if clock is None or read is None:
        return None
    try:
        read(clock)
    except OSError:  # some sandboxes do not have it
        return None
    return lambda: int(read(clock))


def _described(found: object) -> str:
    try:
        place = inspect.getsourcefile(found)  # type: ignore[arg-type]
    except TypeError:
        place = None
    return f"{found!r} of {place}" if place else repr(found)
