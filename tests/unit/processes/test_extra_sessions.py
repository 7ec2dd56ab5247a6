"""Checks which extra sessions of measured tests count, and which tests are refused; children are made up."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_results import measured, result

from pytest_gpukern.processes.extra_sessions import measure_extra_sessions
from pytest_gpukern.processes.sessions import ChildRun
from pytest_gpukern.values.result import SessionRole

A, B, C = "t.py::a", "t.py::b", "t.py::c"
GOOD = dataclasses.replace(result("cupy.exp", measured()), role=SessionRole.FURTHER)
PASSED = ("passed", "")


class Children:
    """Ends child sessions as given, one after the other; notes what each was asked for."""

    def __init__(self, *runs):
        self._runs = list(runs)
        self.asked = []
        self.environ = []

    def run(self, request, progress=None):
        self.asked.append(request.nodeids)
        self.environ.append(request.environ)
        if progress is not None:
            progress(1, len(request.nodeids))
        return self._runs.pop(0)


def ran(**results):
    """Returns a finished session in which these tests passed with these results."""
    found = {f"t.py::{name}": each for name, each in results.items()}
    return ChildRun(results=found, outcomes=dict.fromkeys(found, PASSED), status=0)


def extra(children, nodeids=(A, B), last=3, **options):
    return measure_extra_sessions(children, nodeids, first=2, last=last, environ={"X": "1"}, **options)


def test_every_session_runs_all_tests_and_each_gets_its_results():
    other = dataclasses.replace(GOOD, measurements=(measured(50_000.0),))
    children = Children(ran(a=GOOD, b=GOOD), ran(a=other, b=GOOD))
    found = extra(children)
    assert children.asked == [(A, B), (A, B)]
    assert children.environ == [{"X": "1"}] * 2
    assert found.of(A, 2) == ([GOOD, other], None)
    assert found.of(B, 2) == ([GOOD, GOOD], None)


@pytest.mark.parametrize(
    ("outcome", "results", "reason"),
    [
        (("failed", "assert 1 == 2"), {A: GOOD}, "session 2: failed: assert 1 == 2"),
        (("skipped", "no GPU"), {}, "session 2: skipped: no GPU"),
        (PASSED, {}, "session 2: it measured nothing"),
        (
            PASSED,
            {A: result("cupy.exp", measured(invalid="throttled"))},
            "session 2: kernel/event/cold is INVALID: throttled",
        ),
    ],
)
def test_a_test_that_fails_to_measure_again_is_refused_and_not_run_again(outcome, results, reason):
    bad = ChildRun(results={**results, B: GOOD}, outcomes={A: outcome, B: PASSED}, status=1)
    children = Children(bad, ran(b=GOOD))
    found = extra(children)
    assert found.of(A, 2) == ([], reason)
    assert found.of(B, 2) == ([GOOD, GOOD], None)
    assert children.asked == [(A, B), (B,)]


def test_a_test_that_is_not_found_is_refused():
    lost = ChildRun(results={B: GOOD}, outcomes={B: PASSED}, problem="not found: t.py::a", status=0)
    found = extra(Children(lost, ran(b=GOOD)))
    assert found.of(A, 2) == ([], "session 2: the test was not found")
    assert found.of(B, 2) == ([GOOD, GOOD], None)


def test_a_test_that_kills_its_process_is_refused_and_later_tests_have_a_session_less():
    died = ChildRun(
        results={A: GOOD},
        outcomes={A: PASSED},
        problem="it ended by SIGSEGV",
        during=B,
        ended_early=True,
        status=-11,
    )
    children = Children(died, ran(a=GOOD, c=GOOD))
    found = extra(children, (A, B, C))
    assert found.of(A, 2) == ([GOOD, GOOD], None)
    assert found.of(B, 2) == ([], "session 2: it ended by SIGSEGV")
    assert found.of(C, 2) == ([GOOD], "session 2: it ended by SIGSEGV")
    assert found.refused.keys() == {B}
    assert children.asked[1] == (A, C)


def test_nothing_is_started_once_every_test_is_refused():
    children = Children(ChildRun(outcomes={A: ("failed", "x")}, status=1))
    extra(children, (A,), last=5)
    assert len(children.asked) == 1


def test_progress_gets_the_sessions_number():
    told = []
    extra(Children(ran(a=GOOD, b=GOOD), ran(a=GOOD, b=GOOD)), progress=lambda *each: told.append(each))
    assert told == [(2, 0, 2), (2, 1, 2), (3, 0, 2), (3, 1, 2)]


def test_each_session_says_what_it_was_measured_for():
    found = extra(Children(ran(a=GOOD), ran(a=GOOD)), (A,), role=SessionRole.CONFIRMING)
    assert [each.role for each in found.results[A]] == 2 * [SessionRole.CONFIRMING]
