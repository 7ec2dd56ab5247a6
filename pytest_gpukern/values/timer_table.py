"""Lists the timers, one row each, with what other rooms know about a timer without loading it.

To add a timer, write its file in `timers/` and its row here. This file loads nothing but the standard
library.
"""

from __future__ import annotations

from typing import NamedTuple


class TimerRow(NamedTuple):  # made in a sixth of a dataclass's time, in every run of pytest
    """Describes a timer.

    Attributes:
        timer_class: `module:name` of its class, whose `on_stream` makes one for a call; see `timers.timer`.
        label: what sentences call it.
        device_timed: whether its samples are the device's own times, which the host's launch cost is not in.
            Any other timer times the host: `timers.timer.open_host_timer` makes one without a GPU.
        flushes: whether the L2 can be flushed ahead of each call, and not only ahead of all calls of a
            sample.
        prior_spread: standard deviation of a session's log median on one device, assumed until enough cases
            are recorded.
        prior_spread_of_devices: the same between devices of a model, which are usually in different hosts
            too.
        step_ns: the steps of its readings; of medians that agree to the step the spread is smaller, not zero.
        refills: whether we may fill outputs on the timed stream ahead of a call: it finds calls that work on
            another stream, where the two could meet.
        auto: its place among the timers that `auto` tries; None where it is taken only when asked for.
    """

    timer_class: str
    label: str
    prior_spread: float
    prior_spread_of_devices: float
    step_ns: float
    device_timed: bool = True
    flushes: bool = True
    refills: bool = False
    auto: int | None = None


TIMERS = {
    "cupti": TimerRow(
        timer_class="pytest_gpukern.timers.cupti.timer:CuptiTimer",
        label="CUPTI",
        prior_spread=0.007,
        prior_spread_of_devices=0.02,
        step_ns=32.0,
        refills=True,
        auto=0,
    ),
    "event": TimerRow(
        timer_class="pytest_gpukern.timers.event:EventTimer",
        label="events",
        prior_spread=0.005,
        prior_spread_of_devices=0.06,
        step_ns=32.0,
        auto=1,
    ),
    "graph": TimerRow(
        timer_class="pytest_gpukern.timers.graph:GraphTimer",
        label="graphs",
        flushes=False,
        refills=True,
        prior_spread=0.006,
        prior_spread_of_devices=0.06,
        step_ns=1.0,
    ),
    "host": TimerRow(
        timer_class="pytest_gpukern.timers.host:HostTimer",
        label="the host's clock",
        device_timed=False,
        prior_spread=0.3,
        prior_spread_of_devices=0.5,
        step_ns=1.0,
    ),
}
"""Timer, as in `--gpukern-timer`, → its row.

Prior spreads on one device come from identical processes on an H200. For events we took kernels of tens of
microseconds or more, so that one recorded session can say SAME at 2 %: 2.132·√2·0.5 % = 1.5 %; `jitter_ns`
holds the fixed jitter of shorter ones. For graphs it is the worst of eight processes. CUPTI's 239 pairs had a
root mean square of 0.4 %, with extremes of 1.6 and 3.6 %. On the host's clock 60 copies and end-to-end times
differed by up to 1.9 times (22 and 31 %), depending on what else those hosts did.

Prior spreads between devices come from H200s in different hosts. 327 pairs of events had 1.7 % (÷ √2 for one
session) and an extreme of 13.5 %; the prior calls none of them SLOWER: 1.645·√2·6 % = 14 %. CUPTI's 1149
pairs had 1.0 to 1.3 %, and an extreme of 8 % if the call allocates. Copies and end-to-end times took up to
2.3 times as long on one host as on another.
"""


def timer_row(name: str) -> TimerRow:
    """Returns the row of a timer; for an unknown one of a newer release, the host's, which claims least."""
    return TIMERS.get(name, TIMERS["host"])


def times_host(name: str) -> bool:
    """Returns whether a timer, as in `--gpukern-timer`, times the host and needs no GPU; `auto` does not."""
    return name in TIMERS and not TIMERS[name].device_timed


def host_timer(wanted: str) -> str:
    """Returns the timer for what runs on the host: the one asked for if it times the host, else `host`."""
    return wanted if times_host(wanted) else "host"


def auto_timers() -> tuple[str, ...]:
    """Returns the timers that `auto` tries, in order."""
    places = [(row.auto, name) for name, row in TIMERS.items() if row.auto is not None]
    return tuple(name for _, name in sorted(places))
