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

    def __init__(self, ill=(), *, together=(), dies=(), works=True):
        self.ill, self.together, self.dies, self.works = ill, set(together), dies, works
        self.asked = []

    def __call__(self, nodeids):
        self.asked.append("".join(nodeids))
        if not self.works:
            return UNCHECKED, ChildRun()
        dead = next((nodeid for nodeid in nodeids if nodeid in self.dies), None)
        ran = nodeids[: nodeids.index(dead)] if dead else nodeids
        ends = dict.fromkeys(ran, Ending("passed"))
        if any(nodeid in self.ill for nodeid in ran) or (self.together and self.together <= set(ran)):
            return FOUND, ChildRun(ends, during=dead)
        reason = Judgement(reason=f"it ended while running {dead}")
        return reason if dead else CLEAN, ChildRun(ends, during=dead)


@pytest.mark.parametrize(
    ("sessions", "asked", "not_clean"),
    [
        (Sessions(), ["abcdefgh"], {}),
        (Sessions(ill="f"), ["abcdefgh", "abcd", "efgh", "ef", "e", "f", "gh"], {"f": (FOUND, 1)}),
        # what no test shows alone is held against all that show it together
        (Sessions(together="cd"), ["abcdefgh", "abcd", "ab", "cd", "c", "d", "efgh"],
         dict.fromkeys("cd", (FOUND, 2))),
        # what ran before a test that ends its process is looked at again
        (Sessions(dies="b"), ["abcdefgh", "abcd", "ab", "a", "b", "cd", "efgh"],
         {"b": (Judgement(reason="it ended while running b"), 1)}),
        (Sessions(works=False), ["abcdefgh"], dict.fromkeys("abcdefgh", (UNCHECKED, 1))),
    ],
    ids=["clean", "ill", "together", "dies", "does not work"],
)  # fmt: skip
def test_a_finding_is_held_against_the_fewest_tests_that_show_it(sessions, asked, not_clean):
    found = attributed(list("abcdefgh"), sessions)
    assert sessions.asked == asked
    told = {nodeid: (test.judgement, test.together) for nodeid, test in found.items()}
    assert told == dict.fromkeys("abcdefgh", (CLEAN, 1)) | not_clean
    assert found["a"].ending == (Ending("passed") if sessions.works else None)


def test_a_test_of_which_a_clean_session_tells_nothing_is_not_checked():
    found = attributed(["a", "b"], lambda nodeids: (CLEAN, ChildRun({"a": Ending("passed")})))
    assert [test.judgement.state for test in found.values()] == ["clean", "not checked"]
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
