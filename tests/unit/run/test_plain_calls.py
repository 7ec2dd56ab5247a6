"""The untimed calls of a plain test."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from pytest_gpukern.check.guarded_arrays import GuardedArrays
from pytest_gpukern.run import plain_calls
from pytest_gpukern.run.plain_calls import PlainCalls, Turn


class Clock:
    """Nanoseconds that pass only where something takes time."""

    now_ns = 0

    def perf_counter_ns(self):
        return self.now_ns

    def passes(self, ns):
        self.now_ns += ns


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(plain_calls, "time", made)
    return made


def calls_of(call, synchronize, observing, next_turn=None):
    environment = SimpleNamespace(
        exclusive=nullcontext, look_at_memory=lambda: None, loading_observed=observing
    )
    return PlainCalls(
        call,
        next_turn or (lambda: Turn(call, (), {})),
        None,
        environment,
        synchronize,
        GuardedArrays(None),
    )


def test_the_first_call_takes_what_it_and_its_kernels_take_and_not_what_looking_on_does(clock):
    happened = []

    @contextmanager
    def observing(*, own):
        clock.passes(1000)
        happened.append("looks on the call" if own else "looks on")
        yield
        happened.append("looked")
        clock.passes(2000)

    def next_turn():
        happened.append("set up")
        return Turn(call, (), {})

    def call():
        happened.append("called")
        clock.passes(30)
        return 7

    def synchronize():
        happened.append("waited")
        clock.passes(4)

    calls = calls_of(call, synchronize, observing, next_turn)
    assert calls.before_timing() == 7
    assert calls.first_call_ns == 34
    before = ["looks on", "set up", "waited", "looked"]
    assert happened == [*before, "looks on the call", "called", "waited", "looked"]
    assert calls.after_timing() == 7
    assert calls.first_call_ns == 34
    assert happened[8:] == ["set up", "waited", "called", "waited"], (
        "modules are hashed in the first call only"
    )


def test_a_call_that_raises_has_no_first_time(clock):
    def call():
        clock.passes(30)
        raise ZeroDivisionError

    calls = calls_of(call, lambda: None, lambda own: nullcontext())
    with pytest.raises(ZeroDivisionError):
        calls.before_timing()
    assert calls.first_call_ns is None
