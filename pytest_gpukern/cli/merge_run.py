"""`gpukern baseline merge`: accepts results of a run file, such as an artifact of CI, into the records."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.cli.find import NoMatchError, matching

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from datetime import datetime

    from pytest_gpukern.baseline.store import WriteReport
    from pytest_gpukern.values.result import Result

SUMMARY = "accept results of a run file into the records, without a GPU"
DESCRIPTION = (
    "Records results of a run that --gpukern-output wrote, on whatever machine: as a new epoch with a "
    "reason, or with --append as further sessions of the current one. All sessions of a case that the file "
    "holds are recorded, but for those that raised a suspicion which others confirmed. What is incorrect, "
    "INVALID or simulated is refused. The records lie beside the tests, as seen from this folder, or where "
    "--into says; the run file's own paths are not used."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    parser.add_argument("run", type=Path, metavar="RUN.json", help="a file that --gpukern-output wrote")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder of the baseline files")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--accept", nargs="+", metavar="CASE|GLOB", help="cases to record")
    what.add_argument("--all", action="store_true", help="record every case of the file")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why times changed; kept in the record")
    parser.add_argument("--append", action="store_true", help="add sessions instead of opening an epoch")
    exits.add_write_in_ci(parser)
    exits.add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:
    """Records what was accepted, and says what was not."""
    from pytest_gpukern.report.run_file import read_run
    from pytest_gpukern.values.untrusted_json import FileError

    if known.append and known.reason:
        parser.error("--reason: it belongs to a new epoch, and --append opens none; drop one of them")
    if not known.append and not known.reason.strip():
        parser.error("--reason: say why times changed; whoever reads the record later will want to know")
    if not exits.may_write("baseline merge", known):
        return exits.BAD
    try:
        run_file = read_run(known.run)
        cases = (result.case.id for result in run_file.results)
        chosen = set(matching(cases, ["*"] if known.all else known.accept))
    except FileError as error:
        exits.complain("baseline merge", error)
        return exits.UNREADABLE
    except NoMatchError as error:
        exits.complain("baseline merge", f"{known.run}: {error}")
        return exits.BAD
    accepted = [
        session
        for result in run_file.results
        if result.case.id in chosen
        for session in _to_record(result, run_file.sessions_of(result))
    ]
    created = run_file.created
    report = _recorded(accepted, created, into=known.into, reason=known.reason, append=known.append)
    if known.json:
        exits.show_json(_json(report))
    else:
        exits.show([*_lines(report), *_too_few(report, accepted)])
    for problem in report.errors:
        exits.complain("baseline merge", problem)
    for refusal in report.refused:
        exits.complain("baseline merge", f"not recorded: {refusal.case_id}: {refusal.reason}")
    if report.errors:
        return exits.UNREADABLE
    return exits.BAD if report.refused else exits.FINE


def _to_record(result: Result, sessions: Sequence[Result]) -> list[Result]:
    """The sessions of a case to record; of one whose result must not be, that alone, which is refused."""
    from pytest_gpukern.baseline.merge import unselected
    from pytest_gpukern.baseline.store import unfit

    return [result] if unfit(result) is not None else unselected(result, sessions)


def _recorded(
    results: Sequence[Result], created: datetime, *, into: Path | None, reason: str, append: bool
) -> WriteReport:
    from pytest_gpukern.baseline.merge import Refusal
    from pytest_gpukern.baseline.store import BaselineMode, Store, WriteReport
    from pytest_gpukern.gpu.fingerprint import model_key_of

    mode = BaselineMode.APPEND if append else BaselineMode.UPDATE
    stores: dict[Path, Store] = {}
    refused = []
    for measured in results:
        result = measured if into is not None else named_beside_its_test(measured)
        folder = into or beside_the_test(result.nodeid, Path.cwd())
        model_key = model_key_of(result.fingerprint, on_gpu=result.case.on_gpu)
        if folder is None:
            test = result.nodeid.partition("::")[0]
            remedy = "run this where pytest's ids begin (its rootdir), or give --into FOLDER"
            refused.append(Refusal(result.case.id, f"its test {test} is not below this folder: {remedy}"))
        elif model_key is None:
            refused.append(Refusal(result.case.id, "the run file does not say what it was measured on"))
        else:
            store = stores.setdefault(folder, Store(mode, directory_override=folder, reason=reason))
            store.add(result, model_key=model_key, recorded=created)
    total = WriteReport(refused=tuple(refused))
    for store in stores.values():
        total = _together(total, store.flush())
    return total


def named_beside_its_test(result: Result) -> Result:
    """The result with the baseline's name that it has beside its test, where a plain test's has the file's.

    In a folder that all tests share it has the folders in it too, and the run may have had one.
    """
    if result.case.backend is not None:
        return result
    stem = PurePosixPath(result.nodeid.partition("::")[0]).stem
    return dataclasses.replace(result, case=dataclasses.replace(result.case, baseline_name=stem))


def beside_the_test(nodeid: str, here: Path) -> Path | None:
    """The folder of baselines beside a test, where its file is really below `here`; else None.

    The id comes from a file that anybody may have written: it must not lead out of this folder.
    """
    named = PurePosixPath(nodeid.partition("::")[0])
    if named.is_absolute() or ".." in named.parts:
        return None
    file = here / named
    try:
        below = file.is_file() and file.resolve().is_relative_to(here.resolve())
    except OSError:  # a name that no file can have
        return None
    return file.parent / "baselines" if below else None


def _together(one: WriteReport, other: WriteReport) -> WriteReport:
    fields = dataclasses.fields(one)
    return dataclasses.replace(
        one, **{each.name: (*getattr(one, each.name), *getattr(other, each.name)) for each in fields}
    )


def _json(report: WriteReport) -> dict[str, object]:
    return {
        "written": [str(path) for path in report.written],
        "added": list(report.added),
        "appended": list(report.appended),
        "updated": list(report.updated),
        "refused": [{"case": each.case_id, "reason": each.reason} for each in report.refused],
        "errors": [str(error) for error in report.errors],
    }


def _lines(report: WriteReport) -> list[str]:
    lines = [f"wrote {path}" for path in report.written]
    for words, ids in (
        ("recorded for the first time", report.added),
        ("further sessions of", report.appended),
        ("new epoch of", report.updated),
    ):
        lines += [f"{words}: {case_id}" for case_id in ids]
    return lines or ["nothing was recorded"]


def _too_few(report: WriteReport, accepted: Sequence[Result]) -> list[str]:
    """What a new epoch lacks before a verdict on it may fail a test."""
    from pytest_gpukern.gate.change import FEWEST

    sessions = Counter(result.case.id for result in accepted)
    few = [case_id for case_id in (*report.added, *report.updated) if sessions[case_id] < FEWEST]
    if not few:
        return []
    which = "it has" if len(few) == 1 else f"{len(few)} cases have"
    lack = f"{which} fewer than the {FEWEST} sessions from which on the gate fails a test"
    here = "add some with pytest --gpu-benchmark --gpukern-baseline=append on that device"
    return [f"{lack}: {here}, or merge later runs with --append"]
