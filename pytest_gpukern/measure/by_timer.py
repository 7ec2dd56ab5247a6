"""Chooses the timers for a call: the requested one, or the best one with a second beside it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Protocol

from pytest_gpukern.measure.measure import CONTRADICTION
from pytest_gpukern.measure.observers import with_notes
from pytest_gpukern.timers.cupti.machine_code import machine_code
from pytest_gpukern.timers.host import LaunchTimer
from pytest_gpukern.timers.timer import NothingLaunched, Timer, TimerUnavailable, open_timer
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Measurement
from pytest_gpukern.values.timer_table import TIMERS, auto_timers, host_timer


class MeasureBy(Protocol):
    """Measures a call by a timer."""

    def __call__(self, timer: Timer, *, beside: bool) -> Measurement:
        """Measures the call; `beside` says that a main timer has just measured it."""


def measured_by(
    by: MeasureBy, wanted: str, *, scope: str, stream: Any, any_stream: bool
) -> list[Measurement]:
    """Measures work on a GPU by the requested timer, or by two if none was requested.

    For kernels `auto` takes the first of `auto_timers` that works, with the next one beside it: CUPTI with
    events, or events alone; the summary then says why. The host's clock times a launch until it returns, and
    work that ends on the host, unless another timer of the host is requested. End to end, the first of
    `auto_timers` runs beside it and tells copies from kernels.

    The timer `wanted` is as in `--gpukern-timer`; stream and `any_stream` are as of `open_timer`.

    Raises:
        NothingLaunched: the call puts nothing on the device.
        TimerUnavailable: no timer can time the call.
    """
    if scope == "launch":
        return [by(LaunchTimer.on_stream(stream, any_stream=True, queues=False), beside=False)]
    auto = auto_timers()
    if scope != "kernel":
        measurements = [by(open_timer(host_timer(wanted), stream), beside=False)]
        if scope == "end_to_end" and wanted in ("auto", auto[0]):
            with contextlib.suppress(TimerUnavailable):  # this only explains the host's time
                measurements.append(
                    by(open_timer(auto[0], stream, any_stream=True, queues=False), beside=True)
                )
        return measurements
    names, reason_not = auto if wanted == "auto" else (wanted,), None
    for place, name in enumerate(names):
        try:
            timer = open_timer(name, stream, any_stream=any_stream)
            main = by(timer, beside=False)
        except NothingLaunched:
            raise  # events would only time themselves
        except TimerUnavailable as reason:
            if wanted != "auto":
                why = f"the timer {wanted!r} cannot time this call: {reason}; use --gpukern-timer=auto"
                return [not_of_the_device(by, stream, why)]
            if name == auto[-1]:
                raise
            reason_not = reason_not or f"not by {TIMERS[name].label}: {reason}"
            continue
        if reason_not is not None:
            return [with_notes(main, Note(f"timed by {TIMERS[name].label}, {reason_not}"), first=True)]
        for other in names[place + 1 :]:
            with contextlib.suppress(TimerUnavailable):
                return _agreeing(main, by(open_timer(other, stream, queues=timer.queues), beside=True))
        return [main]
    raise AssertionError("auto tries no timer")


_MORE_NS, _MORE_SHARE = 5_000.0, 0.1
"""If events read more than CUPTI by more than both of these, beyond their own cost, a note says so."""


def _agreeing(main: Measurement, other: Measurement) -> list[Measurement]:
    """Returns both measurements, with a note if they contradict each other.

    Events contain what CUPTI records. They read less only if they missed work, or if recording slows the
    kernel, which the main number then contains. They read more than their cost if CUPTI has no record of some
    work. The number is INVALID if that work may have been launched from the device.
    """
    label, other_label = TIMERS[main.timer].label, TIMERS[other.timer].label
    main_ns, other_ns = main.summary.median_ns, other.summary.median_ns
    beyond_ns = other_ns - main_ns - (other.fixed_cost_ns or 0.0)
    if other_ns < (1 - CONTRADICTION) * main_ns:
        less = 100 * (1 - other_ns / main_ns)
        reading = f"{less:.1f} % less than {label}: they missed work on another stream"
        about, why = About.TIMERS, f"or the kernel is slower while {label} records it"
    elif other.fixed_cost_ns is not None and beyond_ns > max(_MORE_NS, _MORE_SHARE * main_ns):
        reading = (
            f"{other_ns / 1e3:.1f} µs, {label} {main_ns / 1e3:.1f} µs: {label} has no record of some work"
        )
        about, why = About.READER, "or the device waited before the call"
        code = machine_code()
        if code is not None and code.any_launches_from_device():
            partial = (
                f"a module is loaded that launches kernels from the device, and {other_label} read {reading}"
            )
            main = dataclasses.replace(main, invalid=main.invalid or partial)
    else:
        return [main, other]
    text = f"{other_label} read {reading}, {why} (--gpukern-timer={other.timer})"
    return [with_notes(main, Note(text, about), first=True), other]


HOST_REMEDY = "--gpukern-timer=host (or timer='host' in the test's marker) measures what runs on the host"


def not_of_the_device(by: MeasureBy, stream: Any, why: str) -> Measurement:
    """Returns the host's time instead of the device's, INVALID for this reason."""
    return dataclasses.replace(by(open_timer("host", stream), beside=False), invalid=why)
