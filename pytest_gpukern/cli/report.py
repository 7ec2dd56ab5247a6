"""Runs `gpukern report`: tells of stored runs and of baselines, on the terminal or in a file."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpukern.baseline.store import CODE
from pytest_gpukern.cli import exits
from pytest_gpukern.findings.trend import FEWEST_SESSIONS, SeriesKey, Trend
from pytest_gpukern.report import units
from pytest_gpukern.report.details import epochs, gpu_trace
from pytest_gpukern.report.forms import file_content
from pytest_gpukern.report.recorded import is_baseline, read_all, trends
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.terminal import render
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.form_table import FORMS, suffix_of, suffixes
from pytest_gpukern.values.project import folders_of
from pytest_gpukern.values.untrusted_json import FileError

_MOST_TRENDS = 20


def declare(parser: argparse.ArgumentParser) -> None:
    files = ". ".join(f"FILE{name}: {FORMS[name].holds}" for name in suffixes())
    parser.description = (
        "Tells of run files, baseline files, and folders of baseline files: on the terminal as pytest did, "
        f"or with -o in a file. {files}. {exits.STATUSES}"
    )
    parser.add_argument(
        "files", metavar="RUN|BASELINE", type=Path, nargs="+", help="each may be packed by gzip"
    )
    declare_forms(parser)
    parser.set_defaults(run=_run)


def declare_forms(parser: argparse.ArgumentParser) -> None:
    """Declares what `runs_of` and `tell` read."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write this file; its suffix says the form"
    )
    parser.add_argument(
        "-k",
        dest="text",
        metavar="TEXT",
        help="only cases whose id holds this text, told at length",
    )


def _run(known: argparse.Namespace) -> int:
    runs = runs_of(known.files, known.output, known.text)
    status = tell(runs, known)
    several = len(runs) > 1 or any(run.record_of for run in runs)
    if known.output is None and several and (lines := _trend_lines(trends(runs))):
        exits.show(["", *lines])
    return status


def runs_of(paths: Sequence[Path], output: Path | None = None, text: str | None = None) -> list[RunResults]:
    """Reads run files, baseline files and folders of these, of which `output` is to tell.

    With a `text`, they hold only cases with it in their id.

    Raises:
        FileError: a file cannot be read.
        RefusedError: such a file cannot be made of these, or no case has the text.
    """
    files = [file for path in paths for file in report_files(path)]
    _refuse_impossible(output, files)
    runs = read_all(files)
    if text:
        runs = [chosen for run in runs if (chosen := run.only(text)).results]
        if not runs:
            raise exits.RefusedError(f"no case with {text!r} in its id in {', '.join(map(str, paths))}")
    return runs


def tell(runs: Sequence[RunResults], known: argparse.Namespace) -> int:
    """Tells of runs on the terminal, or in the file that the command line names; returns the status."""
    if known.output is None:
        return _show(runs, known.text)
    content = file_content(known.output, runs)
    if not content:
        names = ", ".join(run.name for run in runs)
        raise exits.RefusedError(f"{names}: no measurement in it: run pytest with --gpu-benchmark")
    write_named(known.output, content, "-o")
    return exits.FINE


def report_files(path: Path, *, code: bool = False) -> list[Path]:
    """Returns a file itself; of a folder its baseline files, called `<name>.<device model>.json`.

    It also returns the baseline files of folders below it that are called `baselines`, and with `code` the
    files of machine code. Raises FileError if there are none.
    """
    if not path.is_dir():
        return [path]
    files = []
    for here, names in folders_of(path):
        if here == path or here.name == "baselines":
            of = [name for name in names if code or not name.endswith(f".{CODE}.json")]
            files += [here / name for name in of if fnmatch.fnmatchcase(name, "[!.]*.*.json")]
    if not files:
        raise FileError(path, "holds no baseline files", "Give a run file, a baseline file or their folder")
    return files


def _refuse_impossible(output: Path | None, files: Sequence[Path]) -> None:
    """Raises RefusedError if such a file cannot be made of these."""
    suffix, problem = suffix_of(output) if output else None, ""
    if output and suffix is None:
        problem = f"{output} names no form of a report: end it in {', '.join(suffixes())}"
    elif suffix and not FORMS[suffix].several:
        problem = f"{suffix} is a report of one run, and {len(files)} are given" if len(files) > 1 else ""
        if baseline := next(filter(is_baseline, files), None):
            problem = f"{baseline} is a baseline, and {suffix} is a report of a run"
    if problem:
        raise exits.RefusedError(problem, exits.USAGE)


def _show(runs: Sequence[RunResults], text: str | None) -> int:
    several, status = len(runs) > 1, exits.BAD
    for run in runs:
        lines = render(run, width=exits.width(), verbose=text is not None, details="-k ''")
        if text is not None:
            lines += gpu_trace(run.results)
            records = filter(None, (run.history.get(of.nodeid) for of in run.results))
            lines += [line for record in records for line in epochs(record)]
        if not lines:
            exits.complain("report", f"{run.name} holds no results")
            continue
        exits.show([*([run.name, ""] if several else []), *(line.text for line in lines)])
        status = exits.FINE
    return status


def _trend_lines(trends: Mapping[SeriesKey, Trend]) -> list[str]:
    """Says each time whose newest level differs from the one before, the largest change first."""
    changed = [(case, key.partition("/")[0], trend) for (case, key), trend in trends.items() if trend.steps]
    changed.sort(key=lambda entry: -units.size_of_change(entry[2].ratio))
    lines = [f"{case} {scope}: {trend.change}" for case, scope, trend in changed]
    long = sum(len(trend.points) >= FEWEST_SESSIONS for trend in trends.values())
    of = f"gpukern: {len(lines)} of {long} times with {FEWEST_SESSIONS} sessions or more have a new level"
    return [*lines[:_MOST_TRENDS], *([of] if long else [])]
