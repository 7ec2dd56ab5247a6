"""Measures one call in one scope: warm-up, cache policy, sampling until the median is known."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.result import Measurement
from pytest_gpukern.stats import StoppingRule, summarize

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.timers import Setup, Timer

_WARMUP_S = 0.05
_WARMUP_CALLS = 50
_BATCH_S = 0.05
_SLOW_CALL_S = 0.5


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
    clock: Callable[[], int] = time.perf_counter_ns,
) -> WarmUp:
    """Runs `call` until its wall time settles: three calls in a row within 5 % and 50 ms of calls.

    Of calls longer than 50 ms two that agree are enough. A call slower than 0.5 s is not repeated: caches and
    clocks have settled within it.

    Args:
        call: what is warmed up.
        synchronize: waits for the device.
        compiled: whether it ran before, so that not even the first call compiles or loads anything.
        clock: nanoseconds.
    """
    times: list[float] = []
    while len(times) < _WARMUP_CALLS:
        synchronize()
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
            and _agree(after_first[-3:])
        ):
            return WarmUp(times[0], times[-1], len(times), settled=True)
        if sum(times[1:]) > 20 * _WARMUP_S * 1e9:
            break
    return WarmUp(times[0], times[-1], len(times), settled=_agree(times[-3:]))


def _agree(times: list[float]) -> bool:
    return max(times) <= 1.05 * min(times)


def rule_for(call_ns: float) -> StoppingRule:
    """The default stopping rule for a call of about `call_ns`: slow calls get fewer samples.

    ±0.25 % or 0.5 s; at least 10 samples, 5 where one takes 50 ms, 3 where one takes half a second, 2 where
    one takes five and 1 where one takes ten. The summary says when they are too few.
    """
    if call_ns > 5e9:
        return StoppingRule(min_samples=1 if call_ns > 1e10 else 2, budget_s=0.0)
    if call_ns > 5e8:
        return StoppingRule(min_samples=3, budget_s=2.0)
    if call_ns > 5e7:
        return StoppingRule(min_samples=5, budget_s=2.0)
    return StoppingRule()


def measure(
    call: Callable[..., Any],
    timer: Timer,
    *,
    scope: str,
    cache: str,
    call_ns: float,
    rule: StoppingRule | None = None,
    traffic_bytes: float | None = None,
    flops: float | None = None,
    setup: Setup | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Takes samples of a call that is warm and was checked, until the stopping rule says why to stop.

    Args:
        call: what is timed.
        timer: how.
        scope: what the call does: `kernel`, `transfer` or `end_to_end`.
        cache: `cold` flushes the L2 before each sample, `hot` does not.
        call_ns: about how long the call takes, from the warm-up; sizes the batches.
        rule: when to stop; by default `rule_for(call_ns)`.
        traffic_bytes: declared bytes of the work, carried along.
        flops: declared operations of the work, carried along.
        setup: makes fresh arguments for each call, untimed.
        clock: seconds, for the time budget.
    """
    rule = rule or rule_for(call_ns)
    suspicion = timer.suspicion(call, setup)
    samples: list[float] = []
    warnings: dict[str, None] = {}
    iterations, launch_included = 1, False
    started = clock()
    stopped = None
    while stopped is None:
        size = max(1, min(int(_BATCH_S * 1e9 / max(call_ns, 1.0)), rule.max_samples - len(samples)))
        batch = timer.collect(call, size, cold=cache == "cold", setup=setup)
        if samples and batch.launch_included != launch_included:
            samples = []  # with the launch cost in it, the number is another quantity: begin anew
        launch_included = batch.launch_included
        samples += batch.samples_ns
        warnings.update(dict.fromkeys(batch.warnings))
        iterations = batch.iterations
        stopped = rule.decide(samples, clock() - started)
    summary = summarize(samples, resolution_ns=timer.resolution_ns)
    return Measurement(
        scope=scope,
        timer=timer.name,
        measures=timer.measures,
        cache=cache,
        samples_ns=tuple(round(sample, 2) for sample in samples),
        iterations=iterations,
        summary=dataclasses.replace(summary, warnings=(*warnings, *summary.warnings)),
        stopped=stopped,
        jitter_ns=timer.jitter_ns,
        traffic_bytes=traffic_bytes,
        flops=flops,
        invalid=suspicion,
    )
