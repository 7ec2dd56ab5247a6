"""Tests cases that take turns on buffer sets, on the device: times, poison, and who is caught."""

import numpy as np
import pytest

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.arrays import compare as comparison

PROBLEM = """
import numpy as np
from numba import cuda
from pytest_gpukern import Axis, Problem, Tolerance

doubling = Problem(
    "NAME",
    version=1,
    axes={"n": Axis(smoke=(1000,), full=(1000,))},
    make_inputs=lambda rng, n: {"a": rng.random(n).astype(np.float32)},
    outputs=lambda n: {"out": ((n,), "float32")},
    reference=lambda a: 2.0 * a.astype(np.float64),
    tolerance=Tolerance(),
    traffic_bytes=lambda n: 8 * n,
    scopes=SCOPES,
)

@cuda.jit
def double(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * a[i]

@cuda.jit
def nothing(out):
    pass

def launch_on(a, out, stream):
    return lambda: double[8, 128, stream](a, out)

VARIANT

@doubling.cases
def test_doubling(gpu_benchmark, case):
    gpu_benchmark.run(case)
"""

RIGHT = """
@doubling.variant("numba")
def right(a, out, stream):
    return launch_on(a, out, stream)
"""

STOPS_WRITING = """
launches = []

@doubling.variant("numba")
def stops(a, out, stream):
    write = launch_on(a, out, stream)
    def launch():
        launches.append(1)
        if len(launches) < 70:
            write()
        else:
            nothing[8, 128, stream](out)
    return launch
"""

REPLAYS_THE_FIRST_ANSWER = """
kept = []
launches = []

@doubling.variant("numba")
def replays(a, out, stream):
    write = launch_on(a, out, stream)
    if not kept:
        kept.append(cuda.device_array_like(out))
    def launch():
        launches.append(1)
        if len(launches) < 70:
            write()
            if len(launches) == 1:
                double[8, 128, stream](a, kept[0])
        else:
            out.copy_to_device(kept[0], stream=stream)
    return launch
"""

WRONG_ONCE_IN_64 = """
launches = []

@cuda.jit
def triple_the_last(a, out):
    out[out.size - 1] = 3 * a[out.size - 1]

@doubling.variant("numba")
def seldom_wrong(a, out, stream):
    write = launch_on(a, out, stream)
    def launch():
        launches.append(1)
        write()
        if len(launches) % 64 == 50:
            triple_the_last[1, 1, stream](a, out)
    return launch
"""

REMEMBERS_BY_FIRST_AND_LAST = """
answers = {}

@doubling.variant("numba")
def remembers(a, out, stream):
    write = launch_on(a, out, stream)
    def launch():
        key = (float(a[0]), float(a[a.size - 1]))
        if key in answers:
            out.copy_to_device(answers[key], stream=stream)
        else:
            write()
            answers[key] = out.copy_to_host(stream=stream)
    return launch
"""

FORKS_AND_JOINS = """
@doubling.variant("numba")
def forks(a, out, stream):
    own, begun, ended = cuda.stream(), cuda.event(timing=False), cuda.event(timing=False)
    def launch():
        begun.record(stream)
        begun.wait(own)
        double[8, 128, own](a, out)
        ended.record(own)
        ended.wait(stream)
    return launch
"""


VARIANTS = {
    "right": RIGHT,
    "forks": FORKS_AND_JOINS,
    "stops": STOPS_WRITING,
    "replays": REPLAYS_THE_FIRST_ANSWER,
    "seldom_wrong": WRONG_ONCE_IN_64,
    "remembers": REMEMBERS_BY_FIRST_AND_LAST,
}
LATE = "correct before timing, wrong after it"
FAULTS = {
    "stops": (LATE, "1000 of 1000"),
    "replays": (LATE, "wrong values"),
    "seldom_wrong": (LATE, "\nout: wrong values: 1 of 1000 elements"),
    "remembers": ("out: stale result", ""),
}
"""How the diagnosis of a variant begins, and what else it says."""


@pytest.fixture
def run_cases(measured):
    """Runs variants, each in a module and a problem of its own; the outcomes and what the run file says."""

    def run(names, *options, scopes=("kernel",)):
        modules = {
            f"test_{name}": PROBLEM.replace("NAME", name)
            .replace("SCOPES", repr(scopes))
            .replace("VARIANT", VARIANTS[name])
            for name in names
        }
        done, results = measured("", *options, **modules)
        return done, {result["case"]["id"].partition("/")[0]: result for result in results}

    return run


