"""The untimed calls of a test of one's own."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from pytest_gpukern.check.guarded_arrays import GuardedArrays
from pytest_gpukern.measure.measure import Repeated
from pytest_gpukern.run import call_subject
from pytest_gpukern.run.call_subject import CallSubject, CallTarget, Turn
from pytest_gpukern.run.spine import Found, SubjectContext
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.result import Result


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
    monkeypatch.setattr(call_subject, "time", made)
    return made


@pytest.fixture
def subject_of(monkeypatch):
    """Makes the subject of a call that a second one follows, as if it had been measured."""

    def make(call, synchronize, observing, next_turn=None):
        monkeypatch.setattr(call_subject, "waiting_for", lambda device: synchronize)
        device = SimpleNamespace(is_simulated=False)
        gpu = SimpleNamespace(device=device, has_gpu=True, measures=False, loading_observed=observing)
        environment = SimpleNamespace(gpu=gpu)
        next_turn = next_turn or (lambda: Turn(call, (), {}))
        target = CallTarget(call, next_turn, Repeated(call), called_after=True, leaves_host_calls=True)
        context = SubjectContext(environment, MarkerOptions(), "x", None)
        return CallSubject(target, context, GuardedArrays(None))

    return make


@pytest.fixture
def found():
    return Found(Result(case=None, nodeid="x", fingerprint={}, simulated=False))


def test_the_first_call_takes_what_it_and_its_kernels_take_and_not_what_looking_on_does(
    clock, subject_of, found
):
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

    subject = subject_of(call, synchronize, observing, next_turn)
    subject.check(found)
    assert subject.first == 7
    assert found.result.first_call_ns == 34
    before = ["looks on", "set up", "waited", "looked"]
    assert happened == [*before, "looks on the call", "called", "waited", "looked"]
    subject.recheck(found)
    assert subject.last == 7
    assert found.result.first_call_ns == 34
    assert happened[8:] == ["set up", "waited", "called", "waited"], (
        "modules are hashed in the first call only"
    )


def test_a_call_that_raises_has_no_first_time(clock, subject_of, found):
    def call():
        clock.passes(30)
        raise ZeroDivisionError

    subject = subject_of(call, lambda: None, lambda own: nullcontext())
    with pytest.raises(ZeroDivisionError):
        subject.check(found)
    assert found.result.first_call_ns is None
