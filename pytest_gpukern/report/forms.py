"""Makes each form of a run's report, by the table of `values/form_table.py`, of one value."""

from __future__ import annotations

import dataclasses
import os
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.form_table import FORMS, suffix_of
from pytest_gpukern.values.untrusted_json import FileError


def file_content(path: Path, runs: Sequence[RunResults]) -> str | bytes:
    """Returns what a file holds that tells of runs, in the form that its suffix names."""
    form = FORMS[suffix_of(path) or ""]
    make: Callable[[object], str | bytes] = pkgutil.resolve_name(form.function)
    return make(runs if form.several else runs[0])


def write_forms(report: RunResults, config: pytest.Config, *, in_summary: bool = False) -> RunResults:
    """Makes the forms that apply, and returns the report with its files, and with what went wrong."""
    for path in () if in_summary else report.settings.reports:
        try:  # also where there is nothing to tell: a file must not tell of an earlier run
            write_named(path, file_content(path, [report]), "--gpukern-report")
            report = dataclasses.replace(report, files=(*report.files, path))
        except FileError as error:
            report = dataclasses.replace(report, problems=(*report.problems, str(error)))
    for name, form in FORMS.items():
        applies = not form.variables or not os.environ.keys().isdisjoint(form.variables)
        holds = any(getattr(report, field_name) for field_name in form.fields)
        if not name.startswith(".") and form.in_summary == in_summary and applies and holds:
            try:
                pkgutil.resolve_name(form.function)(report, config)
            except FileError as error:
                report = dataclasses.replace(report, problems=(*report.problems, str(error)))
    return report