@pytest.mark.parametrize(("cache", "names"), [("cold", VARIANTS), ("hot", ("right", "stops", "replays"))])
def test_tiny_cases_are_timed_on_three_sets_and_what_turns_wrong_is_incorrect(run_cases, cache, names):
    done, found = run_cases(names, f"--gpukern-cache={cache}")
    wrong = [name for name in names if name in FAULTS]
    done.assert_outcomes(passed=len(names) - len(wrong), failed=len(wrong))
    for name in wrong:
        begins, says = FAULTS[name]
        assert found[name]["correctness"] == "INCORRECT"
        assert found[name]["diagnosis"].startswith(begins)
        assert says in found[name]["diagnosis"]
    assert found["stops"]["measurements"] == found["replays"]["measurements"] == []
    assert found["right"]["correctness"] == "PASSED"
    (main,) = found["right"]["measurements"]
    assert (main["timer"], main["buffer_sets"], main["invalid"]) == ("cupti", 3, None)
    (work,) = main["work"]
    assert "double" in work["name"]
    assert (work["kind"], work["count"]) == ("kernel", 1.0), "no poison, no flush and no warming"
    assert (work["kernel"]["grid"], work["kernel"]["block"]) == ([8, 1, 1], [128, 1, 1])
    assert 500 < main["summary"]["median_ns"] < 10_000
    assert main["busy_ns"] == pytest.approx(main["summary"]["median_ns"], abs=1)
    assert list(found["right"]["verdicts"]) == [f"kernel/cupti/{cache}"]
    if "forks" in names:
        (span,) = found["forks"]["measurements"]
        assert (span["timer"], span["invalid"]) == ("cupti", None)
        assert 500 < span["summary"]["median_ns"] < 10_000


def test_copies_and_kernel_of_the_hosts_time_are_told_apart(run_cases):
    done, found = run_cases(["right"], scopes=("kernel", "transfer", "end_to_end"))
    done.assert_outcomes(passed=1)
    measurements = found["right"]["measurements"]
    timers = [(each["scope"], each["timer"]) for each in measurements]
    assert timers == [("kernel", "cupti"), ("transfer", "host"), ("end_to_end", "host")]
    *_, end_to_end = measurements
    assert [work["kind"] for work in end_to_end["work"]] == ["memcpy", "kernel", "memcpy"]
    assert [work["size_bytes"] for work in end_to_end["work"]] == [4000, 0, 4000]
    assert 0 < end_to_end["busy_ns"] < end_to_end["device_ns"]


# poison

SLOWLY = r"""
extern "C" __global__ void slowly(float *out, unsigned long long n, unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
  for (unsigned long long i = 0; i < n; ++i) out[i] = 1.0f;
}
"""
N = 1001


@pytest.fixture
def workspace():
    from pytest_gpukern.backends.gpu_backend import GpuBackend

    made = GpuBackend().workspace({}, {"out": Output((N,), np.float32)})
    yield made
    made.close()


@pytest.fixture
def write_slowly(runtime, workspace):
    """Queues a kernel on the timed stream that writes ones after 5 ms."""
    from cuda.core import LaunchConfig, launch

    kernel = runtime.kernel(SLOWLY, "slowly")
    pointer = workspace.arrays["out"].pointer

    def write(ns=5_000_000):
        config = LaunchConfig(grid=1, block=1)
        launch(runtime.stream, config, kernel, pointer, np.uint64(N), np.uint64(ns))

    write(0)
    runtime.synchronize()
    return write


def test_poison_is_queued_on_the_timed_stream_behind_what_writes_and_ahead_of_it(
    runtime, workspace, write_slowly
):
    def unwritten():
        runtime.synchronize()
        return workspace.compare("out", np.ones(N), Tolerance()).unwritten

    workspace.queue_poison(runtime.stream)
    write_slowly()
    assert unwritten() == 0
    write_slowly()
    workspace.queue_poison(runtime.stream)
    assert unwritten() == N
    assert workspace.fetch("out").view(np.uint32)[[0, -1]].tolist() == [comparison.POISON] * 2


def test_queueing_poison_waits_for_nothing(runtime, workspace, write_slowly):
    """The kernel ahead of it still runs when the host goes on."""
    write_slowly(50_000_000)
    ended = runtime.device.create_event()
    runtime.stream.record(ended)
    workspace.queue_poison(runtime.stream)
    assert not ended.is_done
    runtime.synchronize()
