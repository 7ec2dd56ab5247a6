"""Holds what a test finds out about kernels of known time.

The readings are among the observations of the test, so they travel with its result and are in the file of a
run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_gpukern.values.result import Observations, Result, plain
from pytest_gpukern.values.untrusted_json import built

_NAME, _KNOWN_TIMES = "selftest", "known_times"
"""The names under which the readings of a test are observed, as JSON."""


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


def as_observations(known: KnownTimes) -> Observations:
    return {_NAME: {_KNOWN_TIMES: json.dumps(plain(known))}}


def known_times_of(result: Result) -> KnownTimes | None:
    text = result.observations.get(_NAME, {}).get(_KNOWN_TIMES)
    return built(json.loads(text), KnownTimes) if isinstance(text, str) else None
