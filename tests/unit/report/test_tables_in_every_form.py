"""Tables of verdict kinds, of notes' subjects and of observers → every form of the report.

Each property holds for every row of a table, and for one that is added.
"""

import csv
import dataclasses
import io
import json

import pytest
from made_up_results import measured, result, verdict
from made_up_runs import CREATED, write_run_file
from msgspec import structs
from test_report_html import data_of

from pytest_gpukern.findings.findings import failures
from pytest_gpukern.measure.observers import OBSERVERS, Figure, ObserverRow
from pytest_gpukern.report import units
from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.junit import properties
from pytest_gpukern.report.markdown import comment
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import render
from pytest_gpukern.values import verdict_table
from pytest_gpukern.values.failure_table import FAILURES, with_verdicts
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Finding
from pytest_gpukern.values.verdict_table import STATES, StateRow, Tone, VerdictKind

WHERE = "vector_exp/cupy.exp/n=1000"


def text_of(run, *, verbose):
    return "\n".join(line.text for line in render(run, width=200, verbose=verbose))


# --- verdicts -------------------------------------------------------------------------------------

MADE_UP = StateRow(Tone.BAD, 3, fail_on="slower", compared=True, changed=True, shows_reason=True)


@pytest.fixture(params=[*VerdictKind, *Tone])
def kind(request, monkeypatch):
    """A kind of the table, and one of each tone that somebody adds to it by a row."""
    if isinstance(request.param, VerdictKind):
        return request.param
    word, row = "MADE-UP", MADE_UP._replace(tone=request.param)
    added = VerdictKind.__new_member__(VerdictKind, word, row)
    added._name_ = word
    monkeypatch.setitem(VerdictKind._member_map_, word, added)
    monkeypatch.setitem(VerdictKind._value2member_map_, word, added)
    monkeypatch.setattr(VerdictKind, "_member_names_", [*VerdictKind._member_names_, word])
    monkeypatch.setitem(STATES, word, row)
    assert verdict_table.VerdictKind(word) is added
    return added


@pytest.fixture
def run(kind):
    judged = structs.replace(verdict(kind, 1.25, "the moon is full"), ratio_low=1.2, ratio_high=1.3)
    return RunResults([result("cupy.exp", measured(), verdicts=[judged])])


@pytest.fixture
def failed_run(run):
    """The same where each kind of `--gpukern-fail-on` fails a test."""
    (case,) = run.results
    reasons = tuple(failures(case, FAILURES))
    return dataclasses.replace(
        run, failures={case.nodeid: Failure(str(reasons[0]), reasons)} if reasons else {}
    )


def test_the_terminal_shows_the_word_counts_it_and_tells_its_reason_where_the_table_says_so(run, kind):
    text = text_of(run, verbose=True)
    assert f"  {kind}" in text
    assert f"1 {kind.lower()}" in text
    assert ("the moon is full" in text) == kind.row.shows_reason


def test_what_is_told_is_on_the_screen_of_a_run_without_v_too(run, kind):
    lines = text_of(run, verbose=False).splitlines()
    told = [line for line in lines if line.startswith(f"{kind.lower()} ") and "vector_exp/cupy.exp" in line]
    assert bool(told) == kind.row.shows_reason


def test_the_page_has_the_word_its_tone_and_its_rank(run, kind):
    data = data_of(run)
    (row,) = data["runs"][0]["rows"]
    assert row["state"] == kind
    assert data["tones"][kind] == kind.row.tone
    assert row["rank"] == kind.row.severity


def test_a_comment_counts_it_and_names_it_where_it_failed_or_changed(run, failed_run, kind):
    assert f"1 {kind.lower()}" in comment(run)
    assert (f"| {kind} |" in comment(run)) == kind.row.shows_reason
    assert (f"| **{kind}** |" in comment(failed_run)) == bool(failed_run.failures)


def test_the_table_and_the_properties_of_junit_have_the_word(run, kind):
    assert f",{kind}," in csv_text([run])
    assert ("gpukern.verdict", kind) in properties(run)


def test_it_fails_a_test_by_its_kind_of_the_option_or_always_or_never(run, kind):
    (case,) = run.results
    assert not kind.row.fail_on or kind.row.fail_on in FAILURES
    assert bool(failures(case, ())) == kind.row.always_fails
    assert bool(failures(case, FAILURES)) == bool(kind.row.fail_on or kind.row.always_fails)


def test_the_option_knows_a_word_that_only_the_row_of_a_verdict_names():
    word = StateRow(Tone.BAD, 3, fail_on="made-up")
    added = VerdictKind.__new_member__(VerdictKind, "MADE-UP", word)
    rows = with_verdicts(FAILURES, [*VerdictKind, added])
    assert rows.keys() - FAILURES.keys() == {"made-up"}
    assert rows["made-up"].fails == "a time is MADE-UP"


# --- findings -------------------------------------------------------------------------------------


