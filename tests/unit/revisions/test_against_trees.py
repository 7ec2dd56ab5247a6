"""Checks sessions of two sides in turn; no process starts."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from unittest.mock import Mock

import pytest
from made_up_results import error, measured, result
from msgspec import structs
from test_against_judging import known

from pytest_gpukern.processes.messages import LoadedModule
from pytest_gpukern.processes.sessions import ChildRun, Ending, Waiting
from pytest_gpukern.revisions.git import AgainstError, Revisions
from pytest_gpukern.revisions.judging import failure_in
from pytest_gpukern.revisions.trees import Tree, Trees, Turns
from pytest_gpukern.values.result import Contents, Correctness

A = "test_it.py::test_a"


def tree(label, top):
    (top / "src/pkg").mkdir(parents=True)
    (top / "src/pkg/__init__.py").touch()
    return Tree(label, top.resolve())


@pytest.fixture
def sides(tmp_path):
    base, head = tree("the base", tmp_path / "base"), tree("the working tree", tmp_path / "head")
    return Trees(base, head, {str(head.top): str(base.top)})


class Children:
    """Plays prepared runs, one a session, the last for all that follow; each with its side's own module,
    where it names none. `hashes` are those of that file, the last for all that follow."""

    def __init__(self, *runs, positional=("tests",), hashes=("abc",)):
        self.positional = positional
        self.runs, self.hashes = list(runs), list(hashes)
        self.requests, self.started = [], []

    def run(self, request, progress, started):
        self.requests.append(request)
        self.started.append(started)
        progress(1, 1)  # which is not worth a line so soon
        run = self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]
        root = request.watched_roots[0 if request.moved else 1]
        sha256 = self.hashes.pop(0) if len(self.hashes) > 1 else self.hashes[0]
        own = LoadedModule("pkg", f"{root}/src/pkg/__init__.py", sha256)
        return run if run.modules else dataclasses.replace(run, modules=(own,))


NOBODY_WAITS = Waiting(None, 0, [].append)
NOBODY_WAITS.close()


def turns_of(sides, children, environ=None, waiting=NOBODY_WAITS):
    return Turns(sides, children, environ or {}, waiting, {A: 0.02, B: 0.02})


RAN = ChildRun({A: Ending("passed")}, status=0)


def of(module, side):
    return LoadedModule(module, str(side.top / f"src/{module}/__init__.py"), "abc")


def test_only_the_bases_sessions_run_in_the_other_tree_and_the_first_tells_of_removed_tests(sides):
    children, said = Children(RAN), []
    turns_of(sides, children, {"MINE": "1"}, Waiting(None, 0, said.append)).take([A], 3)
    assert [bool(request.moved) for request in children.requests] == [True, False, False, True, True, False]
    assert [request.collects_all for request in children.requests] == [True, *[False] * 5]
    assert {request.watched_names for request in children.requests} == {("pkg",)}
    assert all(request.environ == {"MINE": "1"} for request in children.requests)
    turn = ["the base", "the working tree", "the working tree", "the base", "the base", "the working tree"]
    assert said == [f"session {number} of 6: {side}" for number, side in enumerate(turn, 1)]
    children = Children(RAN, positional=(A,))
    turns_of(sides, children).take([A], 2)
    assert not any(request.collects_all for request in children.requests), "others were not removed"


B = "test_it.py::test_b"
PASSED = structs.replace(result("cupy.exp", measured()), correctness=Correctness.PASSED)
UNCHECKED = structs.replace(PASSED, correctness=Correctness.UNCHECKED)


def test_later_sessions_of_a_side_know_what_its_first_one_checked(sides):
    base = ChildRun({A: Ending("passed", "", PASSED), B: Ending("passed", "", UNCHECKED)}, status=0)
    head = ChildRun({A: Ending("failed", "x", PASSED), B: Ending("passed", "", PASSED)}, status=1)
    children = Children(base, head)
    first = turns_of(sides, children)
    first.take([A, B], 2)
    first.take([A], 1)
    assert len(first.cases([A], since=2)[A][0]) == 1
    assert [request.checked for request in children.requests] == [set(), set(), {B}, {A}, {A, B}, {B}]
    folders = ["base", "head", "head", "base", "base", "head"]
    assert [request.datasets for request in children.requests] == [
        str(NOBODY_WAITS.folder / name) for name in folders
    ]


def test_what_does_the_same_on_both_sides_is_asked_once_and_of_the_others_no_time_of_that_counts(sides):
    asked = [ChildRun({A: known(inputs=inputs), B: known()}) for inputs in ("1a", "1b")]
    children = Children(*asked, ChildRun({A: known()}))
    found = turns_of(sides, children)
    assert found.ask([A, B]) == [A]
    found.take([A], 3)
    assert [request.nodeids for request in children.requests] == [(A, B)] * 2 + [(A,)] * 6
    assert [request.asks for request in children.requests] == [True] * 2 + [False] * 6
    cases = found.cases([A, B])
    timed = {name: [[len(end.result.measurements) for end in side] for side in cases[name]] for name in cases}
    assert timed == {A: [[0, 1, 1, 1]] * 2, B: [[1]] * 2}


@pytest.mark.parametrize(("norms", "asked_again"), [((1.0, 1.0), False), ((1.0, 1.1), True)])
def test_the_base_is_asked_again_where_a_test_of_the_same_code_compares_with_other_values(
    sides, norms, asked_again
):
    references = [Contents("float64", 10, weighted=0.0, norm=norm) for norm in norms]
    errors = [{"y": structs.replace(error(), reference=each)} for each in references]
    children = Children(*[ChildRun({A: known(errors=each), B: known()}) for each in errors])
    turns = turns_of(sides, children)
    assert turns.ask([A, B]) == []
    assert [(of.nodeids, bool(of.moved)) for of in children.requests[2:]] == [((A,), True)] * asked_again
    assert (turns.base_again is not None, len(turns.base)) == (asked_again, 1)


def test_a_recorded_commit_is_asked_in_one_session_which_is_no_part_of_a_pair(sides):
    children = Children(RAN)
    turns = turns_of(sides, children)
    assert turns.ask_base([A]).ending(A) == RAN.ending(A)
    (request,) = children.requests
    assert (request.nodeids, request.asks, request.moved) == ((A,), True, sides.moved)
    assert request.checked == {A}, "it passed once"
    assert not turns.base


@pytest.fixture
def started(monkeypatch):
    """The sessions that were started, in order; calling it starts another one, which waits for its turn."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3))
    said = "importing\ntorch makes a CUDA context when it is imported\n"

    class Started(list):
        dead = False

        def __call__(self, on_base):
            self.append(Mock(on_base=on_base, has_ended=self.dead, said=said))
            return self[-1]

    return Started()


