"""Keeps the baselines beside a suite: every process reads them, the controller writes once, at the end."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpukern.baseline import code_file, codec
from pytest_gpukern.baseline.code_file import Code, CodeFile
from pytest_gpukern.baseline.merge import Merge, Refusal, WriteReport, united
from pytest_gpukern.baseline.record import Baseline, Epoch, Record, trimmed
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gate.spread import SharedSpread, shared_spread
from pytest_gpukern.package import SUITES
from pytest_gpukern.values import atomic_file as file
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import CaseInfo, Correctness, Result
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind

_NAME = re.compile(r"[\w+](?:[\w.+-]*[\w+-])?")
_MODEL = re.compile(r"\w[\w+-]*")  # no dot: the last but one dot of a file's name ends the baseline's name
_ESCAPED = re.compile(r"[^\w/-]|^-")
_LONGEST_NAME = 200  # bytes; file systems end at 255, and the temporary file's name is longer


@dataclass(frozen=True)
class KnownCases:
    """Holds all cases of one baseline, whether or not they were measured.

    Attributes:
        folder: of the baseline, unless the run was given another.
        name: stem of the baseline's files.
        ids: of all its cases; None in a run of a part.
        tests: selected test → id of its case.
        why_gone: why cases on record did not run that are not among them.
    """

    folder: str
    name: str
    ids: frozenset[str] | None = frozenset()
    tests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    why_gone: str = "no test measures it any more"


class ToPrune(NamedTuple):
    """Says which records of a file are of cases that no longer exist."""

    file: Path
    ids: tuple[str, ...]


CODE = "code"
"""Stands in a file's name in the place of a model: what kernels are compiled to."""


