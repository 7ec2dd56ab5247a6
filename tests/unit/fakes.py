"""Stand-ins shared by the tests of the core: clocks, problems, a GPU that NumPy computes for, a timer."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.dataset import Datasets
from pytest_gpukern.problem import Axis, Case, Output, Problem, Tolerance
from pytest_gpukern.settings import Settings
from pytest_gpukern.timers import Batch, bind


class FakeClock:
    """Nanoseconds that pass only when somebody says so; reading costs `tick` of them."""

    def __init__(self, tick=0):
        self.now = 0
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now

    def seconds(self):
        return self.now / 1e9


def call_taking(clock, *durations_ns):
    """A call that takes these times in turn, the last of them for ever; counts in `.calls`."""

    def call():
        clock.now += durations_ns[min(call.calls, len(durations_ns) - 1)]
        call.calls += 1

    call.calls = 0
    return call


def doubling(n=8, **changes):
    """The problem out = 2·a in float32 for `n` elements, exact."""
    declared = {
        "version": 1,
        "axes": {"n": Axis(smoke=(n,), full=(n * 1000,))},
        "make_inputs": lambda rng, n: {"a": rng.random(n).astype(np.float32)},
        "outputs": lambda n: {"out": Output((n,), "float32")},
        "reference": lambda a: 2.0 * a.astype(np.float64),
        "tolerance": Tolerance(),
        "traffic_bytes": lambda n: 8 * n,
        "flops": lambda n: n,
        **changes,
    }
    return Problem("doubling", **declared)


def only_case(problem, size="smoke", *, wrong=False):
    """The one case of a problem."""
    (case,) = problem.iter_cases(size, wrong=wrong)
    assert isinstance(case, Case)
    return case


class FakeGpu(HostBackend):
    """Claims to be a GPU with Numba, computes with NumPy, and writes down what happens in `events`."""

    name = "numba"
    on_gpu = True
    stream = "the stream"

    def __init__(self, events=None):
        self.events = [] if events is None else events
        self.released = 0

    def workspace(self, inputs, outputs):
        made = super().workspace(inputs, outputs)
        for method in ("load", "fetch", "close", "poison"):
            setattr(made, method, self._noting(method, getattr(made, method)))
        return made

    def _noting(self, name, method):
        def noted(*args, **kwargs):
            self.events.append(name)
            return method(*args, **kwargs)

        return noted

    def release(self):
        self.released += 1


class FakeTimer:
    """Calls what it is given as often as asked and reads 1000, 1001, … ns."""

    name = "event"
    measures = "what a test says"
    resolution_ns = 0.0
    jitter_ns = 0.0

    def __init__(self, suspicion=None, events=None):
        self.suspicious = suspicion
        self.events = [] if events is None else events
        self.colds = []

    def collect(self, call, count, *, cold, setup=None):
        self.events.append("timed")
        self.colds.append(cold)
        for bound in bind(call, count, setup):
            bound()
        return Batch([1000.0 + index % 3 for index in range(count)])

    def suspicion(self, call, setup=None):
        return self.suspicious


class FakeEnvironment:
    """As `environment.Environment` for the runner, with these backends and nothing recorded."""

    def __init__(self, *backends, settings=None, missing=None, simulating=False, recorded=()):
        self.settings = settings or Settings(benchmark=True, asked=True)
        self.datasets = Datasets()
        self.simulated = SimpleNamespace(active=simulating)
        self.fingerprint = SimpleNamespace(to_json=lambda: {"device_name": "fake"})
        self.sessions = recorded
        self.asked_for_records = []
        self.locked = False
        self._backends = {backend.name: backend for backend in backends}
        self._backends.setdefault("host", HostBackend())
        self._missing = missing or {}

    def unusable(self, name):
        return self._missing.get(name)

    def backend(self, name):
        return self._backends[name]

    @property
    def memory_budget_bytes(self):
        return 1e9

    def model_key(self, *, on_gpu):
        return "fake-gpu" if on_gpu else "fake-cpu"

    def recorded(self, case, key, *, on_gpu):
        self.asked_for_records.append((key, on_gpu))
        return self.sessions

    @contextmanager
    def exclusive(self):
        assert not self.locked
        self.locked = True
        try:
            yield
        finally:
            self.locked = False
