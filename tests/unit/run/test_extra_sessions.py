"""Checks which extra sessions of measured tests count, and which tests are refused; children are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from made_up_results import measured, result
from msgspec import structs

from pytest_gpukern.processes.sessions import ChildRun, Ending
from pytest_gpukern.run.extra_sessions import measure_extra_sessions
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE
from pytest_gpukern.values.result import SessionRole

A, B, C = "t.py::a", "t.py::b", "t.py::c"
GOOD = structs.replace(result("cupy.exp", measured()), role=SessionRole.FURTHER)


class Children:
    """Ends child sessions as given, one after the other; notes what each was asked for."""

    def __init__(self, *runs):
        self._runs = list(runs)
        self.asked, self.started, self.waiting = [], [], []

    def start(self, request):
        assert Path(request.environ[RUN_FOLDER_VARIABLE]).is_dir()
        self.waiting.append(Mock(has_ended=False))
        return self.waiting[-1]

    def run(self, request, progress, started):
        assert request.environ["X"] == "1"
        self.asked.append(request.nodeids)
        self.started.append((started, len(self.waiting)))
        if progress is not None:
            progress(1, len(request.nodeids))
        return self._runs.pop(0)


def ran(results, **changes):
    """Returns a finished session in which these tests passed with these results."""
    passed = {test: Ending("passed", "", result) for test, result in results.items()}
    return ChildRun(**{"endings": passed, "status": 0, **changes})


def extra(children, nodeids=(A, B), last=3, measures=False, **options):
    environment = SimpleNamespace(gpu=SimpleNamespace(measures=measures, for_children={"X": "1"}))
    measured = [structs.replace(result("triton.exp"), nodeid=nodeid) for nodeid in nodeids]
    found = measure_extra_sessions(environment, children, measured, range(2, last + 1), **options)
    return [found[nodeid] for nodeid in nodeids]


def test_every_session_runs_all_tests_and_each_gets_its_results_and_says_what_they_are_for():
    other, told = structs.replace(GOOD, measurements=(measured(50_000.0),)), []
    children = Children(ran({A: GOOD, B: GOOD}), ran({A: other, B: GOOD}))
    found = extra(children, progress=lambda *counts: told.append(counts), role=SessionRole.CONFIRMING)
    assert children.asked == [(A, B), (A, B)]
    assert told == [(2, 0, 2), (2, 1, 2), (3, 0, 2), (3, 1, 2)]
    good, other = (structs.replace(one, role=SessionRole.CONFIRMING) for one in (GOOD, other))
    assert found == [((good, other), None), ((good, good), None)]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ({A: Ending("failed", "assert 1 == 2", GOOD)}, "failed: assert 1 == 2"),
        ({A: Ending("skipped", "no GPU")}, "skipped: no GPU"),
        ({A: Ending("passed")}, "it measured nothing"),
        ({A: Ending("passed", "", result("", measured(invalid="hot")))}, "kernel/event/cold is INVALID: hot"),
        ({}, "the test was not found"),
    ],
)
def test_a_test_that_fails_to_measure_again_is_refused_and_not_run_again(ending, reason):
    bad = ran({}, endings={**ending, B: Ending("passed", "", GOOD)})
    children, alone = Children(bad, ran({B: GOOD})), Children(bad)
    found = extra(children)
    assert found == [((), f"session 2: {reason}"), ((GOOD, GOOD), None)]
    assert children.asked == [(A, B), (B,)]
    extra(alone, (A,), last=5)
    assert alone.asked == [(A,)]


def test_a_test_that_kills_its_process_is_refused_and_later_tests_have_a_session_less():
    died = ran({A: GOOD}, problem="it ended by SIGSEGV", during=B, ended_early=True, status=-11)
    children = Children(died, ran({A: GOOD, C: GOOD}))
    found = extra(children, (A, B, C))
    why = "session 2: it ended by SIGSEGV"
    assert found == [((GOOD, GOOD), None), ((), why), ((GOOD,), why)]
    assert children.asked[1] == (A, C)


def test_each_session_but_the_first_imports_its_backends_libraries_beside_the_one_before(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    children = Children(ran({A: GOOD}), ran({A: GOOD}), ran({}))
    extra(children, (A,), last=5, measures=True)
    second, third, left = children.waiting
    assert children.started == [(None, 1), (second, 2), (third, 3)]
    assert left.kill.called, "its turn did not come, since the test was refused"
    imported = [name for (name,), _ in second.imports.call_args_list]
    assert {"torch", "triton"} <= set(imported)
    assert not {"cupy", "numba"} & set(imported)
    alone = Children(*[ran({A: GOOD})] * 2)
    extra(alone, (A,))
    assert alone.started == [(None, 0)] * 2
