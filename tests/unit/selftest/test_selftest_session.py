"""One session of a self-test, with NumPy for a GPU: what is read, in which order, and what may fail."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from fakes import FakeEnvironment, FakeGpu, FakeTimer

from pytest_gpukern.gpu import runtime as cuda_module
from pytest_gpukern.measure import by_timer
from pytest_gpukern.selftest import kernels as selftest_kernels
from pytest_gpukern.selftest import kernels as spin_module
from pytest_gpukern.selftest import rivals
from pytest_gpukern.selftest import session as session_module
from pytest_gpukern.selftest.kernels import SpinReading
from pytest_gpukern.selftest.session import CACHES, NODE_SPINS_NS, SPINS_NS, run_session, session_environment
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.timers.timer import open_timer as real_open_timer
from pytest_gpukern.values.settings import Settings

SMALL = {"exp 64 K f32": 64, "exp 10 M f32": 100, "exp 100 M f32": 200}
NAMES = [*SMALL, "add 32 M f64", "sgemm 2048"]


class Timer(FakeTimer):
    def __init__(self, name, events):
        super().__init__(events=events)
        self.name = name
        self.resolution_ns = 32.0
        self.fixed_cost_ns = 3200.0 if name == "event" else None

    def node_time_ns(self, iteration):
        iteration.run()
        return 1040.0


class Spinning:
    """Spins for exactly what it is asked; every timer reads 700 ns more."""

    def __init__(self, runtime):
        self.step_ns = 32.0
        self.counts = []

    def call(self, ns, slot=0):
        return lambda: None

    def read(self, timer, ns, count):
        assert 8 <= count <= 50
        return SpinReading(ns, ns + 700, 700.0)

    def free(self):
        self.step_ns = None


class Machine:
    """What a test may break, and what happened."""

    def __init__(self, monkeypatch):
        self.events = []
        self.saved = []
        self.no_cupti = self.no_graph = None
        self.installed = {"cupyx", "cupy", "triton", "torch", "cuda.bench"}
        backends = [FakeGpu(), FakeGpu()]
        backends[1].name = "cupy"
        for backend in backends:
            backend.timed_stream = SimpleNamespace(is_nonblocking=True)
        settings = Settings(benchmark=True, asked=True, baseline="off")
        self.environment = FakeEnvironment(*backends, settings=settings)
        self.environment.close = lambda: self.events.append("closed")
        fake_runtime = SimpleNamespace(
            free_bytes=lambda: 2**33, stream="stream", synchronize=lambda: None, forget_copies=lambda: None
        )
        patch = monkeypatch.setattr
        patch(cuda_module, "runtime", lambda: fake_runtime)
        patch(selftest_kernels, "EXP_SIZES", SMALL)
        patch(selftest_kernels, "ADD_SIZE", 100)
        patch(selftest_kernels, "SGEMM_SIZE", 8)
        patch(selftest_kernels, "_add_kernel", lambda: _AddKernel())
        patch(selftest_kernels, "launch_elsewhere", self.launch_elsewhere)
        patch(session_module, "session_environment", lambda: self.environment)
        patch(session_module, "open_timer", self.gpu_timer)
        patch(by_timer, "open_timer", self.gpu_timer)
        patch(spin_module, "SpinningKernel", Spinning)
        patch(rivals, "installed", lambda module: module in self.installed)
        patch(session_module, "wall_clock", lambda launch, synchronize: self.rival("wall", launch))
        patch(session_module, "cupyx_benchmark", lambda launch: self.rival("cupyx", launch))
        patch(session_module, "do_bench", lambda launch: self.rival("do_bench", launch))
        patch(session_module, "nvbench", self.nvbench)
        cupy = ModuleType("cupy")
        cupy.exp, cupy.matmul = np.exp, np.matmul
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    def run(self, *, rivals=True):
        run_session(rivals=rivals, save=self.save)
        return self.saved[-1]

    def save(self, found):
        assert self.environment.locked, "all of it happens under the device's lock"
        self.events.append("saved")
        self.saved.append(found)

    def gpu_timer(self, name, stream, **_):
        refusal = {"cupti": self.no_cupti, "graph": self.no_graph}.get(name)
        if refusal:
            raise TimerUnavailable(refusal)
        self.events.append(f"{name} timer")
        return Timer(name, self.events)

    def launch_elsewhere(self, case, arrays, handle=0):
        return lambda: self.events.append(f"{case.problem.name} on {handle}")

    def rival(self, name, launch):
        self.events.append(name)
        launch()
        return 4000.0

    def nvbench(self, launches):
        self.events.append("nvbench")
        for make in launches.values():
            make(99)()
        return {name: 5000.0 if name != "sgemm 2048" else "no capture" for name in launches}


class _AddKernel:
    def __getitem__(self, configuration):
        return lambda a, out: np.add(a, 2.0, out=out)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_session_reads_every_kernel_cold_and_hot_by_both_timers(machine):
    found = machine.run()
    expected = [(name, cache, timer) for name in NAMES for cache in CACHES for timer in ("cupti", "event")]
    assert [(each.kernel, each.cache, each.timer) for each in found.readings] == expected
    assert {each.median_ns for each in found.readings} == {1001.0}
    assert {each.invalid for each in found.readings} == {None}
    assert [(each.kernel, each.cache) for each in found.walls] == [(n, c) for n in NAMES for c in CACHES]
    assert [each.kernel for each in found.preparations] == NAMES
    assert all(each.problem is None and each.recheck_s is not None for each in found.preparations)


def test_a_session_reads_kernels_of_known_time_and_slopes(machine):
    found = machine.run()
    assert [(each.asked_ns, each.timer) for each in found.spins] == [
        (ns, timer) for ns in SPINS_NS for timer in ("cupti", "event")
    ]
    assert {each.beyond_ns for each in found.spins} == {700.0}
    assert [each.name for each in found.nodes] == [*(f"spin {ns:.0f}" for ns in NODE_SPINS_NS), *NAMES]
    assert {(each.node_ns, each.reading_ns) for each in found.nodes} == {(1040.0, 1001.0)}
    assert found.ticks_ns == {"cupti": 32.0, "event": 32.0}
    assert found.fixed_costs_ns == {"cupti": None, "event": 3200.0}
    assert (found.default_timer, found.fallback) == ("cupti", None)


def test_other_tools_come_before_cupti_is_attached_and_nvbench_last(machine):
    machine.run()
    steps = ["wall", "cupyx", "do_bench", "cupti timer", "saved", "nvbench", "closed"]
    order = [event for event in machine.events if event in steps]
    assert list(dict.fromkeys(order)) == steps
    assert order[-4:] == ["saved", "nvbench", "saved", "closed"]


def test_what_nvbench_takes_with_it_was_saved_before(machine):
    machine.run()
    before, after = machine.saved
    lost = [each for each in before.rivals if each.tool == rivals.NVBENCH.name]
    assert [each.problem for each in lost] == ["the process ended while it ran"]
    kept = {each.kernel: (each.median_ns, each.problem) for each in after.rivals if "NVBench" in each.tool}
    assert kept["exp 10 M f32"] == (5000.0, None)
    assert kept["sgemm 2048"] == (None, "no capture")
    assert before.readings == after.readings


def test_without_other_tools_none_is_asked(machine):
    found = machine.run(rivals=False)
    assert found.rivals == ()
    assert len(machine.saved) == 1
    assert not {"wall", "cupyx", "do_bench", "nvbench"} & set(machine.events)


def test_a_tool_that_raises_has_its_error_in_its_row_and_the_session_goes_on(machine, monkeypatch):
    def broken(launch):
        raise RuntimeError("invalid\n  device function")

    monkeypatch.setattr(session_module, "do_bench", broken)
    monkeypatch.setattr(session_module, "nvbench", broken)
    found = machine.run()
    problems = {each.problem for each in found.rivals if each.problem}
    assert problems == {"RuntimeError: invalid device function"}
    assert len(found.readings) == 20


def test_a_tool_that_is_not_installed_is_one_line(machine):
    machine.installed = set()
    found = machine.run()
    missing = {each.tool: each.problem for each in found.rivals if not each.kernel}
    assert set(missing) == {"cupyx.profiler.benchmark", "triton.testing.do_bench", "cuda-bench (NVBench)"}
    assert all("not installed" in problem for problem in missing.values())


def test_a_library_that_is_missing_is_its_kernels_problem_alone(machine):
    machine.environment._missing["numba"] = "numba is not installed"
    found = machine.run()
    problems = {each.kernel: each.problem for each in found.preparations if each.problem}
    assert problems == {"add 32 M f64": "numba is not installed"}
    assert {each.kernel for each in found.readings} == set(NAMES) - {"add 32 M f64"}


def test_a_kernel_that_computes_wrongly_is_not_timed(machine, monkeypatch):
    monkeypatch.setattr(sys.modules["cupy"], "matmul", lambda A, B, out: np.subtract(A, B, out=out))
    found = machine.run()
    (problem,) = [each.problem for each in found.preparations if each.kernel == "sgemm 2048"]
    assert problem.startswith("C: ")
    assert "sgemm 2048" not in {each.kernel for each in found.readings}


def test_where_cupti_cannot_be_used_events_are_the_default_and_the_reason_is_kept(machine):
    machine.no_cupti = "cupti-python is not installed"
    found = machine.run()
    assert (found.default_timer, found.fallback) == ("event", "cupti-python is not installed")
    assert {each.timer for each in found.readings} == {"event"}
    assert {each.timer for each in found.spins} == {"event"}


def test_what_cannot_be_captured_has_its_reason(machine):
    machine.no_graph = "the call cannot be captured"
    found = machine.run()
    assert {(each.node_ns, each.problem) for each in found.nodes} == {(None, "the call cannot be captured")}


def test_a_session_is_a_run_that_measures_and_looks_at_no_baseline():
    environment = session_environment("1")
    settings = environment.settings
    assert (settings.benchmark, settings.baseline, settings.device) == (True, "off", "1")
    assert (settings.timer, settings.size, settings.scopes) == ("auto", None, ())
    assert not environment.simulated.active


def test_the_timers_are_those_of_a_run():
    assert session_module.open_timer is real_open_timer


# the kernels on somebody else's stream


@pytest.fixture
def libraries(monkeypatch):
    """CuPy and Numba, as far as launches on streams go; gives the log of what happened."""
    log = []

    class Stream:
        @classmethod
        def from_external(cls, other):
            version, handle = other.__cuda_stream__()
            assert version == 0
            made = cls()
            made.handle = handle
            return made

        def __enter__(self):
            log.append(f"cupy on {self.handle}")

        def __exit__(self, *_):
            log.append("cupy back")

    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Stream=Stream)
    cupy.exp = lambda x, out: log.append("exp")
    cupy.matmul = lambda A, B, out: log.append("matmul")
    numba = ModuleType("numba")
    numba.cuda = SimpleNamespace(
        external_stream=lambda handle: f"numba on {handle}", default_stream=lambda: "numba's default"
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "numba", numba)

    class Kernel:
        def __getitem__(self, configuration):
            return lambda a, out: log.append(configuration)

    monkeypatch.setattr(selftest_kernels, "_add_kernel", lambda: Kernel())
    return log


def test_cupy_launches_on_its_current_stream_or_the_one_that_is_given(libraries):
    case = selftest_kernels.selftest_cases()["exp 64 K f32"]
    arrays = {"x": None, "y": None}
    selftest_kernels.launch_elsewhere(case, arrays)()
    selftest_kernels.launch_elsewhere(case, arrays, 99)()
    assert libraries == ["exp", "cupy on 99", "exp", "cupy back"]


def test_numba_launches_on_the_stream_that_is_named(libraries):
    case = selftest_kernels.selftest_cases()["add 32 M f64"]
    arrays = {"a": None, "out": None}
    selftest_kernels.launch_elsewhere(case, arrays)()
    selftest_kernels.launch_elsewhere(case, arrays, 99)()
    assert libraries == [(125_000, 256, "numba's default"), (125_000, 256, "numba on 99")]


def test_the_kernels_have_the_sizes_of_their_names():
    cases = selftest_kernels.selftest_cases()
    assert {name: case.point["n"] for name, case in cases.items()} == {
        "exp 64 K f32": 65_536,
        "exp 10 M f32": 10_000_000,
        "exp 100 M f32": 100_000_000,
        "add 32 M f64": 32_000_000,
        "sgemm 2048": 2048,
    }
