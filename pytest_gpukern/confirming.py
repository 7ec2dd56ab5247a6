"""Verdicts that rest on fresh sessions of one test, run inside it, so that it passes or fails for good.

These are further sessions that were asked for, and those that confirm or refute a suspicion.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpukern.further import measure_further
from pytest_gpukern.gate import confirm, failing
from pytest_gpukern.result import Result, Verdict, VerdictKind
from pytest_gpukern.runner import how_judged, judged, under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.environment import Environment
    from pytest_gpukern.marker import MarkerOptions

CONFIRMING_SESSIONS = 2
"""Fresh sessions that decide about a suspected slowdown."""


def with_verdicts(result: Result, environment: Environment, marker: MarkerOptions) -> Result:
    """A measured result with its verdicts.

    Where a run compares by several sessions, the others are run first. A suspicion that would fail the test
    is decided by fresh sessions, so that every verdict is final; where no time fails a test it stays one.
    """
    settings = environment.settings
    if settings.baseline == "compare" and settings.sessions > 1:
        result = _judged_by_several(result, environment, marker)
    elif not result.verdicts:
        result = judged(result, environment, marker)
    bad = failing(result, strict=False, hosts="host" in settings.gate_on)
    suspected = [key for key, verdict in bad.items() if verdict.suspected]
    if not suspected:
        return result
    if settings.gate == "off":
        return _left_open(result, suspected, "the gate is off")
    if result.case.on_gpu and "time" not in settings.gate_on:
        return _left_open(result, suspected, "no time fails a test here")
    fresh, problem = _fresh(result, environment, first=1, last=CONFIRMING_SESSIONS)
    return confirmed(result, environment, marker, fresh, problem)


def confirmed(
    result: Result,
    environment: Environment,
    marker: MarkerOptions,
    fresh: Sequence[Result],
    problem: str | None = None,
) -> Result:
    """The result with its suspicions decided by fresh sessions of the same test, and by these alone.

    Args:
        result: whose verdicts hold suspicions.
        environment: baselines and the run's threshold.
        marker: the test's own threshold.
        fresh: what the sessions found.
        problem: why there are fewer than there should be; then every suspicion is INVALID.
    """
    verdicts = dict(result.verdicts)
    for measurement in result.measurements:
        key = measurement.key
        suspicion = verdicts.get(key)
        if suspicion is None or not suspicion.suspected:
            continue
        found = under(key, fresh)
        missing = f"{key} was not measured in each" if len(found) < len(fresh) else None
        if problem or missing:
            verdicts[key] = undecidable(suspicion, problem or f"{missing}")
        else:
            recorded = environment.recorded(result.case, key, on_gpu=result.case.on_gpu)
            how = how_judged(result, measurement, environment, marker)
            verdicts[key] = confirm(suspicion, found, recorded, **how)
    return dataclasses.replace(result, verdicts=verdicts)


def _left_open(result: Result, suspected: Sequence[str], why: str) -> Result:
    verdicts = dict(result.verdicts)
    for key in suspected:
        reason = f"{verdicts[key].reason}; suspected only, since {why}"
        verdicts[key] = dataclasses.replace(verdicts[key], reason=reason)
    return dataclasses.replace(result, verdicts=verdicts)


def undecidable(suspicion: Verdict, problem: str) -> Verdict:
    """INVALID, which fails: what was suspected must not pass because nothing could be said about it."""
    change = "slower" if suspicion.ratio is None else f"{100 * (suspicion.ratio - 1):+.1f} %"
    reason = f"suspected {change}, and the sessions that should confirm it failed: {problem}"
    return dataclasses.replace(suspicion, kind=VerdictKind.INVALID, reason=reason, suspected=False)


def _judged_by_several(result: Result, environment: Environment, marker: MarkerOptions) -> Result:
    further, problem = _fresh(result, environment, first=2, last=environment.settings.sessions)
    found = judged(result, environment, marker, further)
    if problem is None:
        return found
    invalid = Verdict(VerdictKind.INVALID, f"its further sessions failed: {problem}")
    return dataclasses.replace(found, verdicts=dict.fromkeys(found.verdicts, invalid))


def _fresh(
    result: Result, environment: Environment, *, first: int, last: int
) -> tuple[list[Result], str | None]:
    """What fresh sessions of the same test find, and why some found nothing, or None."""
    children, environ = environment.children, environment.for_children
    further = measure_further(children, [result.nodeid], first=first, last=last, environ=environ)
    return further.of(result.nodeid, last - first + 1)
