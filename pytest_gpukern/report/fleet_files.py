"""Reads run files of many cards, and keeps of each only what compares cards."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from sys import intern

from pytest_gpukern.findings.cards import Card, CardFigures
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values import atomic_file
from pytest_gpukern.values.form_table import RUN_FILE
from pytest_gpukern.values.result import Result, SessionRole
from pytest_gpukern.values.untrusted_json import FileError


def _run_files(path: Path) -> list[Path]:
    """Returns a file itself, or all run files below a folder by name; FileError if it has none.

    A folder that cannot be listed stands for the files in it: to read it is an error that names it.
    """
    if not path.is_dir():
        return [path]
    unlisted = list[Path]()
    folders = os.walk(path, onerror=lambda error: unlisted.append(Path(error.filename)))
    names = (Path(folder, name) for folder, _, names in folders for name in names)
    files = sorted(file for file in names if file.name.endswith((RUN_FILE, f"{RUN_FILE}.gz")))
    if not files and not unlisted:
        raise FileError(path, "holds no run files", "gpukern validate --gpukern-report=FOLDER/ writes them")
    return files + unlisted


def host_and_index(path: Path) -> tuple[str, str]:
    """Returns whose run a file holds: `host0017-3.json` → host0017 and 3; without a number, its folder's."""
    host, _, rest = path.name.rpartition("-")
    index = rest.partition(".")[0]
    return (host, index) if host and index.isdecimal() else (path.absolute().parent.name, "")


def read_figures(paths: Iterable[Path]) -> tuple[list[CardFigures], list[FileError]]:
    """Returns the figures in files and folders, and of files that cannot be read, why; a file counts once.

    Raises FileError if a folder has no run files, or no file can be read.
    """
    figures: list[CardFigures] = []
    unreadable = []
    files = (file for path in paths for file in _run_files(path))
    for path in {os.path.realpath(file): file for file in files}.values():
        try:
            figures += figures_of(read_run(path), *host_and_index(path))
        except FileError as error:
            unreadable.append(error)
    if not figures:
        raise unreadable[0]
    return figures, unreadable


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
        atomic_file.replace(path, content)
    except OSError as error:
        problem = f"cannot be written into: {error.strerror or error}"
        raise FileError(folder, problem, "Check the folder's permissions and free space") from error
    return path


def figures_of(run: RunResults, host: str = "", index: str = "") -> list[CardFigures]:
    """Returns the figures in a run: of each card, and each time it was measured.

    Sessions that confirmed a suspicion of the gate have no times here: they were measured for being slow.

    Args:
        host: of the cards, as people call it.
        index: of the card in nvidia-smi, if there is one.
    """
    uuids = list(dict.fromkeys(filter(None, map(_uuid, run.results)))) or [f"{host}-{index}"]
    # What was measured on the host alone is told of its only card, and of none where there are several.
    of_host = uuids[0] if len(uuids) == 1 else None
    # Each test of an isolated run is a process, so the second result of a test is of session 1.
    sessions: dict[tuple[str, int], list[Result]] = {(uuid, 0): [] for uuid in uuids}
    for first in run.results:
        results = (first, *run.sessions_of(first))
        measured = [result for result in results if result.role is not SessionRole.CONFIRMING]
        for turn, result in enumerate(measured):
            if (uuid := _uuid(result) or of_host) is not None:
                sessions.setdefault((uuid, turn), []).append(result)
    failed = {} if of_host is None else {test: failure.text for test, failure in run.failures.items()}
    not_run = {intern(skip.id): intern(skip.reason) for skip in run.skips}
    for nodeid, text in failed.items():
        case_id = nodeid.partition("[")[2].rpartition("]")[0]
        not_run[intern(case_id or nodeid)] = intern(text)
    seen = (
        CardFigures.of(_card(results, uuid, host, index), results, run.created)
        for (uuid, _), results in sessions.items()
    )
    problems = tuple(run.problems)
    return [replace(of, failed=len(failed), not_run=not_run, problems=problems) for of in seen]


def _uuid(result: Result) -> str | None:
    """Returns the UUID of a GPU; all hosts have the same simulated one."""
    return None if result.fingerprint.is_simulated else result.fingerprint.device_uuid


def _card(results: Sequence[Result], uuid: str, host: str, index: str) -> Card:
    if not results:  # the run ended before any test did
        return Card(uuid, host, index)
    real = [result.fingerprint for result in results if _uuid(result)]
    seen = real[0] if real else results[0].fingerprint
    versions = {**seen.libraries, "Python": seen.python_version, "CPU": seen.cpu_model}
    libraries = tuple(sorted((name, version) for name, version in versions.items() if version is not None))
    model = (seen.device_name or "GPU of unknown name") if real else ""
    return Card(uuid, host, index, model, seen.driver_version, libraries)
