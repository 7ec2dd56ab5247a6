"""Says at the end of a run what was written and what is stale, how to record and how to accept."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from pytest_gpukern.baseline.merge import WriteReport, confirmed_slower
from pytest_gpukern.baseline.store import ToPrune
from pytest_gpukern.package import FOLDER
from pytest_gpukern.report.forms import RunReport
from pytest_gpukern.values.options import OPTIONS, try_the_simulator, values_of
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.verdict_table import VerdictKind

_SHAPE_RECORDS = ("all", "device", "timer", "cache", "scope", "backend", "size", "axis", "baseline-dir")
"""Options of a run without which other cases would be recorded, or elsewhere."""

_MOST_FILES = 4
_SHOWN = 3
_MOST_ACCEPTED = 10


def record_lines(report: RunReport, config: pytest.Config, *, stored: bool) -> list[str]:
    """Says what was written, how to record and accept, what was not recorded and why, and what is stale.

    `stored` says whether there is a file of the run.
    """
    settings, results = report.settings, report.results
    lines: list[str] = []
    if settings.benchmark and settings.baseline == "compare":
        to_do = [*_no_folder(report, config), *_to_create(config, results)]
        lines += ["; ".join(to_do)] if to_do else []
        lines += _to_accept(report, config, stored=stored)
        lines += _to_keep(report, config)
    lines += [f"{reason} ({_which(cases)})" for reason, cases in report.shortened.items()]
    if report.baselines is not None:
        lines += _written(report.baselines, results)
    lines += [_to_prune(stale, config) for stale in report.stale]
    if not settings.asked and any(reason.startswith("no GPU") for _, reason in report.skips):
        lines.append(try_the_simulator(config))
    return [f"gpukern: {line}" for line in lines]


def _no_folder(report: RunReport, config: pytest.Config) -> list[str]:
    """Says that a folder of baselines is missing, where the run was given that, or to compare with it."""
    folder, (_, given, ini) = report.settings.baseline_dir, values_of(config)
    folders = [] if folder is None else [folder]
    if folder is None and "compare" in (given["baseline"], ini["baseline"]):
        folders = [Path(result.case.baseline_dir) for result in report.results if result.verdicts]
    missing = dict.fromkeys(folder for folder in folders if not folder.is_dir())
    return (
        [f"nothing to compare with: there is no folder {' and no '.join(map(str, missing))}"]
        if missing
        else []
    )


def _to_create(config: pytest.Config, results: Sequence[Result]) -> list[str]:
    """Returns the command that records what is new in a run, or nothing."""
    new = _judged_as(VerdictKind.NEW, results)
    if not new:
        return []
    here = config.invocation_params.dir
    paths = [config.rootpath / result.nodeid.partition("::")[0] for result in new]
    if len(set(paths)) > _MOST_FILES:
        paths = [here / argument.partition("::")[0] for argument in config.args]
    files = list(dict.fromkeys(os.path.relpath(path, here) for path in paths))
    command = ["pytest", *files, "--gpu-benchmark", "--gpukern-baseline=create", *_options(config)]
    if all(FOLDER in path.parents for path in paths):  # records there would go with the next installation
        elsewhere = [] if config.getoption("gpukern_baseline_dir") else ["--gpukern-baseline-dir=FOLDER"]
        command = ["gpukern", "validate", "--gpukern-baseline=create", *elsewhere, *_options(config)]
    count = "1 case is new" if len(new) == 1 else f"{len(new)} cases are new"
    return [f"{count}; to record: {shlex.join(command)}"]


def _to_accept(report: RunReport, config: pytest.Config, *, stored: bool) -> list[str]:
    """Returns the command that accepts what became slower, from the run file if there is one, or nothing."""
    with_hosts = "host" in report.settings.fail_on
    slower = [
        result for result in report.results if (result.case.on_gpu or with_hosts) and confirmed_slower(result)
    ]
    if not slower:
        return []
    root, here = config.rootpath, config.invocation_params.dir
    many, settings = len(slower) > _SHOWN, report.settings
    if stored and settings.run_file is not None:
        cases = ["CASE…"] if many else [result.case.id for result in slower]
        folder = settings.baseline_dir
        into = ["--into", os.path.relpath(folder, root)] if folder is not None else []
        file = os.path.relpath(settings.run_file, root)
        command = ["gpukern", "baseline", "merge", file, *into, "--accept", *cases, "--reason", "TEXT"]
        where = "" if here == root else f" in {root}"
    else:
        command, where = _update(slower, config), ""
    one = len(slower) == 1
    meant = "1 case is slower; if that is meant" if one else f"{len(slower)} cases are slower; if meant"
    return [f"{meant}{where}: {shlex.join(command)}"]


def _to_keep(report: RunReport, config: pytest.Config) -> list[str]:
    """Returns the command that records what became faster, so that its loss is seen, or nothing."""
    faster = [result for result in _judged_as(VerdictKind.FASTER, report.results) if result.case.on_gpu]
    if not faster:
        return []
    count = "1 case is faster" if len(faster) == 1 else f"{len(faster)} cases are faster"
    return [f"{count}; to gate at the new time: {shlex.join(_update(faster, config))}"]


def _judged_as(kind: VerdictKind, results: Sequence[Result]) -> list[Result]:
    """Returns the results with a verdict of a kind."""
    return [result for result in results if any(v.kind is kind for v in result.verdicts.values())]


def _to_prune(stale: ToPrune, config: pytest.Config) -> str:
    """Says which cases of a file no longer exist, with the command that removes their records."""
    number, file = len(stale.ids), os.path.relpath(stale.file, config.invocation_params.dir)
    gone = "1 recorded case no longer exists" if number == 1 else f"{number} recorded cases no longer exist"
    command = shlex.join(["gpukern", "baseline", "prune", file, "--case", *stale.patterns])
    return f"{gone}: {some_of(stale.ids)}; to remove: {command}"


def _update(results: Sequence[Result], config: pytest.Config) -> list[str]:
    """Returns the command that opens a new epoch for the tests of these results."""
    root, here = config.rootpath, config.invocation_params.dir
    few = [os.path.relpath(root / result.test, here) for result in results[: _SHOWN + 1]]
    tests = ["TEST…"] if len(few) > _SHOWN else few
    update = ["--gpukern-baseline=update", "--gpukern-reason=TEXT"]
    return ["pytest", *tests, "--gpu-benchmark", *update, *_options(config)]


def repeat(result: Result) -> str:
    """Returns the command that runs the test of a result once more."""
    measured = ["--gpu-benchmark"] if result.measurements and not result.simulated else []
    simulated = ["--gpukern-simulator=always"] if result.simulated else []
    seed = [f"--gpukern-seed={result.seed}"] if result.seed is not None else []
    return shlex.join(["pytest", result.test, *measured, *simulated, *seed])


def _written(report: WriteReport, results: Sequence[Result]) -> list[str]:
    """Returns what was written, accepted though it is slower, and refused by reason."""
    lines = [f"wrote {path}" for path in report.written]
    lines += _accepted(results, set(report.updated))
    reasons: dict[str, list[str]] = {}
    for refusal in report.refused:
        first_line = refusal.reason.partition("\n")[0]
        reasons.setdefault(first_line, []).append(refusal.case_id)
    return lines + [f"not recorded: {reason} ({_which(cases)})" for reason, cases in reasons.items()]


def _accepted(results: Sequence[Result], updated: Collection[str]) -> list[str]:
    """Returns a line about each case whose new epoch is slower than its last one."""
    slower = [
        (result.case.id, key, verdict)
        for result in results
        if result.case.id in updated
        for key, verdict in result.verdicts.items()
        if verdict.kind is VerdictKind.SLOWER
    ]
    lines = [
        f"recorded as a new epoch though SLOWER ({key}): {case_id}: {verdict.reason}"
        for case_id, key, verdict in slower[:_MOST_ACCEPTED]
    ]
    more = len(slower) - _MOST_ACCEPTED
    return [*lines, f"and {more} more that are slower"] if more > 0 else lines


def some_of(ids: Sequence[str]) -> str:
    """Returns up to three of them."""
    return ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")


def _which(cases: Sequence[str]) -> str:
    return cases[0] if len(cases) == 1 else f"{len(cases)} cases, {cases[0]} among them"


def _options(config: pytest.Config) -> list[str]:
    """Returns those options of this run that shape what is recorded, as given."""
    given = values_of(config)[1]
    options = []
    for option in OPTIONS:
        value = given[option.name]
        if option.name not in _SHAPE_RECORDS or not value:
            continue
        values = value if isinstance(value, list) else [value]
        options += [option.cli if option.flag else f"{option.cli}={text}" for text in values]
    return options
