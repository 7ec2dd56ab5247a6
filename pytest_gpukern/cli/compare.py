"""Runs `gpukern compare A B`: judges the times of a run or baseline by those of another, as the gate does."""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.baseline.merge import unselected
from pytest_gpukern.baseline.record import Baseline, choice_of
from pytest_gpukern.cli import exits
from pytest_gpukern.cli.report import report_files
from pytest_gpukern.findings.explain import other_machine
from pytest_gpukern.gate.change import FRESH_SESSIONS
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, fails, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, table
from pytest_gpukern.report.recorded import is_baseline, measurement_of
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.failure_table import BY_DEFAULT
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.options import DEFAULT_THRESHOLD, SettingsError, parse_names, parse_threshold
from pytest_gpukern.values.result import Correctness, JsonDict, Measurement, Result, Summary, Verdict, plain
from pytest_gpukern.values.verdict_table import Tone, VerdictKind

_KINDS = (*(kind.row.fail_on for kind in VerdictKind if kind.row.fail_on and kind.row.told), "host")
"""Kinds of `--gpukern-fail-on` that are about a verdict which a comparison may come to."""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges the times of B by those of A, case by case, as the gate does. Prints ratios and their 90 % "
        "intervals, and first how the machines differ. A and B are files that --gpukern-report wrote, "
        "baseline files, or folders of baseline files. A time is the geometric mean over sessions. Exit "
        "status 1 means that the gate would fail a test of B: it is INCORRECT or INVALID, or two "
        "sessions of B confirm that it is SLOWER than three sessions of A. " + exits.STATUSES
    )
    parser.add_argument("a", type=Path, metavar="A", help="the times to compare with")
    parser.add_argument("b", type=Path, metavar="B", help="the times that are judged")
    parser.add_argument(
        "--threshold",
        default=str(DEFAULT_THRESHOLD),
        help="smallest slowdown that matters: 2%% (default) is the same as 0.02",
    )
    parser.add_argument(
        "--fail-on",
        default=",".join(BY_DEFAULT),
        metavar="{" + ",".join(_KINDS) + "}",
        help="added to slower, as of --gpukern-fail-on; with host, times of host variants count, too",
    )
    exits.add_json(parser)
    parser.set_defaults(run=_run, parser=parser)


def _run(known: argparse.Namespace) -> int:
    try:
        threshold = parse_threshold(known.threshold, f"--threshold={known.threshold}")
        fail_on = {*BY_DEFAULT, *parse_names(known.fail_on, f"--fail-on={known.fail_on}", _KINDS)}
    except SettingsError as error:
        known.parser.error(str(error))
    a, b = _read_side(known.a), _read_side(known.b)
    rows = _compared(a, b, threshold, fail_on)
    exits.show_as_asked(known, _json(a, b, rows), _lines(a, b, rows))
    bad = b.incorrect or any(row.fails for row in rows)
    return exits.BAD if bad else exits.FINE


# --- reading a side -------------------------------------------------------------------------------


class SessionMeasurement(NamedTuple):
    """Holds one session's measurement of a case, as a new one and as the gate takes it from a record."""

    measurement: Measurement
    time: SessionTime
    on_gpu: bool


@dataclass
class Side:
    """Holds what one argument of `gpukern compare` names.

    Attributes:
        times: case → `scope/timer/cache` → sessions.
        fingerprints: of its sessions, each once.
        incorrect: case → what was wrong with its outputs.
    """

    times: dict[str, dict[str, list[SessionMeasurement]]] = field(default_factory=dict)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    incorrect: dict[str, str] = field(default_factory=dict)

    def add(self, case: str, timed: SessionMeasurement) -> None:
        self.times.setdefault(case, {}).setdefault(timed.measurement.key, []).append(timed)

    def knows(self, *fingerprints: Fingerprint) -> None:
        self.fingerprints += [known for known in fingerprints if known not in self.fingerprints]


def _read_side(path: Path) -> Side:
    """Reads a run file, a baseline file, or all baseline files of a folder; raises FileError."""
    side = Side()
    for file in report_files(path):
        if path.is_dir() or is_baseline(file):
            _add_baseline(side, load(file))
            continue
        run = read_run(file)
        tests = Counter(case_id for case_id, _ in {(result.case.id, result.nodeid) for result in run.results})
        for result in run.results:  # tests of two modules may have one id
            name = result.case.id if tests[result.case.id] == 1 else result.nodeid
            if result.correctness is Correctness.INCORRECT:
                side.incorrect[name] = result.diagnosis or "wrong outputs"
            for session in unselected(result, run.sessions_of(result)):
                _add_session(side, name, session)
    return side


