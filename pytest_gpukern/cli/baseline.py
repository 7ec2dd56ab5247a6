"""Runs `gpukern baseline`: prunes, renames and merges records, on any machine.

Each of the three commands is a section of its own. How cases are found comes last.
"""

from __future__ import annotations

import argparse
import fnmatch
import operator
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from pytest_gpukern.baseline.codec import load_sides
from pytest_gpukern.baseline.merge import WriteReport, sessions_to_record
from pytest_gpukern.baseline.record import Epoch
from pytest_gpukern.baseline.store import CODE, Store, begins_with, load, rewrite, unfit, unite
from pytest_gpukern.cli import exits
from pytest_gpukern.cli.report import report_files
from pytest_gpukern.report import units
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.nearest import did_you_mean
from pytest_gpukern.values.options import SettingsError
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.settings import parse_reason
from pytest_gpukern.values.untrusted_json import printable


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = f"Works on baseline files, on any machine. {exits.STATUSES}"
    commands = parser.add_subparsers(dest="baseline_command", required=True, metavar="COMMAND")
    for name, summary, declare_command in (
        ("prune", "remove records of cases", _declare_prune),
        ("rename", "move records to other ids of their cases", _declare_rename),
        ("merge", "unite baseline files, or accept results of a run file, without a GPU", _declare_merge),
    ):
        own = commands.add_parser(name, help=summary, allow_abbrev=False)
        own.set_defaults(command=f"baseline {name}")
        declare_command(own)
        own.description = f"{own.description} {exits.STATUSES}"


# --- prune ----------------------------------------------------------------------------------------


def _declare_prune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Removes records of cases from a baseline file or a file of machine code. Deletes the file if none "
        "is left."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a baseline file, or NAME.code.json")
    parser.add_argument(
        "--case", nargs="+", required=True, metavar="ID|GLOB", help="cases to remove, such as 'exp/cupy.*'"
    )
    exits.add_write_in_ci(parser, dry_run="only say what would be removed")
    parser.set_defaults(run=_prune)


def _prune(known: argparse.Namespace) -> int:
    exits.refuse_in_ci(known)

    def change(held: Any) -> Any:
        return held.without(matching(held.cases, known.case))

    before = load(known.file)
    after = change(before) if known.dry_run else rewrite(known.file, change)
    verb = "would remove" if known.dry_run else "removed"
    exits.show(f"{verb} {name}" for name in sorted(before.cases.keys() - after.cases.keys()))
    return exits.FINE


# --- rename ---------------------------------------------------------------------------------------


def _declare_rename(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Moves the record of a case to another id, with all its epochs. OLD may be the begin of ids: "
        "'saxpy/numba.old' of 'saxpy/numba.old/n=8'. Never replaces a record."
    )
    parser.add_argument("old", metavar="OLD", help="id of a case, or the begin of several")
    parser.add_argument("new", metavar="NEW", help="what stands in its place")
    where = "a file as for prune, or a folder of them (default: each baselines/ below this folder)"
    parser.add_argument("paths", type=Path, nargs="*", metavar="FILE|FOLDER", help=where)
    exits.add_write_in_ci(parser, dry_run="only say what would be renamed")
    parser.set_defaults(run=_rename)


def _rename(known: argparse.Namespace) -> int:
    exits.refuse_in_ci(known)
    old, new = (name.removesuffix("*").removesuffix("/") for name in (known.old, known.new))
    if not new or printable(new) != new:
        raise exits.RefusedError(f"{known.new!r} is no id of a case: write it as OLD is written")
    paths = known.paths or [
        file for file in report_files(Path(), code=True) if file.parent.name == "baselines"
    ]
    if old.partition("/")[0] != new.partition("/")[0]:
        problem = (
            f"{new!r} has another file than {old!r}: records move within a problem, or a module of tests"
        )
        raise exits.RefusedError(problem)
    files = dict.fromkeys(file for path in paths for file in report_files(path, code=True))
    held = {file: load(file).cases for file in files}
    ids = sorted({name for cases in held.values() for name in cases})
    meant = [name for name in ids if begins_with(name, old)]
    if not meant:
        raise _unknown(known.old, ids)
    named = {file: {name: new + name[len(old) :] for name in meant if name in held[file]} for file in files}
    moves = {file: names for file, names in named.items() if names}
    for file, names in moves.items():
        if clashes := sorted((held[file].keys() - names) & {*names.values()}):
            command = shlex.join(["gpukern", "baseline", "prune", str(file), "--case", clashes[0]])
            raise exits.RefusedError(
                f"{file}: {clashes[0]!r} is on record already. Keep one of both: {command}"
            )
    for file, names in () if known.dry_run else moves.items():
        rewrite(file, operator.methodcaller("renaming", names))
    verb = "would rename" if known.dry_run else "renamed"
    for file, names in moves.items():
        exits.show(f"{verb} {name} to {names[name]} ({file})" for name in names)
    return exits.FINE


# --- merge ----------------------------------------------------------------------------------------


def _declare_merge(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Unites baseline files of one problem on one device into the first of them, or into the file in "
        "--into. A file with git's conflict marks counts as its two sides. If both sides updated a case, "
        "later runs are compared with the newest update; the other is kept. With --accept or --all it "
        "records results of a run: as an update with a reason, or with --append as more sessions of the "
        "last one. Refuses what is INCORRECT, INVALID or simulated. The records go beside the tests, or to "
        "--into."
    )
    files = "baseline files, or one run file with --accept or --all"
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help=files)
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder of the baseline files")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--accept", nargs="+", metavar="CASE|GLOB", help="cases of a run file to record")
    what.add_argument("--all", action="store_true", help="record every case of a run file")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--reason", metavar="TEXT", help="open an epoch, and keep in it why times changed")
    how.add_argument("--append", action="store_true", help="add sessions to the current epoch instead")
    exits.add_write_in_ci(parser)
    parser.set_defaults(run=_merge, parser=parser)


