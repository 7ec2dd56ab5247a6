"""Samples of one call, batch by batch: how many come next, which of them count, and what they amount to."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpukern.result import Measurement
from pytest_gpukern.stats import summarize

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.measure import Executions, Watch
    from pytest_gpukern.result import DeviceWork
    from pytest_gpukern.stats import StoppingRule
    from pytest_gpukern.timers import Batch, Iteration, Timer

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
    """Takes batches of one call; attributes as the arguments of `measure.measure`.

    Attributes:
        sampling: what was taken so far.
    """

    executions: Executions
    timer: Timer
    rule: StoppingRule
    watch: Watch
    inspect: Callable[[], None] | None
    cold: bool
    call_ns: float
    clock: Callable[[], float]
    sampling: Samples = field(default_factory=Samples)

    def run(self) -> Iteration:
        """Goes on until the rule or the watch says why to stop; returns the execution that came last."""
        rule, timer, sampling = self.rule, self.timer, self.sampling
        chosen = random.randrange(rule.min_samples) + 1 if self.inspect is not None else 0
        # Between the calls of a graph nothing is flushed: they are cold on all sets in turn only.
        turn = self.executions.buffer_sets if self.cold and timer.name == "graph" else 1
        executed, started = 0, self.clock()
        while True:
            size = self._size(executed, self.clock() - started, chosen)
            self.watch.before()
            taken = self.executions.take(max(1, size // turn) * turn, cold=self.cold)
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
            fault = self.watch.after(batch, last=stopped is not None)
            if fault is None:
                sampling.settle(stopped, settled=self.watch.settled)
            elif not sampling.give_up(fault, self.watch.hopeless()):
                timer.collect(self.executions.take(turn, cold=self.cold), cold=self.cold)  # it has rested
            if sampling.stopped is not None:
                return taken[-1]

    def measurement(self, scope: str, cache: str) -> Measurement:
        """What was taken, once it has ended."""
        timer, sampling = self.timer, self.sampling
        assert sampling.stopped is not None
        seen = self.watch.finish(sampling.samples, resolution_ns=timer.resolution_ns)
        summary = summarize(sampling.samples, resolution_ns=timer.resolution_ns, batches=sampling.batches)
        warnings = (*sampling.warnings, *seen.warnings, *summary.warnings)
        return Measurement(
            scope=scope,
            timer=timer.name,
            measures=timer.measures,
            cache=cache,
            samples_ns=tuple(round(sample, 2) for sample in sampling.samples),
            iterations=sampling.iterations,
            summary=dataclasses.replace(summary, warnings=warnings),
            stopped=sampling.stopped,
            jitter_ns=math.hypot(timer.jitter_ns, sampling.jitter_ns),
            fixed_cost_ns=timer.fixed_cost_ns,
            busy_ns=statistics.median(sampling.busy) if sampling.busy else None,
            work=sampling.work,
            buffer_sets=self.executions.buffer_sets,
            invalid_samples=sampling.invalid_samples,
            state=seen.state,
            invalid=seen.invalid,
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
    """The most executions of the next batch: after the fewest samples those that the time left is enough for.

    Never fewer than the first batches had, which would say little of what they share.
    """
    if len(sampling.samples) < rule.min_samples:
        return rule.max_samples * sampling.executions_a_sample
    least = _samples_a_batch(rule, 0) * sampling.executions_a_sample
    return max(least, int((rule.budget_s - passed_s) / each_s))
