"""A judged result with what else changed since its record: explanations of its verdicts, and findings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpukern.findings.accuracy_drift import grown_errors, other_bits, other_determinism, over_sessions
from pytest_gpukern.findings.explain import because, is_cause, significant
from pytest_gpukern.findings.resource_growth import grown_resources
from pytest_gpukern.values.result import Correctness, VerdictKind, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpukern.baseline.history import Past
    from pytest_gpukern.values.result import CaseInfo, Finding, Measurement, Result, Verdict

    PastOf = Callable[[CaseInfo, str | None], Past | None]


def explained(
    result: Result,
    past_of: PastOf,
    *,
    drift: float,
    deciding: Mapping[str, Sequence[Measurement]] | None = None,
) -> Result:
    """The result with reasons for what became slower or faster, and with findings besides times.

    Verdicts keep their kinds, and it is `failures` that decides what fails a test.

    Args:
        result: with its verdicts.
        past_of: looks up the recorded sessions of a case: those of a measurement's key, or without one those
            of the newest epoch.
        drift: factor by which an error may grow.
        deciding: `scope/timer/cache` → the measurements that its verdict rests on; where it says nothing,
            the result's own.
    """
    if result.simulated or not result.measurements or result.correctness is Correctness.INCORRECT:
        return result
    verdicts = dict(result.verdicts)
    for measurement in result.measurements:
        verdict = verdicts.get(measurement.key)
        if verdict is not None:
            rests_on = (deciding or {}).get(measurement.key) or [measurement]
            verdicts[measurement.key] = _with_reasons(result, rests_on, verdict, past_of)
    past = _of_the_same_work(result, past_of)
    if past is None:
        return dataclasses.replace(result, verdicts=verdicts)
    return dataclasses.replace(
        result,
        verdicts=verdicts,
        errors=over_sessions(result.errors, result.kernels, past),
        findings=(*result.findings, *_findings(result, past, drift)),
    )


def _with_reasons(
    result: Result, deciding: Sequence[Measurement], verdict: Verdict, past_of: PastOf
) -> Verdict:
    changed = verdict.kind in (VerdictKind.SLOWER, VerdictKind.FASTER)
    if not changed and not (verdict.kind is VerdictKind.UNDECIDED and significant(verdict)):
        return verdict
    past = past_of(result.case, deciding[0].key)
    if past is None:
        return verdict
    said = because(result, deciding, verdict, past)
    return dataclasses.replace(
        verdict,
        because=tuple(text for text in said if is_cause(text)),
        unchanged=tuple(text for text in said if not is_cause(text)),
    )


def _of_the_same_work(result: Result, past_of: PastOf) -> Past | None:
    """The newest epoch; None where that is of another problem version or point."""
    past, case = past_of(result.case, None), result.case
    if past is None or past.problem_version != case.problem_version:
        return None
    return past if past.measured_point == plain(case.measured_point) else None


def _findings(result: Result, past: Past, drift: float) -> tuple[Finding, ...]:
    """What grew or became another, against the newest epoch."""
    return (
        *grown_resources(result.kernels, past),
        *grown_errors(result.errors, past, factor=drift),
        *other_bits(result.errors, result.kernels, past),
        *other_determinism(result.errors, past),
    )
