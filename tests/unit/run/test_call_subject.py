"""Checks the untimed calls of a plain test."""

from __future__ import annotations

import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeClock

from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.check import engine
from pytest_gpukern.check.check_call import GuardedArrays, Turn
from pytest_gpukern.check.diagnosis import Fault, IncorrectError
from pytest_gpukern.check.verify import check_against_reference
from pytest_gpukern.measure.measure import Repeated
from pytest_gpukern.run import call_subject
from pytest_gpukern.run.call_subject import CallSubject, CallTarget
from pytest_gpukern.run.spine import Evidence, SubjectContext
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.result import Determinism, Result
from pytest_gpukern.values.settings import Settings


@pytest.fixture
def clock(monkeypatch):
    """Its nanoseconds pass only where something takes time."""
    made = FakeClock()
    monkeypatch.setattr(engine, "time", made)
    return made


@pytest.fixture
def subject_of(monkeypatch):
    """Makes the subject of a call that a second one follows, as if it had been measured."""

    def make(call, synchronize, observing, next_turn=None):
        monkeypatch.setattr(call_subject, "waiting_for", lambda device: synchronize)
        device = SimpleNamespace(is_simulated=False)
        gpu = SimpleNamespace(device=device, has_gpu=True, measures=False, loading_observed=observing)
        environment = SimpleNamespace(gpu=gpu, poisons=POISONS)
        next_turn = next_turn or (lambda: Turn(call, (), {}))
        target = CallTarget(call, next_turn, Repeated(call), called_after=True, leaves_host_calls=True)
        context = SubjectContext(environment, MarkerOptions(), "x", None)
        return CallSubject(target, context, GuardedArrays(None))

    return make


@pytest.fixture
def found():
    return Evidence(Result(case=None, nodeid="x", fingerprint=Fingerprint(), simulated=False))


def test_first_call_time_leaves_out_the_time_of_our_observing(clock, subject_of, found):
    happened = []

    @contextmanager
    def observing():
        clock.passes(1000)
        happened.append("looks on")
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
    assert subject.last == 7
    assert found.result.first_call_ns == 34
    called = happened.index("called")
    assert happened[called - 1 : called + 2] == ["waited", "called", "waited"]
    assert (happened[0], happened[1], happened[-1]) == ("looks on", "set up", "looked")
    happened.clear()
    subject.recheck(found)
    assert subject.last == 7
    assert found.result.first_call_ns == 34
    assert happened[0] == "set up"
    assert "looks on" not in happened, "modules are hashed in the first call only"


def test_a_call_that_raises_has_no_first_time(clock, subject_of, found):
    def call():
        clock.passes(30)
        raise ZeroDivisionError

    subject = subject_of(call, lambda: None, nullcontext)
    with pytest.raises(ZeroDivisionError):
        subject.check(found)
    assert found.result.first_call_ns is None


@pytest.fixture
def rechecked(monkeypatch, clock, found):
    """Makes the untimed calls of a call that writes its second argument, before and after timing."""
    monkeypatch.setattr(call_subject, "waiting_for", lambda device: lambda: None)

    def make(call, **marker):
        gpu = SimpleNamespace(device="made up", has_gpu=False, measures=True, loading_observed=nullcontext)
        environment = SimpleNamespace(gpu=gpu, poisons=POISONS, settings=Settings())
        target = CallTarget.repeated(call, (np.arange(9.0), np.empty(9)), {})
        context = SubjectContext(environment, MarkerOptions(outputs=(1,), **marker), "x", None)
        subject = CallSubject(target, context, GuardedArrays(None))
        subject.check(found)
        subject.recheck(found)
        return subject

    return make


def doubling(then=None, once_in=64):
    """Counts its calls in `.calls`; one in so many does `then(out)`, too."""

    def call(x, out):
        call.calls += 1
        if then is not None and call.calls % once_in == 0:
            then(out)
        else:
            np.multiply(x, 2, out=out)

    call.calls = 0
    return call


def verified(seen, expected, rtol):
    out = seen.outputs["out"].value
    return check_against_reference(
        "output", out, expected, rtol, None, seen=seen, hashes=False, asks_what_else=False
    )


def test_quick_calls_are_repeated_after_timing_unless_they_differ(rechecked, clock):
    right = doubling()
    seen = rechecked(right).seen
    assert right.calls == 5 + 1 + 200
    assert seen.determinism("out") is Determinism.BITWISE
    differs = doubling(lambda out: out.fill(1), once_in=3)
    rechecked(differs)
    assert differs.calls == 5 + 1
    slow = doubling()
    rechecked(lambda x, out: (slow(x, out), clock.passes(8_000_000)))
    assert slow.calls == 5 + 1 + 2


def test_of_what_calls_returned_only_the_last_is_held_while_the_next_is_made(rechecked):
    returned, alive = [], []

    def call(x, out):
        alive.append([result() is not None for result in returned])
        np.multiply(x, 2, out=out)
        made = 2 * x
        returned.append(weakref.ref(made))
        return made

    subject = rechecked(call)
    assert subject.last is returned[-1]()
    assert alive == [[False] * (number - 1) + [True] * bool(number) for number in range(len(alive))]


def test_one_wrong_call_in_many_is_found_by_verify_or_by_declared_determinism(rechecked):
    seen = rechecked(doubling(lambda out: out.fill(1))).seen
    assert verified(seen, 2 * np.arange(9.0), 1e-6).diagnosis.fault is Fault.WRONG_VALUES
    seen = rechecked(doubling(lambda out: np.copyto(out, np.arange(9) * (2 + 1e-9)))).seen
    check = verified(seen, 2 * np.arange(9.0), 1e-6)
    assert (check.diagnosis, check.error.determinism) == (None, Determinism.TOLERANT)
    with pytest.raises(IncorrectError, match="not deterministic: 2 results from 64 launches"):
        rechecked(doubling(lambda out: out.fill(1)), determinism=Determinism.BITWISE)
    with pytest.raises(IncorrectError, match="9 of 9 elements"):
        rechecked(doubling(lambda out: None))
