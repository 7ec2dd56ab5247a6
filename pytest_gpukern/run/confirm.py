"""Verdicts that rest on fresh sessions of one test, run inside it, so that it passes or fails for good.

These are further sessions that were asked for, and those that confirm or refute a suspicion.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpukern.baseline.merge import confirmed_slower
from pytest_gpukern.gate.change import FEWEST
from pytest_gpukern.gate.judge import confirm, failing
from pytest_gpukern.processes.extra_sessions import measure_further
from pytest_gpukern.run.verdicts import basis_of, judged, naming_its_epoch, under
from pytest_gpukern.values.result import Result, SessionRole, Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement

CONFIRMING_SESSIONS = 2
"""Fresh sessions that decide about a suspected slowdown."""


@dataclass(frozen=True)
class Judged:
    """A test's result with its verdicts, and the other sessions that were measured for them.

    Attributes:
        result: of this process.
        sessions: the others, in the order in which they were measured.
        deciding: `scope/timer/cache` → the measurements that its verdict rests on.
    """

    result: Result
    sessions: tuple[Result, ...] = ()
    deciding: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)


def with_verdicts(result: Result, environment: Environment, marker: MarkerOptions) -> Judged:
    """A measured result with its verdicts.

    Where a run compares by several sessions, the others are run first. A suspicion that would fail the test
    is decided by fresh sessions, so that every verdict is final; where no time fails a test it stays one.
    A slowdown that was confirmed may be meant: a run that writes a file then measures as many more sessions
    as an epoch that is accepted from it needs to gate at once (see `baseline.unselected`).
    """
    settings = environment.settings
    further: list[Result] = []
    if settings.baseline == "compare" and settings.sessions > 1:
        result, further = _judged_by_several(result, environment, marker)
    elif not result.verdicts:
        result = judged(result, environment, marker)
    found = Judged(result, tuple(further), _together([result, *further]))
    bad = failing(result, strict=False, hosts="host" in settings.gate_on)
    suspected = [key for key, verdict in bad.items() if verdict.suspected]
    if not suspected:
        return found
    if settings.gate == "off":
        return _left_open(found, suspected, "the gate is off")
    if result.case.on_gpu and "time" not in settings.gate_on:
        return _left_open(found, suspected, "no time fails a test here")
    fresh, problem = _fresh(result, environment, CONFIRMING_SESSIONS, role=SessionRole.CONFIRMING)
    result = confirmed(result, environment, marker, fresh, problem)
    more: list[Result] = []
    if settings.output is not None and settings.baseline == "compare" and confirmed_slower(result):
        more, _ = _fresh(result, environment, FEWEST - len(fresh), before=len(fresh))
    decided = {key: under(key, fresh) for key in suspected}
    return Judged(result, (*further, *fresh, *more), {**found.deciding, **decided})


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
            verdict = confirm(suspicion, found, basis_of(result, measurement, environment, marker))
            verdicts[key] = naming_its_epoch(verdict, result, key, environment)
    return dataclasses.replace(result, verdicts=verdicts)


def _left_open(found: Judged, suspected: Sequence[str], why: str) -> Judged:
    verdicts = dict(found.result.verdicts)
    for key in suspected:
        reason = f"{verdicts[key].reason}; suspected only, since {why}"
        verdicts[key] = dataclasses.replace(verdicts[key], reason=reason)
    return dataclasses.replace(found, result=dataclasses.replace(found.result, verdicts=verdicts))


def _together(results: Sequence[Result]) -> dict[str, list[Measurement]]:
    """`scope/timer/cache` → what was measured under it."""
    keys = dict.fromkeys(measurement.key for result in results for measurement in result.measurements)
    return {key: under(key, results) for key in keys}


def undecidable(suspicion: Verdict, problem: str) -> Verdict:
    """INVALID, which fails: what was suspected must not pass because nothing could be said about it."""
    change = "slower" if suspicion.ratio is None else f"{100 * (suspicion.ratio - 1):+.1f} %"
    reason = f"suspected {change}, and the sessions that should confirm it failed: {problem}"
    return dataclasses.replace(suspicion, kind=VerdictKind.INVALID, reason=reason, suspected=False)


def _judged_by_several(
    result: Result, environment: Environment, marker: MarkerOptions
) -> tuple[Result, list[Result]]:
    further, problem = _fresh(result, environment, environment.settings.sessions - 1, before=1)
    found = judged(result, environment, marker, further)
    if problem is None:
        return found, further
    invalid = Verdict(VerdictKind.INVALID, f"its further sessions failed: {problem}")
    return dataclasses.replace(found, verdicts=dict.fromkeys(found.verdicts, invalid)), further


def _fresh(
    result: Result,
    environment: Environment,
    count: int,
    *,
    role: SessionRole = SessionRole.FURTHER,
    before: int = 0,
) -> tuple[list[Result], str | None]:
    """What so many fresh sessions of the same test find, and why some found nothing, or None.

    Messages number them from the one behind those that came `before`.
    """
    with environment.waiting():
        further = measure_further(
            environment.children,
            [result.nodeid],
            first=before + 1,
            last=before + count,
            environ=environment.for_children,
            role=role,
        )
    return further.of(result.nodeid, count)
