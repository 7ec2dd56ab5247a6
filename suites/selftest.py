"""Tests what the timers read on this machine against known times: `gpukern selftest` runs it.

The suites test kernels, so they do without it: its name does not begin with `test_`. Two things are known:

- A kernel that spins on the device's global timer, which none of our timers uses, says how long it spun. It
  does not know the time that the device takes to start and to end it, which is real time of a kernel: on an
  H200 CUPTI's record was a constant 704 ns longer at every length. So differences between spins are compared.
- The slope of a graph's replay time over its number of nodes contains the kernel and the gap between two
  nodes. The gap cancels in the difference between two spins. In longer kernels it does not count.
"""

import contextlib
import statistics
import sys
from typing import NamedTuple

import numpy as np
import pytest

from pytest_gpukern.gpu.ceiling_kernels import CANARIES
from pytest_gpukern.gpu.runtime import DeviceArray, cuda_source, launcher, runtime
from pytest_gpukern.session.stash import environment_of
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable, open_timer
from pytest_gpukern.values.timer_table import TIMERS, auto_timers

SPINS_NS = (500.0, 1_500.0, 5_000.0, 20_000.0, 100_000.0, 1_000_000.0, 10_000_000.0)
"""The others are compared with the first."""
NODE_SPINS_NS = (1_500.0, 20_000.0, 100_000.0)
EVENT_FROM_NS = 15_000.0
"""In shorter kernels the jitter of events, 165 ns on an H200, weighs too much."""
KERNELS = ("copy", "fma")
"""Canaries of 100 µs and more, which do work."""
SHARE = 0.01
REPEAT_SHARE = 0.02
"""The gate's default threshold."""
_WAKING_NS = 1_000_000.0
_MOST, _FEWEST, _BUDGET_NS = 50, 8, 5e7
_ROUNDING_NS = 0.05
"""Times are multiples of a nanosecond or of a tick; a comparison must not fail by a float's last digit."""


class Reading(NamedTuple):
    """Holds a known time, and what a timer read."""

    what: str
    truth_ns: float
    read_ns: float


def hold(readings, *, share=SHARE, tick_ns=0.0):
    """Prints how far each reading is off; asserts that none is by more than a share or, if more, a tick."""
    assert readings, "nothing was read"
    wrong = []
    for what, truth_ns, read_ns in readings:
        off_ns, allowed_ns = read_ns - truth_ns, max(share * truth_ns, tick_ns)
        line = (
            f"{what}: {truth_ns:.1f} ns known, {off_ns:+.1f} ns read beyond it, {allowed_ns:.1f} ns allowed"
        )
        sys.stdout.write(f"{line}\n")
        if abs(off_ns) > allowed_ns + _ROUNDING_NS:
            wrong.append(line)
    assert not wrong, "\n".join(wrong)


class SpinningKernel:
    """Spins one thread on %globaltimer, and writes out its last reading less its first."""

    def __init__(self, runtime):
        kernel = runtime.kernel(cuda_source("selftest_spin.cu"), "gpukern_spin")
        self._own = DeviceArray((_MOST,), np.uint64)
        self._launch = launcher(runtime.stream, kernel, 1, 1)
        self.call(0)()  # loaded and run once before anything can be blocked
        runtime.synchronize()

    def call(self, ns, slot=0):
        """Returns a launch that spins for `ns`; `slot` keeps how long it did."""
        return lambda: self._launch(np.uint64(ns), self._own.pointer + 8 * slot)

    def own_ns(self, count):
        """Returns how long the last spins of the first slots took; the device must be idle."""
        return [float(own) for own in self._own.download()[:count]]

    def free(self):
        self._own.free()


