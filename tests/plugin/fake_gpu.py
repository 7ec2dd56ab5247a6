"""A GPU that is not there: NumPy computes, and a launch takes the nanoseconds that it says it takes.

`install` serves runs in this process; runs in another load this module with `-p fake_gpu`. By default CUPTI
is not there, so that events time everything.

What is launched may carry `takes_ns`, and `escapes`: why its numbers cannot be trusted. Beside CUPTI events
read `EVENT_COST_NS` more.
"""

import itertools
from types import ModuleType, SimpleNamespace

import pytest

NAME = "Fake GPU"
MODEL_KEY = "fake-gpu"
EVENT_COST_NS = 500.0
NO_CUPTI = "cupti-python is not installed"


def pytest_addoption():
    """The first hook that pytest calls: before any plugin looks for a GPU."""
    install(pytest.MonkeyPatch())


def install(monkeypatch, *, cupti=False):
    """Makes this process believe in one GPU, whose backends compute with NumPy; with or without CUPTI."""
    from pytest_gpukern import backends, device
    from pytest_gpukern.backends.host import HostBackend
    from pytest_gpukern.environment import Environment
    from pytest_gpukern.timers import Batch, TimerUnavailable

    class FakeBackend(HostBackend):
        on_gpu = True

        def __init__(self, name):
            self.name = name

    class FakeTimer:
        name = "event"
        cost_ns = EVENT_COST_NS if cupti else 0.0
        measures = "what the launch says it takes"
        queues = True
        jitter_ns = 0.0
        resolution_ns = 0.0
        fixed_cost_ns = None

        def __init__(self, *_, **__):
            self.steps = itertools.cycle([0, -1, 1, -2, 2])

        def collect(self, iterations, *, cold):
            for iteration in iterations:
                if iteration.before is not None:
                    iteration.before()
                iteration.run()
            takes_ns = said_by(iterations[0].run, "takes_ns", 1000.0) + self.cost_ns
            steps = itertools.islice(self.steps, len(iterations))
            return Batch([takes_ns * (1 + step / 5000) for step in steps])

        def suspicion(self, iteration):
            return said_by(iteration.run, "escapes", None)

    class FakeCuptiTimer(FakeTimer):
        name = "cupti"
        cost_ns = 0.0

        def __init__(self, *_, **__):
            super().__init__()
            if not cupti:
                raise TimerUnavailable(NO_CUPTI)

    fake = device.Device(
        index=0,
        name=NAME,
        uuid="GPU-fa4e",
        compute_capability=(9, 0),
        memory_total_bytes=2**34,
        values=device.FixedValues(memory_free=2**33, multiprocessors=4, l2=2**20),
    )
    runtime = SimpleNamespace(
        synchronize=lambda: None,
        flush_l2=lambda stream: None,
        free_bytes=lambda: 2**33,
        device=SimpleNamespace(default_stream=None),
    )
    monkeypatch.setattr(device, "missing_gpu_reason", lambda environ: None)
    monkeypatch.setattr(Environment, "device", fake)
    monkeypatch.setattr(Environment, "missing_gpu", None)
    monkeypatch.setattr(Environment, "_lock", None)
    monkeypatch.setattr(Environment, "ceilings", None)
    monkeypatch.setattr(Environment, "unusable", lambda self, name: None)
    monkeypatch.setattr(
        backends,
        "open_backend",
        lambda name, *, simulated: HostBackend() if name == "host" else FakeBackend(name),
    )
    put_module(monkeypatch, "pytest_gpukern.backends.cuda", runtime=lambda: runtime)
    put_module(monkeypatch, "pytest_gpukern.timers.event", EventTimer=FakeTimer)
    put_module(monkeypatch, "pytest_gpukern.timers.cupti", CuptiTimer=FakeCuptiTimer)


def said_by(call, attribute, default):
    """What a launch, or the function inside a partial, says about itself."""
    return getattr(call, attribute, getattr(getattr(call, "func", None), attribute, default))


def put_module(monkeypatch, name, **contents):
    """Puts a module in the place of one that needs CUDA."""
    import sys

    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
