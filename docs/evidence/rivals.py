"""Asks other tools that time a GPU's work about three kernels, beside our timers.

Makes the figures of "Beside other tools" in docs/explanation/evidence-log.md, by running this file.
It needs a GPU, CuPy, and the tools that are to be asked: Triton with PyTorch, and NVBench (`cuda-bench`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gpu.runtime import runtime
from pytest_gpukern.values.backend_table import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SESSIONS = 8
KERNELS = ("exp 64 K f32", "exp 10 M f32", "sgemm 2048")
_ROUNDS = 100
_WARM_UP_ROUNDS = 10
_NVBENCH_TIMEOUT_S = 0.5
"""Limit for measuring a kernel. By default it may take 15 s; this is thousands of samples."""
_COLD_GPU = "nv/cold/time/gpu/"


def wall_clock(launch: Callable[[], Any]) -> float:
    """Returns the median wall time in nanoseconds from a launch until the device is idle."""
    synchronize, times = runtime().synchronize, []
    for _ in range(_WARM_UP_ROUNDS + _ROUNDS):
        start = time.perf_counter_ns()
        launch()
        synchronize()
        times.append(time.perf_counter_ns() - start)
    return float(statistics.median(times[_WARM_UP_ROUNDS:]))


def _cupyx_benchmark(launch: Callable[[], Any]) -> float:
    from cupyx.profiler import benchmark

    found = benchmark(launch, n_repeat=_ROUNDS, n_warmup=_WARM_UP_ROUNDS)
    return statistics.median(float(seconds) for seconds in found.gpu_times[0]) * 1e9


def _do_bench(launch: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(launch, return_mode="median")) * 1e6  # it counts in milliseconds


@dataclass(frozen=True)
class Rival:
    """Holds a tool that times kernels.

    Attributes:
        package: that provides it, as pip names it; empty if it needs none.
        modules: that all have to be installed.
        cache: `cold` if it empties the L2 before each sample.
        measure: returns the median time of a launch in nanoseconds.
    """

    name: str
    package: str
    modules: tuple[str, ...]
    cache: str
    measure: Callable[[Callable[[], Any]], float] | None = None

    def missing(self) -> str | None:
        """Says which package is not installed, or returns None."""
        if all(installed(module) for module in self.modules):
            return None
        return f"not installed; the package {self.package} provides it"


RIVALS = (
    Rival("wall clock + synchronize, as under pytest-benchmark", "", (), "hot", wall_clock),
    Rival("cupyx.profiler.benchmark", "cupy-cuda13x", ("cupyx", "cupy"), "hot", _cupyx_benchmark),
    Rival("triton.testing.do_bench", "triton (which needs torch)", ("triton", "torch"), "cold", _do_bench),
)
"""Tools that time one launch after another in Python; they run before CUPTI is attached."""

NVBENCH = Rival("cuda-bench (NVBench)", "cuda-bench", ("cuda.bench",), "cold")


@dataclass(frozen=True)
class NvbenchTimes:
    """Holds GPU times of one launch with a cold cache; the noise is the relative standard deviation.

    Releases without a median have the mean instead.
    """

    median_ns: float
    mean_ns: float | None
    noise: float | None


def run_nvbench(launches: Mapping[str, Callable[[int], Callable[[], Any]]]) -> dict[str, NvbenchTimes | str]:
    """Returns what NVBench measured of each launch, or why it has nothing.

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
    times = {names[entry["name"]]: _nvbench_times(entry) for entry in found["benchmarks"]}
    return {name: problems.get(name) or times.get(name, "it reported no time") for name in launches}


def _nvbench_function(
    key: str, name: str, make: Callable[[int], Callable[[], Any]], problems: dict[str, str]
) -> Callable[[Any], None]:
    def measured(state: Any) -> None:
        try:
            launch = make(state.get_stream().addressof())
            launch()  # compiled and loaded before anything can be blocked
            state.exec(lambda _: launch(), batched=False)
        except Exception as error:
            problems[name] = in_one_line(error)
            state.skip(problems[name])

    measured.__name__ = key
    return measured


def _nvbench_times(benchmark: Mapping[str, Any]) -> NvbenchTimes | str:
    """Returns the GPU times of one benchmark of NVBench's JSON, or why there are none."""
    for state in benchmark["states"]:
        if state.get("is_skipped"):
            return str(state.get("skip_reason") or "skipped")
        values = {
            summary["tag"].removeprefix(_COLD_GPU): float(entry["value"])
            for summary in state.get("summaries") or ()
            for entry in summary["data"]
            if entry["name"] == "value"
            and entry["value"] is not None
            and summary["tag"].startswith(_COLD_GPU)
        }
        mean, median = values.get("mean"), values.get("median", values.get("mean"))
        if median is not None:
            mean_ns = None if mean is None else mean * 1e9
            return NvbenchTimes(median * 1e9, mean_ns, values.get("stdev/relative"))
        break
    return "it reported no time"


