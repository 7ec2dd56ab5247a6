"""Runs → the headline, the failures and what changed otherwise, which every form takes."""

import pytest
from made_up_results import measured, result, verdict
from msgspec import structs

from pytest_gpukern.baseline.record import Epoch, Record
from pytest_gpukern.report.conclusion import cards, headline
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Correctness, GateFailure

GREW = GateFailure("SLOWER", "grew", "kernel/event/cold")


def slower(ratio, label="cupy.exp"):
    return result(label, measured(1000.0 * ratio), verdicts=[verdict("SLOWER", ratio, "grew")])


def failing(*results, reason=GREW):
    """A run whose tests all fail, by the gate if the output is right."""
    wrong = {of.nodeid: of.correctness is Correctness.INCORRECT for of in results}
    return RunResults(results, failures={of: Failure("", () if wrong[of] else (reason,)) for of in wrong})


def judged_as(kind, ratio=1.0, backend="a", **fields):
    judged = structs.replace(verdict(kind, None if kind == "NEW" else ratio), **fields)
    return result(f"{backend}.v{kind.lower()}", measured(), verdicts=[judged])


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (failing(slower(1.254)), "FAILED: 1 kernel +25.4 %"),
        (failing(slower(1.1, "a.b"), slower(1.3, "a.c")), "FAILED: 2 kernels up to +30.0 %"),
        (
            failing(slower(1.1), result("a.b", correctness=Correctness.INCORRECT)),
            "FAILED: 1 wrong result, 1 kernel +10.0 %",
        ),
        (RunResults(failures={"test_x": Failure("KeyError")}), "FAILED: 1 failed test"),
        (RunResults([result("a.b")], problems=["no GPU"]), "FAILED: 1 problem of the run"),
        (failing(slower(1.1), reason=GateFailure("memory", "1 MiB is kept")), "FAILED: 1 test by memory"),
        (
            RunResults([result("a.b", measured(), verdicts=[verdict("SAME")])]),
            "PASSED: 1 case is right, none is slower",
        ),
        (RunResults([slower(1.1)]), "PASSED: 1 case is right, 1 slower"),
        (
            RunResults([judged_as("UNDECIDED", 6.65, others_share=1.0)]),
            "PASSED: 1 case is right · 0 of 1 time judged: other programs used 100 % of the CPUs",
        ),
        (
            RunResults([judged_as("UNDECIDED", other_card=True), judged_as("SAME")]),
            (
                "PASSED: 2 cases are right"
                " · 1 of 2 times judged, none of these slower; the others: another card than recorded"
            ),
        ),
        (
            RunResults([judged_as(kind) for kind in ("SAME", "UNDECIDED", "NEW", "UNCOMPARABLE")]),
            (
                "PASSED: 4 cases are right"
                " · 1 of 4 times judged, none of these slower; the others: 1 undecided, 1 uncomparable, 1 new"
            ),
        ),
        (
            RunResults([judged_as("NEW")]),
            "PASSED: 1 case is right · 0 of 1 time judged: nothing was on record",
        ),
        (
            RunResults([result("a.b", simulated=True), judged_as("NEW", backend="host")]),
            (
                "PASSED: 2 cases are right, 1 of them in the simulator"
                " · 0 of 1 time judged: nothing was on record · only the host was timed: no GPU"
            ),
        ),
        (RunResults([result("a.b"), result("a.c")]), "PASSED: 2 cases are right"),
        (RunResults([result("a.b", simulated=True)]), "PASSED: 1 case is right in the simulator"),
        (RunResults([result("a.b", correctness=Correctness.UNCHECKED)]), "PASSED: 1 without a check"),
        (RunResults(rejected=["d"]), "PASSED: 1 broken case rejected"),
        (RunResults(), "NOTHING RAN"),
    ],
)
def test_a_headline_begins_with_the_outcome_and_says_what_is_worst(run, text):
    assert str(headline(run, cards(run))) == text


@pytest.mark.parametrize(("label", "told"), [("cupy.exp", True), ("host.exp", False)])
def test_only_what_runs_on_a_gpu_can_be_on_another_card_than_recorded(label, told):
    now, before = (
        result(label, measured(), fingerprint=Fingerprint(device_uuid=uuid)) for uuid in ("A", "B")
    )
    run = RunResults(
        [now],
        history={now.nodeid: Record(now.case.id, (Epoch("2026-11-01T00:00:00+00:00", (before,)),), "x")},
    )
    assert run.on_another_card is told
