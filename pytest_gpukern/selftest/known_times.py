"""Holds what a test finds out about kernels of known time, and how it reaches the result of the test.

The readings are observations of a test, as those of any observer, so they travel with its result and are in
the file of a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from pytest_gpukern.measure import observers
from pytest_gpukern.values.result import Result, plain
from pytest_gpukern.values.untrusted_json import built

NAME = "selftest"
_KNOWN_TIMES = "known_times"
"""The figure that holds the readings of a test, as JSON."""


def pytest_configure() -> None:
    """Adds the observer to a run that has this module as a plugin."""
    figures = {_KNOWN_TIMES: observers.Figure("known times")}
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


class SelftestObserver(observers.Observer):
    """Passes on what a test has noted."""

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> observers.SeenInTest | None:  # noqa: ARG002
        return observers.SeenInTest({_KNOWN_TIMES: json.dumps(plain(_noted.pop()))}) if _noted else None