def in_one_line(error: BaseException) -> str:
    """Returns what another project's error says, shortened."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# all tools about all kernels, in several processes


def kernels() -> dict[str, Callable[[], Any]]:
    """Returns the launch of each kernel, on CuPy's current stream."""
    import cupy

    def exp(n: int) -> Callable[[], Any]:
        x = cupy.random.standard_normal(n, dtype=cupy.float32)
        y = cupy.empty_like(x)
        return lambda: cupy.exp(x, out=y)

    a, b = (cupy.random.random((2048, 2048), dtype=cupy.float32) for _ in "ab")
    c = cupy.empty_like(a)
    return dict(zip(KERNELS, (exp(65_536), exp(10_000_000), lambda: cupy.matmul(a, b, out=c)), strict=True))


def measure_session(into: Path) -> None:
    """Writes what each tool reads of each kernel in this process: tool → kernel → nanoseconds, or why not.

    Once CUPTI is attached, it slows the API calls that are in other tools' numbers, so ours come after them.
    NVBench's numbers hold none, and its end may destroy the context, so it comes last.
    """
    import cupy

    launches = kernels()
    readings: dict[str, dict[str, float | str]] = {}
    for rival in RIVALS:
        missing = rival.missing()
        read = readings.setdefault(f"{rival.name}, {rival.cache}", {})
        for name, launch in launches.items() if missing is None else ():
            assert rival.measure is not None
            read[name] = rival.measure(launch)
        if missing is not None:
            read[""] = missing
    for timer in ("event", "cupti"):
        for cache in ("cold", "hot"):
            read = readings.setdefault(f"this plugin, {timer}, {cache}", {})
            read |= {name: _ours(launch, timer, cache) for name, launch in launches.items()}
    into.write_text(json.dumps(readings), encoding="utf-8")
    missing = NVBENCH.missing()

    def on_stream(launch: Callable[[], Any]) -> Callable[[int], Callable[[], Any]]:
        def launch_on(handle: int) -> Callable[[], Any]:
            stream = cupy.cuda.ExternalStream(handle)

            def launched() -> None:
                with stream:
                    launch()

            return launched

        return launch_on

    found = {} if missing else run_nvbench({name: on_stream(each) for name, each in launches.items()})
    readings[f"{NVBENCH.name}, {NVBENCH.cache}"] = (
        {"": missing}
        if missing
        else {name: times if isinstance(times, str) else times.median_ns for name, times in found.items()}
    )
    into.write_text(json.dumps(readings), encoding="utf-8")


def _ours(launch: Callable[[], Any], timer: str, cache: str) -> float:
    from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for, warm_up
    from pytest_gpukern.timers.timer import open_timer

    call_ns = warm_up(launch, runtime().synchronize, compiled=True).settled_ns
    opened = open_timer(timer, runtime().device.default_stream, any_stream=True)
    found = Sampler(
        Repeated(launch), opened, scope="kernel", cache=cache, call_ns=call_ns, rule=rule_for(call_ns)
    ).measure()
    return found.summary.median_ns


def table(sessions: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Returns a line for each tool and kernel: median, that by CUPTI's with the same cache, and A/A range."""
    lines = []
    for tool in sessions[0]:
        cache = tool.rpartition(", ")[2]
        for kernel in sessions[0][tool]:
            times = [session[tool].get(kernel) for session in sessions]
            if not all(isinstance(each, float) for each in times):
                lines.append(f"{tool}: {kernel}: {times[0]}")
                continue
            ours = [session[f"this plugin, cupti, {cache}"][kernel] for session in sessions]
            ratio = statistics.median(times) / statistics.median(ours)
            apart = max(times) / min(times) - 1
            lines.append(
                f"{tool}: {kernel}: {statistics.median(times) / 1e3:.3f} µs, ×{ratio:.3f} of CUPTI's, "
                f"A/A {apart:.1%}"
            )
    return lines


def main(arguments: Sequence[str]) -> None:
    """Measures in fresh processes and prints the table; `session FILE` is one of them."""
    if arguments:
        measure_session(Path(arguments[1]))
        return
    sessions = []
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "session.json"
        for _ in range(SESSIONS):
            status = subprocess.call([sys.executable, __file__, "session", str(into)])
            if not into.exists():  # with one, any status will do: NVBench may have ended the process badly
                sys.exit(f"a session ended with status {status} and measured nothing")
            sessions.append(json.loads(into.read_text(encoding="utf-8")))
            into.unlink()
    print("\n".join(table(sessions)))


if __name__ == "__main__":
    main(sys.argv[1:])
