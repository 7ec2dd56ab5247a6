"""One session of the gate's self-test, with a GPU that is made up: what is measured, in which order."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fakes import FakeEnvironment, FakeTimer

from pytest_gpukern.selftest import gate_kernels, gate_session, rivals
from pytest_gpukern.selftest import kernels as selftest_kernels
from pytest_gpukern.selftest.gate_kernels import gate_cases
from pytest_gpukern.selftest.gate_session import run_gate_session
from pytest_gpukern.timers.timer import NothingLaunched, TimerUnavailable
from pytest_gpukern.values.settings import Settings

NAMES = [case.id for case in gate_cases()]
NVBENCH_NAMES = {
    f"{base}{more}, cold" for base in ("fma 9600 trips", "add 32 M f64") for more in ("", " +1 %", " +5 %")
}


class Kernels:
    """Launches that are noted; `wrong` has case → what is said of it, at the n-th check."""

    def __init__(self, machine, cases):
        self.machine, self.cases = machine, cases
        self.stream = "the timed stream"
        self.checks = dict.fromkeys((case.id for case in cases), 0)

    def launch(self, case):
        return lambda: None

    def on_handle(self, case, handle):
        return lambda: self.machine.events.append(f"{case.id} on {handle}")

    def fault(self, case):
        self.checks[case.id] += 1
        self.machine.note("check")
        return self.machine.wrong.get((case.id, self.checks[case.id]))

    def close(self):
        self.machine.events.append("freed")


class Timer(FakeTimer):
    def __init__(self, name, machine):
        super().__init__(name)
        self.machine = machine

    def collect(self, iterations, *, cold):
        if self.machine.refuses and self.name == "cupti":
            raise self.machine.refuses
        return super().collect(iterations, cold=cold)


class Machine:
    """What a test may break, and what happened."""

    def __init__(self, monkeypatch):
        self.events, self.saved, self.wrong, self.timers = [], [], {}, []
        self.no_cupti = self.refuses = None
        self.installed = True
        cupy = SimpleNamespace(name="cupy", current=nullcontext)
        settings = Settings(benchmark=True, asked=True, baseline="off")
        self.environment = FakeEnvironment(cupy, settings=settings)
        self.environment.close = lambda: self.events.append("closed")
        patch = monkeypatch.setattr
        patch(gate_session, "session_environment", lambda: self.environment)
        patch(gate_kernels, "GateKernels", lambda cases: Kernels(self, cases))
        patch(gate_session, "open_timer", self.gpu_timer)
        patch(gate_session, "wall_clock", self.wall_clock)
        patch(gate_session, "nvbench_benchmarks", self.nvbench)
        patch(selftest_kernels, "synchronize", lambda: None)
        patch(rivals, "installed", lambda module: self.installed)

    def note(self, event):
        if not self.events or self.events[-1] != event:
            self.events.append(event)

    def gpu_timer(self, name, stream):
        assert stream == "the timed stream"
        if name == "cupti" and self.no_cupti:
            raise TimerUnavailable(self.no_cupti)
        self.note("timer")
        self.timers.append(name)
        return Timer(name, self)

    def wall_clock(self, launch, synchronize):
        launch()
        self.note("wall")
        return 5000.0

    def nvbench(self, launches):
        self.events.append("nvbench")
        for make in launches.values():
            make(99)()
        values = {"mean": 4e-6, "stdev/relative": 0.01}
        summaries = [
            {"tag": f"nv/cold/time/gpu/{name}", "data": [{"name": "value", "value": value}]}
            for name, value in values.items()
        ]
        found = {name: {"states": [{"summaries": summaries}]} for name in launches}
        return found | {"add 32 M f64, cold": "no such stream"}

    def run(self, number=0, *, walls=True, nvbench=True):
        run_gate_session(number, walls=walls, nvbench=nvbench, save=self.save)
        return self.saved[-1]

    def save(self, session):
        assert self.environment.locked, "all of it happens under the device's lock"
        self.events.append("saved")
        self.saved.append(session)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_every_case_is_measured_once_by_the_main_timer_alone(machine):
    found = machine.run()
    assert sorted(reading.case for reading in found.readings) == sorted(NAMES)
    assert {reading.median_ns for reading in found.readings} == {1001.0}
    assert {(reading.timer, reading.invalid) for reading in found.readings} == {("", None)}
    assert all(reading.low_ns <= reading.median_ns <= reading.high_ns for reading in found.readings)
    assert (found.default_timer, found.fallback, found.faults) == ("cupti", None, {})
    assert set(machine.timers) == {"cupti"}


def test_planted_cases_change_places_with_the_number_of_the_session(machine):
    first = [reading.case for reading in machine.run(0).readings]
    second = [reading.case for reading in machine.run(1).readings]
    assert first != second
    assert sorted(first) == sorted(second)


def test_the_wall_clock_comes_before_the_timer_is_made_and_nvbench_last(machine):
    found = machine.run()
    steps = [event for event in machine.events if " on " not in event]
    assert steps == ["check", "wall", "timer", "check", "saved", "nvbench", "saved", "freed", "closed"]
    assert found.walls_ns == dict.fromkeys(NAMES, 5000.0) | {}


def test_nvbench_gets_two_bases_with_one_and_five_percent_more_on_its_own_stream(machine):
    found = machine.run()
    launched = {event.removesuffix(" on 99") for event in machine.events if event.endswith(" on 99")}
    assert launched == NVBENCH_NAMES
    assert {(each.mean_ns, each.noise) for each in found.nvbench} == {(4000.0, 0.01)}
    assert {each.case for each in found.nvbench} == NVBENCH_NAMES - {"add 32 M f64, cold"}
    assert found.rivals == {"cuda-bench (NVBench), add 32 M f64, cold": "no such stream"}


def test_what_nvbench_takes_with_it_was_saved_before(machine):
    machine.run()
    before, after = machine.saved
    assert before.rivals == {"cuda-bench (NVBench)": "the process ended while it ran"}
    assert before.readings == after.readings
    assert before.nvbench == ()


def test_other_tools_are_left_alone_where_nobody_asked_for_them(machine):
    found = machine.run(walls=False, nvbench=False)
    assert (found.walls_ns, found.nvbench, found.rivals) == ({}, (), {})
    assert len(machine.saved) == 1
    assert not {"wall", "nvbench"} & set(machine.events)


def test_nvbench_that_is_not_installed_or_fails_is_a_line_and_costs_nothing_else(machine, monkeypatch):
    machine.installed = False
    assert "not installed" in machine.run().rivals["cuda-bench (NVBench)"]
    machine.installed = True

    def broken(launches):
        raise RuntimeError("no\n  device")

    monkeypatch.setattr(gate_session, "nvbench_benchmarks", broken)
    found = machine.run()
    assert found.rivals == {"cuda-bench (NVBench)": "RuntimeError: no device"}
    assert len(found.readings) == len(NAMES)


def test_a_case_that_computes_wrongly_is_not_measured(machine):
    machine.wrong["sum 32 M u32, cold", 1] = "1 of 1 results are wrong"
    found = machine.run()
    assert found.faults == {"sum 32 M u32, cold": "1 of 1 results are wrong"}
    assert "sum 32 M u32, cold" not in {reading.case for reading in found.readings}


def test_a_case_that_is_wrong_after_it_was_measured_is_told(machine):
    machine.wrong["copy 1 MiB, cold", 2] = "3 elements are wrong"
    assert machine.run().faults == {"copy 1 MiB, cold": "3 elements are wrong"}


def test_without_the_library_its_cases_are_left_out_with_the_reason(machine):
    machine.environment._missing["cupy"] = "cupy-cuda13x is not installed"
    found = machine.run()
    products = {name for name in NAMES if name.startswith("gemm")}
    assert found.left_out == dict.fromkeys(products, "cupy-cuda13x is not installed")
    assert {reading.case for reading in found.readings} == set(NAMES) - products
    assert found.faults == {}


def test_where_cupti_cannot_be_used_events_time_everything_and_the_reason_is_kept(machine):
    machine.no_cupti = "cupti-python is not installed"
    found = machine.run()
    assert (found.default_timer, found.fallback) == ("event", "cupti-python is not installed")
    assert set(machine.timers) == {"event"}


def test_a_call_that_cupti_cannot_time_is_timed_by_events_and_says_so(machine):
    machine.refuses = TimerUnavailable("another profiler")
    found = machine.run()
    assert {reading.timer for reading in found.readings} == {"event"}
    assert found.default_timer == "cupti"


def test_a_call_that_launches_nothing_is_a_fault(machine):
    machine.refuses = NothingLaunched("nothing on the device")
    found = machine.run()
    assert found.readings == ()
    assert found.faults == dict.fromkeys(NAMES, "nothing on the device")
