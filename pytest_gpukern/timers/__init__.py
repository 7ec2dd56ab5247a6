"""Timers: ways to take samples of a call, behind one small Protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Setup = Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]]
"""Makes fresh positional and named arguments for one call, untimed."""


@dataclass
class Batch:
    """Samples taken in one go.

    Attributes:
        samples_ns: time of each sample, in nanoseconds.
        iterations: calls in a sample; a sample is their mean.
        launch_included: the host's launch cost is in the number, because the call could not be queued.
        warnings: what the timer had to do differently, in words.
    """

    samples_ns: list[float]
    iterations: int = 1
    launch_included: bool = False
    warnings: list[str] = field(default_factory=list)


class Timer(Protocol):
    """One way to time a call.

    Attributes:
        name: as in `--gpukern-timer`.
        measures: what its number contains, in words.
        jitter_ns: standard deviation of a session's median from what the timer itself adds.
    """

    name: str
    measures: str
    jitter_ns: float

    @property
    def resolution_ns(self) -> float:
        """Differences between samples that are smaller than this mean nothing."""

    def collect(
        self, call: Callable[..., Any], count: int, *, cold: bool, setup: Setup | None = None
    ) -> Batch:
        """Takes up to `count` samples of `call`, flushing the L2 before each where `cold`.

        With `setup`, each call gets fresh arguments, made before any of the batch is timed.
        """

    def suspicion(self, call: Callable[..., Any], setup: Setup | None = None) -> str | None:
        """Why its numbers for `call` cannot be trusted, in words, or None; not part of any sample."""


def bind(call: Callable[..., Any], count: int, setup: Setup | None) -> list[Callable[[], Any]]:
    """`count` calls ready to be timed, each with fresh arguments where there is a `setup`."""
    if setup is None:
        return [call] * count
    bound: list[Callable[[], Any]] = []
    for _ in range(count):
        args, kwargs = setup()
        bound.append(functools.partial(call, *args, **kwargs))
    return bound
