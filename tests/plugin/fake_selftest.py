"""The fake GPU as a machine for `gpukern selftest`: runs load this module with `-p fake_selftest`.

Kernels are small, and NumPy's. The spinning kernel takes as long as it is asked to. Timers read more than
that by a constant; CUPTI `CUPTI_READS` times as much. Kernels take `LATER_TAKE` times as long in all
processes but the first that measures. One that writes `BREAKS` elements raises.
"""

import importlib
import os
import time
from contextlib import suppress
from pathlib import Path

import fake_gpu
import numpy as np
from fake_gpu import INSTALLED, put_module, pytest_load_initial_conftests  # noqa: F401 - the second is a hook

SIZES = {"exp 64 K f32": 64, "exp 10 M f32": 100, "exp 100 M f32": 200, "add 32 M f64": 80, "sgemm 2048": 32}
TAKES_NS = {64: 1_312.0, 100: 24_000.0, 200: 31_000.0, 80: 27_000.0, 32 * 32: 9_000.0}
BEYOND_NS = {"cupti": 704.0, "event": 3_504.0}
GAP_NS, EVENT_COST_NS, REPLAY_NS = 40.0, 2_760.0, 25.0
LAST_NS = [1_000.0]


def reads(name, ns):
    """What a timer reads of a kernel that takes so long by itself."""
    return ns * (float(os.environ.get("CUPTI_READS", "1")) if name == "cupti" else 1.0) + BEYOND_NS[name]


def is_first(known=[]):  # noqa: B006 - once a process
    if not known:
        known.append(False)
        with suppress(FileExistsError):
            Path("measured-first").touch(exist_ok=False)
            known[:] = [True]
    return known[0]


def launched(out):
    """Notes how long a launch takes that writes `out`."""
    if str(out.size) == os.environ.get("BREAKS"):
        raise RuntimeError("no such kernel")
    LAST_NS[0] = TAKES_NS.get(out.size, 1_000.0) * (1 if is_first() else float(os.environ["LATER_TAKE"]))


def exp(x, out):
    np.exp(x, out=out)
    launched(out)


def matmul(a, b, out):
    np.matmul(a, b, out=out)
    launched(out)


class Add:
    def __getitem__(self, launch):
        def add(a, out):
            np.add(a, 2.0, out=out)
            launched(out)

        return add


class Spinning:
    def __init__(self, runtime):
        self.asked_ns = 0.0

    def call(self, ns, slot=0, stream=None):
        def spin():
            self.asked_ns = ns
            LAST_NS[0] = ns + BEYOND_NS["cupti"]

        spin.asked_ns = ns
        return spin

    def own_ns(self, slot=0):
        return self.asked_ns + 16.0

    def read(self, timer, ns, count):
        from pytest_gpukern.selftest.known_times import Spin

        assert 8 <= count <= 50
        own_ns, reading_ns = ns + 16.0, reads(timer.name, ns + 16.0)
        return Spin(ns, timer.name, own_ns, reading_ns, reading_ns - own_ns)

    def free(self):
        pass


def pytest_addoption():
    from pytest_gpukern.selftest import kernels

    fake_gpu.install(INSTALLED, cupti=True)
    from pytest_gpukern.timers.timer import Batch

    event = importlib.import_module("pytest_gpukern.timers.event")  # the fake GPU's

    class Timer(event.EventTimer):
        def collect(self, iterations, *, cold):
            for iteration in iterations:
                if iteration.before is not None:
                    iteration.before()
                iteration.run()
            samples = [LAST_NS[0] + self.more_ns] * len(iterations)
            time.sleep(sum(samples) / 1e9)  # the host's clock has to agree
            return Batch(samples)

    class Event(Timer):
        more_ns = fixed_cost_ns = EVENT_COST_NS

    class Cupti(Timer):
        name, more_ns = "cupti", 0.0

    class Graph(Timer):
        """Its times have the replay's own cost in them; a node ends a gap later than its kernel."""

        name, more_ns, fixed_cost_ns = "graph", GAP_NS + REPLAY_NS, REPLAY_NS

        def node_time_ns(self, iteration):
            iteration.run()
            return LAST_NS[0] + GAP_NS

    importlib.import_module("pytest_gpukern.gpu.runtime").runtime().stream = None
    cupti = importlib.import_module("pytest_gpukern.timers.cupti.timer")
    INSTALLED.setattr(event, "EventTimer", Event)
    INSTALLED.setattr(cupti, "CuptiTimer", Cupti)
    INSTALLED.setattr(kernels, "SIZES", SIZES)
    INSTALLED.setattr(kernels, "SpinningKernel", Spinning)
    INSTALLED.setattr(kernels, "_add_kernel", Add)
    put_module(INSTALLED, "pytest_gpukern.timers.graph", GraphTimer=Graph, sets_needed=lambda *_: 1)
    put_module(INSTALLED, "cupy", exp=exp, matmul=matmul)
