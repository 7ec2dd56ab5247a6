"""Says at the end of a run what was written and what is stale, how to record and how to accept."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence

import pytest

from pytest_gpukern.baseline.merge import WriteReport, confirmed_slower
from pytest_gpukern.baseline.store import ToPrune
from pytest_gpukern.measure.host_load import BUSY_HOST, LOAD, OTHERS_SHARE
from pytest_gpukern.package import FOLDER
from pytest_gpukern.report import units
from pytest_gpukern.report.run import BASELINE, CODE_ON_RECORD, NextStep, RunResults
from pytest_gpukern.report.units import SHOWN
from pytest_gpukern.values.failure_table import BY_DEFAULT, FAILURES, KIND_OF_FINDING
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.note import NO_GPU, About
from pytest_gpukern.values.options import OPTIONS, try_the_simulator, values_of
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.verdict_table import STATES, VerdictKind

_SHAPE_RECORDS = ("all", "device", "timer", "cache", "scope", "backend", "size", "axis", "baseline-dir")

_MOST_FILES = 4


def record_lines(report: RunResults, config: pytest.Config) -> list[str | NextStep]:
    """Says what was written, how to record and accept, what was not recorded, is stale or was unpoisoned."""
    settings, results = report.settings, report.results
    lines: list[str | NextStep] = []
    if settings.benchmark and settings.baseline == "compare":
        lines += [_to_create(report, config), _to_accept(report), _to_keep(report)]
    lines += [f"{reason} ({units.named(cases, SHOWN)})" for reason, cases in report.shortened.items()]
    if report.baselines is not None:
        lines += _written(report.baselines, results)
    lines += [_of_gone(stale, config) for stale in report.stale]
    unpoisoned = [of.case.id for of in results if any(note.about is About.UNPOISONED for note in of.notes)]
    if unpoisoned:
        remedy = "declare what the call writes with outputs= or inout="
        lines.append(f"never poisoned, so old memory may pass: {units.named(unpoisoned, SHOWN)}; {remedy}")
    if not settings.requested and any(skip.kind == NO_GPU for skip in report.skips):
        lines.append(try_the_simulator(config))
    return [line for line in lines if line]


def _to_create(report: RunResults, config: pytest.Config) -> str | NextStep:
    """Returns the command that records what is new, or nothing."""
    new = _judged_as(VerdictKind.NEW, report.results)
    if not new:
        return ""
    here = config.invocation_params.dir
    paths = [config.rootpath / result.nodeid.partition("::")[0] for result in new]
    if len(set(paths)) > _MOST_FILES:
        paths = [here / argument.partition("::")[0] for argument in config.args]
    files = list(dict.fromkeys(os.path.relpath(path, here) for path in paths))
    command = ["pytest", *files, "--gpu-benchmark", "--gpukern-baseline=create", *report.shaping]
    if all(FOLDER in path.parents for path in paths):  # records there would go with the next installation
        elsewhere = [] if config.getoption("gpukern_baseline_dir") else ["--gpukern-baseline-dir=FOLDER"]
        command = ["gpukern", "validate", "--gpukern-baseline=create", *elsewhere, *report.shaping]
    kinds = [verdict.kind for result in new for verdict in result.verdicts.values()]
    many = f"{units.counted(kinds.count(VerdictKind.NEW), 'time')} of {units.counted(len(new), 'case')} new"
    what = "nothing is on record yet" if report.nothing_recorded else many
    return NextStep(f"{what}; to record", shlex.join(command))


def _to_accept(report: RunResults) -> str | NextStep:
    """Returns the command that accepts what became slower where no failure says it, or nothing.

    Each failed test has its own command; of many we show how one accepts them together.
    """
    with_hosts = "host" in report.settings.fail_on
    slower = [
        result for result in report.results if (result.case.on_gpu or with_hosts) and confirmed_slower(result)
    ]
    if len(slower) <= SHOWN and all(result.nodeid in report.failures for result in slower):
        return ""
    return NextStep(f"{units.counted(len(slower), 'case')} slower; if that is meant", accept(report, slower))


def accept(run: RunResults, slower: Sequence[Result]) -> str:
    """Returns the command that takes times or code for the new normal; nothing where no record counted.

    A run that was written to a file is merged, in the run's rootdir; else the tests measure again. Machine
    code is compiled again.
    """
    if run.compared_with not in (BASELINE, CODE_ON_RECORD):
        return ""
    written, folder = run.settings.run_file, run.settings.baseline_dir
    file = os.path.relpath(written) if written is not None else run.name
    if not file or any(result.code for result in slower):
        return shlex.join(_update(run, slower))
    cases = ["CASE…"] if len(slower) > SHOWN else [result.case.id for result in slower]
    into = ["--into", os.path.relpath(folder)] if folder is not None else []
    return shlex.join(["gpukern", "baseline", "merge", file, *into, "--accept", *cases, "--reason", "TEXT"])


def _to_keep(report: RunResults) -> str | NextStep:
    """Returns the command that records what became faster, so that its loss is seen, or nothing."""
    faster = [result for result in _judged_as(VerdictKind.FASTER, report.results) if result.case.on_gpu]
    command = shlex.join(_update(report, faster))
    label = f"{units.counted(len(faster), 'case')} faster; to gate at the new time"
    return NextStep(label, command) if faster else ""


def _judged_as(kind: VerdictKind, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if any(v.kind is kind for v in result.verdicts.values())]


def _of_gone(stale: ToPrune, config: pytest.Config) -> NextStep:
    """Returns the command that removes records of cases that no longer exist; one may have a new name."""
    file = os.path.relpath(stale.file, config.invocation_params.dir)
    number = len(stale.ids)
    gone = "1 recorded case no longer exists" if number == 1 else f"{number} recorded cases no longer exist"
    command = shlex.join(["gpukern", "baseline", "prune", file, "--case", *stale.ids])
    gone += f": {units.named(stale.ids, SHOWN)}; gpukern baseline rename keeps a record; to remove"
    return NextStep(gone, command)


def _update(run: RunResults, results: Sequence[Result]) -> list[str]:
    tests = [result.nodeid for result in results]
    what = _compiled(results) or ["--gpu-benchmark"]
    update = [*what, "--gpukern-baseline=update", "--gpukern-reason=TEXT"]
    which = _selecting(tests, results if any(result.code for result in results) else (), "TEST…")
    return ["pytest", *which, *update, *run.shaping]


def _selecting(tests: Sequence[str], results: Iterable[Result], otherwise: str) -> list[str]:
    """Returns what selects tests: their names; of many, where all are of one variant, that one."""
    variants = {f"{result.case.problem}/{result.case.label}" for result in results}
    variant = variants.pop() if len(variants) == 1 else ""
    if len(tests) <= SHOWN:
        return [*tests]
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return [*files, "-k", variant] if variant and all(variant in test for test in tests) else [otherwise]


def _compiled(results: Iterable[Result], otherwise: Sequence[str] = ()) -> list[str]:
    architectures = {name: None for result in results for name in result.code} or otherwise
    return [f"--gpukern-code={','.join(architectures)}"] if architectures else []


def repeat(run: RunResults, tests: Sequence[str], results: Sequence[Result | None]) -> str:
    """Returns the command that runs tests again, with the options by which they failed; many by --lf.

    A baseline names cases, and no tests to run.
    """
    known = [result for result in results if result is not None]
    if any(result.nodeid == result.case.id for result in known):
        return ""
    simulated = any(result.simulated for result in known)
    seeds = {result.seed for result in known if result.seed is not None}
    which = _selecting(tests, known if len(known) == len(results) else (), "--lf")
    how = ["--gpu-benchmark"] if run.benchmarks and not simulated else []
    how += ["--gpukern-simulator=always"] if simulated else []
    code = _compiled(known, run.settings.code)
    how += code
    how += [f"--gpukern-against={run.base}"] if run.base and (code or "--gpu-benchmark" in how) else []
    hosts = {result.nodeid for result in known if not result.case.on_gpu}
    kinds = {by: None for test in tests for by in _fails_by(run, test, on_host=test in hosts)}
    how += [f"--gpukern-fail-on={','.join(kinds)}"] if kinds else []
    how += [f"--gpukern-seed={seeds.pop()}"] if len(seeds) == 1 else []
    return shlex.join(["pytest", *which, *how])


def _fails_by(run: RunResults, test: str, *, on_host: bool) -> Iterator[str]:
    """Yields the kinds of `--gpukern-fail-on` by which a test failed, without those that fail by default."""
    for reason in run.failures[test].reasons if test in run.failures else ():
        state = STATES.get(reason.kind)
        by = state.fail_on if state else KIND_OF_FINDING.get(reason.kind, reason.kind)
        yield from {by} & (FAILURES.keys() - {*BY_DEFAULT})
        if on_host and state and state.fail_on:
            yield "host"


def _written(report: WriteReport, results: Sequence[Result]) -> list[str]:
    lines = [f"wrote {path}" for path in report.written]
    recorded = {*report.added, *report.appended, *report.updated}
    busy = [of.case.id for of in results if of.case.id in recorded and _was_busy(of)]
    if busy:
        again = "record again while it is idle"
        lines.append(f"recorded while other programs used the host: {units.named(busy, SHOWN)}; {again}")
    reasons = grouped((refusal.reason, refusal.case_id) for refusal in report.refused)
    return lines + [f"not recorded: {why} ({units.named(cases, SHOWN)})" for why, cases in reasons.items()]


def _was_busy(result: Result) -> bool:
    return any((time.seen(LOAD, OTHERS_SHARE) or 0.0) >= BUSY_HOST for time in result.measurements)


def shaping_options(config: pytest.Config) -> tuple[str, ...]:
    """Returns the options of a run without which other cases would be recorded, or elsewhere."""
    _, given, _ = values_of(config)
    options = []
    for option in OPTIONS:
        value = given[option.name]
        if option.name in _SHAPE_RECORDS and value:
            values = value if isinstance(value, list) else [value]
            options += [option.cli if option.flag else f"{option.cli}={text}" for text in values]
    return tuple(options)
