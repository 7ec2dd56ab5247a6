"""The HTML report of a run, by its option and by `gpukern report`."""

import pytest

from pytest_gpukern.cli import main as cli

from .conftest import FIRST


def test_a_run_and_its_file_make_the_same_page(recorded, monkeypatch, pytester):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-output=run.json", "--gpukern-html=report.html")
    result.stdout.fnmatch_lines(["gpukern: wrote *report.html"])
    page = (pytester.path / "report.html").read_text(encoding="utf-8")
    assert FIRST in page
    assert "SLOWER" in page
    assert cli.main(["report", "run.json", "-o", "again.html"]) == 0
    assert (pytester.path / "again.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["run.json", "-o", "a.txt"], 2, "a.txt names no form of a report: end it in .html or .md"),
        (["run.json", "run.json", "-o", "a.md"], 2, ".md is a report of one run, and 2 are given"),
        (["run.json", "missing.json", "-o", "a.html"], 3, "missing.json: cannot be read"),
        (["run.json", "-o", "no/folder.html"], 3, "no/folder.html: cannot be written"),
    ],
)
def test_what_cannot_be_reported_is_refused_with_the_reason(recorded, capsys, arguments, status, said):
    recorded("--gpukern-output=run.json")
    assert cli.main(["report", *arguments]) == status
    assert said in capsys.readouterr().err
