"""Completes a judged result with reasons and findings, and says what of it fails its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from pytest_gpukern.findings.explain import because, is_about
from pytest_gpukern.findings.regressions import (
    ACCURACY,
    BITS,
    DETERMINISM,
    RESOURCES,
    TAIL,
    grown_errors,
    grown_resources,
    other_bits,
    other_determinism,
    over_sessions,
    slow_calls,
)
from pytest_gpukern.findings.weaker import WEAKER
from pytest_gpukern.gate.judge import fails
from pytest_gpukern.values.failure_table import KIND_OF_FINDING
from pytest_gpukern.values.result import Correctness, Finding, GateFailure
from pytest_gpukern.values.verdict_table import Tone, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pytest_gpukern.gate.comparability import SessionTime
    from pytest_gpukern.values.result import Measurement, Result, Verdict

_SINCE_THE_RECORD = (RESOURCES, ACCURACY, BITS, DETERMINISM, TAIL, WEAKER)


def explained(
    result: Result,
    past: Callable[[str | None], Sequence[SessionTime]],
    *,
    deciding: Mapping[str, Sequence[Measurement]] | None = None,
) -> Result:
    """Returns the result with reasons for what became slower or faster, and with findings besides times.

    Verdicts keep their kinds, and it is `failures` that decides what fails a test.

    `past` returns the sessions that judge a measurement, by its key; without a key, the newest epoch's.
    `deciding` has the measurements that a verdict rests on, by key; else it rests on the result's own.
    """
    if result.simulated or not result.measurements or result.correctness is Correctness.INCORRECT:
        return result
    verdicts, tails = dict(result.verdicts), list[Finding]()
    for measurement in result.measurements:
        verdict = verdicts.get(measurement.key)
        if verdict is None or not (recorded := past(measurement.key)):
            continue
        rests_on = (deciding or {}).get(measurement.key) or [measurement]
        verdicts[measurement.key] = _with_reasons(result, rests_on, verdict, recorded)
        if verdict.kind.row.compared and verdict.kind is not VerdictKind.SLOWER and result.case.on_gpu:
            tails += slow_calls(rests_on, recorded)
    result = structs.replace(result, verdicts=verdicts, findings=(*result.findings, *tails))
    newest, case = past(None), result.case
    if [time.conditions.problem_version for time in newest[:1]] != [case.problem_version]:
        return result
    since_record = (
        *grown_resources(result.kernels, newest),
        *grown_errors(result.errors, newest),
        *other_bits(result.errors, result.kernels, newest),
        *other_determinism(result.errors, newest),
    )
    errors = over_sessions(result.errors, result.kernels, newest)
    return structs.replace(result, errors=errors, findings=(*result.findings, *since_record))


def failures(result: Result, fail_on: Collection[str], *, accepts: bool = False) -> list[GateFailure]:
    """Returns why a result fails its test, by kinds of `FAILURES`.

    A run that `accepts` opens an epoch for what it measures. Then what became slower or grew since the last
    one is reported, and only what is INVALID fails.
    """
    of_verdicts = [
        GateFailure(verdict.kind.value, verdict.explained, key)
        for key, verdict in result.verdicts.items()
        if fails(verdict, fail_on, on_gpu=result.case.on_gpu)
        if not accepts or verdict.kind.row.always_fails
    ]
    accepted = _SINCE_THE_RECORD if accepts else ()
    counting = (finding for finding in result.findings if finding.kind not in accepted)
    return of_verdicts + findings_that_fail(counting, fail_on)


def findings_that_fail(findings: Iterable[Finding], fail_on: Collection[str]) -> list[GateFailure]:
    return [
        GateFailure(finding.kind, finding.text)
        for finding in findings
        if KIND_OF_FINDING.get(finding.kind) in fail_on
    ]


def _with_reasons(
    result: Result, deciding: Sequence[Measurement], verdict: Verdict, past: Sequence[SessionTime]
) -> Verdict:
    row, low, high = verdict.kind.row, verdict.ratio_low, verdict.ratio_high
    significant = low is not None and high is not None and (low > 1 or high < 1)  # if below the threshold
    # Pairs were measured under the same conditions, whatever differs from the record.
    if verdict.pairs or not (row.changed or (row.tone is Tone.DOUBTFUL and significant)):
        return verdict
    opening = [session for session in past if session.opening]
    if opening and verdict.ratio and not is_about(verdict.ratio, deciding, past):
        past = opening if is_about(verdict.ratio, deciding, opening) else past
    return structs.replace(verdict, differences=because(result, deciding, verdict, past))
