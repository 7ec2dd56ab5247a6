"""Other tools that time a GPU's work, for comparison with ours on the same kernels."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpukern.backends.backend import installed

_ROUNDS = 100
_WARM_UP_ROUNDS = 10
_NVBENCH_TIMEOUT_S = 0.5
"""Of a kernel's measurement. By default it may take 15 s; this is thousands of samples."""
_COLD_GPU = "nv/cold/time/gpu/"
_NO_TIME = "it reported no time"


Launches = Mapping[str, Callable[[int], Callable[[], Any]]]


@dataclass(frozen=True)
class Rival:
    """A tool.

    Attributes:
        name: in the table.
        package: what brings it, as pip names it; empty where it needs nothing.
        modules: all of which have to be installed.
        cache: what it does about the L2: `cold` where it empties it before each sample.
    """

    name: str
    package: str
    modules: tuple[str, ...]
    cache: str

    def missing(self) -> str | None:
        """Which package is not installed, in words; None where it is."""
        if all(installed(module) for module in self.modules):
            return None
        return f"not installed; the package {self.package} brings it"


WALL_CLOCK = Rival("wall clock + synchronize, as under pytest-benchmark", "", (), "hot")
CUPYX = Rival("cupyx.profiler.benchmark", "cupy-cuda13x", ("cupyx", "cupy"), "hot")
DO_BENCH = Rival("triton.testing.do_bench", "triton (which needs torch)", ("triton", "torch"), "cold")
NVBENCH = Rival("cuda-bench (NVBench)", "cuda-bench", ("cuda.bench",), "cold")

RIVALS = (WALL_CLOCK, CUPYX, DO_BENCH, NVBENCH)


def wall_clock(launch: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Median wall time in nanoseconds from a launch until the device is idle."""
    times = []
    for _ in range(_WARM_UP_ROUNDS + _ROUNDS):
        start = time.perf_counter_ns()
        launch()
        synchronize()
        times.append(time.perf_counter_ns() - start)
    return float(statistics.median(times[_WARM_UP_ROUNDS:]))


def cupyx_benchmark(launch: Callable[[], Any]) -> float:
    """Median GPU time in nanoseconds by `cupyx.profiler.benchmark`."""
    from cupyx.profiler import benchmark

    found = benchmark(launch, n_repeat=_ROUNDS, n_warmup=_WARM_UP_ROUNDS)
    return statistics.median(float(seconds) for seconds in found.gpu_times[0]) * 1e9


def do_bench(launch: Callable[[], Any]) -> float:
    """Median time in nanoseconds by `triton.testing.do_bench`, which counts in milliseconds."""
    from triton.testing import do_bench as measure

    return float(measure(launch, return_mode="median")) * 1e6


def nvbench(launches: Launches) -> dict[str, float | str]:
    """Median (of releases without one, mean) GPU time in nanoseconds by NVBench, or why there is none.

    Args:
        launches: as for `nvbench_benchmarks`.
    """
    found = nvbench_benchmarks(launches)
    return {name: each if isinstance(each, str) else nvbench_time(each) for name, each in found.items()}


def nvbench_benchmarks(launches: Launches) -> dict[str, Mapping[str, Any] | str]:
    """What NVBench's JSON has of each launch, or why it has nothing.

    NVBench calls back from C++ and runs everything that was ever registered in a process: call this once.

    Args:
        launches: name → makes the launch for the stream with a handle.
    """
    from cuda import bench

    problems: dict[str, str] = {}
    names = {f"kernel_{number}": name for number, name in enumerate(launches)}
    for key, name in names.items():
        bench.register(_nvbench_function(key, name, launches[name], problems)).set_name(key)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "nvbench.json"
        options = ["--json", str(into), "--timeout", str(_NVBENCH_TIMEOUT_S)]
        bench.run_all_benchmarks(["gpukern", *options])
        found = json.loads(into.read_text(encoding="utf-8"))
    entries = {names[entry["name"]]: entry for entry in found["benchmarks"]}
    return dict.fromkeys(launches, _NO_TIME) | entries | problems


def _nvbench_function(
    key: str, name: str, make: Callable[[int], Callable[[], Any]], problems: dict[str, str]
) -> Callable[[Any], None]:
    def measured(state: Any) -> None:
        try:
            launch = make(state.get_stream().addressof())
            launch()  # compiled and loaded before anything can be blocked
            state.exec(lambda _: launch(), batched=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other kernels are measured
            problems[name] = f"{type(error).__name__}: {error}"
            state.skip(problems[name])

    measured.__name__ = key
    return measured


def nvbench_time(benchmark: Mapping[str, Any]) -> float | str:
    """The GPU time in nanoseconds of one benchmark of NVBench's JSON, or why there is none."""
    values = _gpu_times(benchmark)
    if isinstance(values, str):
        return values
    seconds = values.get("median", values.get("mean"))
    return _NO_TIME if seconds is None else seconds * 1e9


def nvbench_mean(benchmark: Mapping[str, Any]) -> tuple[float, float] | str:
    """Mean GPU time in nanoseconds and relative standard deviation of one benchmark, or why none."""
    values = _gpu_times(benchmark)
    if isinstance(values, str):
        return values
    mean, noise = values.get("mean"), values.get("stdev/relative")
    if mean is None or noise is None:
        return "it reported no mean with its deviation"
    return mean * 1e9, noise


def _gpu_times(benchmark: Mapping[str, Any]) -> dict[str, float] | str:
    """Name of a statistic → its value for the GPU's time with a cold cache; or why there are none."""
    for state in benchmark["states"]:
        if state.get("is_skipped"):
            return str(state.get("skip_reason") or "skipped")
        return {
            summary["tag"].removeprefix(_COLD_GPU): float(entry["value"])
            for summary in state.get("summaries") or ()
            for entry in summary["data"]
            if entry["name"] == "value"
            and entry["value"] is not None
            and summary["tag"].startswith(_COLD_GPU)
        }
    return _NO_TIME
