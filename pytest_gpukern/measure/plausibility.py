"""Checks that samples are plausible: host clocks agree, no thread interferes, no time is impossibly short."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

from pytest_gpukern.gpu.live_threads import running_threads, still_running, threads_left
from pytest_gpukern.gpu.theory import Floor
from pytest_gpukern.measure.observers import Look, Observation, ObservedCall, Observer, Seen
from pytest_gpukern.timers.timer import Batch, Timer
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Measurement
from pytest_gpukern.values.timer_table import timer_row


class Plausibility(Observer):
    """Looks at the host's clocks and threads around batches, and at the sum of the device's times."""

    def observe(self, call: ObservedCall, timer: Timer) -> Observation:
        """Begins once the call is warm, so that libraries have started the threads that they keep."""
        return PlausibilityObservation(call, timer)


class PlausibilityObservation(Observation):
    """Finds faults that make all samples of a measurement invalid."""

    def __init__(self, call: ObservedCall, timer: Timer) -> None:
        self._call = call
        self._timer = timer
        self._guard = ClockGuard()
        self._threads = running_threads()
        self._began = self._batch_began = self._guard.read()
        self._contradiction: str | None = None

    def before(self) -> None:
        self._batch_began = self._guard.read()

    def after(self, batch: Batch, *, last: bool) -> Look:  # noqa: ARG002
        if timer_row(self._timer.name).device_timed and self._contradiction is None:
            passed_ns = self._guard.read().perf_ns - self._batch_began.perf_ns
            self._contradiction = device_time_fault(sum(batch.samples_ns) * batch.iterations, passed_ns)
        return Look()

    def finish(self, measurement: Measurement) -> Seen:
        impossible = below_floor(
            measurement.summary.median_ns, self._call.floor, resolution_ns=self._timer.resolution_ns
        )
        # The timers see what a thread launches on the GPU, and the check of outputs finds late writes.
        left = threads_left(self._threads)
        notes = (Note(still_running(left, "the timed calls")),) if left else ()
        return Seen(notes=notes, invalid=self._guard.fault(self._began) or self._contradiction or impossible)


MARGIN = 0.02
"""How far a time may lie below the floor: clocks are reported in steps of up to 0.8 %, and timers tick."""


def below_floor(median_ns: float, floor: Floor | None, *, resolution_ns: float = 0.0) -> str | None:
    """Says why a median is below the floor, the least time that the declared work can take, or None."""
    if floor is None or median_ns + resolution_ns >= (1 - MARGIN) * floor.ns:
        return None
    return (
        f"{_micros(median_ns)} is impossible: {floor.bound}, take at least {_micros(floor.ns)}. "
        "Either the timer missed work (on another stream, in a thread, not waited for), "
        "or the declared bytes or flops are more than the call needs, or its data were still in a cache"
    )


def _micros(ns: float) -> str:
    return f"{ns / 1e3:.3g} µs"


_CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "clock_gettime")
_NAMES = [f"{clock}{unit}" for clock in _CLOCKS for unit in ("", "_ns")]
_TIME = time
_KEPT: dict[str, Any] = {name: getattr(time, name) for name in _NAMES if hasattr(time, name)}
_PACKAGE = __name__.partition(".")[0]

_TRIES = 10
_SHARE, _SLACK_NS = 0.01, 1_000_000
"""Clocks of a host differ because NTP slews one of them, by at most 0.05 %, and because we read them at
different moments. A device's clock differs from the host's by some parts in a million."""


@dataclass(frozen=True)
class ClockReading:
    """Two clocks of the host at one moment, in nanoseconds."""

    perf_ns: int
    raw_ns: int


class ClockGuard:
    """Finds replaced and diverging clocks around a measurement.

    We take references when this file is loaded, and compare them on each call of `fault`: the clock functions
    of `time`, the names under which this package's modules use them, and the functions that make the timed
    events. Python code cannot patch events and streams of `cuda.core`, which are extension types; event
    classes of other libraries time nothing here. We do not compare methods of our own timers.
    """

    def __init__(self) -> None:
        self._perf_counter_ns: Callable[[], int] = _KEPT["perf_counter_ns"]
        self._raw_ns = _raw_clock()

    def read(self) -> ClockReading:
        """Reads both clocks before the guarded work, and again if this thread had to wait between them."""
        for _ in range(_TRIES):
            first = self._perf_counter_ns()
            raw = self._raw_ns()
            if self._perf_counter_ns() - first < _SLACK_NS / 10:
                break
        return ClockReading(first, raw)

    def fault(self, since: ClockReading) -> str | None:
        """Says why times taken since a reading cannot be trusted, naming the clock, or returns None."""
        for name, replacement in replaced_clocks():
            return (
                f"the clock {name} was replaced by {replacement!r}; undo the patch while measuring "
                "(freezegun, monkeypatch, mock)"
            )
        now = self.read()
        perf_ns, raw_ns = now.perf_ns - since.perf_ns, now.raw_ns - since.raw_ns
        if abs(perf_ns - raw_ns) <= _SHARE * abs(raw_ns) + _SLACK_NS:
            return None
        return (
            f"the host's clocks disagree: time.perf_counter_ns saw {perf_ns / 1e6:.1f} ms pass, "
            f"CLOCK_MONOTONIC_RAW {raw_ns / 1e6:.1f} ms; "
            "measure on a host whose clock runs evenly, without libfaketime"
        )


def replaced_clocks() -> Iterator[tuple[str, object]]:
    """Yields the full name of each replaced clock function, with its replacement."""
    if sys.modules.get("time") is not _TIME:
        yield "module time", sys.modules.get("time")
    for name, kept in _KEPT.items():
        current = getattr(_TIME, name, None)
        genuine = isinstance(kept, BuiltinFunctionType) and (kept.__module__, kept.__name__) == ("time", name)
        if current is not kept or not genuine:  # it may have been replaced before this file was loaded
            yield f"time.{name}", current
    loaded = list(sys.modules.items())  # thousands, before and after each measurement
    named_alike = [
        (module_name, module) for module_name, module in loaded if module_name.startswith(_PACKAGE)
    ]
    for module_name, module in named_alike:
        if module_name == __name__ or module_name.partition(".")[0] != _PACKAGE:
            continue  # pytest_gpukern_of_others, whose own `time` made its times INVALID
        for name, current in [(name, vars(module)[name]) for name in _KEPT if name in vars(module)]:
            # A module may have its own function of that name: report.units.time formats a time.
            its_own = isinstance(current, FunctionType) and current.__globals__ is vars(module)
            if current is not _KEPT[name] and current is not _TIME and not its_own:
                yield f"{module_name}.{name}", current
    device = getattr(sys.modules.get("cuda.core"), "Device", None)
    make_event = getattr(device, "create_event", None)
    if make_event is not None and not str(make_event.__module__).startswith("cuda.core"):
        yield "cuda.core.Device.create_event", make_event


def device_time_fault(device_ns: float, wall_ns: float) -> str | None:
    """Says why the device's times of a batch contradict the host's clock, or None.

    The samples of one stream follow each other, so their sum cannot exceed the batch's time on the host. A
    smaller sum proves nothing, since the host's time includes flushes, launches and waiting.
    """
    if device_ns <= (1 + _SHARE) * wall_ns + _SLACK_NS:
        return None
    return (
        f"the samples of a batch add up to {device_ns / 1e6:.1f} ms, but the host saw it take "
        f"{wall_ns / 1e6:.1f} ms: the device's timer or the host's clock is wrong"
    )


def _raw_clock() -> Callable[[], int]:
    """Returns a clock that nobody slews, read by another system call; without one, the usual clock again."""
    read: Callable[[], int] = functools.partial(_KEPT["clock_gettime_ns"], time.CLOCK_MONOTONIC_RAW)
    try:
        read()
    except OSError:  # some sandboxes lack it
        read = _KEPT["perf_counter_ns"]
    return read
