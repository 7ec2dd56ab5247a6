"""What a result is judged by, and its verdicts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.gate.judge import Basis, judge
from pytest_gpukern.values.result import Result, Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpukern.gate.comparability import SessionTime
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement


def judged(
    result: Result, environment: Environment, marker: MarkerOptions, further: Sequence[Result] = ()
) -> Result:
    """The result with a verdict for each of its measurements; without baselines, only what is INVALID.

    A number that was taken beside a main timer's is judged where the record has that one only, as after CUPTI
    became usable on a machine; then it stands for both.

    Args:
        result: of this process.
        environment: baselines and the run's threshold.
        marker: the test's own threshold.
        further: what the same test found in further sessions, which are judged together with this one.
    """
    compares, on_gpu = environment.settings.baseline != "off", result.case.on_gpu
    recorded = {
        measurement.key: environment.recorded(result.case, measurement.key, on_gpu=on_gpu) if compares else ()
        for measurement in result.measurements
    }
    chosen = {measurement.key for measurement in _to_judge(result.measurements, recorded)}
    verdicts: dict[str, Verdict] = {}
    for measurement in result.measurements:
        if measurement.key not in chosen and measurement.invalid is None:
            continue
        fresh = [measurement, *under(measurement.key, further)]
        verdict = judge(fresh, basis_of(result, measurement, environment, marker))
        if compares:
            verdict = naming_its_epoch(verdict, result, measurement.key, environment)
        if not on_gpu and "host" not in environment.settings.gate_on:
            verdict = of_host(verdict)
        if compares or verdict.kind is VerdictKind.INVALID:
            verdicts[measurement.key] = verdict
    return dataclasses.replace(result, verdicts=verdicts)


def under(key: str, results: Iterable[Result]) -> list[Measurement]:
    """What results hold under one `scope/timer/cache`."""
    return [
        measurement for result in results for measurement in result.measurements if measurement.key == key
    ]


def basis_of(
    result: Result, measurement: Measurement, environment: Environment, marker: MarkerOptions
) -> Basis:
    """What a measurement is judged by."""
    compares, on_gpu, key = environment.settings.baseline != "off", result.case.on_gpu, measurement.key
    return Basis(
        environment.recorded(result.case, key, on_gpu=on_gpu) if compares else (),
        Conditions.of(
            result.case, device_model=environment.model_key(on_gpu=on_gpu), simulated=result.simulated
        ),
        threshold=marker.threshold or environment.settings.threshold,
        jitter_ns=measurement.jitter_ns,
        device=result.fingerprint.get("device_uuid") if on_gpu else None,
        shared=environment.shared_spread(key, on_gpu=on_gpu) if compares else None,
        anchor=environment.anchor(result.case, key, on_gpu=on_gpu) if compares else (),
    )


def naming_its_epoch(verdict: Verdict, result: Result, key: str, environment: Environment) -> Verdict:
    """The verdict, saying where it rests on an older epoch because the newest has no time under its key."""
    opened = environment.newer_epoch(result.case, key) if verdict.ratio is not None else None
    if opened is None:
        return verdict
    reason = f"{verdict.reason}; by an older epoch, since that of {opened[:10]} has no {key}"
    return dataclasses.replace(verdict, reason=reason)


def of_host(verdict: Verdict) -> Verdict:
    """A verdict about the host's time: it fails no test, so there is nothing to confirm."""
    slower = verdict.kind is VerdictKind.SLOWER
    reason = f"{verdict.reason}; a host's time fails no test" if slower else verdict.reason
    return dataclasses.replace(verdict, reason=reason, suspected=False, false_alarm=0.0)


def _to_judge(
    measurements: Sequence[Measurement], recorded: Mapping[str, Sequence[SessionTime]]
) -> list[Measurement]:
    """The measurements that a verdict is given for: one for each scope."""
    chosen = []
    for main in (measurement for measurement in measurements if not measurement.beside):
        others = [other for other in measurements if other.beside and other.scope == main.scope]
        known = [] if _holds(recorded, main.key) else [o for o in others if _holds(recorded, o.key)]
        chosen.append(known[0] if known else main)
    return chosen


def _holds(recorded: Mapping[str, Sequence[SessionTime]], key: str) -> bool:
    """Whether a record has times under this key; the sessions given for it may be of another timer."""
    return any(session.key == key for session in recorded[key])
