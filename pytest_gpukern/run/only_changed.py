"""Finds out whether a kernel does what its record did, so that `--gpukern-only-changed` need not time it."""

from __future__ import annotations

import dataclasses
import math
import statistics

from msgspec import structs

from pytest_gpukern.baseline.record import launches_of
from pytest_gpukern.measure.measure import rule_for
from pytest_gpukern.run.environment import Environment
from pytest_gpukern.run.spine import Evidence, with_facts
from pytest_gpukern.run.timed_scope import TimedScope
from pytest_gpukern.values.backend_table import distributions_of_others
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import CaseInfo, Measurement, Result, Verdict, machine_code
from pytest_gpukern.values.verdict_table import VerdictKind


def is_as_recorded(timed: TimedScope, evidence: Evidence) -> bool:
    """Returns whether `--gpukern-only-changed` leaves a scope as it is on record; then the evidence says so.

    The newest recorded session has to agree in machine code, launch shapes and their order. It also has to
    agree in libraries, driver, the card's model and its clock and power policy, the problem's version and the
    point. Another card of the model may do. A kernel whose machine code is not known is timed.

    No timer sees a kernel's arguments, such as a number of rounds, nor what a closure holds. So the fewest
    samples have to agree with the recorded time within half the threshold, as for two revisions.
    """
    environment = timed.context.environment
    if not environment.settings.only_changed or timed.scope != "kernel" or not timed.on_gpu:
        return False
    fewest = rule_for(timed.call_ns).min_samples
    probe = dataclasses.replace(timed, count=timed.count or fewest).measured()
    result = with_facts(structs.replace(evidence.result, measurements=(probe,)), environment)
    threshold = timed.context.marker.threshold or environment.settings.threshold
    if probe.invalid is not None or not _does_the_same(result, probe, environment, threshold):
        return False
    reason = (
        "machine code, launches, libraries, driver and clocks are as recorded, and "
        f"{probe.summary.n} samples are within half the threshold; not timed further"
    )
    evidence.add(
        kernels=result.kernels,
        autotuned=result.autotuned,
        verdicts={probe.key: Verdict(VerdictKind.SAME_CODE, reason)},
    )
    return True


def _does_the_same(result: Result, probe: Measurement, environment: Environment, threshold: float) -> bool:
    case, gpu = result.case, environment.gpu
    baseline = environment.store.baseline(case, gpu.model_key(on_gpu=True))
    record, (kernels, launched) = baseline.of(case.id), launches_of(result)
    past = record.past(probe.key)
    if not past or not launched:
        return False
    before = max((time.session for time in past), key=lambda session: session.recorded)
    ratio = probe.summary.median_ns / statistics.median(time.median_ns for time in past)
    return (
        (kernels, launched) == (before.kernels, before.launched)
        and machine_code(kernels) is not None
        and before.case.problem_version == case.problem_version
        and _machine(result.fingerprint, case) == _machine(before.fingerprint, case)
        and ratio > 0
        and abs(math.log(ratio)) <= math.log1p(threshold) / 2
    )


def _machine(of: Fingerprint, case: CaseInfo) -> tuple[object, ...]:
    """Returns what has to be equal of the machine and its software; what is not known counts, too."""
    unused = distributions_of_others(case.backend)
    libraries = {name: version for name, version in of.libraries.items() if name not in unused}
    clocks = of.power_limit_w, of.max_sm_clock_mhz, of.max_memory_clock_mhz
    return of.driver_version, of.cuda_driver_version, of.mig_profile, *clocks, libraries