def _add_session(side: Side, name: str, result: Result) -> None:
    case, fingerprint = result.case, result.fingerprint
    side.knows(fingerprint)
    model = fingerprint.model_key(on_gpu=case.on_gpu) or "unknown"
    conditions = Conditions.of(case, device_model=model, simulated=result.simulated)
    choice = choice_of(result)
    for measurement in map(_finite, result.measurements):
        summary = measurement.summary
        time = SessionTime(
            summary.n,
            summary.median_ns,
            summary.low_ns,
            summary.high_ns,
            key=measurement.key,
            conditions=conditions,
            device=fingerprint.device_uuid if case.on_gpu else None,
            choice=choice,
        )
        side.add(name, SessionMeasurement(measurement, time, case.on_gpu))


def _add_baseline(side: Side, baseline: Baseline) -> None:
    """Adds the sessions of each case's current epochs; their samples are the quantiles."""
    side.knows(*baseline.fingerprints.values())
    for case_id, record in baseline.cases.items():
        for key in sorted(record.keys):
            for time in baseline.session_times(case_id, key):
                on_gpu = time.fingerprint.device_model_key == baseline.device_model
                side.add(case_id, SessionMeasurement(measurement_of(key, time), time, on_gpu))


def _finite(measurement: Measurement) -> Measurement:
    """Returns a measurement to compute with, marked invalid where the file has no finite number."""
    summary = measurement.summary
    numbers = (summary.median_ns, summary.low_ns, summary.high_ns, measurement.jitter_ns)
    finite = all(number is not None and math.isfinite(number) for number in numbers)
    if finite and 0 <= summary.low_ns <= summary.median_ns <= summary.high_ns and summary.median_ns > 0:
        return measurement
    return dataclasses.replace(
        measurement,
        summary=Summary(math.nan, math.nan, math.nan, summary.n),
        jitter_ns=0.0,
        invalid=measurement.invalid or "a time that is not finite, or not in its interval",
    )


# --- judging B by A -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedTime:
    """Holds one measurement of a case on both sides.

    Attributes:
        key: `scope/timer/cache`.
        model: key of the device model that B's sessions are of.
        a: sessions of A that B's were judged by.
        fails: whether the gate would fail B's test.
    """

    case: str
    key: str
    model: str
    a: Sequence[SessionTime]
    b: Sequence[SessionTime]
    verdict: Verdict
    fails: bool


def _mean_ns(sessions: Sequence[SessionTime]) -> float:
    """Returns the geometric mean, which is what the gate compares; NaN where a session has no time."""
    return statistics.geometric_mean(session.median_ns for session in sessions)


def _compared(a: Side, b: Side, threshold: float, fail_on: Collection[str]) -> list[ComparedTime]:
    """Compares what both sides measured, in order of B.

    A side may hold times of several device models, as a folder of baselines does: each is judged by those of
    the same model, where A has any.
    """
    by_model: dict[str, list[tuple[SessionTime, ...]]] = {}
    for times in (times for keys in a.times.values() for times in keys.values()):
        for group in _alike(times):
            model = group[0].time.conditions.device_model
            by_model.setdefault(model, []).append(tuple(timed.time for timed in group))
    spreads = {model: shared_spread(groups) for model, groups in by_model.items()}
    rows = []
    for case, keys in b.times.items():
        for key, times in keys.items():
            valid = [timed for timed in a.times.get(case, {}).get(key, ()) if not timed.measurement.invalid]
            for fresh in _alike(times) if valid else ():
                first, sessions = fresh[0], [timed.time for timed in fresh]
                model, devices = first.time.conditions.device_model, {time.device for time in sessions}
                # Those of another model do as well: the verdict then says what differs.
                recorded = [timed for timed in valid if timed.time.conditions.device_model == model] or valid
                basis = Basis(
                    [timed.time for timed in recorded],
                    first.time.conditions,
                    threshold,
                    device=devices.pop() if len(devices) == 1 else None,  # several are none of the recorded
                    shared=spreads.get(model, {}).get(spread_key(key)),
                    choice=first.time.choice,
                    fails_with="" if first.on_gpu or "host" in fail_on else "--fail-on",
                )
                verdict = _judged([timed.measurement for timed in fresh], basis)
                bad = fails(verdict, fail_on, on_gpu=first.on_gpu)
                rows.append(ComparedTime(case, key, model, basis.reference, sessions, verdict, bad))
    return rows


def _alike(times: Iterable[SessionMeasurement]) -> list[list[SessionMeasurement]]:
    groups: list[list[SessionMeasurement]] = []
    for timed in times:
        group = next((group for group in groups if group[0].time.conditions == timed.time.conditions), None)
        if group is None:
            groups.append([timed])
        else:
            group.append(timed)
    return groups


