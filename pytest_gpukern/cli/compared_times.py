"""One side of a comparison: what run files and baseline files hold, in one form."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpukern.baseline.merge import unselected
from pytest_gpukern.baseline.schema import load
from pytest_gpukern.cli.find import baseline_files
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gpu.fingerprint import model_key_of
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.result import Correctness, Measurement, Summary
from pytest_gpukern.values.untrusted_json import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_gpukern.baseline.record import Baseline
    from pytest_gpukern.values.result import JsonDict, Result

_NO_MODEL = "unknown"


@dataclass(frozen=True)
class Timed:
    """One session's measurement of a case, with what it was taken under."""

    measurement: Measurement
    conditions: Conditions
    device: str | None

    @property
    def session(self) -> SessionTime:
        """The same as the gate takes it from a record."""
        summary = self.measurement.summary
        return SessionTime(
            self.measurement.key,
            summary.median_ns,
            summary.low_ns,
            summary.high_ns,
            summary.n,
            self.conditions,
            self.device,
        )


@dataclass
class Side:
    """What one argument of `gpukern compare` holds.

    Attributes:
        times: case id → `scope/timer/cache` → sessions.
        fingerprints: of its sessions, each once.
        incorrect: case id → what was wrong with its outputs.
    """

    times: dict[str, dict[str, list[Timed]]] = field(default_factory=dict)
    fingerprints: list[JsonDict] = field(default_factory=list)
    incorrect: dict[str, str] = field(default_factory=dict)

    def add(self, case_id: str, timed: Timed) -> None:
        """Adds a session of a case."""
        self.times.setdefault(case_id, {}).setdefault(timed.measurement.key, []).append(timed)

    def knows(self, fingerprint: JsonDict) -> None:
        """Notes what a session was measured on."""
        if fingerprint not in self.fingerprints:
            self.fingerprints.append(fingerprint)


def read_side(path: Path) -> Side:
    """Reads a run file, a baseline file, or all baseline files of a folder.

    Raises:
        FileError, FileError: a file cannot be read, with file and field.
    """
    side = Side()
    files = baseline_files(path)
    if not files:
        raise FileError(path, "holds no baseline files", "Give a run file, a baseline file or their folder")
    for file in files:
        if path.is_dir() or _is_baseline(file):
            _add_baseline(side, load(file))
        else:
            run = read_run(file)
            for result in run.results:
                _add_result(side, result, run.sessions_of(result))
    return side


def _is_baseline(path: Path) -> bool:
    """Whether a file means to be a baseline; what is neither is left to the reader of runs, which says so."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return path.name.count(".") >= 2 and path.parent.name == "baselines"
    return isinstance(content, dict) and "device_model" in content


def _add_result(side: Side, result: Result, sessions: Sequence[Result]) -> None:
    """Adds all sessions of a test that stand for its time; see `baseline.unselected`."""
    if result.correctness is Correctness.INCORRECT:
        side.incorrect[result.case.id] = result.diagnosis or "wrong outputs"
    for session in unselected(result, sessions):
        _add_session(side, session)


def _add_session(side: Side, result: Result) -> None:
    case = result.case
    side.knows(result.fingerprint)
    model = model_key_of(result.fingerprint, on_gpu=case.on_gpu) or _NO_MODEL
    conditions = Conditions.of(case, device_model=model, simulated=result.simulated)
    uuid = result.fingerprint.get("device_uuid") if case.on_gpu else None
    device = uuid if isinstance(uuid, str) else None
    for measurement in result.measurements:
        side.add(case.id, Timed(_finite(measurement), conditions, device))


def _finite(measurement: Measurement) -> Measurement:
    """A measurement whose numbers can be computed with; a run file has None where one was not finite."""
    summary = measurement.summary
    numbers = (summary.median_ns, summary.low_ns, summary.high_ns, measurement.jitter_ns)
    if all(number is not None and math.isfinite(number) for number in numbers):
        if (
            0 <= summary.low_ns <= summary.median_ns <= summary.high_ns
            and summary.median_ns > 0 <= measurement.jitter_ns
        ):
            return measurement
        why = "an interval without its median, or a time below 0"
    else:
        why = "a time that is not finite"
    return dataclasses.replace(
        measurement,
        summary=Summary(math.nan, math.nan, math.nan, summary.n),
        jitter_ns=0.0,
        invalid=measurement.invalid or why,
    )


def _add_baseline(side: Side, baseline: Baseline) -> None:
    for case_id, record in baseline.cases.items():
        for key in sorted(record.keys):
            for timed in _recorded(baseline, case_id, key):
                side.add(case_id, timed)
    for fingerprint in baseline.fingerprints.values():
        side.knows(fingerprint)


def _recorded(baseline: Baseline, case_id: str, key: str) -> Iterator[Timed]:
    """The sessions of a case's current epoch, as measurements; of their samples the quantiles are left."""
    epoch = baseline.cases[case_id].current(key)
    times = baseline.session_times(case_id, key)
    for session, time in zip(epoch.holding(key) if epoch else (), times, strict=True):
        recorded = session.measurements[key]
        scope, timer, cache = key.split("/")
        measurement = Measurement(
            scope,
            timer,
            "as recorded",
            cache,
            recorded.quantiles_ns,
            1,
            Summary(time.median_ns, time.low_ns, time.high_ns, time.n),
            "recorded",
            jitter_ns=recorded.jitter_ns,
        )
        yield Timed(measurement, time.conditions, time.device)
