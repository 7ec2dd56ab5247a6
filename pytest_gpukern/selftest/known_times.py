"""Holds what a test finds out about kernels of known time, and how it reaches the result of the test.

The readings are observations of a test, as those of any observer, so they travel with its result and are in
the file of a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_gpukern.measure import observers
from pytest_gpukern.timers.timer import Timer
from pytest_gpukern.values.result import Measurement, Result, plain
from pytest_gpukern.values.untrusted_json import built

NAME = "selftest"
_SECONDS, _KNOWN_TIMES = "seconds", "known_times"
"""Figures: what all timers took for a call, and the readings of a test, as JSON."""


def pytest_configure() -> None:
    """Adds the observer to a run that has this module as a plugin."""
    figures = {_SECONDS: observers.Figure("measured in", "s"), _KNOWN_TIMES: observers.Figure("known times")}
    observers.OBSERVERS[NAME] = observers.ObserverRow(__name__, "SelftestObserver", "self-test", figures)


@dataclass(frozen=True)
class Spin:
    """Holds medians of a timer's readings of a spin; `beyond_ns`: beyond its own time, sample by sample."""

    asked_ns: float
    timer: str
    own_ns: float
    reading_ns: float
    beyond_ns: float


@dataclass(frozen=True)
class Node:
    """Holds the time of a spin as a node of a CUDA graph, and by the default timer with a hot cache.

    Attributes:
        node_ns: slope of the replay time over the number of nodes.
    """

    asked_ns: float
    node_ns: float
    reading_ns: float


@dataclass(frozen=True)
class KnownTimes:
    """Holds what one session found out about kernels of known time.

    Attributes:
        default_timer: what `auto` chose.
        event_cost_ns: what events state that they read beyond an empty kernel's own time, or None.
    """

    default_timer: str
    event_cost_ns: float | None
    spins: tuple[Spin, ...]
    nodes: tuple[Node, ...]


_noted: list[KnownTimes] = []


def note(known: KnownTimes) -> None:
    _noted[:] = [known]


def known_times_of(result: Result) -> KnownTimes | None:
    text = result.observations.get(NAME, {}).get(_KNOWN_TIMES)
    return built(json.loads(text), KnownTimes) if isinstance(text, str) else None


def seconds_of(measurement: Measurement) -> float | None:
    """Returns how long all timers together took to measure; None unless it is a main measurement."""
    seconds = measurement.observations.get(NAME, {}).get(_SECONDS)
    return seconds if isinstance(seconds, (int, float)) else None


class SelftestObserver(observers.Observer):
    """Sees how long it takes to measure a warm call by all timers, and passes on what a test has noted."""

    _began_s = 0.0

    def observe(
        self,
        call: observers.ObservedCall,  # noqa: ARG002
        timer: Timer,  # noqa: ARG002
        *,
        beside: bool,
    ) -> None:
        if not beside:
            self._began_s = time.perf_counter()

    def measured(self, call: observers.ObservedCall, measurement: Measurement) -> observers.Seen:  # noqa: ARG002
        return observers.Seen({_SECONDS: time.perf_counter() - self._began_s})

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> observers.SeenInTest | None:  # noqa: ARG002
        return observers.SeenInTest({_KNOWN_TIMES: json.dumps(plain(_noted.pop()))}) if _noted else None
