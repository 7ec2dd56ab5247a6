"""Chooses the timer for a call: the requested one, or the best one that works."""

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
        main = timed.by(open_timer(host_timer(wanted), stream))
        if scope == "end_to_end" and wanted in ("auto", auto[0]):
            with contextlib.suppress(TimerUnavailable):  # this only explains the host's time
                main = _split(
                    main, timed.glance_by(open_timer(auto[0], stream, any_stream=True, queues=False))
                )
        return main
    names, reason_not = auto if wanted == "auto" else (wanted,), None
    for place, name in enumerate(names):
        try:
            timer = open_timer(name, stream, any_stream=any_stream)
            main = timed.by(timer)
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
            return with_notes(main, Note(f"timed by {TIMERS[name].label}, {reason_not}"), first=True)
        for other in names[place + 1 :]:
            with contextlib.suppress(TimerUnavailable):
                return _held_against(main, timed.glance_by(open_timer(other, stream, queues=timer.queues)))
        return main
    raise AssertionError("auto tries no timer")


def _split(main: Measurement, seen: Measurement) -> Measurement:
    """Returns a time of the host with what the device did in such a call, as another timer saw it."""
    return dataclasses.replace(
        main, work=seen.work, order=seen.order, busy_ns=seen.busy_ns, device_ns=seen.summary.median_ns
    )


_MORE_NS, _MORE_SHARE = 5_000.0, 0.1
"""If events read more than CUPTI by more than both of these, beyond their own cost, a note says so."""


def _held_against(main: Measurement, other: Measurement) -> Measurement:
    """Returns CUPTI's measurement, with a note if a glance by events contradicts it.

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
        return main
    text = f"{other_label} read {reading}, {why} (--gpukern-timer={other.timer})"
    return with_notes(main, Note(text, about), first=True)


HOST_REMEDY = "--gpukern-timer=host (or timer='host' in the test's marker) measures what runs on the host"


def not_of_the_device(timed: Timed, stream: Any, why: str) -> Measurement:
    """Returns the host's time instead of the device's, INVALID for this reason."""
    return dataclasses.replace(timed.by(open_timer("host", stream)), invalid=why)
