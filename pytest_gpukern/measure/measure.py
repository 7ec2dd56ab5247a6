"""Measures one call in one scope: warm-up, cache policy, sampling until the median is known."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.measure.observers import Look, with_notes
from pytest_gpukern.measure.statistics import FEWEST_FOR_95_PERCENT, StoppingRule, summarize
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.values.result import Measurement
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpukern.measure.observers import Observation
    from pytest_gpukern.timers.timer import Batch, Executions, Timer
    from pytest_gpukern.values.result import DeviceWork, Summary


Setup = Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]]
"""Makes fresh positional and named arguments for one call, untimed."""

_WARMUP_S = 0.02
_WARMUP_CALLS = 50
_FEWEST_OF_SHORT = 50
_BATCH_CALLS = 64
"""So that the stopping rule is asked, and the device looked at, often enough."""
_BATCH_CALLS_WITH_SETUP = 8
"""Each call of such a batch holds its own arguments in memory."""
_SLOW_CALL_S = 0.1
_AGREEING = 0.05
_AGREEING_BY_HOST = 0.25
"""How near the last calls of a warm-up are to each other; pageable copies are seldom within 5 %."""
_TARGET_BY_HOST = 0.05
"""Sessions on one host differ by 20 to 30 % (`values.timer_table`), however many samples each has."""
CONTRADICTION = 0.01
"""By so much, relative to it, a second timer is off the first before it contradicts that."""


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up saw: the first call apart, since it may compile and load.

    Attributes:
        first_ns: wall time of the first call, until the device was idle.
        settled_ns: wall time of the last.
        calls: calls made.
        settled: whether the last three agreed within 5 %, or a slow call makes that pointless.
    """

    first_ns: float
    settled_ns: float
    calls: int
    settled: bool


