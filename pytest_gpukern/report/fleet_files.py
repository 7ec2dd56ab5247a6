"""Reads run files of many cards: of each only what compares cards, so a thousand files take seconds."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from sys import intern
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pytest_gpukern.findings.cards import Card, Kernel, Session, class_of, facts_of, is_valid
from pytest_gpukern.gpu.model import SIMULATED_UUID
from pytest_gpukern.report.run import Skip
from pytest_gpukern.report.run_file import DAMAGED, SCHEMA, refuse
from pytest_gpukern.values.atomic_file import replace
from pytest_gpukern.values.backend_table import runs_on_gpu
from pytest_gpukern.values.determinism import Determinism
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.form_table import RUN_FILE
from pytest_gpukern.values.garbage import uncollected
from pytest_gpukern.values.result import Correctness, Observations, SessionRole
from pytest_gpukern.values.untrusted_json import ContentError, Figure, FileError, content_of, read

JUDGED = "gpukern fleet"
"""First key of the JSON that the command itself writes, perhaps into the folder that it reads."""
NO_RUNS = "gpukern validate --gpukern-report=FOLDER/ writes them"
_PACKED = f"{RUN_FILE}.gz"
_GPU = re.compile(r"@((?:GPU|MIG)-[0-9A-Za-z/-]+)$")
_CASE = re.compile(r"\[(.*)\]")


# The part of a run's file that is read; names and meanings as in `values/result.py`. Others are passed over.


class _Case(Struct):
    id: str
    problem: str
    backend: str | None

    @property
    def on_gpu(self) -> bool:
        return runs_on_gpu(self.backend)


class _Output(Struct):
    bits: str | None = None
    determinism: str | None = None


class _Summary(Struct):
    median_ns: Figure


class _Measurement(Struct):
    scope: str
    timer: str
    cache: str
    summary: _Summary
    invalid: str | None
    traffic_bytes: float | None
    observations: Observations


class _Result(Struct):
    case: _Case
    nodeid: str
    fingerprint: Fingerprint
    simulated: bool
    correctness: Correctness
    errors: dict[str, _Output]
    measurements: tuple[_Measurement, ...]
    ceilings: dict[str, float | None]
    canaries: dict[str, float | None]
    observations: Observations
    session: str
    role: SessionRole
    seed: int | None
    duration_s: float | None

    @property
    def uuid(self) -> str | None:
        """UUID of a GPU; all hosts have the same simulated one."""
        uuid = self.fingerprint.device_uuid
        return None if uuid == SIMULATED_UUID else uuid


class _Failure(Struct):
    text: str


class _File(Struct, tag_field="schema", tag=SCHEMA):
    created: Annotated[datetime, Meta(tz=True)]
    results: tuple[_Result, ...]
    sessions: tuple[_Result, ...]
    skips: tuple[Skip, ...]
    failures: dict[str, _Failure]
    problems: tuple[str, ...]


_DECODER = msgspec.json.Decoder(_File)


def run_files(path: Path) -> list[Path]:
    """Returns a file itself, or all run files below a folder by name; FileError if it has none.

    A folder that cannot be listed stands for the files in it: to read it is an error that names it.
    """
    if not path.is_dir():
        return [path]
    unlisted = list[Path]()
    folders = os.walk(path, onerror=lambda error: unlisted.append(Path(error.filename)))
    names = (Path(folder, name) for folder, _, names in folders for name in names)
    files = sorted(file for file in names if file.name.endswith((RUN_FILE, _PACKED)))
    if not files and not unlisted:
        raise FileError(path, "holds no run files", NO_RUNS)
    return files + unlisted


def host_and_index(path: Path) -> tuple[str, str]:
    """Returns whose run a file holds: `host0017-3.json` → host0017 and 3; without a number, its folder's."""
    host, _, rest = path.name.rpartition("-")
    index = rest.partition(".")[0]
    return (host, index) if host and index.isdecimal() else (path.absolute().parent.name, "")


def read_sessions(files: Iterable[Path]) -> tuple[list[Session], list[FileError]]:
    """Returns the sessions of all files, and of those that cannot be read, why; the same file counts once."""
    sessions: list[Session] = []
    unreadable = []
    for path in {os.path.realpath(path): path for path in files}.values():
        try:
            content = content_of(path)
            sessions += sessions_of(content, *host_and_index(path))
        except ContentError as error:
            if f'"{JUDGED}"'.encode() not in content[:40]:  # what we wrote among them
                unreadable.append(error.of_file(path, DAMAGED))
        except FileError as error:
            unreadable.append(error)
    return sessions, unreadable


