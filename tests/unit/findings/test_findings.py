"""A judged result → the same with reasons for what changed, and findings."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_past import facts, kernel, now, past, session

from pytest_gpukern.findings.findings import explained, failures
from pytest_gpukern.values.difference import NEW_CODE, NOTHING_DIFFERS, SAME_CODE, Difference
from pytest_gpukern.values.failure_table import FAILURES
from pytest_gpukern.values.result import Correctness, Finding, OutputError

BITS = "splitmix64:00000000deadbeef"
WORSE = {"y": OutputError(1000, 0, 1e-5, 1e-5, 80.0)}


def with_changes(result, recorded=None):
    recorded = recorded or past()
    return explained(result, lambda case, key: recorded)


def told(verdict):
    same, causes = [], []
    for difference in verdict.differences:
        (causes if difference.is_cause else same).append(difference)
    return tuple(same), tuple(causes)


def reasons(result, recorded=None):
    """What a verdict says did not change, and what did."""
    (verdict,) = with_changes(result, recorded).verdicts.values()
    return told(verdict)


@pytest.mark.parametrize("kind", ["SLOWER", "FASTER"])
def test_a_changed_time_has_reasons(kind):
    assert reasons(now(kind=kind)) == ((SAME_CODE, NOTHING_DIFFERS), ())
    assert reasons(now(kind=kind, sm_mhz=1800.0))[0] == (SAME_CODE,)
    assert reasons(now(kind=kind, sm_mhz=1800.0))[1][0] == Difference("clock", "1980", "1800 MHz")


@pytest.mark.parametrize("kind", ["SAME", "NEW", "UNCOMPARABLE"])
def test_what_did_not_change_needs_no_reasons(kind):
    assert reasons(now(kind=kind)) == ((), ())


def test_nothing_recorded_leaves_a_result_as_it_is():
    result = now(errors=WORSE)
    assert explained(result, lambda case, key: None) == result


@pytest.mark.parametrize(
    "changes",
    [{"simulated": True}, {"correctness": Correctness.INCORRECT}, {"measurements": ()}],
    ids=["simulated", "incorrect", "not-measured"],
)
def test_only_what_was_measured_and_right_is_held_against_the_record(changes):
    result = dataclasses.replace(now(errors=WORSE), **changes)
    assert with_changes(result) == result


def test_findings_of_every_kind_are_gathered():
    errors = {"y": dataclasses.replace(WORSE["y"], bits="splitmix64:0000000000000001")}
    recorded = past(*[session(kernel(), bits=BITS)] * 2)
    result = now(kind="SAME", errors=errors, kernels=(facts(registers=96),))
    found = with_changes(result, recorded).findings
    assert [finding.kind for finding in found] == ["resources", "accuracy", "bits"]


def test_a_record_of_another_problem_version_or_point_has_nothing_to_compare():
    result = now(errors=WORSE)
    for changes in ({"problem_version": 2}, {"measured_point": {"n": 10}}):
        assert with_changes(result, dataclasses.replace(past(), **changes)).findings == ()


FINDINGS = (Finding("resources", "registers"), Finding("accuracy", "error"), Finding("bits", "other"))
FINDINGS += (Finding("tail", "slow calls"),)


@pytest.mark.parametrize(
    ("fail_on", "lines"),
    [
        ((), []),
        (("slower",), ["SLOWER (kernel/cupti/cold): measured"]),
        (("resources",), ["RESOURCES: registers"]),
        (("tail",), ["TAIL: slow calls"]),
        (("accuracy",), ["ACCURACY: error", "BITS: other"]),
        (("slower", "resources"), ["SLOWER (kernel/cupti/cold): measured", "RESOURCES: registers"]),
    ],
)
def test_a_run_chooses_what_fails_a_test(fail_on, lines):
    assert [str(reason) for reason in failures(now(findings=FINDINGS), fail_on)] == lines


def test_a_run_that_opens_an_epoch_accepts_what_became_slower_or_grew_and_nothing_invalid():
    assert failures(now(findings=FINDINGS), FAILURES, accepts=True) == []
    assert failures(now(kind="UNDECIDED"), FAILURES, accepts=True) == []
    (invalid,) = failures(now(kind="INVALID"), FAILURES, accepts=True)
    assert (invalid.kind, invalid.key) == ("INVALID", "kernel/cupti/cold")


def test_what_is_slower_than_the_sessions_that_an_epoch_was_opened_with_is_explained_by_these():
    opened = [dataclasses.replace(session(), opening=True)] * 3
    appended = [session(kernel(code="cafe"), scale=1.1)] * 5
    crept = now(1.12, kernels=(facts(code="cafe"),))
    recorded = past(*opened, *appended)
    assert reasons(crept, recorded) == ((), (NEW_CODE,))
    by_all = past(*[session()] * 3, *appended)
    assert reasons(crept, by_all)[0][0] == SAME_CODE
