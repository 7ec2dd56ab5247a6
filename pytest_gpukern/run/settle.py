"""Settles a test at its end: judges its measurements, confirms suspicions, says what else changed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpukern.baseline.merge import confirmed_slower
from pytest_gpukern.baseline.record import choice_of
from pytest_gpukern.findings.findings import explained, failures
from pytest_gpukern.gate.change import FEWEST, FRESH_SESSIONS
from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.gate.judge import Basis, confirm, judge, undecidable, unless_hopeless
from pytest_gpukern.gate.spread import spread_key
from pytest_gpukern.processes.extra_sessions import measure_extra_sessions
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Correctness, GateFailure, Result, SessionRole, Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpukern.baseline.record import Past
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import CaseInfo, Measurement


NO_CALL = "the test made no call by gpu_benchmark that returned, so nothing was checked"


@dataclass(frozen=True)
class Settled:
    """Holds what a test came to.

    Attributes:
        result: of this process, with its final verdicts, their reasons, and findings.
        sessions: the other sessions that were measured for it, in their order.
        failures: why the gate fails the test.
    """

    result: Result
    sessions: tuple[Result, ...] = ()
    failures: tuple[GateFailure, ...] = ()


def settle(
    result: Result, environment: Environment, marker: MarkerOptions, *, expects_check: bool = False
) -> Settled:
    """Judges a result once its test's body has ended, so that every verdict is final.

    With `unchecked` in `--gpukern-fail-on`, a test that `expects_check` fails if nobody checked its outputs.
    A test expects that if it uses our fixture, or declares what its calls write.

    A run that compares by several sessions runs the others first. Fresh sessions decide a suspicion. A
    confirmed slowdown may be intended: a run that writes a file then measures as many more sessions as a new
    epoch needs to gate at once.
    """
    settings = environment.settings
    sessions: tuple[Result, ...] = ()
    if result.measurements:
        if result.verdicts:  # given by child sessions, as of another revision: no record counts
            judged = Judged(result, deciding={each.key: [each] for each in result.measurements})
        else:
            judged = judged_by_record(result, environment, marker)
        judged = confirmed(judged, environment, marker)
        sessions = judged.sessions
        model = environment.gpu.model_key(on_gpu=result.case.on_gpu)

        def past_of(case: CaseInfo, key: str | None) -> Past | None:
            return environment.store.baseline(case, model).past(case.id, key)

        result = explained(judged.result, past_of, deciding=judged.deciding)
    # The reason first: pytest's short summary names the test already, and cuts long lines.
    failing = failures(result, settings.fail_on, accepts=settings.accepts)
    if "unchecked" in settings.fail_on and expects_check and result.correctness is Correctness.UNCHECKED:
        failing.insert(0, GateFailure("unchecked", _why_unchecked(result)))
    return Settled(result, sessions, tuple(failing))


def _why_unchecked(result: Result) -> str:
    """Says which outputs of an unchecked result nothing compared, with the remedy."""
    if result.first_call_ns is None:
        return f"{NO_CALL}: call it, or drop the fixture and the marker"
    never = f"{', '.join(result.unchecked)}: never compared" if result.unchecked else "no output was compared"
    return (
        f"{never} with a reference: call gpu_benchmark.verify(out, expected) with the output or "
        "a copy of it, or pass check= to its pedantic; a test of the fixture benchmark takes gpu_benchmark "
        "instead"
    )


@dataclass(frozen=True)
class Judged:
    """Holds a result with its verdicts, and what they rest on.

    Attributes:
        result: of this process.
        sessions: other sessions that were measured for it, in their order.
        deciding: `scope/timer/cache` → the measurements that its verdict rests on.
    """

    result: Result
    sessions: tuple[Result, ...] = ()
    deciding: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)


def judged_by_record(result: Result, environment: Environment, marker: MarkerOptions) -> Judged:
    """Returns a measured result with a verdict for each scope; without baselines, only for what is INVALID.

    If the record has only the number of the second timer, as before CUPTI became usable on a machine, we
    judge that one for both.
    """
    settings = environment.settings
    extra: list[Result] = []
    problem = None
    if settings.baseline == "compare" and settings.sessions > 1:
        extra, problem = _fresh(result, environment, settings.sessions - 1, before=1)
    bases = {
        measurement.key: _basis_of(result, measurement, environment, marker)
        for measurement in result.measurements
    }
    chosen = {measurement.key for measurement in _to_judge(result.measurements, bases)}
    verdicts: dict[str, Verdict] = {}
    for measurement in result.measurements:
        key = measurement.key
        if key not in chosen and measurement.invalid is None:
            continue
        fresh = [measurement, *_under(key, extra)]
        verdict = judge(fresh, bases[key])
        folder = settings.baseline_dir
        if verdict.kind is VerdictKind.NEW and folder is not None and not folder.is_dir():
            verdict = dataclasses.replace(verdict, reason=f"{verdict.reason}: there is no folder {folder}")
        if verdict.suspected:
            verdict = unless_hopeless(verdict, fresh, bases[key])
        if problem is not None:
            verdict = Verdict(VerdictKind.INVALID, f"its extra sessions failed: {problem}")
        if settings.baseline != "off" or verdict.kind is VerdictKind.INVALID:
            verdicts[key] = verdict
    together = [result, *extra]
    return Judged(
        dataclasses.replace(result, verdicts=verdicts),
        tuple(extra),
        {key: _under(key, together) for each in together for key in (m.key for m in each.measurements)},
    )


def confirmed(judged: Judged, environment: Environment, marker: MarkerOptions) -> Judged:
    """Decides each suspicion by fresh sessions, and by these alone."""
    settings, result = environment.settings, judged.result
    suspected = [key for key, verdict in result.verdicts.items() if verdict.suspected]
    if not suspected:
        return judged
    fresh, problem = _fresh(result, environment, FRESH_SESSIONS, role=SessionRole.CONFIRMING)
    result = decided_by(fresh, problem, result, environment, marker)
    more: list[Result] = []
    if settings.run_file is not None and settings.baseline == "compare" and confirmed_slower(result):
        more, _ = _fresh(result, environment, FEWEST - len(fresh), before=len(fresh))
    decided = {key: _under(key, fresh) for key in suspected}
    return Judged(result, (*judged.sessions, *fresh, *more), {**judged.deciding, **decided})


def decided_by(
    fresh: Sequence[Result],
    problem: str | None,
    result: Result,
    environment: Environment,
    marker: MarkerOptions,
) -> Result:
    """Returns the result with its suspicions decided by fresh sessions of the same test.

    A `problem` says why there are too few of these; then every suspicion is INVALID.
    """
    verdicts = dict(result.verdicts)
    for measurement in result.measurements:
        key = measurement.key
        suspicion = verdicts.get(key)
        if suspicion is None or not suspicion.suspected:
            continue
        found = _under(key, fresh)
        missing = f"{key} was not measured in each" if len(found) < len(fresh) else None
        if problem or missing:
            verdicts[key] = undecidable(suspicion, problem or f"{missing}")
            continue
        verdicts[key] = confirm(suspicion, found, _basis_of(result, measurement, environment, marker))
    return dataclasses.replace(result, verdicts=verdicts)


def _basis_of(
    result: Result, measurement: Measurement, environment: Environment, marker: MarkerOptions
) -> Basis:
    """Returns what a measurement is judged by.

    A remark says if that is an older epoch, because the newest has no time under its key.
    """
    on_gpu, key, store = result.case.on_gpu, measurement.key, environment.store
    model = environment.gpu.model_key(on_gpu=on_gpu)
    recorded = store.baseline(result.case, model)
    opened = recorded.newer_epoch(result.case.id, key)
    return Basis(
        store.sessions_for(result.case, model, key),
        Conditions.of(result.case, device_model=model, simulated=result.simulated),
        threshold=marker.threshold or environment.settings.threshold,
        jitter_ns=measurement.jitter_ns,
        device=result.fingerprint.device_uuid if on_gpu else None,
        shared=store.shared_spread(model).get(spread_key(key)),
        anchor=recorded.anchor_times(result.case.id, key),
        choice=choice_of(result),
        remark=f"judged by an older epoch, because that of {opened[:10]} has no {key}" if opened else "",
        fails_with="" if on_gpu or "host" in environment.settings.fail_on else "--gpukern-fail-on",
    )


def _under(key: str, results: Iterable[Result]) -> list[Measurement]:
    """Returns the measurements of results under one `scope/timer/cache`."""
    return [
        measurement for result in results for measurement in result.measurements if measurement.key == key
    ]


def _to_judge(measurements: Sequence[Measurement], bases: Mapping[str, Basis]) -> list[Measurement]:
    """Returns the measurements that get a verdict: one for each scope."""
    chosen = []
    for main in (measurement for measurement in measurements if not measurement.beside):
        others = [other for other in measurements if other.beside and other.scope == main.scope]
        known = [] if _is_recorded(main, bases) else [o for o in others if _is_recorded(o, bases)]
        chosen.append(known[0] if known else main)
    return chosen


def _is_recorded(measurement: Measurement, bases: Mapping[str, Basis]) -> bool:
    """Returns whether there is a record under its key; its given sessions may be of another timer."""
    return any(session.key == measurement.key for session in bases[measurement.key].sessions)


def _fresh(
    result: Result,
    environment: Environment,
    count: int,
    *,
    role: SessionRole = SessionRole.FURTHER,
    before: int = 0,
) -> tuple[list[Result], str | None]:
    """Runs so many fresh sessions of the test; returns their results, and why some failed, or None.

    Messages number them after those that came `before`. Variants of other backends are not imported: on an
    H200's host that took most of a session's ten seconds. Sessions of host variants import all, as those on
    record did; options about GPUs, such as `--gpukern-timer=event`, contradict `--gpukern-backend=host`.
    """
    children, backend = environment.children, result.case.backend
    if backend is not None and result.case.on_gpu:
        children = dataclasses.replace(children, options=(*children.options, f"--gpukern-backend={backend}"))
    with phase("confirming sessions"), environment.waiting():
        extra = measure_extra_sessions(
            children,
            [result.nodeid],
            first=before + 1,
            last=before + count,
            environ=environment.gpu.for_children,
            role=role,
        )
    return extra.of(result.nodeid, count)
