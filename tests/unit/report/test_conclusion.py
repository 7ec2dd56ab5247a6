"""Headlines that no golden run has: those are in `tests/plugin/test_golden.py`."""

import pytest
from made_up_results import measured, result, verdict
from msgspec import structs

from pytest_gpukern.baseline.record import Epoch, Record
from pytest_gpukern.report.conclusion import context, headline
from pytest_gpukern.report.run import BASELINE, RunResults
from pytest_gpukern.values.fingerprint import Fingerprint


def judged_as(kind, ratio=1.0, backend="a", **fields):
    judged = structs.replace(verdict(kind, None if kind == "NEW" else ratio), **fields)
    return result(f"{backend}.v{kind.lower()}", measured(), verdicts=[judged])


OF_FOUR = "1 of 4 times judged, none of these slower; the others: 1 undecided, 1 uncomparable, 1 new"
OF_TWO = "1 of 2 times judged, none of these slower; the others: another card than recorded"
BUSY = "0 of 1 time judged: other programs used 100 % of the CPUs"


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([judged_as("SAME")], "1 case is right, none is slower"),
        ([judged_as("UNDECIDED", 6.65, others_share=1.0)], f"1 case is right · {BUSY}"),
        ([judged_as("UNDECIDED", other_card=True), judged_as("SAME")], f"2 cases are right · {OF_TWO}"),
        (map(judged_as, ("SAME", "UNDECIDED", "NEW", "UNCOMPARABLE")), f"4 cases are right · {OF_FOUR}"),
        ([result("a.b"), result("a.c")], "2 cases are right"),
        ([result("a.b", simulated=True)], "1 case is right in the simulator"),
    ],
)
def test_a_headline_begins_with_the_outcome_and_says_what_is_worst(results, text):
    assert str(headline(RunResults([*results]), [])) == f"PASSED: {text}"


def test_a_headline_says_what_ran_where_no_case_has_a_result():
    assert str(headline(RunResults(rejected=["d"]), [])) == "PASSED: 1 broken case rejected"
    assert str(headline(RunResults(), [])) == "NOTHING RAN"


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


def test_what_a_run_could_not_have_seen_is_said_of_times_that_were_judged_by_time():
    open_still = {"detectable": 1.3, "threshold": 0.02}
    on_card = judged_as("SAME CODE", other_card=True, **open_still)
    recorded = structs.replace(on_card, fingerprint=Fingerprint(device_uuid="B"))
    record = Record(on_card.case.id, (Epoch("2026-11-01T00:00:00+00:00", (recorded,)),), "x")
    card = structs.replace(on_card, fingerprint=Fingerprint(device_uuid="A"))
    by_time = judged_as("UNDECIDED", backend="host", **open_still)
    for results, told in (([card], []), ([card, by_time], ["sessions spread"])):
        run = RunResults(results, history={card.nodeid: record}, compared_with=BASELINE)
        assert [line[:15] for line in context(run) if "nothing below" in line] == told
