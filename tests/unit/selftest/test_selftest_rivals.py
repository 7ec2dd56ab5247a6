"""How other tools are asked, and what is read from their answers; played by stand-ins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pytest_gpukern.selftest import rivals
from pytest_gpukern.selftest.rivals import (
    DO_BENCH,
    NVBENCH,
    RIVALS,
    WALL_CLOCK,
    cupyx_benchmark,
    do_bench,
    nvbench,
    nvbench_mean,
    nvbench_time,
    wall_clock,
)


def put(monkeypatch, name, **contents):
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def test_a_tool_that_is_not_installed_says_which_package_brings_it(monkeypatch):
    monkeypatch.setattr(rivals, "installed", lambda module: module != "torch")
    assert DO_BENCH.missing() == "not installed; the package triton (which needs torch) brings it"
    assert NVBENCH.missing() is None
    assert WALL_CLOCK.missing() is None
    assert len({rival.name for rival in RIVALS}) == len(RIVALS)


def test_the_wall_clock_stops_once_the_device_is_idle(monkeypatch):
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(rivals.time, "perf_counter_ns", lambda: clock.now)
    steps = []

    def launch():
        steps.append("launch")
        clock.now += 10

    def synchronize():
        steps.append("wait")
        clock.now += 1000 if len(steps) <= 20 else 40

    assert wall_clock(launch, synchronize) == 50
    assert steps[:4] == ["launch", "wait", "launch", "wait"]


def test_cupyx_counts_in_seconds(monkeypatch):
    def benchmark(launch, *, n_repeat, n_warmup):
        launch()
        return SimpleNamespace(gpu_times=[[1e-6, 3e-6, 2e-6]])

    put(monkeypatch, "cupyx")
    put(monkeypatch, "cupyx.profiler", benchmark=benchmark)
    called = []
    assert cupyx_benchmark(lambda: called.append(1)) == pytest.approx(2000)
    assert called


def test_do_bench_counts_in_milliseconds(monkeypatch):
    put(monkeypatch, "triton")
    put(
        monkeypatch,
        "triton.testing",
        do_bench=lambda launch, return_mode: 0.25 if return_mode == "median" else 9,
    )
    assert do_bench(lambda: None) == 250_000


def summary(tag, value):
    return {"tag": tag, "data": [{"name": "value", "type": "float64", "value": value}]}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"summaries": [summary("nv/cold/time/gpu/mean", "4.1e-06")]}, 4100.0),
        (
            {
                "summaries": [
                    summary("nv/cold/time/gpu/mean", "4.1e-06"),
                    summary("nv/cold/time/gpu/median", "4e-06"),
                    {"tag": "nv/json/bin", "data": [{"name": "filename", "type": "string", "value": "x"}]},
                ]
            },
            4000.0,
        ),
        ({"is_skipped": True, "skip_reason": "no stream"}, "no stream"),
        ({"is_skipped": True}, "skipped"),
        ({"summaries": None}, "it reported no time"),
    ],
)
def test_nvbenchs_median_is_taken_and_its_mean_where_there_is_none(state, expected):
    found = nvbench_time({"states": [state]})
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            {
                "summaries": [
                    summary("nv/cold/time/gpu/mean", "4.1e-06"),
                    summary("nv/cold/time/gpu/stdev/relative", "0.012"),
                    summary("nv/cold/time/cpu/mean", "9e-06"),
                ]
            },
            (pytest.approx(4100.0), 0.012),
        ),
        (
            {
                "summaries": [
                    summary("nv/cold/time/gpu/mean", "4.1e-06"),
                    summary("nv/cold/time/gpu/stdev/relative", None),  # infinite
                ]
            },
            "it reported no mean with its deviation",
        ),
        ({"is_skipped": True, "skip_reason": "no stream"}, "no stream"),
    ],
)
def test_nvbenchs_mean_comes_with_its_relative_deviation_or_not_at_all(state, expected):
    assert nvbench_mean({"states": [state]}) == expected


class FakeNvbench(ModuleType):
    """Runs what is registered, on a stream with the handle 99, and writes JSON as NVBench does."""

    def __init__(self):
        super().__init__("cuda.bench")
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
            state.result = {"summaries": [summary("nv/cold/time/gpu/median", "5e-05")]}

        def skip(reason):
            state.result = {"is_skipped": True, "skip_reason": reason}

        state.exec, state.skip = execute, skip
        state.get_stream = lambda: SimpleNamespace(addressof=lambda: 99)
        return state


def test_nvbench_runs_every_kernel_once_before_it_measures_and_one_that_fails_is_alone(monkeypatch):
    fake = FakeNvbench()
    put(monkeypatch, "cuda", bench=fake)
    monkeypatch.setitem(sys.modules, "cuda.bench", fake)
    handles, launches = [], []

    def works(handle):
        handles.append(handle)
        return lambda: launches.append("works")

    def fails(handle):
        raise RuntimeError("no such stream")

    found = nvbench({"exp 10 M f32": works, "sgemm 2048": fails})
    assert found == {"exp 10 M f32": pytest.approx(50_000), "sgemm 2048": "RuntimeError: no such stream"}
    assert (handles, launches, fake.batched) == ([99], ["works", "works"], [False])