def test_the_next_sessions_wait_while_one_measures_and_what_is_not_needed_ends(sides, started):
    counts = []
    waiting, children = Waiting(started, 2, str), Children(RAN)
    measure = children.run

    def run(*arguments):
        counts.append(len(started))
        return measure(*arguments)

    children.run = run
    turns_of(sides, children, waiting=waiting).take([A], 2, then=(True, False))
    assert counts == [2, 3, 4, 5], "two wait, also of those that may follow"
    first, *waited = children.started
    assert first is None
    assert [each.on_base for each in waited] == [False, False, True]
    left = [each for each in started if each not in waited]
    assert [each.on_base for each in left] == [True, False]
    assert not any(each.kill.called for each in started)
    waiting.close()
    assert all(each.kill.called for each in left)


def test_sessions_that_wait_import_what_this_process_imports_and_only_that(tmp_path, monkeypatch, started):
    for name in ("known_early", "known_late", "other"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("known_early")
    libraries = ("known_early", "known_late", "known_never")
    monkeypatch.setattr("pytest_gpukern.processes.sessions._LIBRARIES", libraries)
    waiting = Waiting(started, 2, str)
    try:
        waiting.prepare([True])
        importlib.import_module("other")
        importlib.import_module("known_late")
        waiting.prepare([True, False])
    finally:
        waiting.close()
    first, second = ([name for (name,), _ in each.imports.call_args_list] for each in started)
    assert first == second
    assert [name for name in first if not name.startswith("pytest_gpukern.")] == ["known_early", "known_late"]
    assert waiting not in sys.meta_path


def test_no_session_waits_any_more_where_one_ended_before_its_turn(sides, started):
    said, children, started.dead = [], Children(RAN), True
    turns_of(sides, children, waiting=Waiting(started, 1, said.append)).take([A], 2)
    assert children.started == [None] * 4
    assert len(started) == 1
    assert started[0].kill.called
    (line,) = (each for each in said if not each.startswith("session "))
    assert line.endswith("any more: importing / torch makes a CUDA context when it is imported")


OF_OTHERS = ChildRun({A: Ending("passed", "", PASSED)}, (LoadedModule("numpy", "/numpy.py", "abc"),))
DIED = ChildRun(RAN.endings, ended_early=True, problem="it ended by SIGSEGV", status=-11)


@pytest.mark.parametrize(
    ("children", "why"),
    [
        (Children(DIED), r"a session of the base failed: it ended by SIGSEGV\n.*setup=CMD"),
        (Children(OF_OTHERS), "the base loaded no module from"),
        (Children(RAN, hashes=["abc", "abc", "abd"]), r"pkg/__init__\.py changed while .*; run it again"),
    ],
    ids=["it died", "it loaded nothing of its own", "a file changed"],
)
def test_a_session_that_does_not_count_ends_the_comparison_and_says_why(sides, children, why):
    with pytest.raises(AgainstError, match=why):
        turns_of(sides, children).take([A], 2)


def test_a_working_tree_whose_session_breaks_off_fails_the_tests_that_it_did_not_come_to(sides):
    both = ChildRun({A: Ending("passed"), B: Ending("passed")}, status=0)
    early, wrong = "its session ended early: it ended by SIGSEGV", Ending("failed", "INCORRECT: y")
    died = ChildRun({A: wrong}, ended_early=True, problem="it ended by SIGSEGV", status=-11)
    alone = dataclasses.replace(died, endings={}, during=A)
    for run, texts in ((died, [wrong.text, early]), (alone, [early, early])):
        found = turns_of(sides, Children(both, run))
        found.take([A, B], 1)
        cases = found.cases([A, B]).values()
        assert [base.outcome for (base,), _ in cases] == ["passed"] * 2
        assert [(head.outcome, head.text) for _, (head,) in cases] == [("failed", text) for text in texts]
    with pytest.raises(AgainstError, match="a session of the working tree failed"):
        turns_of(sides, Children(both, dataclasses.replace(alone, during=None))).take([A, B], 1)


def test_later_sessions_of_the_base_leave_out_what_it_lacks_and_what_failed(sides):
    other = ChildRun({B: Ending("failed", "B could not be collected")}, status=1)
    children = Children(other, RAN)
    found = turns_of(sides, children)
    found.take([A, B], 2)
    assert [request.nodeids for request in children.requests] == [(A, B), (A, B), (A, B), ()]
    (of_a, of_a_in_head), (of_b, _) = found.cases([A, B]).values()
    assert of_a[0] is None
    assert failure_in(of_b) == "B could not be collected"
    assert [ending.outcome for ending in of_a_in_head] == ["passed"] * 2


def test_a_base_that_loads_the_working_trees_code_is_an_error_with_the_remedy_and_never_the_same(sides):
    modules = (of("pkg.kernel", sides.head), of("pkg", sides.head))
    loaded = r"did not run its own code:\n  pkg\.kernel was .*, which is the working tree\nLet each side"
    with pytest.raises(AgainstError, match=rf"(?s){loaded}.*pythonpath = \[\"src\"\].*pip uninstall pkg"):
        turns_of(sides, Children(dataclasses.replace(RAN, modules=modules))).take([A], 2)


@pytest.mark.parametrize(
    ("entry", "moved"),
    [
        ("link/src", ("link/src", "base/src")),
        ("head/.venv/lib/site-packages", ("base/.venv/lib/site-packages", "head/.venv/lib/site-packages")),
    ],
    ids=["a link into the working tree", "an environment inside it"],
)
def test_a_path_is_mapped_to_the_base_where_a_link_leads_into_the_tree_and_an_environment_is_not(
    tmp_path, monkeypatch, entry, moved
):
    top, base = tmp_path / "head", tmp_path / "base"
    (top / "src").mkdir(parents=True)
    (tmp_path / "link").symlink_to(top)
    monkeypatch.setattr(sys, "path", [str(tmp_path / entry), str(top / "src"), "/usr/lib"])
    found = Trees.of(Revisions(top, "main", "b" * 40, identical=False), base)
    here, there = (str(tmp_path / path) for path in moved)
    assert found.moved == {str(top): str(base), here: there}
    assert found.base.top == base
