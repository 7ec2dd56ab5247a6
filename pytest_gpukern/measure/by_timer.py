"""Chooses the timer for a call: the requested one, or the best one that works."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from msgspec import structs

from pytest_gpukern.measure.measure import CONTRADICTION
from pytest_gpukern.measure.observers import with_notes
from pytest_gpukern.timers.cupti.machine_code import machine_code
from pytest_gpukern.timers.host import LaunchTimer
from pytest_gpukern.timers.timer import NothingLaunched, Timer, TimerUnavailable, open_timer
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Measurement
from pytest_gpukern.values.timer_table import TIMERS, auto_timers, host_timer


class Timed(Protocol):
    """A warm call that a timer can measure."""

    def by(self, timer: Timer) -> Measurement:
        """Measures it."""

    def glance_by(self, timer: Timer) -> Measurement:
        """Takes a few samples of what has just been measured, unobserved."""


def measured_by(timed: Timed, wanted: str, *, scope: str, stream: Any, any_stream: bool) -> Measurement:
    """Measures work on a GPU by the requested timer, or by the best one that works.

    For kernels `auto` takes the first of `auto_timers` that works: CUPTI, whose time a glance by events may
    contradict, or events; a note then says why. The host's clock times a launch until it returns, and work
    that ends on the host, unless another timer of the host is requested. End to end, a glance by the first of
    `auto_timers` tells copies from kernels.

    The timer `wanted` is as in `--gpukern-timer`; stream and `any_stream` are as of `open_timer`.

    Raises:
        NothingLaunched: the call puts nothing on the device.
        TimerUnavailable: no timer can time the call.
    """
    if scope == "launch":
        return timed.by(LaunchTimer.on_stream(stream, any_stream=True, queues=False))
    auto = auto_timers()
    if scope != "kernel":
        measurement = timed.by(open_timer(host_timer(wanted), stream))
        if scope == "end_to_end" and wanted in ("auto", auto[0]):
            with contextlib.suppress(TimerUnavailable):  # this only explains the host's time
                glance = timed.glance_by(open_timer(auto[0], stream, any_stream=True, queues=False))
                return _split(measurement, glance)
        return measurement
    names, reason_not = auto if wanted == "auto" else (wanted,), None
    for place, name in enumerate(names):
        try:
            timer = open_timer(name, stream, any_stream=any_stream)
            measurement = timed.by(timer)
        except NothingLaunched:
            raise  # events would only time themselves
        except TimerUnavailable as reason:
            if wanted != "auto":
                why = f"the timer {wanted!r} cannot time this call: {reason}; use --gpukern-timer=auto"
                return not_of_the_device(timed, stream, why)
            if name == auto[-1]:
                raise
            reason_not = reason_not or f"not by {TIMERS[name].label}: {reason}"
            continue
        if reason_not is not None:
            return with_notes(measurement, Note(f"timed by {TIMERS[name].label}, {reason_not}"), first=True)
        for other in names[place + 1 :]:
            with contextlib.suppress(TimerUnavailable):
                glance = timed.glance_by(open_timer(other, stream, queues=timer.queues))
                return _held_against(measurement, glance)
        return measurement
    raise AssertionError("auto tries no timer")


def _split(measurement: Measurement, glance: Measurement) -> Measurement:
    """Returns a time of the host with what the device did in such a call, as a glance by CUPTI saw it."""
    return structs.replace(
        measurement,
        work=glance.work,
        order=glance.order,
        busy_ns=glance.busy_ns,
        device_ns=glance.summary.median_ns,
    )


_MORE_NS, _MORE_SHARE = 5_000.0, 0.1
"""If events read more than CUPTI by more than both of these, beyond their own cost, a note says so. CUPTI
read 10 µs where kernels of the device had launched 46 µs of work."""


def _held_against(measurement: Measurement, glance: Measurement) -> Measurement:
    """Returns CUPTI's measurement, with a note if a glance by events contradicts it.

    Events contain what CUPTI records. They read less only if they missed work, or if recording slows the
    kernel, which CUPTI's number then contains. They read more than their cost if CUPTI has no record of some
    work. The number is INVALID if that work may have been launched from the device.
    """
    label, glance_label = TIMERS[measurement.timer].label, TIMERS[glance.timer].label
    timed_ns, glance_ns = measurement.summary.median_ns, glance.summary.median_ns
    beyond_ns = glance_ns - timed_ns - (glance.fixed_cost_ns or 0.0)
    if glance_ns < (1 - CONTRADICTION) * timed_ns:
        less = 100 * (1 - glance_ns / timed_ns)
        reading = f"{less:.1f} % less than {label}: they missed work on another stream"
        about, why = About.TIMERS, f"or the kernel is slower while {label} records it"
    elif glance.fixed_cost_ns is not None and beyond_ns > max(_MORE_NS, _MORE_SHARE * timed_ns):
        reading = (
            f"{glance_ns / 1e3:.1f} µs, {label} {timed_ns / 1e3:.1f} µs: {label} has no record of some work"
        )
        about, why = About.READER, "or the device waited before the call"
        code = machine_code()
        if code is not None and code.any_launches_from_device():
            partial = (
                f"a module is loaded that launches kernels from the device, and {glance_label} read {reading}"
            )
            measurement = structs.replace(measurement, invalid=measurement.invalid or partial)
    else:
        return measurement
    text = f"{glance_label} read {reading}, {why} (--gpukern-timer={glance.timer})"
    return with_notes(measurement, Note(text, about), first=True)


HOST_REMEDY = "--gpukern-timer=host (or timer='host' in the test's marker) measures what runs on the host"


def not_of_the_device(timed: Timed, stream: Any, why: str) -> Measurement:
    """Returns the host's time instead of the device's, INVALID for this reason."""
    return structs.replace(timed.by(open_timer("host", stream)), invalid=why)
