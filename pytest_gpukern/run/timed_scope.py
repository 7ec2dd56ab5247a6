"""Times one scope of a subject: chooses the timer, and samples with it.

`CaseSubject` and `CallSubject` make a `TimedScope`. `measured` asks `measure/by_timer.py` which timer can see
the work. That calls `by` for each timer that it takes, and a `Sampler` (`measure/measure.py`) does the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from pytest_gpukern.measure.by_timer import HOST_REMEDY, measured_by, not_of_the_device
from pytest_gpukern.measure.measure import Sampler, rule_for, rule_of_a_glance
from pytest_gpukern.measure.observers import ObservedCall
from pytest_gpukern.measure.statistics import StoppingRule
from pytest_gpukern.run.spine import SubjectContext
from pytest_gpukern.timers.cupti import timer as cupti
from pytest_gpukern.timers.timer import Executions, NothingLaunched, Timer, open_host_timer
from pytest_gpukern.values.result import Measurement, Trace
from pytest_gpukern.values.timer_table import host_timer, timer_row

OWN_CONTEXT = "the test works in a CUDA context of its own, where only scope='launch' can be measured"


@dataclass(frozen=True)
class TimedScope:
    """Says what is timed in one scope: a case's launch or its copies, or a plain test's call.

    Attributes:
        scope: one of `problems.variants.SCOPES`.
        on_gpu: whether it is work on the GPU.
        call_ns: its approximate time, in nanoseconds.
        work_bytes: declared bytes of the work; of a launch only the host's time is measured, and no work.
        work_flops: declared operations of the work.
        dtypes: NumPy's names of its dtypes; without any, operations give no bound.
        inspect: checks what a timed call left; None if it cannot be checked.
        count: how many samples to take, or None to sample until the median is known.
        calls_a_sample: calls in each; of several only the first would find a cold cache.
        own_context: whether it works in a CUDA context of the test's own, in which nothing of ours can run.
        synchronize: waits for all work on the device.
        stream: the timed stream, as a cuda.core stream; None on the host.
        any_stream: whether the call's work may outlast the timed stream.
        leaves_host_calls: whether a call that puts nothing on the GPU raises, instead of being INVALID.
    """

    scope: str
    executions: Executions
    context: SubjectContext
    on_gpu: bool
    call_ns: float
    work_bytes: float | None = None
    work_flops: float | None = None
    dtypes: Iterable[str] = ()
    inspect: Callable[[], None] | None = None
    count: int | None = None
    calls_a_sample: int = 1
    own_context: bool = False
    synchronize: Callable[[], None] = lambda: None
    stream: Any = None
    any_stream: bool = True
    leaves_host_calls: bool = False

    @property
    def cache(self) -> str:
        flushes = self.on_gpu and self.scope != "launch" and self.calls_a_sample == 1
        return self.context.cache if flushes else "hot"

    @functools.cached_property
    def _call(self) -> ObservedCall:
        """What observers are told of it. They may not run it for longer."""
        peaks, floor = self.context.environment.gpu.peaks, None
        if self.scope == "kernel" and peaks is not None:
            floor = peaks.floor(
                cache=self.cache, traffic_bytes=self.work_bytes, flops=self.work_flops, dtypes=self.dtypes
            )
        return ObservedCall(self.on_gpu, floor)

    def measured(self) -> Measurement:
        """Measures it on the host or on the device.

        Raises:
            NothingLaunched: the call puts nothing on the GPU, and that is refused.
            IncorrectError: a timed call left an output wrong.
        """
        if not self.on_gpu:
            return self.by(open_host_timer(host_timer(self.context.timer), self.synchronize))
        try:
            if self.scope == "kernel" and self.own_context:
                raise NothingLaunched(OWN_CONTEXT)
            return measured_by(
                self, self.context.timer, scope=self.scope, stream=self.stream, any_stream=self.any_stream
            )
        except NothingLaunched as reason:
            if self.leaves_host_calls:
                raise
            return not_of_the_device(self, self.stream, f"{reason}; {HOST_REMEDY}")

    def by(self, timer: Timer) -> Measurement:
        """Measures it by a timer; as many rounds as were requested are as many samples.

        Only a kernel that the device times is measured while other workers work on the host. A session that
        asks what tests do takes the fewest samples; by the host's clock it is one, which nobody compares.
        """
        by_host = not timer_row(timer.name).device_timed
        rule, count = rule_for(self.call_ns, by_host=by_host), self.count
        if self.context.asks:
            fewest = 1 if by_host else rule.min_samples
            count = min(count or fewest, fewest)
        if count is not None:
            rule = dataclasses.replace(rule, min_samples=count, max_samples=count)
        with self._alone(by_host=by_host):
            return self.sampler(timer, rule).measure()

    def glance_by(self, timer: Timer) -> Measurement:
        """Takes a few samples of what has just been measured, and no more than rounds were requested."""
        rule = rule_of_a_glance(self.call_ns)
        if self.count is not None:
            fewest, most = min(rule.min_samples, self.count), min(rule.max_samples, self.count)
            rule = dataclasses.replace(rule, min_samples=fewest, max_samples=most)
        with self._alone(by_host=False):
            return self.sampler(timer, rule, observed=False).glance()

    def _alone(self, *, by_host: bool) -> AbstractContextManager[None]:
        alone = self.scope != "kernel" or by_host
        return self.context.environment.gpu.timing_by_host() if alone else nullcontext()

    def sampler(self, timer: Timer, rule: StoppingRule, *, observed: bool = True) -> Sampler:
        """Returns what samples it; nobody looks at the device and at outputs unless it is `observed`."""
        launch, observers = self.scope == "launch", self.context.environment.gpu.observers
        return Sampler(
            self.executions,
            timer,
            scope=self.scope,
            cache=self.cache,
            call_ns=self.call_ns,
            rule=rule,
            observing=observers.observe(self._call, timer) if observed and not self.own_context else {},
            inspect=self.inspect if observed else None,
            calls=self.calls_a_sample,
            traffic_bytes=None if launch else self.work_bytes,
            flops=None if launch else self.work_flops,
            draw=random.Random(str(self.context.environment.poisons)),
        )

    def trace(self) -> Trace:
        """Executes it once more, and returns what that did.

        Raises:
            TimerUnavailable: CUPTI cannot be used here; the message says why.
        """
        cold = self.cache == "cold"
        (iteration,) = self.executions.take(1, cold=cold)
        return cupti.trace_of(self.scope, iteration, self.stream, cold=cold)