def test_a_finding_is_in_every_form_and_says_how_a_weaker_check_is_accepted_in_a_pull_request(tmp_path):
    weak = Finding("weaker", "y: rtol 1e-06 → 0.01")
    made = result("cupy.exp", measured(), verdicts=[verdict("SAME", 1.0)], findings=(weak,))
    run = RunResults([made], compared_with="against 0f3a2b1")
    assert f"weaker {WHERE}: {weak.text}" in " ".join(text_of(run, verbose=False).split())
    assert weak.text in json.dumps(data_of(run), ensure_ascii=False)
    assert f"weaker: {weak.text}" in csv_text([run])
    assert ("gpukern.findings", f"weaker: {weak.text}") in properties(run)
    write_run_file(tmp_path / "run.json", run)
    assert read_run(tmp_path / "run.json").results == (made,)
    assert "1e-06 → 0.01" in comment(run)
    assert "on purpose" not in comment(run)
    reasons = tuple(failures(made, FAILURES))
    failed = dataclasses.replace(run, failures={made.nodeid: Failure(str(reasons[0]), reasons)})
    assert "label `weaker on purpose`. Elsewhere: no `weaker` in `--gpukern-fail-on`." in comment(failed)
    assert "slower on purpose" not in comment(failed)


# --- notes ----------------------------------------------------------------------------------------

TEXT = "the moon is full"


@pytest.fixture(params=About)
def note(request):
    return Note(TEXT, request.param)


@pytest.fixture(params=["of the result", "of a measurement"])
def noted(request, note):
    if request.param == "of the result":
        return RunResults([result("cupy.exp", measured(), notes=(note,))])
    return RunResults([result("cupy.exp", measured(notes=(note,)))])


def test_a_short_report_tells_a_note_as_its_subject_says_and_a_long_one_and_the_page_tell_each(noted, note):
    short = text_of(noted, verbose=False)
    assert (f"note {WHERE}: {TEXT}\n" in short) == (TEXT in short) == (note.about is About.READER)
    assert TEXT in text_of(noted, verbose=True)
    (case,) = data_of(noted)["runs"][0]["cases"]
    assert ["", TEXT, ""] in case["told"]


# --- observers ------------------------------------------------------------------------------------

FAN = {"speed_rpm": Figure("speed", "rpm"), "maker": Figure("made by")}
FAN |= {name: Figure(name) for name in ("silent", "noises")}
ROWS = {**OBSERVERS, "fan": ObserverRow("windy.fan:FanObserver", "fan", FAN)}
SEEN = [(observer, figure) for observer, row in ROWS.items() if row.in_reports for figure in row.figures]
OTHER_VALUES = {"silent": False, "noises": ("hum", "rattle"), "maker": "Wind & Co"}
OTHER_VALUES["clock_events"] = ("sync_boost", "gpu_idle")


@pytest.fixture
def fan(monkeypatch):
    monkeypatch.setitem(OBSERVERS, "fan", ROWS["fan"])


@pytest.mark.parametrize("of", ["measurement", "test"])
@pytest.mark.parametrize(("observer", "figure"), SEEN)
def test_each_figure_of_each_observer_is_in_every_form(fan, tmp_path, observer, figure, of):
    value = OTHER_VALUES.get(figure, 0.71875)
    seen = {observer: {figure: value}}
    if of == "test":
        made = result("cupy.exp", measured(), observations=seen)
    else:
        made = result("cupy.exp", measured(observations=seen))
    label, unit = OBSERVERS[observer].figures[figure]
    text = f"{OBSERVERS[observer].label}: {label} {units.quantity(value, unit)}"
    where = WHERE + (" · kernel/event/cold" if of == "measurement" else "")
    run = RunResults((made,))

    assert f"{where} · {text}\n" in text_of(run, verbose=True)
    assert text not in text_of(run, verbose=False)
    row = [where.partition(" · ")[2], *text.split(": ", 1)]
    assert json.dumps([row]) in json.dumps(data_of(run))
    (cells,) = csv.DictReader(io.StringIO(csv_text([run])))
    joined = " ".join(value) if isinstance(value, tuple) else str(value).replace("False", "false")
    assert cells[f"{observer}.{figure}"] == joined
    write_run_file(tmp_path / "run.json", run)
    assert read_run(tmp_path / "run.json").results == (made,)


def test_what_somebody_elses_observer_saw_is_shown_by_its_own_names():
    made = result("cupy.exp", measured(observations={"draft": {"windows": 2}, "clocks": {"sm_mhz": "fast"}}))
    text = text_of(RunResults((made,)), verbose=True)
    assert "draft: windows 2" in text
    assert "device: SM clock fast" in text


def test_what_only_compares_cards_makes_no_report_louder():
    seen = {"card": {"remapped_rows": 0, "pcie.width": 16}}
    quiet, same = (
        RunResults((result("cupy.exp", measured(), observations=values),), created=CREATED)
        for values in (seen, {})
    )
    assert text_of(quiet, verbose=True) == text_of(same, verbose=True)
    assert csv_text([quiet]) == csv_text([same])