def _judged(fresh: Sequence[Measurement], basis: Basis) -> Verdict:
    """Returns the gate's verdict on B's sessions: chosen for no time, they may confirm it."""
    verdict = judge(fresh, basis)
    if not verdict.suspected:
        return verdict
    if len(fresh) >= FRESH_SESSIONS:
        return confirm(verdict, fresh, basis)
    reason = f"{verdict.reason}; not confirmed: B has {len(fresh)} of {FRESH_SESSIONS} sessions"
    return dataclasses.replace(verdict, reason=reason, gates=False, suspected=False)


# --- telling it -----------------------------------------------------------------------------------


def _differences(a: Side, b: Side) -> list[str]:
    """Says in which device, host and libraries sessions of B differ from all of A."""
    differences = [
        str(difference)
        for now in b.fingerprints
        for host in (False, True)
        for difference in other_machine(now, a.fingerprints, host=host)
    ]
    return list(dict.fromkeys(differences))


def _only(one: Side, other: Side) -> list[str]:
    """Names what only one side measured: cases, or measurements of a case that both have."""
    names = []
    for case, keys in one.times.items():
        if case not in other.times:
            names.append(case)
        else:
            names += [f"{case} ({key})" for key in keys if key not in other.times[case]]
    return names


def _lines(a: Side, b: Side, rows: list[ComparedTime]) -> list[str]:
    lines = _differences(a, b) or ["measured with the same device, driver and libraries"]
    if rows:
        lines += ["", *_table(rows)]
    lines += [""]
    lines += [f"INCORRECT in B: {case}: {' '.join(text.split())}" for case, text in b.incorrect.items()]
    lines += [
        f"{row.verdict.kind}: {row.case} ({row.key}): {row.verdict.reason}"
        for row in rows
        if row.fails or (row.verdict.kind.row.told and row.verdict.kind.row.tone in (Tone.BAD, Tone.PLAIN))
    ]
    for words, ids in (("only in B", _only(b, a)), ("only in A", _only(a, b))):
        if ids:
            lines.append(f"{words}: {units.named(ids)}")
    return [*lines, _total(rows, b)]


def _total(rows: list[ComparedTime], b: Side) -> str:
    counts = {kind: sum(row.verdict.kind is kind for row in rows) for kind in VerdictKind}
    texts = [f"{count} {kind.value.lower()}" for kind, count in counts.items() if count]
    texts += [f"{len(b.incorrect)} incorrect"] if b.incorrect else []
    if not texts:
        return "nothing to compare: no case is in both"
    return f"{units.counted(len(rows), 'measurement')} compared: {', '.join(texts)}"


def _table(rows: list[ComparedTime]) -> list[str]:
    """Returns a row a time below the name of its case, which stays whole: short ones may be alike."""
    verdicts = [row.verdict for row in rows]
    several_models = len({(row.case, row.key) for row in rows}) < len(rows)
    columns = [
        Column("measured", tuple(row.key for row in rows)),
        *([Column("device", tuple(row.model for row in rows))] if several_models else []),
        Column("A", tuple(units.time(_mean_ns(row.a)) for row in rows), numeric=True),
        Column("B", tuple(units.time(_mean_ns(row.b)) for row in rows), numeric=True),
        Column("sessions", tuple(f"{len(row.a)}, {len(row.b)}" for row in rows), dispensable=1),
        Column("change", tuple(units.change(verdict.ratio) for verdict in verdicts), numeric=True),
        Column("90 % interval", tuple(units.change_range(v.ratio_low, v.ratio_high) for v in verdicts)),
        Column("verdict", tuple(verdict.kind.value for verdict in verdicts)),
    ]
    (titles, *texts), _ = table(columns, exits.width(), indent="  ")
    lines = [titles]
    for case, text in zip(exits.without_repeats([row.case for row in rows]), texts, strict=True):
        lines += [*([case] if case else []), text]
    return lines


def _json(a: Side, b: Side, rows: list[ComparedTime]) -> JsonDict:
    return {
        "differences": _differences(a, b),
        "measurements": [
            {
                "case": row.case,
                "key": row.key,
                "device_model": row.model,
                "a_ns": plain(_mean_ns(row.a)),
                "b_ns": plain(_mean_ns(row.b)),
                "a_sessions": len(row.a),
                "b_sessions": len(row.b),
                "ratio": plain(row.verdict.ratio),
                "ratio_low": plain(row.verdict.ratio_low),
                "ratio_high": plain(row.verdict.ratio_high),
                "verdict": row.verdict.kind.value,
                "fails": row.fails,
                "reason": row.verdict.reason,
            }
            for row in rows
        ],
        "incorrect": b.incorrect,
        "only_in_a": _only(a, b),
        "only_in_b": _only(b, a),
    }
