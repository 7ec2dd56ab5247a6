"""Lists the forms of a report, and holds the one value that each of them is made of.

A new form is a module with a function `write(report, config)` and a row in `FORMS`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.untrusted_json import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpukern.baseline.store import WriteReport
    from pytest_gpukern.findings.common_shift import Compared, Shift
    from pytest_gpukern.values.result import JsonDict, Result

Skip = tuple[str, str]
"""Id of a case or a test that did not run, and why, in words."""


@dataclass(frozen=True)
class RunReport:
    """Holds what a run found out and wrote.

    Attributes:
        results: one a test, in the order in which they arrived.
        settings: what the run was asked to do.
        sessions: test → what its further and confirming sessions found, oldest first.
        skips: id and reason of each case or test that did not run.
        failed: tests that failed for whatever reason.
        failed_by_themselves: those of them that have a result and that not the gate failed → first line of
            the failure.
        failed_by_the_gate: those whose failure is the gate's.
        groups: test → group that its marker names for pytest-benchmark, if any.
        listed: test → how pytest-benchmark lists it, of tests that used that plugin's fixture.
        compared: results that have a ratio, each with the recorded sessions that it was compared with.
        shift: how the times of all of them moved together; None where they are too few.
        compared_with: what verdicts are about, in words.
        heading: lines above the tables.
        closing: lines below them.
        baselines: what was written to baselines, or None.
        shortened: why fewer sessions were recorded than asked for → cases.
        stale: recorded cases that no longer exist.
        files: what forms wrote before.
        problems: what went wrong in the run as a whole.
    """

    results: Sequence[Result] = ()
    settings: Settings = field(default_factory=Settings)
    sessions: Mapping[str, Sequence[Result]] = field(default_factory=dict)
    skips: Sequence[Skip] = ()
    failed: frozenset[str] = frozenset()
    failed_by_themselves: Mapping[str, str] = field(default_factory=dict)
    failed_by_the_gate: frozenset[str] = frozenset()
    groups: Mapping[str, str | None] = field(default_factory=dict)
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    compared: Sequence[Compared] = ()
    shift: Shift | None = None
    compared_with: str = "baseline"
    heading: Sequence[str] = ()
    closing: Sequence[str] = ()
    baselines: WriteReport | None = None
    shortened: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stale: Sequence[str] = ()
    files: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """Says where a form of the report is made, and when.

    Attributes:
        module: has `write(report, config)`, which returns the file that it wrote or None, and raises
            `FileError` where it cannot. It is imported only when the form applies.
        applies: whether a run has this form.
        in_summary: it is part of pytest's summary, which is made after all others and tells of them.
    """

    module: str
    applies: Callable[[RunReport], bool]
    in_summary: bool = False


FORMS: Mapping[str, Form] = {
    "run file": Form("pytest_gpukern.report.run_file", lambda run: run.settings.output is not None),
    "pytest-benchmark": Form("pytest_gpukern.benchmark_interop.publishing", lambda run: bool(run.results)),
    "terminal": Form(
        "pytest_gpukern.report.terminal",
        lambda run: bool(run.results or run.skips or run.problems),
        in_summary=True,
    ),
}


def write_forms(
    report: RunReport,
    config: pytest.Config,
    *,
    in_summary: bool = False,
    forms: Mapping[str, Form] = FORMS,
) -> RunReport:
    """Makes the forms that apply, and returns the report with their files, and with what went wrong."""
    for form in forms.values():
        if form.in_summary != in_summary or not form.applies(report):
            continue
        try:
            path = import_module(form.module).write(report, config)
        except FileError as error:
            report = dataclasses.replace(report, problems=(*report.problems, str(error)))
        else:
            report = dataclasses.replace(report, files=(*report.files, *([path] if path else ())))
    return report
