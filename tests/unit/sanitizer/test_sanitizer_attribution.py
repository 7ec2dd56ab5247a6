"""Checks which test a finding belongs to, and how that test ends."""

import dataclasses

import pytest
from recorded_sanitizer import recorded

from pytest_gpukern.processes.sessions import ChildRun, Ending
from pytest_gpukern.sanitizer.finding import Home, Place, ToolFinding, python_line
from pytest_gpukern.sanitizer.judge import Judgement, findings_in
from pytest_gpukern.sanitizer.sessions import (
    TestRun,
    attributed,
    counted,
    ending,
    why_nothing_was_checked,
)

RACE = "racecheck"
CLEAN = Judgement()
ILL = ToolFinding("Invalid read", kernel="k")
FOUND = Judgement((ILL,))
UNCHECKED = Judgement(reason="memcheck does not work here")
HOME = Home("variant", Place(None, "/project/on_numba.py", 20), "/project")


class Sessions:
    """Runs sessions in which some tests are at fault; `.asked` has the tests of each."""

    def __init__(self, ill=(), *, together=(), dies=(), skipped=()):
        self.ill, self.together, self.dies, self.skipped = ill, set(together), dies, skipped
        self.asked = []

    def __call__(self, nodeids):
        self.asked.append("".join(nodeids))
        dead = next((nodeid for nodeid in nodeids if nodeid in self.dies), None)
        ran = nodeids[: nodeids.index(dead)] if dead else nodeids
        ends = {
            nodeid: Ending("skipped", "why") if nodeid in self.skipped else Ending("passed") for nodeid in ran
        }
        if any(nodeid in self.ill for nodeid in ran) or (self.together and self.together <= set(ran)):
            return FOUND, ChildRun(ends, during=dead)
        reason = Judgement(reason=f"it ended while running {dead}")
        return reason if dead else CLEAN, ChildRun(ends, during=dead)


def states(found):
    return {nodeid: test.judgement.state for nodeid, test in found.items()}


def test_tests_that_are_clean_together_take_one_session():
    sessions = Sessions()
    found = attributed(list("abcdefgh"), sessions)
    assert sessions.asked == ["abcdefgh"]
    assert set(states(found).values()) == {"clean"}
    assert found["a"].ending == Ending("passed")


def test_a_finding_is_held_against_the_test_that_shows_it_alone():
    sessions = Sessions(ill="f")
    found = attributed(list("abcdefgh"), sessions)
    assert states(found) == {**dict.fromkeys("abcdegh", "clean"), "f": "found"}
    assert sessions.asked == ["abcdefgh", "abcd", "efgh", "ef", "e", "f", "gh"]
    assert found["f"].together == 1


def test_what_ran_before_a_test_that_ends_its_process_is_looked_at_again():
    sessions = Sessions(dies="b")
    found = attributed(list("abc"), sessions)
    assert states(found) == {"a": "clean", "b": "not checked", "c": "clean"}
    assert found["b"].judgement.reason == "it ended while running b"


def test_a_finding_that_no_test_shows_alone_is_held_against_all_that_show_it_together():
    sessions = Sessions(together="cd")
    found = attributed(list("abcd"), sessions)
    assert states(found) == {"a": "clean", "b": "clean", "c": "found", "d": "found"}
    assert (found["c"].together, found["d"].judgement) == (2, FOUND)


def test_a_tool_that_does_not_work_here_is_not_asked_again_for_each_test():
    asked = []

    def run(nodeids):
        asked.append(nodeids)
        return UNCHECKED, ChildRun()

    assert states(attributed(["a", "b"], run)) == {"a": "not checked", "b": "not checked"}
    assert len(asked) == 1


def test_a_test_of_which_a_clean_session_tells_nothing_is_not_checked():
    found = attributed(["a", "b"], lambda nodeids: (CLEAN, ChildRun({"a": Ending("passed")})))
    assert states(found) == {"a": "clean", "b": "not checked"}
    assert "did not run" in found["b"].judgement.reason


def test_a_skipped_test_needs_nobody_to_vouch_for_it():
    found = attributed(["a"], lambda nodeids: (UNCHECKED, ChildRun({"a": Ending("skipped", "too large")})))
    assert ending({"memcheck": found["a"]}, detected_by=None, home=HOME) == ("skipped", "too large")
    assert attributed([], Sessions()) == {}


def ended(judgement=CLEAN, outcome="passed", text="", **changes):
    return TestRun(judgement, Ending(outcome, text), **changes)