class Machine:
    """Holds the timers of this machine, the spinning kernel, and kernels that do work by their names."""

    def __init__(self, timers, graph, spinning, kernels):
        self.default, *_ = timers.values()
        self.event, self.graph, self.spinning, self.kernels = timers["event"], graph, spinning, kernels
        self.tick_ns = TIMERS[self.default.name].step_ns
        self.read_ns(self.default, spinning.call(_WAKING_NS))  # raises the clocks

    def read_ns(self, timer, call):
        """Returns the median that a timer reads of a launch with a hot cache."""
        batch = timer.collect([Iteration(call, launches=1)] * _MOST, cold=False)
        return statistics.median(batch.samples_ns)

    def graph_ns(self, call):
        """Returns what the timer by graphs reads of a launch, less the cost that it states."""
        return self.read_ns(self.graph, call) - self.graph.fixed_cost_ns

    def node_ns(self, ns):
        """Returns the time of a spin as a node of a graph."""
        return self.graph.node_time_ns(Iteration(self.spinning.call(ns), launches=1))

    def spin(self, ns):
        """Returns how long spins took by themselves, and what the default timer read beyond that.

        Both are medians, of what each sample and its own spin came to.
        """
        count = max(_FEWEST, min(_MOST, int(_BUDGET_NS / ns)))
        calls = [Iteration(self.spinning.call(ns, slot), launches=1) for slot in range(count)]
        samples = self.default.collect(calls, cold=False).samples_ns
        own = self.spinning.own_ns(count)
        beyond = (sample - truth for sample, truth in zip(samples, own, strict=True))
        return statistics.median(own), statistics.median(beyond)


@pytest.fixture(scope="module")
def machine(gpu_device, pytestconfig):
    if gpu_device.is_simulated:
        pytest.skip("no GPU: the simulator has no time")
    gpu, timers = runtime(), {}
    with environment_of(pytestconfig).gpu.exclusive(), contextlib.ExitStack() as made:
        for name in auto_timers():
            try:
                timers[name] = open_timer(name, gpu.stream)
            except TimerUnavailable as error:
                sys.stdout.write(f"{name} cannot be used here: {error}\n")
        spinning = SpinningKernel(gpu)
        made.callback(spinning.free)
        kernels = {name: made.enter_context(CANARIES[name](gpu)) for name in KERNELS}
        for call in kernels.values():
            call()  # loaded before anything is blocked or captured
        gpu.synchronize()
        yield Machine(timers, open_timer("graph", gpu.stream), spinning, kernels)


def test_the_default_timer_tells_spins_apart_as_they_do_themselves(machine):
    (shortest_ns, beyond_ns), *longer = (machine.spin(ns) for ns in SPINS_NS)
    hold(
        [
            Reading(_less(ns, SPINS_NS), own_ns - shortest_ns, own_ns - shortest_ns + more_ns - beyond_ns)
            for ns, (own_ns, more_ns) in zip(SPINS_NS[1:], longer, strict=True)
        ],
        tick_ns=machine.tick_ns,
    )


def test_the_default_timer_tells_spins_apart_as_graphs_do(machine):
    (shortest_ns, shortest_read_ns), *longer = (
        (machine.node_ns(ns), machine.read_ns(machine.default, machine.spinning.call(ns)))
        for ns in NODE_SPINS_NS
    )
    hold(
        [
            Reading(_less(ns, NODE_SPINS_NS), node_ns - shortest_ns, read_ns - shortest_read_ns)
            for ns, (node_ns, read_ns) in zip(NODE_SPINS_NS[1:], longer, strict=True)
        ],
        tick_ns=machine.tick_ns,
    )


def test_events_less_the_cost_that_they_state_read_what_graphs_do(machine):
    readings = []
    for ns in (ns for ns in NODE_SPINS_NS if ns >= EVENT_FROM_NS):
        read_ns = machine.read_ns(machine.event, machine.spinning.call(ns))
        cost_ns = machine.event.fixed_cost_ns  # that of the last batch
        assert cost_ns is not None, "the event timer states no fixed cost"
        readings.append(Reading(f"spin {ns:g} ns", machine.node_ns(ns), read_ns - cost_ns))
    hold(readings)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_default_timer_reads_kernels_as_graphs_do(machine, kernel):
    call = machine.kernels[kernel]
    hold(
        [Reading(kernel, machine.graph_ns(call), machine.read_ns(machine.default, call))],
        tick_ns=machine.tick_ns,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_default_timer_reads_a_kernel_twice_alike(machine, kernel):
    first_ns, again_ns = (machine.read_ns(machine.default, machine.kernels[kernel]) for _ in range(2))
    hold([Reading(kernel, first_ns, again_ns)], share=REPEAT_SHARE, tick_ns=2 * machine.tick_ns)


def _less(ns, spins_ns):
    return f"spin {ns:g} ns − {spins_ns[0]:g} ns"
