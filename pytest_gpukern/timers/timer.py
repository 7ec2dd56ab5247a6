"""Says what a timer is: a way to take samples of a call, behind one small Protocol."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpukern.values.timer_table import TIMERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpukern.values.result import DeviceWork


@dataclass(frozen=True)
class Iteration:
    """One execution to be timed.

    Attributes:
        run: what is timed.
        before: untimed work queued on the timed stream first, such as re-poisoning the outputs, or None.
        fresh: makes another like it with fresh arguments, where `run` may be called only once because it
            changes its own; None where `run` may be called any number of times.
        launches: kernels, copies and memsets that `before` and `run` queue together, where that is known:
            it bounds how many iterations are queued at once.
    """

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None
    fresh: Callable[[], Iteration] | None = None
    launches: int | None = None

    def execute(self) -> Any:
        """Executes it untimed; returns what `run` returned."""
        if self.before is not None:
            self.before()
        return self.run()

    def again(self) -> Iteration:
        """What to execute in its place when it was executed already, and not before that."""
        return self if self.fresh is None else self.fresh()


class Executions(Protocol):
    """Where the executions of a call come from: one call again and again, or buffer sets in turn.

    Attributes:
        largest_batch: how many may be asked for at a time.
        buffer_sets: sets of inputs with different contents that they use.
    """

    largest_batch: int
    buffer_sets: int

    def take(self, count: int, *, cold: bool) -> list[Iteration]:
        """The next `count` executions, in order, for a cold or a hot cache."""


@dataclass
class Batch:
    """Samples taken in one go.

    Attributes:
        samples_ns: time of each sample in nanoseconds, in the order of the iterations; from the first start
            to the last end where several kernels run.
        iterations: calls in a sample; a sample is their mean.
        launch_included: the host's launch cost is in the number, because the call could not be queued.
        warnings: what the timer had to do differently, in words.
        busy_ns: how long kernels were running in each sample, where the timer knows.
        work: what a call had the device do, where the timer knows.
    """

    samples_ns: list[float]
    iterations: int = 1
    launch_included: bool = False
    warnings: list[str] = field(default_factory=list)
    busy_ns: list[float] = field(default_factory=list)
    work: tuple[DeviceWork, ...] = ()


class TimerUnavailable(Exception):  # noqa: N818 - it says what is so, not what went wrong
    """A timer cannot time this call, or not here; the message says why, in words."""


class NothingLaunched(TimerUnavailable):
    """The call puts nothing on the device, so that no timer finds a time of the device's in it."""


class Timer(Protocol):
    """One way to time a call; `open_timer` makes it by its class's `on_stream`.

    Attributes:
        name: as in `--gpukern-timer`.
        jitter_ns: standard deviation of a session's median from what the timer itself adds.
    """

    name: str
    jitter_ns: float

    @property
    def measures(self) -> str:
        """What its number contains, in words; of some calls another than of others."""

    @property
    def resolution_ns(self) -> float:
        """Differences between samples that are smaller than this mean nothing."""

    @property
    def queues(self) -> bool:
        """Whether calls are queued ahead of the device, as far as is known; not those that wait for it."""

    @property
    def fixed_cost_ns(self) -> float | None:
        """What it reads for an empty kernel in this session beyond that kernel's own time.

        It is reported beside the number and never subtracted; None where there is none or it is not known.
        """

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes one sample of each iteration, in order; `GraphTimer` takes one of each replay of them all.

        The order of each: `before`, then a flush of the L2 where `cold`, then `run`, which alone is timed.

        Raises:
            NothingLaunched: it saw that the call puts nothing on the device.
            TimerUnavailable: it cannot time this call.
        """

    def suspicion(self, iteration: Iteration) -> str | None:
        """Why its numbers for the call cannot be trusted, in words, or None; not part of any sample.

        Args:
            iteration: one that was executed; where the timer has to look, it executes others like it.
        """


def open_timer(name: str, stream: Any, *, any_stream: bool = False, queues: bool = True) -> Timer:
    """Opens a timer for work on a stream of the pinned device.

    Args:
        name: as in `--gpukern-timer`.
        stream: the timed stream, as a cuda.core stream.
        any_stream: whether the call's work may outlast the timed stream.
        queues: whether calls may be queued; those that are known to wait for the device need not be tried.

    Raises:
        TimerUnavailable: it cannot be used here; the message says why.
    """
    row = TIMERS[name]
    timer = getattr(importlib.import_module(row.module), row.class_name)
    return timer.on_stream(stream, any_stream=any_stream, queues=queues)  # type: ignore[no-any-return]


class PerCall:
    """Divides what another timer finds by the number of calls that each iteration makes.

    Args:
        timer: takes the times.
        calls: made by the `run` of each iteration.
    """

    def __init__(self, timer: Timer, calls: int) -> None:
        self._timer = timer
        self._calls = calls
        self.name = timer.name
        self.jitter_ns = timer.jitter_ns / calls

    @property
    def measures(self) -> str:
        """As the timer's."""
        return self._timer.measures

    @property
    def resolution_ns(self) -> float:
        """The timer's own, spread over the calls."""
        return self._timer.resolution_ns / self._calls

    @property
    def queues(self) -> bool:
        """As the timer's."""
        return self._timer.queues

    @property
    def fixed_cost_ns(self) -> float | None:
        """The timer's own, spread over the calls."""
        cost = self._timer.fixed_cost_ns
        return None if cost is None else cost / self._calls

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes one sample of each iteration, the mean of its calls."""
        calls = self._calls
        batch = self._timer.collect(iterations, cold=cold)
        return dataclasses.replace(
            batch,
            samples_ns=[sample / calls for sample in batch.samples_ns],
            iterations=batch.iterations * calls,
            busy_ns=[busy / calls for busy in batch.busy_ns],
            work=tuple(
                dataclasses.replace(
                    work,
                    count=work.count / calls,
                    time_ns=work.time_ns / calls,
                    size_bytes=work.size_bytes / calls,
                )
                for work in batch.work
            ),
        )

    def suspicion(self, iteration: Iteration) -> str | None:
        """As the timer's."""
        return self._timer.suspicion(iteration)
