"""Tests what observers may see, and in which order they are asked; a new one runs in `tests/plugin`."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from made_up_results import measured
from made_up_results import result as made_up_result

from pytest_gpukern.measure import observers
from pytest_gpukern.measure.device_clocks import CLOCKS
from pytest_gpukern.measure.observers import (
    OBSERVERS,
    Figure,
    ObservedCall,
    ObservedTest,
    ObserverRow,
    Observers,
    Seen,
    SeenInTest,
)
from pytest_gpukern.values.result import Finding

FIGURES = {
    "batches": Figure("batches"),
    "gusts_m_per_s": Figure("gusts", "m/s"),
    "windows": Figure("open windows"),
}


@pytest.fixture
def draft(monkeypatch):
    """A row of the table."""
    monkeypatch.setitem(OBSERVERS, "draft", ObserverRow("no_module:Draft", "draft", FIGURES))


def test_a_value_that_the_row_does_not_declare_is_refused_with_the_names_that_it_has(draft):
    measurement = measured()
    assert Seen({"windows": 1}).added_to(measurement, "draft").observations == {"draft": {"windows": 1}}
    with pytest.raises(
        ValueError, match=r"draft saw 'doors', .* its figures are batches, gusts_m_per_s, windows"
    ):
        Seen({"doors": 1}).added_to(measurement, "draft")


def test_the_first_reason_why_a_measurement_is_invalid_stays():
    seen = Seen(invalid="it blew the clock over")
    assert seen.added_to(measured(), "draft").invalid == "it blew the clock over"
    assert seen.added_to(measured(invalid="too short"), "draft").invalid == "too short"


def test_what_is_no_clock_in_a_run_of_somebody_is_unknown():
    hostile = {"sm_mhz": "fast", "sm_mhz_low": math.inf, "memory_mhz": 2**63}
    time = measured(observations={CLOCKS: hostile})
    assert [time.seen(CLOCKS, figure) for figure in (*hostile, "sm_mhz_high")] == [None, None, 2**63, None]


def test_figures_and_findings_of_a_test_are_gathered_and_added_to_its_result(draft, monkeypatch):
    found = Finding("draft", "a window is open")
    seen = {"draft": SeenInTest({"windows": 2}, found), "calm": SeenInTest({}), "blind": None}

    def class_of(name):
        return lambda *_: SimpleNamespace(name=name, end_test=lambda *, passed, let_go: seen[name])

    monkeypatch.setattr(observers, "resolve_name", class_of)
    observed = Observers(None, {name: ObserverRow(name) for name in seen}).end_test(passed=True, let_go=list)
    assert observed == ObservedTest({"draft": {"windows": 2}}, (found,))
    result = observed.added_to(observed.added_to(made_up_result()))
    assert (result.observations, result.findings) == ({"draft": {"windows": 2}}, (found, found))


def test_the_first_row_is_nearest_to_what_is_timed(monkeypatch):
    order = []

    def class_of(row):
        def observe(call, timer):
            order.append(row)
            return row

        return lambda name, bench: SimpleNamespace(name=name, observe=observe)

    monkeypatch.setattr(observers, "resolve_name", class_of)
    watching = Observers(None, {name: ObserverRow(name) for name in ("near", "far")})
    found = watching.observe(ObservedCall(on_gpu=True), None)
    assert (order, [*found.items()]) == (["far", "near"], [("near", "near"), ("far", "far")])
