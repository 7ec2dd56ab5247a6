"""Holds the table of timers: all that other rooms know of a timer without loading it.

To add a timer, write its file in `timers/` and its row here. This file loads nothing but the standard
library.
"""

from __future__ import annotations

from typing import NamedTuple


class TimerRow(NamedTuple):  # made in a sixth of a dataclass's time, in every run of pytest
    """What is known of a timer.

    Attributes:
        module: where its class is.
        class_name: its class, whose `on_stream` makes one for a call; see `timers.timer`.
        label: what sentences call it.
        device_timed: whether its samples are the device's own times, which the host's launch cost is not in.
        flushes: whether the L2 can be flushed ahead of each call, and not only ahead of all calls of a
            sample.
        prior_spread: standard deviation of a session's log median on one device, assumed until enough cases
            are recorded.
        prior_spread_of_devices: the same between devices of a model, which are usually in different hosts
            too.
        step_ns: the steps of its readings; of medians that agree to the step the spread is smaller, not zero.
        auto: its place among the timers that `auto` tries; None where it is taken only when asked for.
    """

    module: str
    class_name: str
    label: str
    device_timed: bool
    flushes: bool
    prior_spread: float
    prior_spread_of_devices: float
    step_ns: float
    auto: int | None = None


TIMERS = {
    "cupti": TimerRow(
        module="pytest_gpukern.timers.cupti.timer",
        class_name="CuptiTimer",
        label="CUPTI",
        device_timed=True,
        flushes=True,
        prior_spread=0.007,
        prior_spread_of_devices=0.02,
        step_ns=32.0,
        auto=0,
    ),
    "event": TimerRow(
        module="pytest_gpukern.timers.event",
        class_name="EventTimer",
        label="events",
        device_timed=True,
        flushes=True,
        prior_spread=0.005,
        prior_spread_of_devices=0.06,
        step_ns=32.0,
        auto=1,
    ),
    "graph": TimerRow(
        module="pytest_gpukern.timers.graph",
        class_name="GraphTimer",
        label="graphs",
        device_timed=True,
        flushes=False,
        prior_spread=0.006,
        prior_spread_of_devices=0.06,
        step_ns=1.0,
    ),
    "host": TimerRow(
        module="pytest_gpukern.timers.host",
        class_name="HostTimer",
        label="the host's clock",
        device_timed=False,
        flushes=True,
        prior_spread=0.3,
        prior_spread_of_devices=0.5,
        step_ns=1.0,
    ),
}
"""Timer, as in `--gpukern-timer`, → its row.

Prior spreads on one device: eight identical processes gave ranges of their medians (÷ 2.85 for a standard
deviation, if they were normal) of 0.09 … 10 % for events behind a flushed L2, 1.3 … 10.7 % for the host
clock, 0.17 … 1.8 % for graphs and 0.00 … 0.42 % for CUPTI, on an H200. For events the prior is that of a
well-behaved kernel of tens of microseconds or more, so that one recorded session can already say SAME at 2
%: 2.132·√2·0.5 % = 1.5 %. What spreads the medians of shorter ones is a fixed jitter, which `jitter_ns`
adds. For graphs it is the worst observed. By CUPTI two whole runs of the suites on one H200 had 239 pairs
with a root mean square of 0.4 %, but extremes of 1.6 and, of a kernel of 6 µs, 3.6 %. For the host's clock
two times 60 copies and end-to-end times, of two runs each on two hosts, differed by up to 1.9 times (root
mean square 22 and 31 %): what else those hosts did, so that the device being the same changes little.

Prior spreads between devices: three sessions on three H200s of different hosts gave 327 pairs of kernels
timed by events: their log ratios had a root mean square of 1.7 % (÷ √2 for one session), but heavy tails,
with an extreme of 13.5 %. The prior is such that no pair is called SLOWER, whichever came first: 1.645·√2·6
% = 14 %. By CUPTI 1149 pairs of calls of one kernel, of four sessions on four H200s, had 1.0 to 1.3 % and an
extreme of 8 %, where the call allocates. Copies and end-to-end times took up to 2.3 times as long on one
host as on another.
"""


def timer_row(name: str) -> TimerRow:
    """Returns the row of a timer; of one that a newer release recorded, the host's, which claims least."""
    return TIMERS.get(name, TIMERS["host"])


def auto_timers() -> tuple[str, ...]:
    """Returns the timers that `auto` tries, in order; the next one that works is kept beside the first."""
    found = [(row.auto, name) for name, row in TIMERS.items() if row.auto is not None]
    return tuple(name for _, name in sorted(found))
