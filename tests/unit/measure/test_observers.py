"""Tests that a new observer is one file and one row, and that what it sees travels."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from fakes import FakeEnvironment, case_of, right, run
from made_up_results import measured

from pytest_gpukern.measure import observers
from pytest_gpukern.measure.device_clocks import CLOCKS, DeviceClocks
from pytest_gpukern.measure.observers import (
    OBSERVERS,
    Figure,
    Look,
    Observation,
    ObservedCall,
    ObservedTest,
    Observer,
    ObserverRow,
    Observers,
    Seen,
    SeenInTest,
)
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Finding, Result
from pytest_gpukern.values.untrusted_json import built

FIGURES = {
    "batches": Figure("batches"),
    "gusts_m_per_s": Figure("gusts", "m/s"),
    "windows": Figure("open windows"),
}


class Draft(Observer):
    """Feels a draft around each batch."""

    log: ClassVar[list[str]] = []

    def begin_test(self):
        self.log.append("test begins")

    def observe(self, call, timer):
        return DraftObservation(self.log)

    def end_test(self, *, passed, let_go):
        return SeenInTest({"windows": 2}, Finding("draft", "a window is open"))


class DraftObservation(Observation):
    def __init__(self, log):
        self.log, self.batches = log, 0

    def before(self):
        self.log.append("before")

    def after(self, batch, *, last):
        self.batches += 1
        self.log.append("after")
        return Look(fault="a gust" if self.batches == 1 else None)

    def finish(self, measurement):
        self.log.append("finish")
        return Seen(
            {"batches": self.batches, "gusts_m_per_s": None}, (Note("it is cold"),), "it blew the clock over"
        )


@pytest.fixture
def draft(monkeypatch):
    """The file and the row."""
    module = ModuleType("draft_of_tests")
    module.Draft = Draft
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(OBSERVERS, "draft", ObserverRow(module.__name__, "Draft", "draft", FIGURES))
    Draft.log.clear()
    return Draft


def test_what_it_sees_of_a_measurement_travels_with_it(draft, gpu, timer):
    result = run(case_of(right), FakeEnvironment(gpu))
    (measurement,) = result.measurements
    assert measurement.observations["draft"] == {"batches": draft.log.count("after")}
    assert Note("it is cold") in measurement.summary.notes
    assert measurement.invalid == "it blew the clock over"
    assert measurement.invalid_samples > 0, "those of the gust"
    assert Result.from_json(result.to_json()) == result
    assert draft.log[:2] == ["before", "after"]
    assert draft.log[-1] == "finish"


def test_what_it_sees_of_a_test_travels_to_the_process_that_reports(draft, gpu, timer):
    watching = Observers(FakeEnvironment(gpu))
    watching.begin_test()
    told = watching.end_test(passed=True, let_go=lambda: None).to_json()
    result = built(told, ObservedTest).added_to(run(case_of(right), FakeEnvironment(gpu)))
    assert result.observations["draft"] == {"windows": 2}
    assert result.findings == (Finding("draft", "a window is open"),)
    assert Result.from_json(result.to_json()) == result


def test_a_value_that_the_row_does_not_declare_is_refused_with_the_names_that_it_has(draft):
    measurement = measured()
    assert Seen({"windows": 1}).added_to(measurement, "draft").observations == {"draft": {"windows": 1}}
    with pytest.raises(
        ValueError, match=r"draft saw 'doors', .* its figures are batches, gusts_m_per_s, windows"
    ):
        Seen({"doors": 1}).added_to(measurement, "draft")


def test_what_is_no_clock_in_a_run_of_somebody_is_unknown():
    hostile = {"sm_mhz": "fast", "memory_mhz": 2**63, "clock_events": "sw_power_cap"}
    clocks = DeviceClocks.of(measured(observations={CLOCKS: hostile}))
    assert clocks == DeviceClocks(memory_mhz=2**63)


def test_the_first_row_is_nearest_to_what_is_timed(monkeypatch):
    order = []

    def class_of(row):
        def observe(call, timer):
            order.append(row)
            return row

        return lambda name, bench: SimpleNamespace(name=name, observe=observe)

    monkeypatch.setattr(observers, "_class_of", class_of)
    watching = Observers(None, {"near": "near", "far": "far"})
    found = watching.observe(ObservedCall("kernel", on_gpu=True), None)
    assert (order, [*found.items()]) == (["far", "near"], [("near", "near"), ("far", "far")])
