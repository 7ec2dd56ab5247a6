"""Finds out whether a kernel does what its record did, so that `--gpukern-only-changed` need not time it."""

from __future__ import annotations

import dataclasses
import math
import statistics

from msgspec import structs

from pytest_gpukern.baseline.same_work import SameWork, newest, same_work
from pytest_gpukern.measure.measure import rule_for
from pytest_gpukern.run.spine import Evidence, with_facts
from pytest_gpukern.run.timed_scope import TimedScope
from pytest_gpukern.values.result import Verdict
from pytest_gpukern.values.verdict_table import VerdictKind


def is_as_recorded(timed: TimedScope, evidence: Evidence) -> bool:
    """Returns whether `--gpukern-only-changed` leaves a scope as it is on record; then the evidence says so.

    The newest recorded session has to have done the same (`same_work`). A kernel whose machine code is not
    known is timed.

    The fewest samples show what it does. Where arguments may differ that no timer sees, they also have to
    agree with the recorded time within half the threshold, as for two revisions.
    """
    environment = timed.context.environment
    if not environment.settings.only_changed or timed.scope != "kernel" or not timed.on_gpu:
        return False
    fewest = rule_for(timed.call_ns).min_samples
    probe = dataclasses.replace(timed, count=timed.count or fewest).measured()
    measured = structs.replace(evidence.result, measurements=(probe,))
    result = with_facts(measured, environment, evidence.arrays)
    past = environment.record_of(result.case).past(probe.key)
    same = same_work(result, newest(past), probe.key) if past and probe.invalid is None else SameWork.NO
    if same is SameWork.NO:
        return False
    if same is not SameWork.ALL:
        threshold = timed.context.marker.threshold or environment.settings.threshold
        ratio = probe.summary.median_ns / statistics.median(time.median_ns for time in past)
        if ratio <= 0 or abs(math.log(ratio)) > math.log1p(threshold) / 2:
            return False
    reason = "machine code, launches, libraries, driver and clocks are as recorded; not timed further"
    evidence.add(
        kernels=result.kernels,
        autotuned=result.autotuned,
        verdicts={probe.key: Verdict(VerdictKind.SAME_CODE, reason)},
    )
    return True
