"""Makes a run of what a baseline file holds, so that each form of the report can tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.baseline.record import Baseline, SessionEntry
from pytest_gpukern.findings.cards import is_valid
from pytest_gpukern.findings.trend import Point, SeriesKey, Trend, is_time, moment_of, points_of, with_steps
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.measure.device_clocks import CLOCKS
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.backend_table import runs_on_gpu
from pytest_gpukern.values.result import CaseInfo, Correctness, Measurement, Result, SessionRole, Summary
from pytest_gpukern.values.untrusted_json import content_of

_BEGINNING = datetime.fromtimestamp(0, UTC)


def read(path: Path) -> RunResults:
    """Reads the file of a run, or of a baseline as a run.

    Raises:
        FileError: the file is missing, empty, damaged, neither of these or from a newer release.
    """
    return run_of(load(path), path.name) if is_baseline(path) else read_run(path)


class _Named(msgspec.Struct):
    """Holds the field that baselines alone have; msgspec makes nothing of the others."""

    device_model: object = msgspec.UNSET


def is_baseline(path: Path) -> bool:
    """Says whether a file means to be a baseline, by its name where damaged; raises FileError."""
    try:
        named = msgspec.json.decode(content_of(path), type=_Named)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return path.name.count(".") >= 2 and path.parent.name == "baselines"
    return named.device_model is not msgspec.UNSET


def run_of(baseline: Baseline, name: str) -> RunResults:
    """Returns the current epoch of each case as a run, whose result is the newest session.

    A baseline has no samples: their quantiles stand for them. It does not name backends and parameters apart,
    so the label of a case is its id without the problem.
    """
    sessions = {case_id: list(_sessions(baseline, case_id)) for case_id in baseline.cases}
    moments = [moment_of(session.recorded) or _BEGINNING for session in baseline.sessions.values()]
    return RunResults(
        [results[-1] for results in sessions.values()],
        {case_id: results[:-1] for case_id, results in sessions.items()},
        heading=[f"records of {baseline.problem} on {baseline.device_model}"],
        history={case_id: known for case_id in sessions if (known := baseline.history(case_id))},
        recorded_sessions=baseline.sessions,
        created=max(moments, default=_BEGINNING),
        name=name,
    )


def _sessions(baseline: Baseline, case_id: str) -> Iterator[Result]:
    """Yields the sessions of the newest epoch of a case, the oldest first."""
    epoch, past = baseline.cases[case_id].epochs[-1], baseline.past(case_id)
    label = case_id.removeprefix(f"{baseline.problem}/")
    backend, dot, of_backend = label.partition(".")
    on_host = bool(dot) and not runs_on_gpu(backend)  # else its backend is not told from the name of a test
    case = CaseInfo(
        id=case_id,
        problem=baseline.problem,
        problem_version=epoch.problem_version,
        variant=of_backend if on_host else label,
        backend=backend if on_host else None,
        point={},
        measured_point={},
        parameters={},
        baseline_dir="",
        baseline_name=baseline.problem,
    )
    for session, known in zip(epoch.sessions, past, strict=True):
        yield Result(
            case,
            nodeid=case_id,
            fingerprint=known.fingerprint,
            simulated=False,
            correctness=Correctness.PASSED if known.outputs else Correctness.UNCHECKED,
            first_call_ns=session.first_call_ns,
            compile_ns=session.compile_ns,
            measurements=tuple(measurement_of(key, time) for key, time in session.times.items()),
            kernels=known.kernels,
            session=session.session,
            role=SessionRole.MEASURED if session is epoch.sessions[-1] else SessionRole.FURTHER,
            duration_s=session.duration_s,
        )


def trends(runs: Sequence[RunResults]) -> dict[SeriesKey, Trend]:
    """Returns the series of each time over the sessions of all runs and their records, with its steps.

    A case's newest result says what belongs to it: its version, its hardware, and the timers that are shown.
    """
    newest: dict[str, Result] = {}
    series: dict[SeriesKey, dict[str, tuple[Point, float]]] = {}
    shared: dict[tuple[str, str | None], Point] = {}  # by all cases of a session
    recorded = {name: entry for run in runs for name, entry in run.recorded_sessions.items()}
    for run in sorted(runs, key=lambda run: run.created, reverse=True):
        for result in run.results:
            if _alike(result, newest.setdefault(result.case.id, result)):
                for key, point, ns in _timed(run, result, recorded, shared):
                    if is_time(ns):
                        series.setdefault((result.case.id, key), {}).setdefault(point.session, (point, ns))
    return with_steps(
        {
            (case_id, timed.key): Trend.of(result, timed, series[case_id, timed.key].values())
            for case_id, result in newest.items()
            for timed in result.measurements
            if is_valid(timed) and (case_id, timed.key) in series
        }
    )


def _alike(result: Result, other: Result) -> bool:
    """Returns whether results of one case id time one thing: tests of two modules may share an id."""
    hardware = {of.fingerprint.model_key(on_gpu=of.case.on_gpu) for of in (result, other)}
    tests = {of.nodeid for of in (result, other)} - {result.case.id}  # which a baseline has in its place
    versions = {(of.case.problem_version, of.simulated) for of in (result, other)}
    return len(hardware) == len(versions) == 1 and len(tests) < 2


def _timed(
    run: RunResults,
    result: Result,
    sessions: Mapping[str, SessionEntry],
    shared: dict[tuple[str, str | None], Point],
) -> Iterator[tuple[str, Point, float]]:
    """Yields key, session and median of a test: of its record's newest epoch, and of the run.

    Confirming sessions are left out, since they were measured for one that was slow.
    """
    recorded = run.history.get(result.nodeid)
    for key, times in recorded.times.items() if recorded else ():
        for time in times:
            if time.epoch == times[-1].epoch:
                known = time.session, time.device
                if known not in shared:
                    (shared[known],) = points_of([time], sessions)
                yield key, shared[known], time.median_ns
    for session in (result, *run.sessions_of(result)):
        if session.role is SessionRole.CONFIRMING or not session.valid:
            continue
        card = session.fingerprint.device_uuid if result.case.on_gpu else None
        name = session.session or str(run.created)
        point = Point(name, run.created, card, session.provenance, session.canaries)
        point = shared.setdefault((name, card), point)
        for timed in session.measurements:
            yield timed.key, point, timed.summary.median_ns


def measurement_of(key: str, time: SessionTime) -> Measurement:
    """Returns a recorded time under its key as a measurement, whose samples are the recorded quantiles."""
    scope, timer, cache = key.split("/")
    clocks = {"sm_mhz": time.sm_mhz, "memory_mhz": time.memory_mhz}
    return Measurement(
        scope,
        timer,
        "as recorded",
        cache,
        time.quantiles_ns or (),
        1,
        Summary(time.median_ns, time.low_ns, time.high_ns, time.n),
        "recorded",
        jitter_ns=time.jitter_ns or 0.0,
        fixed_cost_ns=time.fixed_cost_ns,
        observations={CLOCKS: {name: mhz for name, mhz in clocks.items() if mhz is not None}},
    )
