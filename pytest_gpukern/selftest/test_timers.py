"""The tests that `gpukern selftest` has pytest run, in several sessions.

They pass wherever their kernels are right. What they measured is held against targets once all sessions have
ended (`targets`).
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

import pytest

from pytest_gpukern.problems.cases import Case
from pytest_gpukern.run.measured_test import GpuBenchmark
from pytest_gpukern.selftest.kernels import GRAPH, SpinningKernel, name_of, selftest_cases
from pytest_gpukern.selftest.known_times import KnownTimes, Node, as_observations
from pytest_gpukern.session.item import MEASURED
from pytest_gpukern.session.stash import environment_of
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable, open_timer
from pytest_gpukern.values.timer_table import auto_timers

SPINS_NS = (500.0, 1_500.0, 5_000.0, 20_000.0, 100_000.0, 1_000_000.0, 10_000_000.0)
"""The others are compared with the first."""
NODE_SPINS_NS = (1_500.0, 20_000.0, 100_000.0)
_FIRST_SPIN_NS = 1_000_000.0
_SAMPLES = 50
_BUDGET_NS = 5e7
_FEWEST = 8


def _item(case: Case) -> Any:
    way = case.parameters["way"]
    mark = {"cache": "hot", "timer": "graph"} if way == GRAPH else {"cache": way}
    return pytest.param(case, id=f"{name_of(case)}, {way}", marks=pytest.mark.gpu_benchmark(**mark))


@pytest.mark.parametrize("case", [_item(case) for case in selftest_cases()])
def test_kernel(gpu_benchmark: GpuBenchmark, case: Case) -> None:
    gpu_benchmark.run(case)


@pytest.mark.gpu_benchmark(cache="hot")
def test_known_times(gpu_benchmark: GpuBenchmark, request: pytest.FixtureRequest) -> None:
    """Has the timers read kernels that know their own time, after the plugin itself has timed one.

    It comes last, when the device is awake.
    """
    from pytest_gpukern.gpu.runtime import runtime

    spinning = SpinningKernel(runtime())
    try:
        gpu_benchmark(spinning.call(_FIRST_SPIN_NS, stream=runtime().device.default_stream))
        gpu_benchmark.verify([spinning.own_ns()], [_FIRST_SPIN_NS], rtol=0.01)
        with environment_of(request.config).gpu.exclusive():
            known = _known_times(spinning, runtime().stream)
        request.node.stash[MEASURED].evidence.add(observations=as_observations(known))
    finally:
        spinning.free()


def _known_times(spinning: SpinningKernel, stream: Any) -> KnownTimes:
    timers = []
    for name in auto_timers():
        with contextlib.suppress(TimerUnavailable):
            timers.append(open_timer(name, stream))
    default, graph = timers[0], open_timer("graph", stream)
    spinning.read(default, _FIRST_SPIN_NS, _SAMPLES)  # raises the clocks; the reading is dropped
    spins = []
    for ns in SPINS_NS:
        count = max(_FEWEST, min(_SAMPLES, int(_BUDGET_NS / ns)))
        spins += [spinning.read(timer, ns, count) for timer in timers]
    nodes = []
    for ns in NODE_SPINS_NS:
        call = Iteration(spinning.call(ns), launches=1)
        reading_ns = statistics.median(default.collect([call] * _SAMPLES, cold=False).samples_ns)
        nodes.append(Node(ns, float(graph.node_time_ns(call)), reading_ns))  # type: ignore[attr-defined]
    costs = {timer.name: timer.fixed_cost_ns for timer in timers}
    return KnownTimes(default.name, costs.get("event"), tuple(spins), tuple(nodes))