def write_run(folder: Path, host: str, index: str, content: bytes) -> Path:
    """Writes a run's file as HOST-INDEX.json, or HOST-INDEX.2.json and so on: no file is ever replaced.

    Many hosts may write into one folder, and each may call its only card number 0.

    Raises:
        FileError: the folder cannot be made, or the file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / f"{host}-{index or 0}{f'.{number}' if number > 1 else ''}{RUN_FILE}"
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
                break
        replace(path, content)
    except OSError as error:
        problem = f"cannot be written into: {error.strerror or error}"
        raise FileError(folder, problem, "Check the folder's permissions and free space") from error
    return path


def sessions_of(content: bytes, host: str = "", index: str = "") -> list[Session]:
    """Returns the sessions in the content of a run's file: one for each card, and each time it was measured.

    Sessions that confirmed a suspicion of the gate have no times here: they were measured for being slow.

    Args:
        host: of the cards, as people call it.
        index: of the card in nvidia-smi, if there is one.

    Raises:
        ContentError: it is no file of a run, or damaged; names the first such field.
    """
    with uncollected():
        try:
            file = _DECODER.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            file = read(content, _File, refuse=refuse)  # says what is wrong, and where
        return [*_sessions(file, host, index)]


def _sessions(file: _File, host: str, index: str) -> Iterator[Session]:
    uuids = list(dict.fromkeys(result.uuid for result in file.results if result.uuid is not None))
    # What was measured on the host alone is told of its only card, and of none where there are several.
    of_host = f"{host}-{index}" if not uuids else uuids[0] if len(uuids) == 1 else None
    on_cards = {uuid: {0: list[_Result]()} for uuid in uuids or [f"{host}-{index}"]}
    turns = Counter[tuple[str, str]]()
    for result in (*file.results, *file.sessions):
        uuid = result.uuid or of_host
        if uuid is not None and result.role is not SessionRole.CONFIRMING:
            # Each test of an isolated run is a process, so the second result of a test is of session 1.
            turn = turns[uuid, result.nodeid]
            on_cards.setdefault(uuid, {0: []}).setdefault(turn, []).append(result)
            turns[uuid, result.nodeid] += 1
    for uuid, by_turn in on_cards.items():
        failed = {
            test: failure.text
            for test, failure in file.failures.items()
            if (uuid.startswith(gpu[1]) if (gpu := _GPU.search(test)) else len(on_cards) == 1)
        }
        for turn, results in by_turn.items():
            yield _session(file, _card(results, uuid, host, index), results, {} if turn else failed)


def _card(results: Sequence[_Result], uuid: str, host: str, index: str) -> Card:
    if not results:  # the run ended before any test did
        return Card(uuid, host, index)
    real = [result.fingerprint for result in results if result.uuid]
    seen = real[0] if real else results[0].fingerprint
    versions = {**seen.libraries, "Python": seen.python_version, "CPU": seen.cpu_model}
    libraries = tuple(sorted((name, version) for name, version in versions.items() if version is not None))
    model = (seen.device_name or "GPU of unknown name") if real else ""
    return Card(uuid, host, index, model, seen.driver_version, libraries)


def _session(file: _File, card: Card, results: Sequence[_Result], failed: dict[str, str]) -> Session:
    times_ns: dict[str, float] = {}
    kernels: dict[str, Kernel] = {}
    bits: dict[str, str] = {}
    wrong = []
    for result in results:
        case = result.case
        if result.correctness is Correctness.INCORRECT:
            wrong.append(intern(case.id))
        if result.correctness is Correctness.INCORRECT or result.simulated:
            continue
        inputs = "" if result.seed is None else f" seed {result.seed}"
        for name, output in result.errors.items():
            if output.bits is not None and output.determinism == Determinism.BITWISE and case.on_gpu:
                bits[intern(f"{case.id} {name}{inputs}")] = intern(output.bits)
        test = intern(_GPU.sub("", result.nodeid))
        for measured in result.measurements:
            ns = measured.summary.median_ns
            if is_valid(measured) and math.isfinite(ns):  # type: ignore[arg-type]
                key = intern(f"{case.id} {measured.scope}/{measured.timer}/{measured.cache}")
                times_ns[key] = ns
                limited_by = class_of(result, measured)  # type: ignore[arg-type]
                kernels[key] = Kernel(limited_by, test, case.problem, result.duration_s or 0.0)
    not_run = {skip.id: skip.reason for skip in file.skips}
    for nodeid, text in failed.items():
        of_case = _CASE.search(nodeid)
        not_run[of_case[1] if of_case else nodeid] = text
    return Session(
        card,
        results[0].session if results else "",
        file.created,
        times_ns,
        kernels,
        bits,
        tuple(wrong),
        len(failed),
        {intern(case): intern(why) for case, why in not_run.items()},
        file.problems,
        {name: ns for name, ns in results[0].canaries.items() if ns} if results else {},
        facts_of(result for result in results if result.case.on_gpu),  # type: ignore[misc]
    )
