"""Fixtures of the core's tests: a GPU that NumPy computes for, and timers that read made-up times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fakes import FakeGpu, FakeTimer
from hypothesis import settings

# Without a deadline, since a loaded machine is no failure.
settings.register_profile("unhurried", deadline=None, max_examples=50)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def _unknown_load(monkeypatch):
    """Nothing waits to learn what else this host does."""
    monkeypatch.setattr("pytest_gpukern.measure.host_load.read", lambda: None)


@pytest.fixture
def events():
    """What happened, in order."""
    return []


@pytest.fixture
def gpu(events, monkeypatch):
    """A backend that claims to run on a GPU, and a CUDA runtime with a gigabyte of memory."""
    from pytest_gpukern.gpu import runtime as cuda

    runtime = SimpleNamespace(
        free_bytes=lambda: 2**30,
        forget_copies=lambda: events.append("forget"),
        synchronize=lambda: None,
        l2_bytes=2**10,
    )
    monkeypatch.setattr(cuda, "runtime", lambda: runtime)
    monkeypatch.setattr(cuda, "in_own_context", lambda: False)
    return FakeGpu(events)


@pytest.fixture
def timer(events, monkeypatch):
    """The timer of every scope, by whatever name it is asked for; `.asked` has those with their streams."""
    from pytest_gpukern.measure import by_timer
    from pytest_gpukern.run import timed_scope

    made = FakeTimer(events=events)
    made.asked = []

    def open_timer(name, stream, *, any_stream=False, queues=True):
        made.name = name
        made.asked.append((name, stream, any_stream))
        return made

    monkeypatch.setattr(by_timer, "open_timer", open_timer)
    monkeypatch.setattr(timed_scope, "open_host_timer", lambda *_: open_timer("host", None))
    return made
