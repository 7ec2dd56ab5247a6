"""One engine checks launches of variants and of a test's own calls: a row reaches them all."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, diagnose_case, measuring, right, run

from pytest_gpukern.check import engine
from pytest_gpukern.check.check_call import CheckedCalls, GuardedArrays, Turn, check_against_reference
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError
from pytest_gpukern.check.engine import CHECKS, Check
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.result import Correctness

SWITCH = {"on": False}


def switches(launch):
    """What a launch must not touch; looks before it and after."""
    before = SWITCH["on"]
    yield
    return Diagnosis(Fault.STATISTICS, f"{launch.by} switched") if SWITCH["on"] != before else None


def begins_exactly(output):
    """A fault only in the eyes of this check."""
    exact = output.actual()[0] == output.expected[0]
    return Diagnosis(Fault.STATISTICS, f"{output.name} begins exactly") if exact else None


@pytest.fixture
def added(monkeypatch):
    def add(**row):
        monkeypatch.setattr(engine, "CHECKS", (*CHECKS, Check(**row)))

    monkeypatch.setitem(SWITCH, "on", False)
    return add


def switching(a, out):
    def launch():
        np.multiply(a, 2, out=out)
        SWITCH["on"] = not SWITCH["on"]

    return launch


def ends_early(launch):
    """Sees before a launch that it may not be made."""
    if launch.by == "the launch":
        return Diagnosis(Fault.STATISTICS, "it may not be made")
    yield


def call(function, *args, fixed=True, **declared):
    marker, guarded = MarkerOptions(**declared), GuardedArrays(None)
    checks = CheckedCalls(function, marker, "x", lambda: None, guarded, fixed=fixed)
    turn = Turn(functools.partial(function, *args), args, {})
    return checks.make(turn, "in the first call")


def test_a_check_of_launches_reaches_variants_and_calls_before_and_after(added):
    added(launch=switches)
    assert diagnose_case(case_of(right, "host"), FakeEnvironment()) is None
    assert diagnose_case(case_of(switching, "host"), FakeEnvironment()).message == "the launch switched"
    a, out = np.arange(9.0), np.empty(9)
    call(lambda a, out: right(a, out)(), a, out, outputs=("out",))
    for declared in ({"outputs": ("out",)}, {}, {"fixed": False}):
        with pytest.raises(IncorrectError, match="the call switched"):
            call(lambda a, out: switching(a, out)(), a, out, **declared)


def test_a_check_of_outputs_reaches_cases_and_what_a_test_verifies(added):
    added(output=begins_exactly)
    assert diagnose_case(case_of(right, "host"), FakeEnvironment()).message == "out begins exactly"

    def verified(actual, expected):
        return check_against_reference(
            "y", actual, expected, 0.1, None, seen=None, hashes=False, asks_what_else=False
        ).diagnosis

    assert verified(np.ones(9), np.full(9, 1.01)) is None
    assert verified(np.ones(9), np.ones(9)).message == "y begins exactly"


def test_a_check_that_ends_before_the_launch_has_its_say(added):
    added(launch=ends_early)
    launched = []
    case = case_of(lambda a, out: lambda: launched.append(1), "host")
    assert diagnose_case(case, FakeEnvironment()).message == "it may not be made"
    assert not launched
    call(np.copyto, np.zeros(9), np.ones(9))


def test_a_check_that_needs_nothing_from_before_may_look_at_what_timed_launches_left(added, gpu, timer):
    looks = {True: 0, False: 0}

    def counts(timed):
        def count(launch):
            yield
            looks[timed] += 1

        return count

    for timed in looks:
        added(launch=counts(timed), timed=timed)
        result = run(case_of(right), FakeEnvironment(gpu, settings=measuring()))
        assert result.correctness is Correctness.PASSED
    assert looks[True] > looks[False] > 0


def test_every_row_looks_at_one_thing():
    assert all((check.launch is None) != (check.output is None) for check in CHECKS)
