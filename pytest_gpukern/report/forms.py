"""Lists the forms of a report, and holds the one value that each of them is made of.

A new form is a module with a function `write(report, config)` and a row in `FORMS`.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_gpukern.report.run import Run
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.untrusted_json import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpukern.baseline.store import WriteReport
    from pytest_gpukern.values.result import JsonDict


@dataclass(frozen=True)
class RunReport(Run):
    """Holds what a run found out, and what only the process knows that ran it.

    Attributes:
        settings: what the run was asked to do.
        places: test → file and line of its variant, or of the test itself.
        groups: test → group that its marker names for pytest-benchmark, if any.
        listed: test → how pytest-benchmark lists it, of tests that used that plugin's fixture.
        baselines: what was written to baselines, or None.
        shortened: why fewer sessions were recorded than asked for → cases.
        stale: recorded cases that no longer exist.
        files: what forms wrote before.
        others: those of `Run`.
    """

    settings: Settings = field(default_factory=Settings)
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    groups: Mapping[str, str | None] = field(default_factory=dict)
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    baselines: WriteReport | None = None
    shortened: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stale: Sequence[str] = ()
    files: tuple[Path, ...] = ()


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


_OF_GITHUB = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
"""Variables of the environment, one of which a step of GitHub Actions has."""

FORMS: Mapping[str, Form] = {
    "run file": Form("pytest_gpukern.report.run_file", lambda run: run.settings.output is not None),
    "html": Form("pytest_gpukern.report.html", lambda run: run.settings.html is not None),
    "pytest-benchmark": Form("pytest_gpukern.benchmark_interop.publishing", lambda run: bool(run.results)),
    "GitHub": Form(
        "pytest_gpukern.report.github",
        lambda run: bool(run.results or run.failures) and not os.environ.keys().isdisjoint(_OF_GITHUB),
    ),
    "terminal": Form(
        "pytest_gpukern.report.terminal",
        lambda run: bool(run.results or run.skips or run.rejected or run.problems),
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
