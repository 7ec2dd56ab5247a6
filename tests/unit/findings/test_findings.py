"""A judged result → the same with reasons for what changed, and findings."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_past import KEY, facts, kernel, now, past, session
from made_up_times import HERE
from msgspec import structs

from pytest_gpukern.findings.findings import explained, failures
from pytest_gpukern.values.difference import NEW_CODE, SAME_CODE, Difference
from pytest_gpukern.values.failure_table import FAILURES
from pytest_gpukern.values.result import Correctness, Finding, OutputError
from pytest_gpukern.values.verdict_table import Tone, VerdictKind

BITS = "splitmix64:00000000deadbeef"
WORSE = {"y": OutputError(1000, 0, 1e-5, 1e-5, 80.0, "splitmix64:0000000000000001")}


def with_changes(result, recorded=None, **more):
    return explained(result, lambda key: recorded or past(), **more)


def reasons(result, recorded=None, **more):
    """What a verdict says did not change, or did."""
    (verdict,) = with_changes(result, recorded, **more).verdicts.values()
    return verdict.differences


def within(result, low, high):
    """The result, with a verdict of this interval."""
    verdicts = {KEY: structs.replace(result.verdicts[KEY], ratio_low=low, ratio_high=high)}
    return structs.replace(result, verdicts=verdicts)


CLOCK = Difference("clock", "1980", "1800 MHz")


def test_a_changed_time_has_reasons_and_an_unchanged_one_needs_none():
    slower = now(sm_mhz=1800.0)
    assert reasons(now()) == (SAME_CODE,)
    assert reasons(slower)[:2] == (SAME_CODE, CLOCK)
    assert reasons(now(), deciding={KEY: slower.measurements})[:2] == (SAME_CODE, CLOCK)
    by_pairs = structs.replace(slower.verdicts[KEY], pairs=((1.0, 1.1),))
    assert reasons(structs.replace(slower, verdicts={KEY: by_pairs})) == (), "both ran at that clock"
    for kind in VerdictKind:
        for low, high in ((1.001, 1.03), (0.9, 0.99), (1.0, 1.02), (0.9, 1.0), (None, None)):
            significant = kind.row.tone is Tone.DOUBTFUL and (low, high) in ((1.001, 1.03), (0.9, 0.99))
            expected = kind.row.changed or significant
            assert bool(reasons(within(now(kind=kind), low, high))) is expected, (kind, low, high)


@pytest.mark.parametrize(
    "changes",
    [{"simulated": True}, {"correctness": Correctness.INCORRECT}, {"measurements": ()}],
    ids=["simulated", "incorrect", "not-measured"],
)
def test_only_what_was_measured_and_right_is_held_against_a_record(changes):
    result = structs.replace(now(errors=WORSE), **changes)
    assert with_changes(result) == result
    unknown = now(errors=WORSE)
    assert explained(unknown, lambda key: ()) == unknown


@pytest.mark.parametrize(
    ("kind", "label", "tail"),
    [("SAME", "numba.saxpy", ["tail"]), ("SAME", "host.saxpy", [])]
    + [(kind, "numba.saxpy", []) for kind in ("SLOWER", "NEW", "INVALID")],
)
def test_findings_of_every_kind_are_gathered(kind, label, tail):
    recorded = [session(kernel(), bits=BITS)] * 3
    result = now(kind=kind, label=label, errors=WORSE, kernels=(facts(registers=96),))
    (time,) = result.measurements
    samples, summary = (50_000.0,) * 90 + (500_000.0,) * 10, structs.replace(time.summary, n=100)
    time = structs.replace(time, samples_ns=samples, summary=summary)
    result = structs.replace(result, measurements=(time,), findings=(Finding("memory", "kept"),))
    kinds = [finding.kind for finding in with_changes(result, recorded).findings]
    assert kinds == ["memory", *tail, "resources", "accuracy", "bits"]
    now_2 = dataclasses.replace(HERE, problem_version=2)
    other = [structs.replace(each, conditions=now_2) for each in recorded]
    assert [finding.kind for finding in with_changes(result, other).findings] == ["memory", *tail]


FINDINGS = (Finding("resources", "registers"), Finding("accuracy", "error"), Finding("bits", "other"))
FINDINGS += (Finding("tail", "slow calls"), Finding("memory", "kept"))


@pytest.mark.parametrize(
    ("fail_on", "lines"),
    [
        ((), []),
        (("slower",), ["SLOWER (kernel/cupti/cold): measured"]),
        (("tail",), ["TAIL: slow calls"]),
        (("accuracy",), ["ACCURACY: error", "BITS: other"]),
        (("slower", "resources"), ["SLOWER (kernel/cupti/cold): measured", "RESOURCES: registers"]),
    ],
)
def test_a_run_chooses_what_fails_a_test(fail_on, lines):
    assert [str(reason) for reason in failures(now(findings=FINDINGS), fail_on)] == lines


@pytest.mark.parametrize(
    ("kind", "fails"), [("SLOWER", []), ("UNDECIDED", []), ("NEW", []), ("INVALID", ["INVALID"])]
)
def test_a_run_that_opens_an_epoch_accepts_what_became_slower_or_grew_and_nothing_invalid(kind, fails):
    accepted = failures(now(kind=kind, findings=FINDINGS), FAILURES, accepts=True)
    assert [(each.kind, each.key) for each in accepted] == [*((each, KEY) for each in fails), ("memory", "")]


def test_what_is_slower_than_the_sessions_that_an_epoch_was_opened_with_is_explained_by_these():
    opened = [session(opening=True)] * 3
    appended = [session(kernel(code="cafe"), scale=1.1)] * 5
    crept = now(1.12, kernels=(facts(code="cafe"),))
    assert reasons(crept, past(*opened, *appended)) == (NEW_CODE,)
    assert reasons(crept, past(*[session()] * 3, *appended))[0] == SAME_CODE
    since_all = now(1.12 / 1.1 ** (5 / 8), kernels=(facts(code="cafe"),))
    assert reasons(since_all, past(*opened, *appended))[0] == NEW_CODE
