"""What the end of a run says of records: what was written, what is stale, how to record and how to accept."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from pytest_gpukern.baseline.selection import confirmed_slower
from pytest_gpukern.values.options import OPTIONS, values_of
from pytest_gpukern.values.result import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpukern.baseline.store import WriteReport
    from pytest_gpukern.values.result import Result

_SHAPE_RECORDS = ("all", "device", "timer", "cache", "scope", "backend", "size", "axis", "baseline-dir")
"""Options of a run without which other cases would be recorded, or elsewhere."""

_MOST_FILES = 4
_SHOWN = 3
_MOST_ACCEPTED = 10


def to_create(config: pytest.Config, results: Sequence[Result]) -> list[str]:
    """The command that records what is new in a run, or nothing."""
    new = [
        result
        for result in results
        if any(verdict.kind is VerdictKind.NEW for verdict in result.verdicts.values())
    ]
    if not new:
        return []
    here = config.invocation_params.dir
    paths = [config.rootpath / result.nodeid.partition("::")[0] for result in new]
    if len(set(paths)) > _MOST_FILES:
        paths = [here / argument.partition("::")[0] for argument in config.args]
    files = list(dict.fromkeys(os.path.relpath(path, here) for path in paths))
    command = ["pytest", *files, "--gpu-benchmark", "--gpukern-baseline=create", *_options(config)]
    count = "1 case is new" if len(new) == 1 else f"{len(new)} cases are new"
    return [f"gpukern: {count}; to record: {shlex.join(command)}"]


def to_accept(
    config: pytest.Config, results: Sequence[Result], run_file: Path | None, baseline_dir: Path | None
) -> list[str]:
    """The command that accepts what the gate found slower, from the run file where there is one, or nothing.

    Args:
        config: of the run.
        results: of the run.
        run_file: what it wrote, or None.
        baseline_dir: folder that replaces `baselines/` beside each test.
    """
    slower = [result for result in results if result.case.on_gpu and confirmed_slower(result)]
    if not slower:
        return []
    root, here = config.rootpath, config.invocation_params.dir
    many = len(slower) > _SHOWN
    if run_file is not None:
        cases = ["CASE…"] if many else [result.case.id for result in slower]
        into = ["--into", os.path.relpath(baseline_dir, root)] if baseline_dir is not None else []
        file = os.path.relpath(run_file, root)
        command = ["gpukern", "baseline", "merge", file, *into, "--accept", *cases, "--reason", "TEXT"]
        where = "" if here == root else f" in {root}"
    else:
        tests = ["TEST…"] if many else [os.path.relpath(root / result.nodeid, here) for result in slower]
        update = ["--gpukern-baseline=update", "--gpukern-reason=TEXT"]
        command = ["pytest", *tests, "--gpu-benchmark", *update, *_options(config)]
        where = ""
    meant = (
        "1 case is slower; if that is meant"
        if len(slower) == 1
        else f"{len(slower)} cases are slower; if meant"
    )
    return [f"gpukern: {meant}{where}: {shlex.join(command)}"]


def lines_about_records(
    report: WriteReport | None, stale: Sequence[str], results: Sequence[Result] = ()
) -> list[str]:
    """What was written, accepted though it is slower, and refused, by reason; and what is recorded of cases
    that are no more."""
    lines = []
    if report is not None:
        lines += [f"gpukern: wrote {path}" for path in report.written]
        lines += _accepted(results, set(report.updated))
        if report.removed:
            gone = f"no longer there, so removed from the records: {_shown(report.removed)}"
            lines.append(f"gpukern: {len(report.removed)} {gone}")
        reasons: dict[str, list[str]] = {}
        for refusal in report.refused:
            reasons.setdefault(refusal.reason, []).append(refusal.case_id)
        for reason, cases in reasons.items():
            which = cases[0] if len(cases) == 1 else f"{len(cases)} cases, {cases[0]} among them"
            lines.append(f"gpukern: not recorded: {reason} ({which})")
    if stale:
        number = (
            "1 recorded case no longer exists"
            if len(stale) == 1
            else (f"{len(stale)} recorded cases no longer exist")
        )
        remedy = "--gpukern-baseline=update --gpukern-prune removes them"
        lines.append(f"gpukern: {number}: {_shown(stale)}; {remedy}")
    return lines


def _accepted(results: Sequence[Result], updated: Collection[str]) -> list[str]:
    """A line about each case whose new epoch is slower than its last one."""
    slower = [
        (result.case.id, key, verdict)
        for result in results
        if result.case.id in updated
        for key, verdict in result.verdicts.items()
        if verdict.kind is VerdictKind.SLOWER
    ]
    lines = [
        f"gpukern: recorded as a new epoch though SLOWER ({key}): {case_id}: {verdict.reason}"
        for case_id, key, verdict in slower[:_MOST_ACCEPTED]
    ]
    more = len(slower) - _MOST_ACCEPTED
    return [*lines, f"gpukern: and {more} more that are slower"] if more > 0 else lines


def _shown(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")


def _options(config: pytest.Config) -> list[str]:
    """Those options of this run that shape what is recorded, as given."""
    given = values_of(config)[1]
    options = []
    for option in OPTIONS:
        value = given[option.name]
        if option.name not in _SHAPE_RECORDS or not value:
            continue
        values = value if isinstance(value, list) else [value]
        options += [option.cli if option.flag else f"{option.cli}={each}" for each in values]
    return options
