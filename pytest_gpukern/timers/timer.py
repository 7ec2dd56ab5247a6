"""Defines what a timer is: a way to take samples of a call, behind one small Protocol."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import structs

from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import DeviceWork
from pytest_gpukern.values.timer_table import TIMERS


@dataclass(frozen=True)
class Iteration:
    """One execution to be timed.

    Attributes:
        run: the call to time.
        before: untimed work queued on the timed stream first, such as re-poisoning the outputs, or None.
        fresh: makes another iteration with fresh arguments, if `run` changes its own and may be called only
            once; None if `run` may be called any number of times.
        launches: kernels, copies and memsets that `before` and `run` queue together, if known. It limits how
            many iterations we queue at once.
    """

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None
    fresh: Callable[[], Iteration] | None = None
    launches: int | None = None

    @classmethod
    def restoring(
        cls, run: Callable[[], Any], before: Callable[[], Any], launches: int | None = None
    ) -> Iteration:
        """Returns an iteration that is repeated with its `before` only, which restores what `run` changes."""
        return cls(run, before, functools.partial(cls.restoring, run, before, launches), launches)

    def execute(self) -> Any:
        """Executes the iteration untimed; returns what `run` returned."""
        if self.before is not None:
            self.before()
        return self.run()

    def again(self) -> Iteration:
        """Returns what to execute instead of this iteration once it was executed; call it only then."""
        return self if self.fresh is None else self.fresh()


class Executions(Protocol):
    """Supplies the executions of a call: one call again and again, or buffer sets in turn.

    Attributes:
        largest_batch: the most executions to take at a time.
        buffer_sets: number of input sets with different contents.
    """

    largest_batch: int
    buffer_sets: int

    def take(self, count: int, *, cold: bool, refilled: bool = False) -> list[Iteration]:
        """Returns the next `count` executions, in order, for a cold or a hot cache.

        Where outputs can be filled ahead of each execution, they are if `refilled`.
        """


@dataclass
class Batch:
    """Samples taken in one go.

    Attributes:
        samples_ns: time of each sample in nanoseconds, in the order of the iterations; for several kernels
            from the first start to the last end.
        iterations: calls in a sample; a sample is their mean.
        launch_included: whether the times contain the host's launch cost, because the call was not queued.
        notes: what the timer had to do differently.
        busy_ns: how long kernels ran in each sample, if the timer knows.
        cpu_ns: CPU time of this process in each sample, over all its threads, if the timer knows.
        work: a call's kernels, copies and memsets, if the timer knows them.
        order: places in `work` of what each call had the device do; empty where calls differ.
    """

    samples_ns: list[float]
    iterations: int = 1
    launch_included: bool = False
    notes: list[Note] = field(default_factory=list)
    busy_ns: list[float] = field(default_factory=list)
    cpu_ns: list[float] = field(default_factory=list)
    work: tuple[DeviceWork, ...] = ()
    order: tuple[int, ...] = ()

    def per_call(self, calls: int) -> Batch:
        """Divides what was sampled of executions that each made so many calls."""
        if calls == 1:
            return self
        work = (
            structs.replace(
                kind,
                count=kind.count / calls,
                time_ns=kind.time_ns / calls,
                size_bytes=kind.size_bytes / calls,
            )
            for kind in self.work
        )
        return dataclasses.replace(
            self,
            samples_ns=[sample / calls for sample in self.samples_ns],
            iterations=self.iterations * calls,
            busy_ns=[busy / calls for busy in self.busy_ns],
            cpu_ns=[cpu / calls for cpu in self.cpu_ns],
            work=tuple(work),
            order=self.order[: len(self.order) // calls],
        )


class TimerUnavailable(Exception):  # noqa: N818 - it states a fact, nothing went wrong
    """A timer cannot time this call, or cannot be used here; the message says why."""


class NothingLaunched(TimerUnavailable):
    """The call puts nothing on the device, so it has no device time."""


class Timer(Protocol):
    """One way to time a call; `open_timer` makes it by its class's `on_stream`.

    The class of one that times the host also takes what waits for the device: `open_host_timer` calls it.

    Attributes:
        name: as in `--gpukern-timer`.
        jitter_ns: standard deviation of a session's median that the timer itself causes.
    """

    name: str
    jitter_ns: float

    @property
    def measures(self) -> str:
        """What its number contains, in words; this may depend on the call."""

    @property
    def resolution_ns(self) -> float:
        """The smallest difference between samples that means anything."""

    @property
    def queues(self) -> bool:
        """Whether calls are queued ahead of the device, as far as we know; not if they wait for it."""

    @property
    def fixed_cost_ns(self) -> float | None:
        """What it reads for an empty kernel in this session, beyond that kernel's own time.

        We report it beside the number and never subtract it. None if there is none or it is unknown.
        """

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes one sample of each iteration, in order; `GraphTimer` takes one of each replay of them all.

        Each iteration runs `before`, then flushes the L2 if `cold`, then runs `run`; only `run` is timed.

        Raises:
            NothingLaunched: the call puts nothing on the device.
            TimerUnavailable: the timer cannot time this call.
        """

    def suspicion(self, iteration: Iteration) -> str | None:
        """Says why its numbers for the call cannot be trusted, or returns None; not part of any sample.

        Args:
            iteration: one that was executed; to look, the timer may execute others like it.
        """


def open_timer(name: str, stream: Any, *, any_stream: bool = False, queues: bool = True) -> Timer:
    """Opens a timer for work on a stream of the pinned device.

    Args:
        name: as in `--gpukern-timer`.
        stream: the timed stream, as a cuda.core stream.
        any_stream: whether the call's work may outlast the timed stream.
        queues: whether to queue calls; not for calls known to wait for the device.

    Raises:
        TimerUnavailable: the timer cannot be used here; the message says why.
    """
    return _class_of(name).on_stream(stream, any_stream=any_stream, queues=queues)  # type: ignore[no-any-return]


def open_host_timer(name: str, synchronize: Callable[[], None]) -> Timer:
    """Opens a timer of the host; `synchronize` waits for the device, and does nothing without one."""
    return _class_of(name)(synchronize)  # type: ignore[no-any-return]


def _class_of(name: str) -> Any:
    return pkgutil.resolve_name(TIMERS[name].timer_class)
