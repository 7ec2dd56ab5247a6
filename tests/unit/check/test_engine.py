"""One engine checks launches of variants and of a test's own calls: a row reaches them all."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, diagnose_case, measuring, right, run
from test_checked_calls import checked

from pytest_gpukern.check import engine
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError
from pytest_gpukern.check.engine import CHECKS
from pytest_gpukern.values.result import Correctness


@pytest.fixture
def added(monkeypatch):
    return lambda check: monkeypatch.setattr(engine, "CHECKS", (*CHECKS, check))


def complains(launch, made):
    return Diagnosis(Fault.STATISTICS, f"{launch.by} was looked at")


def test_a_check_reaches_variants_and_calls(added):
    added(complains)
    diagnosis = diagnose_case(case_of(right, "host"), FakeEnvironment())
    assert diagnosis.message == "the launch was looked at"
    a, out = np.arange(9.0), np.empty(9)
    for declared in ({"outputs": ("out",)}, {}, {"fixed": False}):
        with pytest.raises(IncorrectError, match="the call was looked at"):
            checked(lambda a, out: right(a, out)(), a, out, **declared)


def test_a_check_looks_at_what_timed_launches_left_of_which_nothing_else_is_known(added, gpu, timer):
    seen = []
    added(lambda launch, made: seen.append(made))
    result = run(case_of(right), FakeEnvironment(gpu, settings=measuring()))
    assert result.correctness is Correctness.PASSED
    timed = [made for made in seen if made.returned is None and not made.digests]
    launched = [made for made in seen if made.digests]
    assert timed
    assert launched
    assert len(timed) + len(launched) == len(seen)
