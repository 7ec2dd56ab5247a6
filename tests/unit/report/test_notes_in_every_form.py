"""Subjects of notes → every form of the report: properties of each subject."""

import pytest
from made_up_results import measured, result
from test_report_html import data_of

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.terminal import render
from pytest_gpukern.values.note import About, Note

TEXT = "the moon is full"


@pytest.fixture(params=About)
def note(request):
    return Note(TEXT, request.param)


@pytest.fixture(params=["of the result", "of a measurement"])
def run(request, note):
    if request.param == "of the result":
        return RunResults([result("cupy.exp", measured(), notes=(note,))])
    return RunResults([result("cupy.exp", measured(notes=(note,)))])


def lines_of(run, *, verbose):
    return [line.text for line in render(run, width=120, verbose=verbose)]


def test_a_short_report_tells_it_as_its_subject_says(run, note):
    lines = lines_of(run, verbose=False)
    assert (f"note vector_exp/cupy.exp/n=1000: {TEXT}" in lines) == (not note.about.counted)
    assert any(TEXT in line for line in lines) == (not note.about.counted)


def test_a_long_report_and_the_page_tell_it(run):
    assert any(TEXT in line for line in lines_of(run, verbose=True))
    (case,) = data_of(run)["runs"][0]["cases"]
    assert ["", TEXT, ""] in case["told"]
