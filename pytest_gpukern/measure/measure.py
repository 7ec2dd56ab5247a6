"""Measures one call in one scope: warm-up, cache policy, sampling until the median is known."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from pytest_gpukern.measure.observers import Look, Observation, with_notes
from pytest_gpukern.measure.statistics import FEWEST_FOR_95_PERCENT, StoppingRule, summarize
from pytest_gpukern.timers.timer import Batch, Executions, Iteration, Timer, TimerUnavailable
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import DeviceWork, Measurement, Summary
from pytest_gpukern.values.timer_table import timer_row

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

_WARMUP_S = 0.02  # a short warm-up read 11.2 ms for 8.8 (triton #2306)
_WARMUP_CALLS = 50
BATCH_CALLS = 64
"""Limits a batch, so that we ask the stopping rule and look at the device often enough."""
_BATCH_CALLS_WITH_SETUP = 8
"""Limits a batch whose calls each hold their own arguments in memory."""
_SLOW_CALL_S = 0.1  # idle clocks rise within about 0.1 s of work, so one such call has warmed up
_AGREEING = 0.05
_AGREEING_BY_HOST = 0.25
"""How closely the last calls of a warm-up must agree; pageable copies seldom agree within 5 %."""
_TARGET = 0.0025  # ±0.5 % would save only 3 of the 48 s in which the suites are sampled (H200, de2f592)
_TARGET_BY_HOST = 0.05
"""Sessions on one host differ by 20 to 30 % (`values.timer_table`), with any number of samples."""
_RULES = (
    (1e10, 1, 0.0),
    (5e9, 2, 0.0),
    (5e8, 3, 2.0),
    (2e8, 3, 1.0),
    (5e7, 5, 1.0),
    (2e7, 6, 0.5),
    (1e6, 10, 0.5),
    (-math.inf, 50, 0.1),
)
"""A call that takes longer than these nanoseconds gets at least so many samples, and about so many seconds.
In a simulation of quiet kernels, 10 samples caught 98 % of the slowdowns of 3 %, and 6 samples 80 %."""
_RULES_BY_HOST = ((5e8, 1, 0.05), (5e7, 3, 0.05), (5e6, 5, 0.05), (-math.inf, 10, 0.05))
_RULES_OF_A_GLANCE = ((1e8, 1), (2e7, 3), (1e6, FEWEST_FOR_95_PERCENT))
CONTRADICTION = 0.01
"""Events contradict CUPTI if they read less by more than this share."""


@dataclass(frozen=True)
class WarmUp:
    """The result of a warm-up, with a separate first call, since that may compile and load.

    Attributes:
        first_ns: wall time of the first call, until the device was idle.
        settled_ns: wall time of the last call.
        calls: number of calls.
        settled: whether the last three agreed within 5 %, or the call is too slow to repeat.
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
    """Runs `call` until its wall time settles: three calls in a row within 5 %, and 20 ms of calls.

    For calls that the host's clock will time (`by_host`), 25 % is enough. Of calls longer than 20 ms two have
    to agree. A call slower than 0.1 s is not repeated. After 0.4 s the warm-up ends unsettled.
    `compiled` says that the call ran before, so that not even the first one compiles or loads anything.
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
        after_first = times if compiled else times[1:]
        enough = len(after_first) > (1 if times[-1] > _WARMUP_S * 1e9 else 2)
        is_warm = enough and sum(after_first) > _WARMUP_S * 1e9 and _agree(after_first[-3:], within)
        if is_warm or (after_first and times[-1] > _SLOW_CALL_S * 1e9):
            return WarmUp(times[0], times[-1], len(times), settled=True)
        if sum(times[1:]) > 20 * _WARMUP_S * 1e9:
            break
    return WarmUp(times[0], times[-1], len(times), settled=_agree(times[-3:], within))


def _agree(times: list[float], within: float) -> bool:
    return max(times) <= (1 + within) * min(times)


def rule_for(call_ns: float, *, by_host: bool = False) -> StoppingRule:
    """Returns the default stopping rule for a call of about `call_ns`; slow calls get fewer samples.

    On the device it is ±0.25 %, or as `_RULES` says. The summary says if samples are too few.

    By the host's clock it is ±5 %. The host repeats only to several percent within a session, and to 20 or
    30 % between sessions, so ±0.25 % would only cost time.
    """
    rules, target = (_RULES_BY_HOST, _TARGET_BY_HOST) if by_host else (_RULES, _TARGET)
    _, fewest, budget_s = next(rule for rule in rules if call_ns > rule[0])
    return StoppingRule(target, min_samples=fewest, budget_s=budget_s)


def rule_of_a_glance(call_ns: float) -> StoppingRule:
    """Returns the stopping rule of a glance by another timer: ±1 % or a third of the time.

    It takes at least 10 samples: enough to show that the time is wrong by a percent, no more. For calls over
    1 ms it takes exactly 6 samples, over 20 ms 3, over 0.1 s 1.
    """
    for longer_ns, samples in _RULES_OF_A_GLANCE:
        if call_ns > longer_ns:
            return StoppingRule(min_samples=samples, max_samples=samples, budget_s=0.0)
    return StoppingRule(CONTRADICTION, min_samples=10, budget_s=rule_for(call_ns).budget_s / 3)


class Repeated:
    """Repeats one call, each time with fresh arguments if there is a `setup`."""

    buffer_sets = 1

    def __init__(self, call: Callable[..., Any], setup: Callable[[], Arguments] | None = None) -> None:
        self._call = call
        self._setup = setup
        self.largest_batch = BATCH_CALLS if setup is None else _BATCH_CALLS_WITH_SETUP

    def take(self, count: int, *, cold: bool, refilled: bool = False) -> list[Iteration]:  # noqa: ARG002
        if self._setup is None:
            return [Iteration(self._call)] * count
        return [self._fresh() for _ in range(count)]

    def _fresh(self) -> Iteration:
        assert self._setup is not None
        args, kwargs = self._setup()
        return Iteration(functools.partial(self._call, *args, **kwargs), fresh=self._fresh)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Pauses tracers and profilers of this thread, such as coverage, which would add to the times.

    Tools of `sys.monitoring` (Python 3.12 and newer) keep their events but get no callbacks meanwhile.
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
        if callable(profiler):
            sys.setprofile(profiler)
        elif profiler is not None:  # cProfile's, before Python 3.12
            profiler.enable()
        if tracer is not None:
            sys.settrace(tracer)


_BATCH_S = 0.05  # half of the time between two looks at the device: a disturbance costs two batches
_LEAST_S = 4e-4
"""Assumed time of an execution with its launches, flush and records, until it is known."""
_FEWEST_BATCHES = 3
"""Samples of one batch may share something: a gap 0.8 µs longer once made calls of cuBLAS 14 % SLOWER."""
_ONE_REFILLED_IN = 5
"""One of so many batches fills all outputs ahead of each execution: a call that skips its work where it finds
its own answer read 7 µs for 30. Which one comes first is drawn, but never the first batch of all: that shows
on which streams a call works."""
_SAME_SHARE, _SAME_NS = 0.1, 1000.0
"""Times over other contents may differ by so much, or by so many nanoseconds."""
_GAP_SPREAD = 0.5
"""Relative standard deviation of a gap between two kernels of a call: on H200s the 1.2 µs gap in a small
matrix product varied by 0.8 µs from batch to batch and from process to process."""
_LAUNCH_SPREAD = 0.15
"""Relative standard deviation of a session's median that contains the host's launches."""


def _kinds(work: Iterable[DeviceWork]) -> list[tuple[object, ...]]:
    """Returns work without its times, to compare it between batches."""
    return [(of.kind, of.name, of.count, of.size_bytes, of.kernel) for of in work]


class Samples:
    """The samples so far, with their notes and statistics."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.batches: list[int] = []
        self.busy: list[float] = []
        self.cpu: list[float] = []
        self.work: tuple[DeviceWork, ...] = ()
        self.order: tuple[int, ...] = ()
        self.notes: dict[Note, None] = {}
        self.iterations = 1
        self.executions_a_sample = 1
        self.invalid_samples = 0
        self.invalid: str | None = None
        self.stopped: str | None = None
        self.by_contents: dict[bool, list[float]] = {}
        """Whether outputs were filled ahead of each execution → samples taken while the device was fit."""
        self._launch_included = False
        self._settled = 0  # number of samples that count for good

    def add(self, batch: Batch, executions: int) -> None:
        if self.samples and batch.launch_included != self._launch_included:
            # A time that contains the launch cost is another quantity: start again.
            self.samples, self.batches, self.busy, self._settled, self.by_contents = [], [], [], 0, {}
            self.cpu = []
        self._launch_included = batch.launch_included
        alike = not self.batches or (_kinds(self.work), self.order) == (_kinds(batch.work), batch.order)
        self.samples += batch.samples_ns
        self.batches.append(len(batch.samples_ns))
        self.busy += batch.busy_ns
        self.cpu += batch.cpu_ns
        self.work, self.order = batch.work, batch.order if alike else ()
        self.notes.update(dict.fromkeys(batch.notes))
        self.iterations = batch.iterations
        self.executions_a_sample = max(1, executions // len(batch.samples_ns))

    @property
    def jitter_ns(self) -> float:
        """Spread of a session's median that the host adds by deciding when kernels begin."""
        median = statistics.median(self.samples)
        if self.work:
            gaps = sum(work.count for work in self.work) - 1
            between_ns = median - sum(work.time_ns for work in self.work)
            return _GAP_SPREAD * max(0.0, between_ns) / math.sqrt(gaps) if gaps >= 1 else 0.0
        return _LAUNCH_SPREAD * median if self._launch_included else 0.0

    def settle(self, stopped: str | None, *, settled: bool) -> None:
        self.stopped = stopped
        if settled:
            self._settled = len(self.samples)

    def give_up(self, fault: str, hopeless: str | None) -> bool:
        """Counts the samples taken while the device was not fit; returns whether to give up."""
        self.invalid_samples += len(self.samples) - self._settled
        if hopeless is not None:
            self.invalid, self.stopped = hopeless, fault
        if hopeless is None or self._settled:  # otherwise show what there is
            del self.samples[self._settled :], self.busy[self._settled :], self.cpu[self._settled :]
            while sum(self.batches) > len(self.samples):
                self.batches.pop()
        return hopeless is not None


def _apart(drawn: Mapping[bool, list[float]]) -> tuple[float, float] | None:
    """Returns the medians over what calls left and over what we filled in, if they differ; None if not."""
    if len(drawn) < 2:
        return None
    over_its_own, filled = statistics.median(drawn[False]), statistics.median(drawn[True])
    allowed = max(_SAME_NS, _SAME_SHARE * min(over_its_own, filled))
    return (over_its_own, filled) if abs(over_its_own - filled) > allowed else None


@dataclass
class Sampler:
    """Takes samples of a warm and checked call until the stopping rule says why to stop.

    We keep every sample taken while the device was fit. We count the others and take them again.

    Attributes:
        scope: what the call does: one of `problems.variants.SCOPES`.
        cache: `cold` flushes the L2 before each sample, `hot` does not.
        call_ns: about how long the call takes, from the warm-up; sizes the batches.
        observing: name → observer that looks at the device between batches, the one nearest to the timed work
            first.
        inspect: checks outputs; called once, after an execution chosen at random among the first, or after a
            whole turn on all buffer sets for a cold graph.
        calls: how many calls an execution makes; a sample is their mean.
        traffic_bytes: declared bytes of the work, copied into the result, as `flops` are.
        clock: seconds, for the time budget.
        draw: decides which batches are refilled.
    """

    executions: Executions
    timer: Timer
    scope: str
    cache: str
    call_ns: float
    rule: StoppingRule
    observing: Mapping[str, Observation] = field(default_factory=dict)
    inspect: Callable[[], None] | None = None
    calls: int = 1
    traffic_bytes: float | None = None
    flops: float | None = None
    clock: Callable[[], float] = time.monotonic
    draw: random.Random = field(default_factory=random.Random)
    sampling: Samples = field(default_factory=Samples)

    @property
    def cold(self) -> bool:
        return self.cache == "cold"

    def measure(self) -> Measurement:
        """Samples until the rule or an observer says why to stop.

        Raises:
            NothingLaunched: the call puts nothing on the device.
            TimerUnavailable: the timer cannot time this call.
        """
        last = self._sample(refills=timer_row(self.timer.name).refills)
        # Only now does the timer know all batches.
        return self.finished(self.timer.suspicion(last) or self._contents_matter())

    def glance(self) -> Measurement:
        """Takes samples as `measure` does, but refills no outputs, and looks for nothing suspicious."""
        self._sample(refills=False)
        return self.finished(None)

    def _sample(self, *, refills: bool) -> Iteration:
        rule, timer, sampling = self.rule, self.timer, self.sampling
        # Unannounced, since a call may behave only while it is warmed up or checked.
        inspected = random.randrange(rule.min_samples) + 1 if self.inspect is not None else 0
        refilled_at = self.draw.randrange(1, _FEWEST_BATCHES)
        # In a graph nothing is flushed between calls, so they are cold only on all sets in turn.
        turn = self.executions.buffer_sets if self.cold and not timer_row(timer.name).flushes else 1
        executed, started = 0, self.clock()
        while True:
            size = self._size(executed, self.clock() - started, inspected)
            self._before()
            refilled = refills and len(sampling.batches) % _ONE_REFILLED_IN == refilled_at
            iterations = self.executions.take(max(1, size // turn) * turn, cold=self.cold, refilled=refilled)
            with untraced():
                batch = self._collected(iterations)
            executed += len(iterations)
            if self.inspect is not None and executed >= inspected:
                self.inspect()
                self.inspect = None
            sampling.add(batch, len(iterations))
            stopped = rule.decide(
                sampling.samples,
                self.clock() - started,
                resolution_ns=timer.resolution_ns / self.calls,
                batches=sampling.batches,
            )
            look = self._look(batch, last=stopped is not None)
            if look.fault is None:
                sampling.settle(stopped, settled=look.settled)
                sampling.by_contents.setdefault(refilled, []).extend(batch.samples_ns)
            elif not sampling.give_up(look.fault, look.hopeless):
                # The device rested in the pause, and the first execution after it is no sample.
                self._collected(self.executions.take(turn, cold=self.cold))
            if sampling.stopped is not None:
                return iterations[-1]

    def _contents_matter(self) -> str | None:
        """Says that a call takes another time over what we filled in than over its own answer, or None.

        Four more draws have to agree. A batch shares what disturbs it, such as a longer gap between two
        kernels: with one more draw a right matrix product of 10 µs was INVALID once.
        """
        apart, size = _apart(self.sampling.by_contents), max(self.sampling.batches)
        for order in ((False, True), (True, False)) * 2:
            if apart is None:
                return None
            drawn = dict[bool, list[float]]()
            for refilled in order:
                iterations = self.executions.take(size, cold=self.cold, refilled=refilled)
                drawn[refilled] = self._collected(iterations).samples_ns
            again = _apart(drawn)
            agrees = again is not None and (apart[0] < apart[1]) == (again[0] < again[1])
            apart = again if agrees else None
        if apart is None:
            return None
        over_its_own, filled = (f"{time_ns / 1e3:.3g} µs" for time_ns in apart)
        return (
            f"its time depends on what its outputs hold: {filled} where we filled them just before, "
            f"{over_its_own} over what the call before left; it must do its work whatever they hold"
        )

    def take(self, iteration: Iteration, *, last: bool) -> None:
        """Takes one sample of what is executed only once.

        Raises:
            TimerUnavailable: the timer cannot time this execution, or the device was not fit. Then the
                samples since the last look are gone.
        """
        self._before()
        batch = self._collected([iteration])
        sampling = self.sampling
        sampling.add(batch, 1)
        look = self._look(batch, last=last)
        if look.fault is not None:
            sampling.give_up(look.fault, None)
        sampling.settle(f"{len(sampling.samples)} samples", settled=look.settled)
        if look.fault is not None:
            raise TimerUnavailable(look.fault)

    def finished(self, suspicion: str | None) -> Measurement:
        sampling, resolution_ns = self.sampling, self.timer.resolution_ns / self.calls
        summary = summarize(sampling.samples, resolution_ns=resolution_ns, batches=sampling.batches)
        measured = self._measurement(
            structs.replace(summary, notes=tuple(sampling.notes)), sampling.invalid or suspicion
        )
        seen = {name: observation.finish(measured) for name, observation in self.observing.items()}
        for name, figures in seen.items():
            measured = figures.added_to(measured, name)
        return with_notes(measured, *summary.notes)

    def _collected(self, iterations: Sequence[Iteration]) -> Batch:
        return self.timer.collect(iterations, cold=self.cold).per_call(self.calls)

    def _before(self) -> None:
        for observation in reversed([*self.observing.values()]):
            observation.before()

    def _look(self, batch: Batch, *, last: bool) -> Look:
        """Merges what the observers saw after a batch; reports the first fault."""
        looks = [observation.after(batch, last=last) for observation in self.observing.values()]
        return Look(
            settled=all(look.settled for look in looks),
            fault=next((look.fault for look in looks if look.fault is not None), None),
            hopeless=next((look.hopeless for look in looks if look.hopeless is not None), None),
        )

    def _measurement(self, summary: Summary, invalid: str | None) -> Measurement:
        timer, sampling = self.timer, self.sampling
        assert sampling.stopped is not None
        cost_ns = timer.fixed_cost_ns
        return Measurement(
            scope=self.scope,
            timer=timer.name,
            measures=timer.measures,
            cache=self.cache,
            samples_ns=tuple(round(sample, 2) for sample in sampling.samples),
            iterations=sampling.iterations,
            summary=summary,
            invalid=invalid,
            stopped=sampling.stopped,
            # The timer's and the host's share are independent, so their variances add up.
            jitter_ns=math.hypot(timer.jitter_ns / self.calls, sampling.jitter_ns),
            fixed_cost_ns=None if cost_ns is None else cost_ns / self.calls,
            busy_ns=statistics.median(sampling.busy) if sampling.busy else None,
            cpu_ns=statistics.median(sampling.cpu) if sampling.cpu else None,
            work=sampling.work,
            order=sampling.order,
            buffer_sets=self.executions.buffer_sets,
            invalid_samples=sampling.invalid_samples,
            traffic_bytes=self.traffic_bytes,
            flops=self.flops,
        )

    def _size(self, executed: int, passed_s: float, inspected: int) -> int:
        """Returns the number of executions in the next batch; the `inspected` one is its last."""
        rule, sampling = self.rule, self.sampling
        # Time of an execution with everything around it; at first only the call's share is known.
        each_s = max(self.call_ns / 1e9, 1e-9, passed_s / executed if executed else _LEAST_S)
        so_far, a_sample = len(sampling.samples), sampling.executions_a_sample
        # Even the rule's minimum comes from several batches; later the time that is left decides.
        most = math.ceil(rule.min_samples / _FEWEST_BATCHES) * a_sample
        if so_far >= rule.min_samples:
            most = max(most, int((rule.budget_s - passed_s) / each_s))
        return min(
            int(_BATCH_S / each_s),
            self.executions.largest_batch,
            (rule.max_samples - so_far) * a_sample,
            inspected - executed if executed < inspected else rule.max_samples,
            most,
        )