class Store:
    """Reads records, queues results and writes them once.

    Args:
        mode: of `--gpukern-baseline`.
        directory_override: folder of all baselines, instead of the one beside each suite.
        reason: why an update is made; stored with the epochs that it opens.
    """

    def __init__(
        self,
        mode: str,
        *,
        directory_override: Path | None = None,
        reason: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.mode = mode
        self._writes = mode not in ("off", "compare")
        self._directory_override = directory_override
        self._reason = reason or None
        self._now = now
        self._read: dict[Path, Any] = {}
        self._spreads: dict[str, dict[str, SharedSpread]] = {}
        self._queue: dict[Path, list[Result]] = {}
        self._report = WriteReport()

    def path_for(self, case: CaseInfo, model_key: str) -> Path:
        """Returns `<folder>/<name>.<model key>.json`; raises FileError for a name that leaves the folder."""
        return self._path(case.baseline_dir, self.name_of(case), model_key)

    def name_of(self, case: CaseInfo) -> str:
        """Returns the name of a case's baseline.

        In one folder for all, modules of one name must not meet. So the path of a plain test's module names
        its file there: `tests.test_exp`, with what is neither a letter nor a digit as `+2e+`.
        """
        if self._directory_override is None:
            return case.baseline_name
        return _ESCAPED.sub(lambda char: f"+{ord(char[0]):x}+", case.problem).replace("/", ".")

    def _path(self, baseline_dir: str, baseline_name: str, model_key: str) -> Path:
        folder = self._directory_override or Path(baseline_dir)
        rules = (_NAME, baseline_name, "baseline name"), (_MODEL, model_key, "device model key")
        for pattern, name, what in rules:
            if not pattern.fullmatch(name) or ".." in name or len(name.encode()) > _LONGEST_NAME:
                remedy = "Use letters, digits, '_', '-', '+', and single dots inside a baseline's name"
                raise FileError(folder, f"{what} {name!r} cannot name a file here", remedy)
        return folder / f"{baseline_name}.{model_key}.json"

    def baseline(self, case: CaseInfo, model_key: str) -> Baseline:
        """Returns the stored baseline that a case belongs to, empty if there is none; each file is read once.

        Raises:
            FileError: the file is damaged, of another problem or device, or written by a newer version.
        """
        if self.mode == "off":
            return Baseline(self.name_of(case), model_key)
        held: Baseline = self._cached(self.path_for(case, model_key))
        return held

    def sessions_for(self, case: CaseInfo, model_key: str, key: str) -> tuple[SessionTime, ...]:
        """Returns what the gate compares a measurement with: its case's current sessions under `key`.

        If there are none, it returns the nearest, which the gate calls UNCOMPARABLE with the difference:
        other timers or cache policies of the same scope, else other device models. FileError as `baseline`.
        """
        own = self.baseline(case, model_key)
        if case.id in own.cases:
            return own.cases[case.id].comparable(key)
        others = (self.baseline(case, model) for model in self._other_models(case, model_key))
        return tuple(time for other in others for time in other.of(case.id).comparable(key))

    def autotuned(
        self, case: CaseInfo, compute_capability: tuple[int, int]
    ) -> Mapping[str, Mapping[str, str]]:
        """Returns kernel → what an autotuner chose in the newest session on a device of this capability.

        Empty where none is on record, or where nothing was tuned; FileError as `baseline`.
        """
        files = [self.baseline(case, model) for model in self._other_models(case, CODE)]
        chosen = [
            (session.recorded, session.autotuned)
            for stored in files
            for session in stored.of(case.id).sessions
            if session.fingerprint.compute_capability == compute_capability
        ]
        return max(chosen, key=itemgetter(0))[1] if chosen else {}

    def code(self, case: CaseInfo) -> Code:
        """Returns the machine code of a case on record, whatever the mode; FileError as `baseline`."""
        held: CodeFile = self._cached(self.path_for(case, CODE))
        return held.of(case.id)

    def write_code(self, compiled: Iterable[tuple[CaseInfo, Code]]) -> list[Path]:
        """Adds code that is not on record, or replaces it in mode `update`; returns what files changed."""
        if not self._writes:
            return []
        files = grouped((self.path_for(case, CODE), (case.id, code)) for case, code in compiled)
        written = []
        for path, of_file in sorted(files.items()):
            with file.locked(path.parent):
                before: CodeFile = _stored(path)
                after = before.adding(of_file, replaces=self.mode == "update")
                if after != before:
                    file.replace(path, code_file.rendered(after))
                    written.append(path)
        self._read.clear()
        return written

    def shared_spread(self, model_key: str) -> dict[str, SharedSpread]:
        """Returns the spread that a device model's cases share, by `scope/timer`, from all files read."""
        if model_key not in self._spreads:
            files = [
                stored for path, stored in self._read.items() if path.name.endswith(f".{model_key}.json")
            ]
            self._spreads[model_key] = shared_spread(times for of in files for times in of.all_times())
        return self._spreads[model_key]

    def on_record(self, known: KnownCases, model_key: str, devices: Set[str]) -> Set[str]:
        """Returns the ids of recorded cases that should run here again: all of this model.

        Of records that come with the package, only cases of `devices`, named by UUID, should: another
        machine's libraries need not be here.
        """
        path = self._path(known.folder, known.name, model_key)
        cases = self._cached(path).cases
        if model_key == CODE or not any(path.is_relative_to(folder) for folder in SUITES):
            return set(cases)
        return {
            case_id
            for case_id, record in cases.items()
            if any(session.fingerprint.device_uuid in devices for session in record.sessions)
        }

    def to_prune(self, known: KnownCases, model_key: str) -> ToPrune:
        """Returns recorded cases that no longer exist, as far as the run tells; FileError as `baseline`."""
        path = self._path(known.folder, known.name, model_key)
        stale = set() if known.ids is None else self._cached(path).cases.keys() - known.ids
        return ToPrune(path, tuple(sorted(stale)))

    def add(
        self, result: Result, *, model_key: str, test_failed: bool = False, recorded: datetime | None = None
    ) -> None:
        """Queues one session's result for `flush`; without effect in modes that write nothing.

        Several results of one case become the sessions of one epoch. A result that must not become a baseline
        is refused and listed in the report, also if its test failed for a reason of its own.

        Args:
            model_key: of the device or processor that it was measured on.
            test_failed: its test failed for another reason than its verdict.
            recorded: when it was measured; by default now.
        """
        if not self._writes:
            return
        problem = unfit(result) or ("its test failed" if test_failed else None)
        if problem is not None:
            self._report.refused.append(Refusal(result.case.id, problem))
            return
        try:
            path = self.path_for(result.case, model_key)
            session = trimmed(result, recorded=_stamp(recorded or self._now()))
            self._rehearse(session, path, model_key)
        except FileError as error:
            where = f"{error.where}: " if error.where else ""
            self._report.refused.append(Refusal(result.case.id, where + error.problem))
        else:
            self._queue.setdefault(path, []).append(session)

    def refuse(self, case: CaseInfo, reason: str) -> None:
        self._report.refused.append(Refusal(case.id, reason))

    def would_write(self, result: Result, *, model_key: str) -> bool:
        """Returns whether `flush` would record a result, as far as can be told before."""
        if not self._writes or unfit(result) is not None:
            return False
        if self.mode != "create":
            return True
        try:
            record = self.baseline(result.case, model_key).cases.get(result.case.id)
        except FileError:
            return False
        return record is None or not {timed.key for timed in result.measurements} <= record.keys

    def flush(self) -> WriteReport:
        """Writes what was queued, file by file; one file's error leaves it as it was and the others go on."""
        queue, self._queue = self._queue, {}
        report, self._report = self._report, WriteReport()
        for path in sorted(queue):
            try:
                self._write(path, queue[path], report)
            except FileError as error:
                report.errors.append(error)
        self._read.clear()
        self._spreads.clear()
        return report

    def _write(self, path: Path, sessions: list[Result], report: WriteReport) -> None:
        with file.locked(path.parent):
            before, did = _stored(path), WriteReport()
            merge = Merge(before, _stamp(self._now()), self._reason, did)
            for group in grouped((session.case.id, session) for session in sessions).values():
                merge.join(self.mode, group)
            if did.added or did.appended or did.updated:
                file.replace(path, codec.render(merge.baseline))
                did.written.append(path)
        for name, more in vars(did).items():
            getattr(report, name).extend(more)

    def _rehearse(self, session: Result, path: Path, model_key: str) -> None:
        """Writes and reads one session in memory: no file may ever hold what the next run refuses to read."""
        case, epoch = session.case, Epoch(_stamp(self._now()), (session,), self._reason)
        cases = {case.id: Record(case.id, (epoch,), model_key)}
        try:
            codec.parse(codec.render(Baseline(case.baseline_name, model_key, cases)), path)
        except UnicodeEncodeError as error:  # half of a surrogate pair, from a file name that is no UTF-8
            problem = f"{error.object[error.start : error.end]!r} cannot be stored as text"
            raise FileError(path, problem, "Rename the file that has this character in its name") from error

    def _cached(self, path: Path) -> Any:
        if path not in self._read:
            self._read[path] = _stored(path)
            self._spreads.clear()
        return self._read[path]

    def _other_models(self, case: CaseInfo, model_key: str) -> list[str]:
        if self.mode == "off":
            return []
        own, prefix = self.path_for(case, model_key), f"{self.name_of(case)}."
        others = [path for path in own.parent.glob(f"{prefix}*.json") if path != own]
        models = [path.name.removeprefix(prefix).removesuffix(".json") for path in others]
        return sorted(model for model in models if _MODEL.fullmatch(model) and model != CODE)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_code(path: Path) -> bool:
    return path.name.endswith(f".{CODE}.json")


def load(path: Path) -> Any:
    """Reads a file of either kind, a `Baseline` or a `CodeFile`; raises FileError."""
    return code_file.load(path) if _is_code(path) else codec.load(path)


def _stored(path: Path) -> Any:
    """Reads a file, an empty one if there is none; one that was copied from elsewhere is an error."""
    name, model_key, _ = path.name.rsplit(".", 2)
    empty = CodeFile(name) if model_key == CODE else Baseline(name, model_key)
    try:
        held = load(path)
    except FileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return empty
        raise
    for where in ("problem", "device_model"):
        name, content = getattr(empty, where, ""), getattr(held, where, "")
        if name != content:
            problem = f"the file is named for {name!r} but holds {content!r}"
            raise FileError(path, problem, "Give the file its own name back, or delete it", where=where)
    return held


def unfit(result: Result) -> str | None:
    if result.simulated:
        return "the simulator's times say nothing about speed"
    if result.correctness is Correctness.INCORRECT:
        return f"INCORRECT: {result.diagnosis}" if result.diagnosis else "INCORRECT"
    if result.seed is not None:
        return f"its inputs are those of --gpukern-seed={result.seed}, not the recorded ones"
    if not result.measurements:
        return "nothing was measured"
    for measurement in result.measurements:
        if measurement.invalid is not None:
            return f"{measurement.key} is INVALID: {measurement.invalid}"
        verdict = result.verdicts.get(measurement.key)
        if verdict is not None and verdict.kind is VerdictKind.INVALID:
            return f"{measurement.key} is INVALID: {verdict.reason}"
        summary = measurement.summary
        times = (summary.median_ns, summary.low_ns, summary.high_ns, *measurement.samples_ns)
        if any(time is None or not math.isfinite(time) for time in times):  # a run file has null for those
            return f"{measurement.key} has a time that is not finite"
        if not summary.median_ns > 0:
            return f"{measurement.key} has a median of {summary.median_ns:g} ns"
        if not measurement.samples_ns:
            return f"{measurement.key} has no samples"
    return None


def rewrite(path: Path, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to a file of either kind, which goes if no case is left; returns what it holds.

    A FileError leaves it as it was.
    """
    load(path)  # before the lock, which would make a folder
    with file.locked(path.parent):
        before = load(path)
        changed = change(before)
        if changed == before:
            pass
        elif changed.cases:
            file.replace(path, (code_file.rendered if _is_code(path) else codec.render)(changed))
        else:
            file.remove(path)
    return changed


def unite(target: Path, sources: Sequence[Path]) -> WriteReport:
    """Adds to a baseline file what others hold; each may have git's conflict marks, the target too.

    Raises:
        FileError: a file is damaged, or of another problem or device; all are as they were.
    """
    read, did = [(path, side) for path in sources for side in codec.load_sides(path)], WriteReport()
    with file.locked(target.parent):
        held = codec.load_sides(target) if target.exists() else []
        (_, whole), *others = [*((target, side) for side in held), *read]
        for path, side in others:
            own, other = (f"{of.problem} on {of.device_model}" for of in (whole, side))
            if own != other:
                problem = f"holds {other!r}, and {target} {own!r}"
                raise FileError(path, problem, "Name two files of one problem on one device")
            whole = united(whole, side, did)
        if len(held) != 1 or whole != held[0]:
            file.replace(target, codec.render(whole))
            did.written.append(target)
    return did


def begins_with(case_id: str, begin: str) -> bool:
    """Says whether an id begins so, where a part ends: of a path, a class, or before a test's parameters."""
    return case_id == begin or (case_id.startswith(begin) and case_id[len(begin)] in "/.[")