def _merge(known: argparse.Namespace) -> int:
    of_run, how = known.all or known.accept is not None, known.append or known.reason is not None
    if of_run != how or (of_run and len(known.files) > 1):
        needed = "--accept CASE or --all, and --reason TEXT or --append"
        known.parser.error(f"one run file needs {needed}; baseline files take none of these")
    if not of_run:
        return _unite(known)
    try:
        _ = known.append or parse_reason(known.reason, "--reason")
    except SettingsError as error:
        known.parser.error(str(error))
    exits.refuse_in_ci(known)
    run_file = read_run(known.files[0])
    cases = (result.case.id for result in run_file.results)
    chosen = set(matching(cases, ["*"] if known.all else known.accept))
    accepted: list[Result] = []
    for result in run_file.results:
        if result.case.id in chosen:
            # Of a case whose result must not be recorded, that alone, which is refused.
            is_fit = unfit(result) is None
            accepted += sessions_to_record(result, run_file.sessions_of(result)) if is_fit else [result]
    report = _record(accepted, run_file.created, known)
    exits.show(_done_lines(report))
    for problem in report.errors:
        exits.complain("baseline merge", problem)
    for refusal in report.refused:
        exits.complain("baseline merge", f"not recorded: {refusal.case_id}: {refusal.reason}")
    if report.errors:
        return exits.UNREADABLE
    return exits.BAD if report.refused else exits.FINE


def _unite(known: argparse.Namespace) -> int:
    exits.refuse_in_ci(known)
    files, into = known.files, known.into
    if bad := next((path for path in files if path.name.endswith(f".{CODE}.json")), None):
        remedy = "take one side of it, and record again: --gpukern-code --gpukern-baseline=update"
        raise exits.RefusedError(f"{bad} holds machine code, which is not united: {remedy}")
    first, *others = load_sides(files[0])
    if not (others or files[1:] or into):
        problem = f"{files[0]} has no conflict marks: name a file to unite it with, or --into FOLDER"
        raise exits.RefusedError(problem)
    target, sources = files[0], files[1:]
    if into is not None:
        target, sources = into / f"{first.problem}.{first.device_model}.json", files
        if target.parent != into:
            raise exits.RefusedError(f"{target.name!r}, as {files[0]} names it, is no file in {into}")
    did = unite(target, sources)
    rivals = grouped((_rivals(current, past), case_id) for case_id, current, past in did.rivals)
    exits.show([*_done_lines(did), *(f"{text}: {units.named(ids)}" for text, ids in rivals.items())])
    return exits.FINE


def _rivals(current: Epoch, past: Epoch) -> str:
    """Returns which of two epochs judges, and why."""
    one, two = (
        f"that of {epoch.opened[:10]}{f' ({epoch.reason})' if epoch.reason else ''}"
        for epoch in (current, past)
    )
    return f"each side opened an epoch: {one} judges, since it was opened last; {two} stays in the record"


def _record(results: Sequence[Result], created: datetime, known: argparse.Namespace) -> WriteReport:
    mode, into = "append" if known.append else "update", known.into
    store = Store(mode, directory_override=into, reason=known.reason)
    for result in results:
        folder = into or _folder_beside_the_test(result.nodeid, Path.cwd())
        model_key = result.fingerprint.model_key(on_gpu=result.case.on_gpu)
        if folder is None:
            test = result.nodeid.partition("::")[0]
            remedy = "run this where pytest's ids begin (its rootdir), or give --into FOLDER"
            store.refuse(result.case, f"its test {test} is not below this folder: {remedy}")
        elif model_key is None:
            store.refuse(result.case, "the run file does not say what it was measured on")
        else:
            case = structs.replace(result.case, baseline_dir=str(folder))
            store.add(structs.replace(result, case=case), model_key=model_key, recorded=created)
    return store.flush()


def _folder_beside_the_test(nodeid: str, here: Path) -> Path | None:
    """Returns the folder of baselines beside a test, where its file is really below `here`; else None.

    The id comes from a file that anybody may have written: it must not lead out of this folder.
    """
    file = here / nodeid.partition("::")[0]
    try:
        below = file.is_file() and file.resolve().is_relative_to(here.resolve())
    except OSError:  # a name that no file can have
        return None
    return file.parent / "baselines" if below else None


def _done_lines(report: WriteReport) -> list[str]:
    lines = [f"wrote {path}" for path in report.written]
    lines += [f"recorded for the first time: {case_id}" for case_id in report.added]
    lines += [f"further sessions of: {case_id}" for case_id in report.appended]
    lines += [f"new epoch of: {case_id}" for case_id in report.updated]
    return lines or ["nothing was recorded"]


# --- finding cases that a command line names -------------------------------------------------------


def matching(ids: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Returns the ids that patterns name or match, in order; RefusedError if a pattern matches none."""
    known = list(dict.fromkeys(ids))
    chosen: set[str] = set()
    for pattern in patterns:
        # A case of that very name is meant, and no other: names of tests may hold `*` and brackets.
        named = {name for name in known if fnmatch.fnmatchcase(name, pattern)}
        named = {pattern} if pattern in known else named
        if not named:
            raise _unknown(pattern, known)
        chosen |= named
    return [name for name in known if name in chosen]


def _unknown(pattern: str, known: Sequence[str]) -> exits.RefusedError:
    return exits.RefusedError(f"no case {pattern!r} among {len(known)}{did_you_mean(pattern, known)}")
