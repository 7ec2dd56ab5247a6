"""Runs `gpukern compare A B`: judges the times of a run or baseline by those of another, as the gate does.

What it tells is the report of B, with verdicts by the sessions of A.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from pytest_gpukern.baseline.merge import sessions_to_record
from pytest_gpukern.baseline.record import choice_of
from pytest_gpukern.cli import exits
from pytest_gpukern.cli.report import declare_forms, runs_of, tell
from pytest_gpukern.findings.explain import other_machine
from pytest_gpukern.findings.findings import failures
from pytest_gpukern.gate.change import FRESH_SESSIONS
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge
from pytest_gpukern.gate.spread import SharedSpread, shared_spread, spread_key
from pytest_gpukern.report import units
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.failure_table import BY_DEFAULT
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.options import DEFAULT_THRESHOLD, SettingsError, parse_names, parse_threshold
from pytest_gpukern.values.result import Correctness, Measurement, Result, SessionRole, Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

_KINDS = (*(kind.row.fail_on for kind in VerdictKind if kind.row.fail_on and kind.row.shows_reason), "host")
"""Kinds of `--gpukern-fail-on` that are about a verdict which a comparison may come to."""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges the times of B by those of A as the gate does, and says how the machines differ. A and B are "
        "run files, baseline files, or folders of baseline files. Exit status 1 means that "
        "the gate would fail a test of B: it is INCORRECT or INVALID, or two sessions of B confirm that it "
        "is SLOWER than three sessions of A. " + exits.STATUSES
    )
    parser.add_argument("a", type=Path, metavar="A", help="the times to compare with")
    parser.add_argument("b", type=Path, metavar="B", help="the times that are judged")
    declare_forms(parser)
    parser.add_argument(
        "--threshold",
        default=str(DEFAULT_THRESHOLD),
        help="smallest slowdown that matters: 2%% (default) is the same as 0.02",
    )
    parser.add_argument(
        "--fail-on",
        default=",".join(BY_DEFAULT),
        metavar="{" + ",".join(_KINDS) + "}",
        help="kinds that fail besides slower; with host, times of host variants fail, too",
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(known: argparse.Namespace) -> int:
    try:
        threshold = parse_threshold(known.threshold, f"--threshold={known.threshold}")
        fail_on = {*BY_DEFAULT, *parse_names(known.fail_on, f"--fail-on={known.fail_on}", _KINDS)}
    except SettingsError as error:
        known.parser.error(str(error))
    a = _Past.of(runs_of([known.a]))
    runs = runs_of([known.b], known.output, known.text)
    *others, last = (_compared(run, a, f"A, {known.a}", threshold, fail_on) for run in runs)
    compared = [*others, dataclasses.replace(last, closing=_only_in_a(a, runs, known.text or ""))]
    tell(compared, known)
    return exits.BAD if any(run.failures for run in compared) else exits.FINE


# --- what both sides measured ---------------------------------------------------------------------


def _tests(run: RunResults) -> Iterator[tuple[str, list[Result]]]:
    """Yields the name of each test, and its sessions that stand for the time.

    The name is the id of the case; where tests of two modules have one id, it is pytest's.
    """
    tests = Counter(case_id for case_id, _ in {(result.case.id, result.nodeid) for result in run.results})
    for result in run.results:
        name = result.case.id if tests[result.case.id] == 1 else result.nodeid
        sessions = sessions_to_record(result, run.sessions_of(result))
        yield (
            name,
            [structs.replace(of, measurements=tuple(map(_finite, of.measurements))) for of in sessions],
        )


def _finite(measurement: Measurement) -> Measurement:
    """Returns a time to compute with: it is marked invalid where the file has no finite number."""
    summary = measurement.summary
    low, median, high = summary.low_ns, summary.median_ns, summary.high_ns
    finite = all(map(units.is_number, (low, median, high, measurement.jitter_ns)))
    if finite and 0 <= low <= median <= high and median > 0:
        return measurement
    wrong = "a time that is not finite, or not in its interval"
    return structs.replace(measurement, invalid=measurement.invalid or wrong)


class _Past(NamedTuple):
    """Holds the valid times of A.

    Attributes:
        times: name of a test and `scope/timer/cache` → a time a session.
        spreads: device model → what its cases share, as of `shared_spread`.
        fingerprints: of its sessions, each once.
    """

    times: Mapping[tuple[str, str], Sequence[SessionTime]]
    spreads: Mapping[str, Mapping[str, SharedSpread]]
    fingerprints: Sequence[Fingerprint]

    @classmethod
    def of(cls, runs: Iterable[RunResults]) -> _Past:
        measured = [(run, name, of) for run in runs for name, sessions in _tests(run) for of in sessions]
        times = grouped(
            ((name, time.key), _recorded(run, session, time))
            for run, name, session in measured
            for time in session.measurements
            if time.invalid is None
        )
        fingerprints: list[Fingerprint] = []
        for _, _, session in measured:
            fingerprints += [session.fingerprint] if session.fingerprint not in fingerprints else []
        by_model = grouped(
            (model, _of_model(known, model))
            for known in times.values()
            for model in dict.fromkeys(time.conditions.device_model for time in known)
        )
        return cls(times, {model: shared_spread(of) for model, of in by_model.items()}, fingerprints)


def _of_model(times: Iterable[SessionTime], model: str) -> list[SessionTime]:
    return [time for time in times if time.conditions.device_model == model]


def _recorded(run: RunResults, session: Result, measurement: Measurement) -> SessionTime:
    """Returns a time as the gate takes it from a record; of a baseline, it may have opened its epoch."""
    record = run.history.get(session.nodeid)
    known = record.times(measurement.key) if record else ()
    opening = any(time.opening for time in known if time.session.session == session.session)
    time = SessionTime.of(session, measurement, device_model=_model(session), opening=opening)
    return structs.replace(time, choice=choice_of(session))


def _model(result: Result) -> str:
    return result.fingerprint.model_key(on_gpu=result.case.on_gpu) or "unknown"


# --- judging B by A -------------------------------------------------------------------------------


def _compared(
    run: RunResults, a: _Past, named: str, threshold: float, fail_on: Collection[str]
) -> RunResults:
    """Returns a run of B with verdicts by A and what fails by these, without what it was compared with."""
    results: list[Result] = []
    sessions, failed = dict[str, Sequence[Result]](), dict[str, Failure]()
    for name, measured in _tests(run):
        first, *others = measured
        verdicts = {
            time.key: _verdict(measured, time.key, a, name, threshold, fail_on) for time in first.measurements
        }
        result = structs.replace(first, verdicts=verdicts, findings=(), role=SessionRole.MEASURED)
        results.append(result)
        sessions[result.nodeid] = [
            structs.replace(other, role=SessionRole.FURTHER, verdicts={}) for other in others
        ]
        if result.correctness is Correctness.INCORRECT:
            failed[result.nodeid] = Failure(result.diagnosis or "wrong outputs")
        elif reasons := failures(result, fail_on):
            failed[result.nodeid] = Failure(str(reasons[0]), tuple(reasons))
    heading = _differences(results, a) or ["measured with the same device, driver and libraries"]
    alone = dataclasses.replace(run.only(""), results=results, sessions=sessions, failures=failed, history={})
    return dataclasses.replace(alone, compared_with=named, heading=heading)


def _verdict(
    sessions: Sequence[Result], key: str, a: _Past, name: str, threshold: float, fail_on: Collection[str]
) -> Verdict:
    """Returns the gate's verdict on B's sessions of a test: chosen for no time, they may confirm it.

    They are judged by A's times of their device model. If A has none, its times of another model stand in,
    and the verdict says what differs.
    """
    first, recorded = sessions[0], a.times.get((name, key), ())
    model, on_gpu = _model(first), first.case.on_gpu
    devices = {session.device for session in sessions}
    fresh = [time for session in sessions for time in session.measurements if time.key == key]
    basis = Basis(
        _of_model(recorded, model) or recorded,
        Conditions(first.case.problem_version, model, first.simulated),
        threshold,
        device=devices.pop() if len(devices) == 1 else None,  # several are none of the recorded
        shared=a.spreads.get(model, {}).get(spread_key(key)),
        choice=choice_of(first),
        fails_with="" if on_gpu or "host" in fail_on else "--fail-on",
    )
    verdict = judge(fresh, basis)
    if not verdict.suspected:
        return verdict
    if len(fresh) >= FRESH_SESSIONS:
        return confirm(verdict, fresh, basis)
    missing = f"not confirmed: B has {len(fresh)} of {FRESH_SESSIONS} sessions"
    return verdict.adding(missing, gates=False, suspected=False)


def _differences(results: Iterable[Result], a: _Past) -> list[str]:
    """Says in which device, host and libraries sessions of B differ from all of A."""
    differences = [
        str(difference)
        for result in results
        for host in (False, True)
        for difference in other_machine(result.fingerprint, a.fingerprints, host=host)
    ]
    return list(dict.fromkeys(differences))


def _only_in_a(a: _Past, runs: Iterable[RunResults], text: str) -> list[str]:
    """Names what B did not measure: cases, or measurements of a case that both have."""
    tests = [test for run in runs for test in _tests(run)]
    keys = {(name, time.key) for name, (first, *_) in tests for time in first.measurements}
    names = {name for name, _ in tests}
    gone = dict.fromkeys(
        f"{name} ({key})" if name in names else name
        for name, key in a.times
        if (name, key) not in keys and text in name
    )
    return [f"only in A: {units.named(gone)}"] if gone else []