def warm_up(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    *,
    compiled: bool = False,
    by_host: bool = False,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> WarmUp:
    """Runs `call` until its wall time settles: three calls in a row within 5 % and 20 ms of calls.

    What the host's clock will time (`by_host`) has settled within 25 %. Of calls longer than 20 ms two that
    agree are enough. A call slower than 0.1 s is not repeated. After 0.4 s it ends unsettled. `compiled` says
    that it ran before, so that not even the first call compiles or loads anything.
    """
    within = _AGREEING_BY_HOST if by_host else _AGREEING
    times: list[float] = []
    while len(times) < _WARMUP_CALLS:
        synchronize()
        with untraced():
            start = clock()
            call()
            synchronize()
            times.append(float(clock() - start))
        if len(times) > (0 if compiled else 1) and times[-1] > _SLOW_CALL_S * 1e9:
            return WarmUp(times[0], times[-1], len(times), settled=True)
        long = times[-1] > _WARMUP_S * 1e9
        after_first = times if compiled else times[1:]
        if (
            len(after_first) > (1 if long else 2)
            and sum(after_first) > _WARMUP_S * 1e9
            and _agree(after_first[-3:], within)
        ):
            return WarmUp(times[0], times[-1], len(times), settled=True)
        if sum(times[1:]) > 20 * _WARMUP_S * 1e9:
            break
    return WarmUp(times[0], times[-1], len(times), settled=_agree(times[-3:], within))


def _agree(times: list[float], within: float) -> bool:
    return max(times) <= (1 + within) * min(times)


def rule_for(call_ns: float, *, by_host: bool = False) -> StoppingRule:
    """The default stopping rule for a call of about `call_ns`: slow calls get fewer samples.

    ±0.25 % or 0.1 s; at least 50 samples, 10 where one takes 1 ms, 6 and 5 where one takes 20 and 50 ms, 3
    where one takes 0.2 s, 2 where one takes five and 1 where one takes ten. The summary says when they are
    too few. By the host's clock, which repeats no better than to several percent within a session and to 20
    or 30 between them, ±0.25 % would only cost time: ±5 % or 50 ms, with at least 10 samples, 5 where one
    takes 5 ms, 3 where one takes 50 ms and 1 where one takes half a second.
    """
    if by_host:
        few = 1 if call_ns > 5e8 else 3 if call_ns > 5e7 else 5 if call_ns > 5e6 else 10
        return StoppingRule(target_half_width=_TARGET_BY_HOST, min_samples=few, budget_s=0.05)
    if call_ns > 5e9:
        return StoppingRule(min_samples=1 if call_ns > 1e10 else 2, budget_s=0.0)
    if call_ns > 5e8:
        return StoppingRule(min_samples=3, budget_s=2.0)
    if call_ns > 2e8:
        return StoppingRule(min_samples=3, budget_s=1.0)
    if call_ns > 5e7:
        return StoppingRule(min_samples=5, budget_s=1.0)
    if call_ns > 2e7:
        return StoppingRule(min_samples=6, budget_s=0.5)
    if call_ns > 1e6:
        return StoppingRule(budget_s=0.5)
    return StoppingRule(min_samples=_FEWEST_OF_SHORT)


def rule_beside(call_ns: float) -> StoppingRule:
    """The stopping rule of a second timer, kept beside the first: ±1 % or a third of the time.

    With at least 10 samples. It has to show that the first is wrong by a percent, not to say again what that
    says better. Of calls over 1 ms it takes exactly 6 samples, over 20 ms 3, over 0.1 s 1.
    """
    if call_ns > 1e6:
        few = 1 if call_ns > 1e8 else 3 if call_ns > 2e7 else FEWEST_FOR_95_PERCENT
        return StoppingRule(min_samples=few, max_samples=few, budget_s=0.0)
    usual = rule_for(call_ns)
    return StoppingRule(CONTRADICTION, min_samples=10, budget_s=usual.budget_s / 3)


class Repeated:
    """One call again and again, each time with fresh arguments where there is a `setup`."""

    buffer_sets = 1

    def __init__(self, call: Callable[..., Any], setup: Setup | None = None) -> None:
        self._call = call
        self._setup = setup
        self.largest_batch = _BATCH_CALLS if setup is None else _BATCH_CALLS_WITH_SETUP

    def take(self, count: int, *, cold: bool = False) -> list[Iteration]:  # noqa: ARG002 - as the Protocol's
        """Executions of the call; their arguments are made now."""
        if self._setup is None:
            return [Iteration(self._call)] * count
        return [self._fresh() for _ in range(count)]

    def _fresh(self) -> Iteration:
        assert self._setup is not None
        args, kwargs = self._setup()
        return Iteration(functools.partial(self._call, *args, **kwargs), fresh=self._fresh)


def measure(
    executions: Executions,
    timer: Timer,
    *,
    scope: str,
    cache: str,
    call_ns: float,
    rule: StoppingRule | None = None,
    observing: Sequence[Observation] = (),
    inspect: Callable[[], None] | None = None,
    traffic_bytes: float | None = None,
    flops: float | None = None,
    beside: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Takes samples of a call that is warm and was checked, until the stopping rule says why to stop.

    Every sample that was taken while the device was fit is kept. Others are counted, and taken again.

    Args:
        executions: what is timed.
        timer: how.
        scope: what the call does: one of `problems.variants.SCOPES`.
        cache: `cold` flushes the L2 before each sample, `hot` does not.
        call_ns: about how long the call takes, from the warm-up; sizes the batches.
        rule: when to stop; by default `rule_for(call_ns)`.
        observing: look at the device between batches, the nearest to what is timed first.
        inspect: called once, behind an execution chosen at random among the first, or behind the whole turn
            on all buffer sets where a graph is cold; it checks its outputs.
        traffic_bytes: declared bytes of the work, carried along.
        flops: declared operations of the work, carried along.
        beside: whether the number is kept beside a main timer's.
        clock: seconds, for the time budget.

    Raises:
        NothingLaunched: the timer saw that the call puts nothing on the device.
        TimerUnavailable: the timer cannot time this call.
    """
    sampler = Sampler(
        executions,
        timer,
        rule or rule_for(call_ns),
        observing,
        inspect,
        cold=cache == "cold",
        call_ns=call_ns,
        clock=clock,
    )
    last = sampler.run()
    # At the end the timer knows of all batches.
    suspicion = None if beside else timer.suspicion(last)
    found = dataclasses.replace(
        sampler.measurement(scope, cache),
        beside=beside,
        traffic_bytes=traffic_bytes,
        flops=flops,
        invalid=sampler.sampling.invalid or suspicion,
    )
    for each in observing:
        found = each.finish(found)
    return with_notes(found, *sampler.summary().warnings)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Pauses what traces or profiles this thread, such as coverage, which times would contain.

    Tools of `sys.monitoring` (Python 3.12 and newer) keep their events and have no callbacks meanwhile.
    """
    monitoring: Any = getattr(sys, "monitoring", None)
    tools = [tool for tool in range(6) if monitoring is not None and monitoring.get_tool(tool) is not None]
    events = [event for event in vars(monitoring.events).values() if isinstance(event, int)] if tools else []
    places = [(tool, event) for tool in tools for event in events if event.bit_count() == 1]
    tracer, profiler = sys.gettrace(), sys.getprofile()
    if tracer is not None:
        sys.settrace(None)
    if profiler is not None:
        sys.setprofile(None)
    callbacks = [monitoring.register_callback(*place, None) for place in places]
    try:
        yield
    finally:
        for place, callback in zip(places, callbacks, strict=True):
            monitoring.register_callback(*place, callback)
        if profiler is not None:
            sys.setprofile(profiler)
        if tracer is not None:
            sys.settrace(tracer)


_BATCH_S = 0.05
_LEAST_S = 4e-4
"""What an execution takes with the launches, the flush and the records around it, until that is known."""
_FEWEST_BATCHES = 3
"""Samples of one batch may share what those of another do not."""
_GAP_SPREAD = 0.5
"""Standard deviation of a gap between two kernels of a call, relative to it: on H200s the 1.2 µs between the
two of a small matrix product were 0.8 µs more or less from batch to batch and from process to process."""
_LAUNCH_SPREAD = 0.15
"""The same of a time that contains the host's launches, as of the host's clock."""


class Samples:
    """The samples so far, and what is known about them."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.batches: list[int] = []
        self.busy: list[float] = []
        self.work: tuple[DeviceWork, ...] = ()
        self.warnings: dict[str, None] = {}
        self.iterations = 1
        self.executions_a_sample = 1
        self.invalid_samples = 0
        self.invalid: str | None = None
        self.stopped: str | None = None
        self._launch_included = False
        self._settled = 0  # so many samples count for good

    def add(self, batch: Batch, executions: int) -> None:
        """Takes the samples of a batch of so many executions, in order."""
        if self.samples and batch.launch_included != self._launch_included:
            # With the launch cost in it, the number is another quantity: begin anew.
            self.samples, self.batches, self.busy, self._settled = [], [], [], 0
        self._launch_included = batch.launch_included
        self.samples += batch.samples_ns
        self.batches.append(len(batch.samples_ns))
        self.busy += batch.busy_ns
        self.work = batch.work
        self.warnings.update(dict.fromkeys(batch.warnings))
        self.iterations = batch.iterations
        self.executions_a_sample = max(1, executions // len(batch.samples_ns))

    @property
    def jitter_ns(self) -> float:
        """What the host adds to the spread of a session's median, since it decides when kernels begin."""
        median = statistics.median(self.samples)
        if self.work:
            gaps = sum(work.count for work in self.work) - 1
            between_ns = median - sum(work.time_ns for work in self.work)
            return _GAP_SPREAD * max(0.0, between_ns) / math.sqrt(gaps) if gaps >= 1 else 0.0
        return _LAUNCH_SPREAD * median if self._launch_included else 0.0

    def settle(self, stopped: str | None, *, settled: bool) -> None:
        """Notes why sampling ends here, if it does, and that all samples so far count, if they do."""
        self.stopped = stopped
        if settled:
            self._settled = len(self.samples)

    def give_up(self, fault: str, hopeless: str | None) -> bool:
        """Counts the samples that were taken while the device was not fit; whether it is no use to go on."""
        self.invalid_samples += len(self.samples) - self._settled
        if hopeless is not None:
            self.invalid, self.stopped = hopeless, fault
        if hopeless is None or self._settled:  # otherwise what there is has to be shown
            del self.samples[self._settled :], self.busy[self._settled :]
            while sum(self.batches) > len(self.samples):
                self.batches.pop()
        return hopeless is not None


@dataclass
class Sampler:
    """Takes batches of one call; attributes as the arguments of `measure.measure`."""

    executions: Executions
    timer: Timer
    rule: StoppingRule
    observing: Sequence[Observation]
    inspect: Callable[[], None] | None
    cold: bool
    call_ns: float
    clock: Callable[[], float]
    sampling: Samples = field(default_factory=Samples)

    def run(self) -> Iteration:
        """Goes on until the rule or the watch says why to stop; returns the execution that came last."""
        rule, timer, sampling = self.rule, self.timer, self.sampling
        chosen = random.randrange(rule.min_samples) + 1 if self.inspect is not None else 0
        # Where nothing is flushed between calls, as in a graph, they are cold on all sets in turn only.
        turn = self.executions.buffer_sets if self.cold and not timer_row(timer.name).flushes else 1
        executed, started = 0, self.clock()
        while True:
            size = self._size(executed, self.clock() - started, chosen)
            for each in reversed(self.observing):
                each.before()
            taken = self.executions.take(max(1, size // turn) * turn, cold=self.cold)
            with untraced():
                batch = timer.collect(taken, cold=self.cold)
            executed += len(taken)
            if self.inspect is not None and executed >= chosen:
                self.inspect()
                self.inspect = None
            sampling.add(batch, len(taken))
            stopped = rule.decide(
                sampling.samples,
                self.clock() - started,
                resolution_ns=timer.resolution_ns,
                batches=sampling.batches,
            )
            look = self._look(batch, last=stopped is not None)
            if look.fault is None:
                sampling.settle(stopped, settled=look.settled)
            elif not sampling.give_up(look.fault, look.hopeless):
                timer.collect(self.executions.take(turn, cold=self.cold), cold=self.cold)  # it has rested
            if sampling.stopped is not None:
                return taken[-1]

    def _look(self, batch: Batch, *, last: bool) -> Look:
        """What all that observe saw behind a batch; the first fault is told."""
        looks = [each.after(batch, last=last) for each in self.observing]
        return Look(
            settled=all(look.settled for look in looks),
            fault=next((look.fault for look in looks if look.fault is not None), None),
            hopeless=next((look.hopeless for look in looks if look.hopeless is not None), None),
        )

    def summary(self) -> Summary:
        """The centre of the samples, with what it has to say of them."""
        sampling = self.sampling
        return summarize(sampling.samples, resolution_ns=self.timer.resolution_ns, batches=sampling.batches)

    def measurement(self, scope: str, cache: str) -> Measurement:
        """What was taken, once it has ended, with what the timer has to say of it."""
        timer, sampling = self.timer, self.sampling
        assert sampling.stopped is not None
        return Measurement(
            scope=scope,
            timer=timer.name,
            measures=timer.measures,
            cache=cache,
            samples_ns=tuple(round(sample, 2) for sample in sampling.samples),
            iterations=sampling.iterations,
            summary=dataclasses.replace(self.summary(), warnings=tuple(sampling.warnings)),
            stopped=sampling.stopped,
            jitter_ns=math.hypot(timer.jitter_ns, sampling.jitter_ns),
            fixed_cost_ns=timer.fixed_cost_ns,
            busy_ns=statistics.median(sampling.busy) if sampling.busy else None,
            work=sampling.work,
            buffer_sets=self.executions.buffer_sets,
            invalid_samples=sampling.invalid_samples,
        )

    def _size(self, executed: int, passed_s: float, chosen: int) -> int:
        """How many executions the next batch has, of which the one that is inspected is the last."""
        rule, sampling = self.rule, self.sampling
        # What an execution takes with all that is around it: at first only the call's share is known.
        each_s = max(self.call_ns / 1e9, 1e-9, passed_s / executed if executed else _LEAST_S)
        return min(
            int(_BATCH_S / each_s),
            _within_budget(rule, sampling, passed_s, each_s),
            self.executions.largest_batch,
            (rule.max_samples - len(sampling.samples)) * sampling.executions_a_sample,
            chosen - executed if executed < chosen else rule.max_samples,
            sampling.executions_a_sample * _samples_a_batch(rule, len(sampling.samples)),
        )


def _samples_a_batch(rule: StoppingRule, taken: int) -> int:
    """The most samples of the next batch: the fewest that the rule asks for come from several."""
    return math.ceil(rule.min_samples / _FEWEST_BATCHES) if taken < rule.min_samples else rule.max_samples


def _within_budget(rule: StoppingRule, sampling: Samples, passed_s: float, each_s: float) -> int:
    """Returns how many executions the time left allows, never fewer than the first batches had."""
    if len(sampling.samples) < rule.min_samples:
        return rule.max_samples * sampling.executions_a_sample
    least = _samples_a_batch(rule, 0) * sampling.executions_a_sample
    return max(least, int((rule.budget_s - passed_s) / each_s))
