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
    "doubling",
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


@pytest.fixture
def run_case(measured):
    """Runs a variant of the problem in a process of its own; the outcome and what the run file says."""

    def run(variant, *options, scopes=("kernel",)):
        source = PROBLEM.replace("SCOPES", repr(scopes)).replace("VARIANT", variant)
        result, (found,) = measured(source, *options)
        return result, found

    return run


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_a_tiny_case_is_timed_on_three_sets_by_two_timers(run_case, cache):
    result, found = run_case(RIGHT, f"--gpukern-cache={cache}")
    result.assert_outcomes(passed=1)
    assert found["correctness"] == "PASSED"
    main, beside = found["measurements"]
    assert (main["timer"], beside["timer"]) == ("cupti", "event")
    assert (main["buffer_sets"], beside["buffer_sets"]) == (3, 3)
    (work,) = main["work"]
    assert "double" in work["name"]
    assert (work["kind"], work["count"]) == ("kernel", 1.0), "no poison, no flush and no warming"
    assert (work["kernel"]["grid"], work["kernel"]["block"]) == ([8, 1, 1], [128, 1, 1])
    assert 500 < main["summary"]["median_ns"] < 10_000
    assert main["busy_ns"] == pytest.approx(main["summary"]["median_ns"], abs=1)
    assert main["invalid"] is beside["invalid"] is None
    assert list(found["verdicts"]) == [f"kernel/cupti/{cache}"]


def test_a_variant_that_forks_and_joins_is_valid_and_takes_its_span(run_case):
    result, found = run_case(FORKS_AND_JOINS)
    result.assert_outcomes(passed=1)
    main = found["measurements"][0]
    assert (main["timer"], main["invalid"]) == ("cupti", None)
    assert 500 < main["summary"]["median_ns"] < 10_000


def test_copies_and_kernel_are_told_apart_beside_the_hosts_clock(run_case):
    result, found = run_case(RIGHT, scopes=("kernel", "transfer", "end_to_end"))
    result.assert_outcomes(passed=1)
    timers = [(each["scope"], each["timer"], each["beside"]) for each in found["measurements"]]
    assert timers == [
        ("kernel", "cupti", False),
        ("kernel", "event", True),
        ("transfer", "host", False),
        ("end_to_end", "host", False),
        ("end_to_end", "cupti", True),
    ]
    end_to_end = found["measurements"][4]
    assert [work["kind"] for work in end_to_end["work"]] == ["memcpy", "kernel", "memcpy"]
    assert [work["size_bytes"] for work in end_to_end["work"]] == [4000, 0, 4000]


@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize(
    ("variant", "fault"),
    [(STOPS_WRITING, "not written: 1000 of 1000"), (REPLAYS_THE_FIRST_ANSWER, "wrong values")],
    ids=["stops writing", "replays"],
)
def test_what_turns_wrong_while_it_is_timed_fails_as_incorrect(run_case, cache, variant, fault):
    result, found = run_case(variant, f"--gpukern-cache={cache}")
    result.assert_outcomes(failed=1)
    assert found["correctness"] == "INCORRECT"
    assert found["diagnosis"].startswith("correct before timing, wrong after it")
    assert fault in found["diagnosis"]
    assert found["measurements"] == []


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
    from pytest_gpukern.backends.gpu_backend import CudaWorkspace

    made = CudaWorkspace({}, {"out": Output((N,), np.float32)}, lambda array: array)
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


@pytest.mark.parametrize(
    ("variant", "diagnosis"),
    [
        (WRONG_ONCE_IN_64, "correct before timing, wrong after it\nout: wrong values: 1 of 1000 elements"),
        (REMEMBERS_BY_FIRST_AND_LAST, "out: stale result"),
    ],
)
def test_what_is_seldom_wrong_or_remembers_by_a_few_elements_is_found(run_case, variant, diagnosis):
    result, found = run_case(variant)
    result.assert_outcomes(failed=1)
    assert found["diagnosis"].startswith(diagnosis)