@pytest.mark.parametrize(
    ("tests", "outcome"),
    [
        ({"memcheck": ended(), "racecheck": ended()}, ("passed", "")),
        ({"memcheck": ended(), "racecheck": ended(outcome="skipped", text="w")}, ("passed", "")),
        ({"memcheck": ended(outcome="failed", text="INCORRECT: y")}, ("failed", "INCORRECT: y")),
        ({"memcheck": ended(outcome="xfailed", text="w")}, ("xfailed", "w")),
        (
            {"memcheck": ended(UNCHECKED)},
            ("failed", f"not checked by memcheck: {UNCHECKED.reason}"),
        ),
        ({"memcheck": ended(), "racecheck": ended(FOUND)},
         ("failed", "racecheck: invalid read in k, variant at on_numba.py:20")),
    ],
)  # fmt: skip
def test_a_test_passes_only_where_it_passed_and_each_tool_vouches_for_it(tests, outcome):
    assert ending(tests, detected_by=None, home=HOME) == outcome


def test_findings_are_told_beside_the_failure_that_they_caused_and_whose_they_may_be():
    found = ending({"memcheck": ended(FOUND, "failed", "INCORRECT", together=3)}, detected_by=None, home=HOME)
    assert found[1].splitlines()[1:] == [
        "  found only with 3 tests in one process: any may be to blame",
        "  and the test failed: INCORRECT",
    ]


def test_records_that_say_the_same_of_other_threads_are_one_line_and_many_lines_are_cut():
    alike = tuple(ToolFinding("Invalid read", "k", thread=(x, 0, 0)) for x in range(4))
    others = tuple(ToolFinding(f"Invalid read {n}", "k") for n in range(9))
    found = {"memcheck": ended(Judgement(alike + others))}
    text = ending(found, detected_by=None, home=HOME)[1]
    lines = text.splitlines()
    assert lines[0] == "memcheck: invalid read in k, thread (0, 0, 0), variant at on_numba.py:20 (4 records)"
    assert (len(lines), lines[-1]) == (6, "  and 5 more")


def test_hazards_of_the_same_two_lines_are_one_line_and_what_was_not_saved_is_told():
    hazards = findings_in(recorded("racecheck.xml"))
    judgement = Judgement(hazards, count=257)
    text = ending({"racecheck": ended(judgement)}, detected_by=None, home=HOME)[1]
    assert text.splitlines() == [
        (
            "racecheck: RAW hazard in races: write by thread (31, 0, 0), kernels.py:24; read by thread "
            "(32, 0, 0), kernels.py:25; block (0, 0, 0) (2 records)"
        ),
        "  racecheck counted 257 and saved 2",
    ]
    turned = dataclasses.replace(hazards[0], accesses=hazards[0].accesses[::-1])
    judgement = Judgement((*hazards, turned))
    assert ending({"racecheck": ended(judgement)}, detected_by=None, home=HOME)[1].count("RAW hazard") == 2


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        (ended(FOUND), ("passed", "")),
        (TestRun(FOUND), ("passed", "")),
        (TestRun(Judgement((ToolFinding("It broke", thread=(0, 0, 0)),))), ("passed", "")),
        (TestRun(Judgement((ToolFinding("It broke"),))),
         ("failed", f"broken on purpose, but {RACE} names no kernel: It broke")),
        (ended(FOUND, "failed", "the context is gone"), ("passed", "")),
        (ended(), ("failed", f"broken on purpose for {RACE} to reject, but {RACE} found nothing")),
        (TestRun(UNCHECKED), ("failed", f"not checked by racecheck: {UNCHECKED.reason}")),
        (ended(outcome="skipped", text="no pycuda"), ("skipped", "no pycuda")),
    ],
)  # fmt: skip
def test_a_variant_that_is_broken_on_purpose_passes_where_its_tool_finds_something(test, outcome):
    assert ending({"racecheck": test}, detected_by="racecheck", home=HOME) == outcome


def test_how_many_were_checked_is_told_and_that_nothing_was():
    tests = [ended(), ended(), ended(FOUND), ended(UNCHECKED), ended(outcome="skipped")]
    assert counted(tests) == "3 checked (2 clean, 1 with findings), 1 not checked, 1 skipped"
    assert counted([]) == "0 checked"
    assert why_nothing_was_checked(tests) is None
    assert why_nothing_was_checked([]).startswith("no test")
    assert why_nothing_was_checked(tests[4:]) == "all 1 were skipped"
    assert why_nothing_was_checked(tests[3:]) == UNCHECKED.reason


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ([("/project/on_numba.py", 31)], "on_numba.py:31"),
        ([("/tmp/kernel.cu", 7)], "kernel.cu:7, variant at on_numba.py:20"),
        ([("/usr/lib/libcuda.so", None)], "variant at on_numba.py:20"),
        ([], "variant at on_numba.py:20"),
    ],
)
def test_the_line_is_the_kernels_or_where_the_variant_begins(device, line):
    places = tuple(Place("f", file, number) for file, number in device)
    assert python_line(ToolFinding("Invalid read", "k", device=places), HOME) == line
