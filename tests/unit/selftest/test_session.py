"""Checks one session of each self-test, with NumPy for a GPU: its readings, their order, what may fail."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from fakes import FakeEnvironment, FakeGpu, FakeTimer

from pytest_gpukern.gpu import runtime as cuda_module
from pytest_gpukern.measure import by_timer
from pytest_gpukern.selftest import kernels as kernels_module
from pytest_gpukern.selftest import rivals
from pytest_gpukern.selftest import session as session_module
from pytest_gpukern.selftest.gate_kernels import gate_cases
from pytest_gpukern.selftest.recording import Spin
from pytest_gpukern.selftest.rivals import NVBENCH, NvbenchTimes, Rival
from pytest_gpukern.selftest.session import (
    CACHES,
    NODE_SPINS_NS,
    SPINS_NS,
    run_gate_session,
    run_timer_session,
)
from pytest_gpukern.timers.timer import NothingLaunched, TimerUnavailable
from pytest_gpukern.values.settings import Settings

SMALL = {"exp 64 K f32": 64, "exp 10 M f32": 100, "exp 100 M f32": 200}
NAMES = [*SMALL, "add 32 M f64", "sgemm 2048"]
GATE_NAMES = [case.id for case in gate_cases()]
NVBENCH_NAMES = {
    f"{base}{more}, cold" for base in ("fma 9600 trips", "add 32 M f64") for more in ("", " +1 %", " +5 %")
}


class Timer(FakeTimer):
    def __init__(self, name, machine):
        super().__init__(events=machine.events)
        self.name, self.machine = name, machine
        self.resolution_ns = 32.0
        self.fixed_cost_ns = 3200.0 if name == "event" else None

    def collect(self, iterations, *, cold):
        if self.machine.refuses and self.name == "cupti":
            raise self.machine.refuses
        return super().collect(iterations, cold=cold)

    def node_time_ns(self, iteration):
        iteration.run()
        return 1040.0


class Spinning:
    """Spins for exactly what it is asked; every timer reads 700 ns more."""

    step_ns = 32.0

    def __init__(self, runtime):
        pass

    def call(self, ns, slot=0):
        return lambda: None

    def read(self, timer, ns, count):
        assert 8 <= count <= 50
        return Spin(ns, timer.name, ns, ns + 700, 700.0)

    def free(self):
        pass


class GateKernels:
    """Launches that are noted; `wrong` of the machine has case → what is said of it, at the n-th check."""

    def __init__(self, machine, cases):
        self.machine, self.stream = machine, "stream"
        self.checks = dict.fromkeys((case.id for case in cases), 0)

    def launch(self, case):
        return lambda: None

    def on_handle(self, case, handle):
        return lambda: self.machine.launched.append((case.id, handle))

    def fault(self, case):
        self.checks[case.id] += 1
        self.machine.note("check")
        return self.machine.wrong.get((case.id, self.checks[case.id]))

    def close(self):
        self.machine.note("freed")


class AddKernel:
    def __getitem__(self, configuration):
        return lambda a, out: np.add(a, 2.0, out=out)


class Machine:
    """Holds what a test may break, and what happened."""

    def __init__(self, monkeypatch):
        self.events, self.saved, self.launched, self.wrong, self.timers = [], [], [], {}, []
        self.no_cupti = self.no_graph = self.refuses = self.nvbench_fails = None
        self.installed = {"cupyx", "cuda.bench"}
        backends = [FakeGpu(), FakeGpu()]
        backends[1].name = "cupy"
        for backend in backends:
            backend.timed_stream = SimpleNamespace(is_nonblocking=True)
        settings = Settings(benchmark=True, asked=True, baseline="off")
        self.environment = FakeEnvironment(*backends, settings=settings)
        self.environment.close = lambda: self.note("closed")
        runtime = SimpleNamespace(
            free_bytes=lambda: 2**33, stream="stream", synchronize=lambda: None, forget_copies=lambda: None
        )
        self.tools = (
            Rival("wall clock", "", (), "hot", lambda launch: self.rival("wall", launch)),
            Rival("cupyx", "cupy", ("cupyx",), "hot", lambda launch: self.rival("cupyx", launch)),
        )
        patch = monkeypatch.setattr
        patch(cuda_module, "runtime", lambda: runtime)
        patch(session_module, "runtime", lambda: runtime)
        patch(kernels_module, "EXP_SIZES", SMALL)
        patch(kernels_module, "ADD_SIZE", 100)
        patch(kernels_module, "SGEMM_SIZE", 8)
        patch(kernels_module, "_add_kernel", AddKernel)
        patch(session_module, "launch_elsewhere", self.launch_elsewhere)
        patch(session_module, "session_environment", lambda: self.environment)
        patch(session_module, "open_timer", self.open_timer)
        patch(by_timer, "open_timer", self.open_timer)
        patch(session_module, "SpinningKernel", Spinning)
        patch(session_module, "GateKernels", lambda cases: GateKernels(self, cases))
        patch(session_module, "RIVALS", self.tools)
        patch(session_module, "wall_clock", self.tools[0].measure)
        patch(session_module, "run_nvbench", self.nvbench)
        patch(rivals, "installed", lambda module: module in self.installed)
        cupy = ModuleType("cupy")
        cupy.exp, cupy.matmul = np.exp, np.matmul
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    def timers_session(self, *, others=True):
        run_timer_session(rivals=others, nvbench=others, save=self.save)
        return self.saved[-1]

    def gate_session(self, number=0, *, others=True):
        self.environment._backends["cupy"] = SimpleNamespace(name="cupy", current=nullcontext)
        run_gate_session(number, rivals=others, nvbench=others, save=self.save)
        return self.saved[-1]

    def note(self, event):
        if not self.events or self.events[-1] != event:
            self.events.append(event)

    def save(self, found):
        assert self.environment.locked, "all of it happens under the device's lock"
        self.note("saved")
        self.saved.append(found)

    def open_timer(self, name, stream, **_):
        refusal = {"cupti": self.no_cupti, "graph": self.no_graph}.get(name)
        if refusal:
            raise TimerUnavailable(refusal)
        self.note(f"{name} timer")
        self.timers.append(name)
        return Timer(name, self)

    def launch_elsewhere(self, case, arrays, handle=0):
        return lambda: self.launched.append((case.problem.name, handle))

    def rival(self, name, launch):
        self.note(name)
        launch()
        return 4000.0

    def nvbench(self, launches):
        self.note("nvbench")
        if self.nvbench_fails:
            raise self.nvbench_fails
        for make in launches.values():
            make(99)()
        found = dict.fromkeys(launches, NvbenchTimes(5000.0, 4000.0, 0.01))
        return found | {"sgemm 2048": "no capture", "add 32 M f64, cold": NvbenchTimes(5000.0, 4000.0, None)}

    def order(self, *steps):
        """Returns those that happened, in order, without repeats in a row."""
        found = [event for event in self.events if event in steps]
        return [event for place, event in enumerate(found) if place == 0 or found[place - 1] != event]


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


# the timers


def test_a_session_reads_every_kernel_cold_and_hot_by_both_timers(machine):
    found = machine.timers_session()
    expected = [(name, cache, timer) for name in NAMES for cache in CACHES for timer in ("cupti", "event")]
    assert [(each.kernel, each.cache, each.timer) for each in found.readings] == expected
    assert {(each.median_ns, each.invalid) for each in found.readings} == {(1001.0, None)}
    assert [(each.kernel, each.cache) for each in found.walls] == [(n, c) for n in NAMES for c in CACHES]
    assert [each.kernel for each in found.preparations] == NAMES
    assert all(each.problem is None and each.recheck_s is not None for each in found.preparations)


def test_a_session_reads_kernels_of_known_time_and_slopes(machine):
    found = machine.timers_session()
    assert [(each.asked_ns, each.timer) for each in found.spins] == [
        (ns, timer) for ns in SPINS_NS for timer in ("cupti", "event")
    ]
    assert [each.name for each in found.nodes] == [*(f"spin {ns:.0f}" for ns in NODE_SPINS_NS), *NAMES]
    assert {(each.node_ns, each.reading_ns) for each in found.nodes} == {(1040.0, 1001.0)}
    assert found.ticks_ns == {"cupti": 32.0, "event": 32.0}
    assert found.fixed_costs_ns == {"cupti": None, "event": 3200.0}
    assert (found.default_timer, found.fallback) == ("cupti", None)


def test_other_tools_come_before_cupti_is_attached_and_nvbench_last_and_saved_before(machine):
    machine.timers_session()
    assert machine.order("wall", "cupyx", "cupti timer", "saved", "nvbench", "closed") == [
        "wall", "cupyx", "cupti timer", "saved", "nvbench", "saved", "closed",
    ]  # fmt: skip
    assert machine.launched[:1] == [("selftest_exp", 0)]
    assert machine.launched[-1] == ("selftest_sgemm", 99)
    before, after = machine.saved
    lost = [each for each in before.rivals if each.tool == NVBENCH.name]
    assert [each.problem for each in lost] == ["the process ended while it ran"]
    kept = {each.kernel: (each.median_ns, each.problem) for each in after.rivals if "NVBench" in each.tool}
    assert kept["exp 10 M f32"] == (5000.0, None)
    assert kept["sgemm 2048"] == (None, "no capture")
    assert before.readings == after.readings
    assert machine.timers_session(others=False).rivals == ()
    assert len(machine.saved) == 3


def test_a_tool_that_raises_or_is_not_installed_has_its_row_and_the_session_goes_on(machine, monkeypatch):
    def broken(launch):
        raise RuntimeError("invalid\n  device function")

    machine.nvbench_fails = RuntimeError("invalid\n  device function")
    monkeypatch.setattr(session_module, "RIVALS", (Rival("broken", "", (), "hot", broken), machine.tools[1]))
    machine.installed = {"cuda.bench"}
    found = machine.timers_session()
    problems = {(each.tool, each.kernel): each.problem for each in found.rivals}
    assert problems["broken", "sgemm 2048"] == "RuntimeError: invalid device function"
    assert problems[NVBENCH.name, ""] == "RuntimeError: invalid device function"
    assert "not installed" in problems["cupyx", ""]
    assert len(found.readings) == 20


def test_a_library_that_is_missing_is_its_kernels_problem_alone(machine):
    machine.environment._missing["numba"] = "numba is not installed"
    found = machine.timers_session()
    problems = {each.kernel: each.problem for each in found.preparations if each.problem}
    assert problems == {"add 32 M f64": "numba is not installed"}
    assert {each.kernel for each in found.readings} == set(NAMES) - {"add 32 M f64"}


def test_a_kernel_that_computes_wrongly_is_not_timed(machine, monkeypatch):
    monkeypatch.setattr(sys.modules["cupy"], "matmul", lambda A, B, out: np.subtract(A, B, out=out))
    found = machine.timers_session()
    (problem,) = [each.problem for each in found.preparations if each.kernel == "sgemm 2048"]
    assert problem.startswith("C: ")
    assert "sgemm 2048" not in {each.kernel for each in found.readings}


def test_where_cupti_cannot_be_used_events_are_the_default_and_the_reason_is_kept(machine):
    machine.no_cupti = "cupti-python is not installed"
    found = machine.timers_session()
    assert (found.default_timer, found.fallback) == ("event", "cupti-python is not installed")
    assert {each.timer for each in (*found.readings, *found.spins)} == {"event"}
    found = machine.gate_session()
    assert (found.default_timer, found.fallback) == ("event", "cupti-python is not installed")
    assert len(found.readings) == len(GATE_NAMES)


def test_what_cannot_be_captured_has_its_reason(machine):
    machine.no_graph = "the call cannot be captured"
    found = machine.timers_session()
    assert {(each.node_ns, each.problem) for each in found.nodes} == {(None, "the call cannot be captured")}


# the gate


def test_every_case_is_measured_once_by_the_default_timer_alone(machine):
    found = machine.gate_session()
    assert sorted(reading.case for reading in found.readings) == sorted(GATE_NAMES)
    assert {(reading.median_ns, reading.invalid) for reading in found.readings} == {(1001.0, None)}
    assert all(reading.low_ns <= reading.median_ns <= reading.high_ns for reading in found.readings)
    assert (found.default_timer, found.fallback, found.faults) == ("cupti", None, {})
    assert set(machine.timers) == {"cupti"}


def test_planted_cases_change_places_with_the_number_of_the_session(machine):
    first = [reading.case for reading in machine.gate_session(0).readings]
    second = [reading.case for reading in machine.gate_session(1).readings]
    assert first != second
    assert sorted(first) == sorted(second)


def test_the_wall_clock_comes_before_the_timer_is_made_and_nvbench_last(machine):
    found = machine.gate_session()
    steps = ["check", "wall", "cupti timer", "check", "saved", "nvbench", "saved", "freed", "closed"]
    assert machine.order(*steps) == steps
    assert found.walls_ns == dict.fromkeys(GATE_NAMES, 4000.0)


def test_nvbench_gets_two_bases_with_one_and_five_percent_more_on_its_own_stream(machine):
    found = machine.gate_session()
    assert set(machine.launched) == {(name, 99) for name in NVBENCH_NAMES}
    assert {(each.mean_ns, each.noise) for each in found.nvbench} == {(4000.0, 0.01)}
    assert {each.case for each in found.nvbench} == NVBENCH_NAMES - {"add 32 M f64, cold"}
    problem = found.rivals["cuda-bench (NVBench), add 32 M f64, cold"]
    assert problem == "it reported no mean with its deviation"
    before, after = machine.saved
    assert before.rivals == {NVBENCH.name: "the process ended while it ran"}
    assert (before.readings, before.nvbench) == (after.readings, ())
    alone = machine.gate_session(others=False)
    assert (alone.walls_ns, alone.nvbench, alone.rivals) == ({}, (), {})
    machine.nvbench_fails = RuntimeError("no\n  device")
    assert machine.gate_session().rivals == {NVBENCH.name: "RuntimeError: no device"}


def test_a_case_that_computes_wrongly_is_not_measured_and_one_that_is_wrong_afterwards_is_told(machine):
    machine.wrong["sum 32 M u32, cold", 1] = "1 of 1 results are wrong"
    machine.wrong["copy 1 MiB, cold", 2] = "3 elements are wrong"
    found = machine.gate_session()
    assert found.faults == {
        "sum 32 M u32, cold": "1 of 1 results are wrong",
        "copy 1 MiB, cold": "3 elements are wrong",
    }
    assert {reading.case for reading in found.readings} == set(GATE_NAMES) - {"sum 32 M u32, cold"}


def test_without_the_library_its_cases_are_left_out_with_the_reason(machine):
    machine.environment._missing["cupy"] = "cupy-cuda13x is not installed"
    found = machine.gate_session()
    products = {name for name in GATE_NAMES if name.startswith("gemm")}
    assert found.left_out == dict.fromkeys(products, "cupy-cuda13x is not installed")
    assert {reading.case for reading in found.readings} == set(GATE_NAMES) - products
    assert found.faults == {}


@pytest.mark.parametrize("why", [NothingLaunched("nothing on the device"), TimerUnavailable("a profiler")])
def test_a_call_that_cannot_be_timed_is_a_fault(machine, why):
    machine.refuses = why
    found = machine.gate_session()
    assert found.readings == ()
    assert found.faults == dict.fromkeys(GATE_NAMES, str(why))
