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
from pytest_gpukern.values.note import NO_GPU
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
        lines += ["; ".join(filter(None, (_no_folder(report, config), _to_create(config, results))))]
        lines += [_to_accept(report, config, stored=stored), _to_keep(report, config)]
    lines += [f"{reason} ({_which(cases)})" for reason, cases in report.shortened.items()]
    if report.baselines is not None:
        lines += _written(report.baselines, results)
    lines += [_to_prune(stale, config) for stale in report.stale]
    if not settings.asked and any(skip.kind == NO_GPU for skip in report.skips):
        lines.append(try_the_simulator(config))
    return [line for line in lines if line]


def _no_folder(report: RunReport, config: pytest.Config) -> str:
    """Says that a folder of baselines is missing, where the run was given that, or to compare with it."""
    folder, (_, given, ini) = report.settings.baseline_dir, values_of(config)
    folders = [] if folder is None else [folder]
    if folder is None and "compare" in (given["baseline"], ini["baseline"]):
        folders = [Path(result.case.baseline_dir) for result in report.results if result.verdicts]
    missing = " and no ".join(dict.fromkeys(str(folder) for folder in folders if not folder.is_dir()))
    return f"nothing to compare with: there is no folder {missing}" if missing else ""


def _to_create(config: pytest.Config, results: Sequence[Result]) -> str:
    new = _judged_as(VerdictKind.NEW, results)
    if not new:
        return ""
    here = config.invocation_params.dir
    paths = [config.rootpath / result.nodeid.partition("::")[0] for result in new]
    if len(set(paths)) > _MOST_FILES:
        paths = [here / argument.partition("::")[0] for argument in config.args]
    files = list(dict.fromkeys(os.path.relpath(path, here) for path in paths))
    command = ["pytest", *files, "--gpu-benchmark", "--gpukern-baseline=create", *_options(config)]
    if all(FOLDER in path.parents for path in paths):  # records there would go with the next installation
        elsewhere = [] if config.getoption("gpukern_baseline_dir") else ["--gpukern-baseline-dir=FOLDER"]
        command = ["gpukern", "validate", "--gpukern-baseline=create", *elsewhere, *_options(config)]
    return f"{_are(new)} new; to record: {shlex.join(command)}"


def _to_accept(report: RunReport, config: pytest.Config, *, stored: bool) -> str:
    """Returns the command that accepts what became slower, from the run file if there is one, or nothing."""
    with_hosts = "host" in report.settings.fail_on
    slower = [
        result for result in report.results if (result.case.on_gpu or with_hosts) and confirmed_slower(result)
    ]
    if not slower:
        return ""
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
    return f"{_are(slower)} slower; if that is meant{where}: {shlex.join(command)}"


def _to_keep(report: RunReport, config: pytest.Config) -> str:
    """Returns the command that records what became faster, so that its loss is seen, or nothing."""
    faster = [result for result in _judged_as(VerdictKind.FASTER, report.results) if result.case.on_gpu]
    command = shlex.join(_update(faster, config))
    return f"{_are(faster)} faster; to gate at the new time: {command}" if faster else ""


def _are(cases: Sequence[Result]) -> str:
    return "1 case is" if len(cases) == 1 else f"{len(cases)} cases are"


def _judged_as(kind: VerdictKind, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if any(v.kind is kind for v in result.verdicts.values())]


def _to_prune(stale: ToPrune, config: pytest.Config) -> str:
    number, file = len(stale.ids), os.path.relpath(stale.file, config.invocation_params.dir)
    gone = "1 recorded case no longer exists" if number == 1 else f"{number} recorded cases no longer exist"
    command = shlex.join(["gpukern", "baseline", "prune", file, "--case", *stale.patterns])
    return f"{gone}: {some_of(stale.ids)}; to remove: {command}"


def _update(results: Sequence[Result], config: pytest.Config) -> list[str]:
    root, here = config.rootpath, config.invocation_params.dir
    tests = [os.path.relpath(root / result.test, here) for result in results]
    update = ["--gpu-benchmark", "--gpukern-baseline=update", "--gpukern-reason=TEXT"]
    return ["pytest", *(tests if len(tests) <= _SHOWN else ["TEST…"]), *update, *_options(config)]


def repeat(result: Result) -> str:
    measured = ["--gpu-benchmark"] if result.measurements and not result.simulated else []
    simulated = ["--gpukern-simulator=always"] if result.simulated else []
    seed = [f"--gpukern-seed={result.seed}"] if result.seed is not None else []
    return shlex.join(["pytest", result.test, *measured, *simulated, *seed])


def _written(report: WriteReport, results: Sequence[Result]) -> list[str]:
    lines = [f"wrote {path}" for path in report.written]
    lines += _accepted(results, set(report.updated))
    reasons: dict[str, list[str]] = {}
    for refusal in report.refused:
        first_line = refusal.reason.partition("\n")[0]
        reasons.setdefault(first_line, []).append(refusal.case_id)
    return lines + [f"not recorded: {reason} ({_which(cases)})" for reason, cases in reasons.items()]


def _accepted(results: Sequence[Result], updated: Collection[str]) -> list[str]:
    """Returns a line about each case whose new epoch is slower than its last one."""
    lines = [
        f"recorded as a new epoch though SLOWER ({key}): {result.case.id}: {verdict.reason}"
        for result in results
        if result.case.id in updated
        for key, verdict in result.verdicts.items()
        if verdict.kind is VerdictKind.SLOWER
    ]
    more = len(lines) - _MOST_ACCEPTED
    return [*lines[:_MOST_ACCEPTED], f"and {more} more that are slower"] if more > 0 else lines


def some_of(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")


def _which(cases: Sequence[str]) -> str:
    return cases[0] if len(cases) == 1 else f"{len(cases)} cases, {cases[0]} among them"


def _options(config: pytest.Config) -> list[str]:
    _, given, _ = values_of(config)
    options = []
    for option in OPTIONS:
        value = given[option.name]
        if option.name in _SHAPE_RECORDS and value:
            values = value if isinstance(value, list) else [value]
            options += [option.cli if option.flag else f"{option.cli}={text}" for text in values]
    return options
