"""Tests that what any observer sees is in every form, with no edit but its row."""

from __future__ import annotations

import csv
import io
import json

import pytest
from made_up_results import measured, result
from made_up_runs import CREATED, write_run_file
from test_report_html import data_of

from pytest_gpukern.measure.observers import OBSERVERS, Figure, ObserverRow
from pytest_gpukern.report import units
from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import render

FAN = {
    "speed_rpm": Figure("speed", "rpm"),
    "silent": Figure("silent"),
    "noises": Figure("noises"),
    "maker": Figure("made by"),
}
ROWS = {**OBSERVERS, "fan": ObserverRow("windy.fan:FanObserver", "fan", FAN)}
SEEN = [(observer, figure) for observer, row in ROWS.items() if row.told for figure in row.figures]
OTHER_VALUES = {
    "silent": False,
    "noises": ("hum", "rattle"),
    "clock_events": ("sync_boost", "gpu_idle"),
    "maker": "Wind & Co",
}


@pytest.fixture
def fan(monkeypatch):
    monkeypatch.setitem(OBSERVERS, "fan", ROWS["fan"])


def terminal(run, *, verbose=True):
    return "\n".join(line.text for line in render(run, width=200, verbose=verbose))


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
    where = "vector_exp/cupy.exp/n=1000" + (" · kernel/event/cold" if of == "measurement" else "")
    run = RunResults((made,))

    assert f"{where} · {text}\n" in terminal(run)
    assert text not in terminal(run, verbose=False)
    row = [where.partition(" · ")[2], *text.split(": ", 1)]
    assert json.dumps([row]) in json.dumps(data_of(run))
    (cells,) = csv.DictReader(io.StringIO(csv_text([run])))
    joined = " ".join(value) if isinstance(value, tuple) else str(value).replace("False", "false")
    assert cells[f"{observer}.{figure}"] == joined
    write_run_file(tmp_path / "run.json", run)
    assert read_run(tmp_path / "run.json").results == (made,)


def test_what_somebody_elses_observer_saw_is_shown_by_its_own_names():
    made = result("cupy.exp", measured(observations={"draft": {"windows": 2}, "clocks": {"sm_mhz": "fast"}}))
    text = terminal(RunResults((made,)))
    assert "draft: windows 2" in text
    assert "device: SM clock fast" in text


def test_what_only_compares_cards_makes_no_report_louder():
    seen = {"card": {"remapped_rows": 0, "pcie.width": 16}}
    quiet, same = (
        RunResults((result("cupy.exp", measured(), observations=values),), created=CREATED)
        for values in (seen, {})
    )
    assert terminal(quiet) == terminal(same)
    assert csv_text([quiet]) == csv_text([same])
