"""Checks how we ask other tools, and how we read their answers; fakes play the tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pytest_gpukern.selftest import rivals
from pytest_gpukern.selftest.rivals import NVBENCH, RIVALS, NvbenchTimes, run_nvbench

WALL_CLOCK, CUPYX, DO_BENCH = RIVALS


def put(monkeypatch, name, **contents):
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def test_a_tool_that_is_not_installed_says_which_package_brings_it(monkeypatch):
    monkeypatch.setattr(rivals, "installed", lambda module: module != "torch")
    assert DO_BENCH.missing() == "not installed; the package triton (which needs torch) provides it"
    assert NVBENCH.missing() is None
    assert WALL_CLOCK.missing() is None


def test_the_wall_clock_stops_once_the_device_is_idle(monkeypatch):
    clock, steps = SimpleNamespace(now=0), []

    def launch():
        steps.append("launch")
        clock.now += 10

    def synchronize():
        steps.append("wait")
        clock.now += 1000 if len(steps) <= 20 else 40

    monkeypatch.setattr(rivals.time, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(rivals, "runtime", lambda: SimpleNamespace(synchronize=synchronize))
    assert WALL_CLOCK.measure(launch) == 50
    assert steps[:4] == ["launch", "wait", "launch", "wait"]


def test_cupyx_counts_in_seconds_and_do_bench_in_milliseconds(monkeypatch):
    def benchmark(launch, *, n_repeat, n_warmup):
        launch()
        return SimpleNamespace(gpu_times=[[1e-6, 3e-6, 2e-6]])

    put(monkeypatch, "cupyx")
    put(monkeypatch, "cupyx.profiler", benchmark=benchmark)
    put(monkeypatch, "triton")
    put(
        monkeypatch,
        "triton.testing",
        do_bench=lambda launch, return_mode: 0.25 if return_mode == "median" else 9,
    )
    called = []
    assert CUPYX.measure(lambda: called.append(1)) == pytest.approx(2000)
    assert called
    assert DO_BENCH.measure(lambda: None) == 250_000


def summary(tag, value):
    return {"tag": tag, "data": [{"name": "value", "type": "float64", "value": value}]}


def cold(**values):
    return {"summaries": [summary(f"nv/cold/time/gpu/{name}", value) for name, value in values.items()]}


class FakeNvbench(ModuleType):
    """Runs what is registered, on a stream with the handle 99, and writes JSON as NVBench does."""

    def __init__(self, result):
        super().__init__("cuda.bench")
        self.result = result
        self.functions = []
        self.batched = []

    def register(self, function):
        entry = SimpleNamespace(function=function, name=function.__name__)
        self.functions.append(entry)
        return SimpleNamespace(set_name=lambda name: setattr(entry, "name", name))

    def run_all_benchmarks(self, arguments):
        found = []
        for entry in self.functions:
            state = self.state()
            entry.function(state)
            found.append({"name": entry.name, "states": [state.result]})
        into = arguments[arguments.index("--json") + 1]
        Path(into).write_text(json.dumps({"benchmarks": found}))

    def state(self):
        state = SimpleNamespace(result={"summaries": []})

        def execute(launcher, *, batched):
            self.batched.append(batched)
            launcher("launch")
            state.result = self.result

        def skip(reason):
            state.result = {"is_skipped": True, "skip_reason": reason}

        state.exec, state.skip = execute, skip
        state.get_stream = lambda: SimpleNamespace(addressof=lambda: 99)
        return state


@pytest.fixture
def nvbench(monkeypatch):
    """Asks a stand-in for NVBench, whose result is given, about launches."""

    def ask(result, launches):
        fake = FakeNvbench(result)
        put(monkeypatch, "cuda", bench=fake)
        monkeypatch.setitem(sys.modules, "cuda.bench", fake)
        return fake, run_nvbench(launches)

    return ask


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (cold(mean="4e-06"), NvbenchTimes(4000.0, 4000.0, None)),
        (
            {
                "summaries": [
                    *cold(mean="4e-06", median="3e-06", **{"stdev/relative": "0.012"})["summaries"],
                    summary("nv/cold/time/cpu/mean", "9e-06"),
                    {"tag": "nv/json/bin", "data": [{"name": "filename", "type": "string", "value": "x"}]},
                ]
            },
            NvbenchTimes(3000.0, 4000.0, 0.012),
        ),
        (cold(mean="4e-06", **{"stdev/relative": None}), NvbenchTimes(4000.0, 4000.0, None)),  # infinite
        ({"is_skipped": True, "skip_reason": "no stream"}, "no stream"),
        ({"is_skipped": True}, "skipped"),
        ({"summaries": None}, "it reported no time"),
    ],
)
def test_nvbenchs_median_is_taken_and_its_mean_where_there_is_none(nvbench, result, expected):
    _, found = nvbench(result, {"exp": lambda handle: lambda: None})
    if isinstance(expected, NvbenchTimes):
        assert (found["exp"].median_ns, found["exp"].mean_ns) == (
            pytest.approx(expected.median_ns),
            pytest.approx(expected.mean_ns),
        )
        assert found["exp"].noise == expected.noise
    else:
        assert found == {"exp": expected}


def test_nvbench_runs_every_kernel_once_before_it_measures_and_one_that_fails_is_alone(nvbench):
    handles, launches = [], []

    def works(handle):
        handles.append(handle)
        return lambda: launches.append("works")

    def fails(handle):
        raise RuntimeError("no such stream")

    fake, found = nvbench(cold(median="5e-05"), {"exp 10 M f32": works, "sgemm 2048": fails})
    assert found["exp 10 M f32"].median_ns == pytest.approx(50_000)
    assert found["sgemm 2048"] == "RuntimeError: no such stream"
    assert (handles, launches, fake.batched) == ([99], ["works", "works"], [False])
