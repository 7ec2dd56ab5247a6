"""Makes a run of what a baseline file holds, so that each form of the report can tell of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.baseline.record import NO_RECORD, Baseline
from pytest_gpukern.findings.cards import is_valid
from pytest_gpukern.findings.trend import BEGINNING, SeriesKey, Trend, is_time, moment_of, with_steps
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.report import units
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Result, SessionRole
from pytest_gpukern.values.untrusted_json import content_of


def read_all(paths: Iterable[Path]) -> list[RunResults]:
    """Reads files of runs, and baselines; all baselines of one device model become one run.

    Raises:
        FileError: a file is missing, empty, damaged, neither of these or from a newer release.
    """
    opened = [(path.name, load(path) if is_baseline(path) else read_run(path)) for path in paths]
    together = grouped(
        (held.device_model if isinstance(held, Baseline) else number, (name, held))
        for number, (name, held) in enumerate(opened)
    )
    runs = []
    for model, files in together.items():
        name = files[0][0] if len(files) == 1 else f"{len(files)} baselines of {model}"
        baselines = [held for _, held in files if isinstance(held, Baseline)]
        of_files = [held for _, held in files if isinstance(held, RunResults)]
        runs += of_files or [run_of(baselines, name)]
    return runs


def is_baseline(path: Path) -> bool:
    """Says whether a file means to be a baseline, by its name where damaged; raises FileError."""
    try:  # the field that baselines alone have; msgspec makes nothing of the values
        return "device_model" in msgspec.json.decode(content_of(path), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return path.name.count(".") >= 2 and path.parent.name == "baselines"


def run_of(baselines: Sequence[Baseline], name: str) -> RunResults:
    """Returns the current epoch of each case as a run, whose result is the newest session.

    The others are its further sessions. The baselines are of one device model.
    """
    records = {case_id: record for of in baselines for case_id, record in of.cases.items()}
    current = {case_id: record.epochs[-1].sessions for case_id, record in records.items()}
    what = baselines[0].problem if len(baselines) == 1 else units.counted(len(baselines), "problem")
    moments = [moment_of(session.recorded) for sessions in current.values() for session in sessions]
    return RunResults(
        [sessions[-1] for sessions in current.values()],
        {
            case_id: [structs.replace(session, role=SessionRole.FURTHER) for session in sessions[:-1]]
            for case_id, sessions in current.items()
        },
        history={case_id: record.for_report() for case_id, record in records.items()},
        created=max(filter(None, moments), default=BEGINNING),
        name=name,
        record_of=f"{what} on {baselines[0].device_model}",
    )


def trends(runs: Sequence[RunResults]) -> dict[SeriesKey, Trend]:
    """Returns the series of each time over the sessions of all runs and their records, with its steps.

    A case's newest result says what belongs to it: its version, its hardware and its timers.
    """
    newest: dict[str, Result] = {}
    series: dict[SeriesKey, dict[str, SessionTime]] = {}
    for run in sorted(runs, key=lambda run: run.created, reverse=True):
        for result in run.results:
            if _alike(result, newest.setdefault(result.case.id, result)):
                for time in _timed(run, result):
                    if is_time(time.median_ns):
                        of_key = series.setdefault((result.case.id, time.key), {})
                        of_key.setdefault(time.session.session, time)
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


def _timed(run: RunResults, result: Result) -> Iterator[SessionTime]:
    """Yields the times of a test: of its record's newest epoch, and of the run.

    Confirming sessions are left out, since they were measured for one that was slow.
    """
    recorded = run.history.get(result.nodeid, NO_RECORD)
    for key in recorded.keys:
        yield from recorded.past(key)
    for session in (result, *run.sessions_of(result)):
        if session.role is SessionRole.CONFIRMING or not session.valid:
            continue
        created = str(run.created)
        dated = structs.replace(session, session=session.session or created, recorded=created)
        yield from (SessionTime(of, device=session.device, session=dated) for of in session.measurements)
