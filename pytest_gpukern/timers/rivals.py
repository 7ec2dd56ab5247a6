"""Other tools that time a GPU's work, for comparison with ours on the same kernels."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ROUNDS = 100
_WARM_UP_ROUNDS = 10
_NVBENCH_TIMEOUT_S = 0.5
"""Of a kernel's measurement. By default it may take 15 s; this is thousands of samples."""


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


def nvbench(launches: Mapping[str, Callable[[int], Callable[[], Any]]]) -> dict[str, float | str]:
    """Median (of releases without one, mean) GPU time in nanoseconds by NVBench, or why there is none.

    NVBench calls back from C++ and runs everything that was ever registered in a process: call this once.

    Args:
        launches: name → makes the launch for the stream with a handle.
    """
    from cuda import bench

    problems: dict[str, float | str] = {}
    names = {f"kernel_{number}": name for number, name in enumerate(launches)}
    for key, name in names.items():
        bench.register(_nvbench_function(key, name, launches[name], problems)).set_name(key)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "nvbench.json"
        options = ["--json", str(into), "--timeout", str(_NVBENCH_TIMEOUT_S)]
        bench.run_all_benchmarks(["gpukern", *options])
        found = json.loads(into.read_text(encoding="utf-8"))
    times = {names[entry["name"]]: nvbench_time(entry) for entry in found["benchmarks"]}
    return dict.fromkeys(launches, "it reported no time") | times | problems


def _nvbench_function(
    key: str, name: str, make: Callable[[int], Callable[[], Any]], problems: dict[str, float | str]
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
    for state in benchmark["states"]:
        if state.get("is_skipped"):
            return str(state.get("skip_reason") or "skipped")
        values = {
            summary["tag"]: entry["value"]
            for summary in state.get("summaries") or ()
            for entry in summary["data"]
            if entry["name"] == "value"
        }
        for statistic in ("median", "mean"):
            seconds = values.get(f"nv/cold/time/gpu/{statistic}")
            if seconds is not None:
                return float(seconds) * 1e9
    return "it reported no time"
