"""The table of report forms: a new one is a module and a row."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from made_up_results import result

from pytest_gpukern.report.forms import FORMS, Form, RunReport, write_forms
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.untrusted_json import FileError

RESULTS = (result("cupy.exp"), result("numba.exp"))
HTML = Path("report.html")


@pytest.fixture
def html(monkeypatch):
    """A form that is no part of the package: its module, and its row."""
    module = ModuleType("html_report")
    module.seen = []

    def write(report, config):
        module.seen.append(([each.case.id for each in report.results], config))
        return HTML

    module.write = write
    monkeypatch.setitem(sys.modules, "html_report", module)
    return module


def test_a_new_form_is_a_module_with_write_and_a_row(html):
    report = RunReport(RESULTS)
    done = write_forms(report, "config", forms={"html": Form("html_report", lambda run: bool(run.results))})
    assert html.seen == [([each.case.id for each in RESULTS], "config")]
    assert done.files == (HTML,)
    assert report.files == ()


def test_the_module_of_a_form_that_does_not_apply_is_not_loaded():
    forms = {"html": Form("no_such_module", lambda run: bool(run.results))}
    report = RunReport()
    assert write_forms(report, None, forms=forms) == report


def test_the_summary_is_made_after_all_other_forms(html):
    forms = {"html": Form("html_report", lambda _: True, in_summary=True)}
    write_forms(RunReport(), None, forms=forms)
    assert html.seen == []
    write_forms(RunReport(), None, in_summary=True, forms=forms)
    assert len(html.seen) == 1


def test_a_form_that_cannot_be_written_is_a_problem_and_the_others_are_made(html):
    bad = ModuleType("bad_report")

    def write(report, config):
        raise FileError(Path("r.xml"), "is a folder", "Choose another file")

    bad.write = write
    sys.modules["bad_report"] = bad
    try:
        forms = {name: Form(f"{name}_report", lambda _: True) for name in ("bad", "html")}
        done = write_forms(RunReport(RESULTS), None, forms=forms)
    finally:
        del sys.modules["bad_report"]
    assert len(html.seen) == 1
    assert done.files == (HTML,)
    (problem,) = done.problems
    assert "r.xml" in problem


def test_what_a_run_found_decides_which_forms_it_has():
    def forms_of(report):
        return [name for name, form in FORMS.items() if form.applies(report)]

    assert forms_of(RunReport()) == []
    assert forms_of(RunReport(skips=[("x", "no GPU")])) == ["terminal"]
    assert forms_of(RunReport(RESULTS)) == ["pytest-benchmark", "terminal"]
    assert forms_of(RunReport(settings=Settings(output=Path("run.json")))) == ["run file"]
