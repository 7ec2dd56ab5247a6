"""Makes each form of a run's report, by the table of `values/form_table.py`, of one value."""

from __future__ import annotations

import dataclasses
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_gpukern.baseline.merge import WriteReport
from pytest_gpukern.baseline.store import ToPrune
from pytest_gpukern.report.run import EmptyReportError, RunResults
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.form_table import FORMS, suffix_of
from pytest_gpukern.values.result import JsonDict
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.untrusted_json import FileError


@dataclass(frozen=True)
class RunReport(RunResults):
    """Holds what a run found out, and what only the process knows that ran it.

    Attributes:
        places: test → file and line of its variant, or of the test itself.
        entries: test → what pytest-benchmark's entry of it needs: the `group` of its marker, its `params`.
        listed: test → how pytest-benchmark lists it, of tests that used that plugin's fixture.
        shortened: why fewer sessions were recorded than asked for → cases.
        stale: recorded cases that no longer exist, by file.
        shaping: the run's options without which other cases would be recorded, or elsewhere.
    """

    settings: Settings = field(default_factory=Settings)
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    entries: Mapping[str, JsonDict] = field(default_factory=dict)
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    baselines: WriteReport | None = None
    shortened: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stale: Sequence[ToPrune] = ()
    shaping: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def file_content(path: Path, runs: Sequence[RunResults]) -> str | bytes:
    """Returns what a file holds that tells of runs, in the form that its suffix names.

    Raises:
        EmptyReportError: it would hold nothing.
    """
    form = FORMS[suffix_of(path) or ""]
    make: Callable[[object], str | bytes] = pkgutil.resolve_name(form.function)
    return make(runs if form.several else runs[0])


def write_forms(report: RunReport, config: pytest.Config, *, in_summary: bool = False) -> RunReport:
    """Makes the forms that apply, and returns the report with its files, and with what went wrong."""
    for path in () if in_summary else report.settings.reports:
        try:
            _write_file(report, path)
            report = dataclasses.replace(report, files=(*report.files, path))
        except FileError as error:
            report = dataclasses.replace(report, problems=(*report.problems, str(error)))
    for name, form in FORMS.items():
        asked = not form.variables or not os.environ.keys().isdisjoint(form.variables)
        holds = any(getattr(report, field_name) for field_name in form.fields)
        if not name.startswith(".") and form.in_summary == in_summary and asked and holds:
            try:
                pkgutil.resolve_name(form.function)(report, config)
            except FileError as error:
                report = dataclasses.replace(report, problems=(*report.problems, str(error)))
    return report


def _write_file(report: RunReport, path: Path) -> None:
    """Writes a file; one that has nothing to hold, too, or it would still tell of an earlier run."""
    try:
        content = file_content(path, [report])
    except EmptyReportError:
        content = ""
    write_named(path, content, "--gpukern-report")
