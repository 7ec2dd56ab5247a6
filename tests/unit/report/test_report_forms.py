"""The table of report forms: a new one is a function and a row."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from made_up_results import result
from made_up_runs import write_run_file

from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.forms import write_forms
from pytest_gpukern.report.run import RunResults, Skip
from pytest_gpukern.values.form_table import FORMS, ReportForm, suffix_of
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.untrusted_json import FileError

RESULTS = (result("cupy.exp"), result("numba.exp"))


def lines(runs):
    """A form of our own: the id of each case, a line each."""
    return "\n".join(each.case.id for run in runs for each in run.results)


@pytest.fixture
def forms(monkeypatch):
    """A module of forms that is no part of the package; the table has a row of it, and rows for files."""
    module = ModuleType("own_forms")
    module.seen = []
    module.lines = lines
    module.write = lambda report, config: module.seen.append((report, config))
    monkeypatch.setitem(sys.modules, "own_forms", module)
    for name in [*FORMS]:
        if not name.startswith("."):
            monkeypatch.delitem(FORMS, name)
    monkeypatch.setitem(FORMS, ".lines", ReportForm("own_forms:lines", "ids"))
    return module


def test_a_form_of_a_file_is_a_function_and_a_row_and_the_command_has_it_too(forms, tmp_path):
    path = tmp_path / "new" / "run.lines"
    done = write_forms(RunResults(RESULTS, settings=Settings(reports=(path,))), None)
    assert path.read_text().startswith("vector")
    assert (done.files, done.problems) == ((path,), ())
    write_run_file(tmp_path / "run.json", RunResults(RESULTS))
    assert cli.main(["report", str(tmp_path / "run.json"), "-o", str(tmp_path / "run.lines")]) == 0
    assert (tmp_path / "run.lines").read_text() == path.read_text()


def test_a_file_of_a_run_without_anything_for_it_tells_no_more_of_an_earlier_run(forms, tmp_path):
    path = tmp_path / "run.lines"
    path.write_text("vector")
    assert write_forms(RunResults(settings=Settings(reports=(path,))), None).files == (path,)
    assert path.read_text() == ""


def test_a_file_that_cannot_be_written_is_a_problem_and_the_others_are_made(forms, tmp_path):
    (tmp_path / "file").write_text("")
    bad, good = tmp_path / "file" / "run.lines", tmp_path / "run.lines"
    done = write_forms(RunResults(RESULTS, settings=Settings(reports=(bad, good))), None)
    assert done.files == (good,)
    (problem,) = done.problems
    assert problem.startswith(f"{bad}: cannot be written")
    assert "--gpukern-report" in problem


def test_another_form_is_made_where_one_of_its_fields_holds_something_and_else_not_loaded(forms, monkeypatch):
    skips, named = ("results", "skips"), {"variables": ("NONE",)}
    monkeypatch.setitem(FORMS, "own", ReportForm("own_forms:write", fields=skips))
    monkeypatch.setitem(FORMS, "other", ReportForm("no_such_module:write", fields=("results",)))
    monkeypatch.setitem(FORMS, "named", ReportForm("no_such_module:write", fields=skips, **named))
    write_forms(RunResults(rejected=["x"]), "config")
    assert forms.seen == []
    report = RunResults(skips=[Skip("x", "no GPU")])
    assert write_forms(report, "config") == report
    assert forms.seen == [(report, "config")]


def test_the_summary_is_made_after_all_other_forms_and_what_fails_is_a_problem(forms, monkeypatch):
    def write(report, config):
        raise FileError(Path("r.xml"), "is a folder", "Choose another file")

    monkeypatch.setattr(forms, "write", write)
    monkeypatch.setitem(FORMS, "own", ReportForm("own_forms:write", fields=("results",), in_summary=True))
    assert write_forms(RunResults(RESULTS), None).problems == ()
    (problem,) = write_forms(RunResults(RESULTS), None, in_summary=True).problems
    assert "r.xml" in problem


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("run.json", ".json"), ("a.csv.JSON", ".json"), ("r.html.txt", None), (".json", None)],
)
def test_the_last_suffix_says_the_form(name, suffix):
    assert suffix_of(Path(name)) == suffix
