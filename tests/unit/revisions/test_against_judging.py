"""Checks the conclusion on a test by the sessions of both sides; the results are made up."""

from __future__ import annotations

import pytest
from made_up_results import EXP_KERNEL, measured, result
from msgspec import structs

from pytest_gpukern.processes.sessions import Ending
from pytest_gpukern.revisions.judging import (
    Rule,
    conclude,
    confirm,
    same_times,
    shared_spreads,
    without_times,
)
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.verdict_table import VerdictKind

THRESHOLD = 0.02
BASE_NS = (1000.0, 1001.0, 999.0, 1000.5)


def ending(median_ns=1000.0, label="cupy.exp", **changes):
    """Returns the ending of a session in which the test passed."""
    return Ending("passed", "", result(label, measured(median_ns, **changes)))


def sessions(medians_ns, **changes):
    return tuple(ending(median_ns, **changes) for median_ns in medians_ns)


def times(factor):
    return tuple(factor * median_ns for median_ns in BASE_NS)


def concluded(case, again=None):
    """Returns the conclusion on a case, if it is a suspect by these fresh sessions."""
    rule = Rule(THRESHOLD, shared_spreads([case]))
    found = conclude(case, rule)
    return confirm(found, again, rule) if again and found.suspected else found


def only_verdict(case, again=None):
    (verdict,) = concluded(case, again).verdicts.values()
    return verdict


def test_a_suspect_is_slower_only_if_fresh_sessions_say_so():
    suspect, twice = (sessions(BASE_NS), sessions(times(1.1))), sessions(BASE_NS[:2])
    assert only_verdict(suspect).suspected
    for fresh, slower in ((sessions(times(1.1)[:2]), True), (twice, False)):
        verdict = only_verdict(suspect, again=(twice, fresh))
        assert (verdict.kind is VerdictKind.SLOWER, verdict.suspected) == (slower, False)


def test_a_suspicion_that_two_fresh_pairs_leave_open_is_kept_until_more_decide():
    """One scope is decided by two pairs and stays so; the other one stays suspected by its first pairs."""

    def both(copies_ns, kernels_ns):
        copies = (measured(ns, scope="transfer", timer="host") for ns in copies_ns)
        kernels = (measured(ns, scope="kernel") for ns in kernels_ns)
        times = zip(copies, kernels, strict=True)
        return tuple(Ending("passed", "", result("cupy.exp", *each)) for each in times)

    def fresh(sessions):
        copies = (1.9e6, 2.1e6, 2e6, 2e6)[:sessions]
        kernels = (1100.0, 1101.0, 1000.0, 1000.0)[:sessions]  # slower in two sessions only
        return (both([1e6] * sessions, [1000.0] * sessions), both(copies, kernels))

    case = (both([1e6] * 4, BASE_NS), both([1.99e6, 2.01e6, 2e6, 2e6], times(1.1)))
    first = concluded(case)
    rule = Rule(THRESHOLD, shared_spreads([case]))
    open_still = confirm(first, fresh(2), rule, last=False)
    decided = confirm(open_still, fresh(4), rule, last=False)
    copies, kernels = "transfer/host/cold", "kernel/event/cold"
    assert open_still.suspected
    assert open_still.verdicts[copies] is first.verdicts[copies]
    assert not decided.suspected
    assert decided.verdicts[copies].kind is VerdictKind.SLOWER
    assert decided.verdicts[kernels] == open_still.verdicts[kernels], "a decision stands"
    assert decided.verdicts[kernels].kind is VerdictKind.SLOWER
    assert decided.confirmed


@pytest.mark.parametrize("on_base", [ending(invalid="throttled"), None])
def test_a_suspicion_that_its_further_sessions_cannot_decide_is_invalid_and_says_why(on_base):
    suspect = (sessions(BASE_NS), sessions(times(1.1)))
    again = ((ending(), on_base), sessions(times(1.1)[:2]))
    verdict = only_verdict(suspect, again=again)
    assert (verdict.kind, verdict.suspected) == (VerdictKind.INVALID, False)
    words = "suspected +10.0 %, but the sessions to confirm it failed: "
    assert verdict.reason.startswith(words)


@pytest.mark.parametrize("again", [False, True])
def test_a_test_that_is_wrong_in_one_session_is_reported_as_wrong(again):
    wrong = structs.replace(result("cupy.exp"), correctness=Correctness.INCORRECT)
    case = (sessions(BASE_NS[:2]), (ending(), Ending("failed", "INCORRECT: y", wrong)))
    found = concluded((sessions(BASE_NS), sessions(times(1.1))), case) if again else concluded(case)
    assert (found.outcome, found.result, found.verdicts) == ("failed", wrong, {})
    assert found.text == "INCORRECT: y"


NEW, INVALID = VerdictKind.NEW, VerdictKind.INVALID
OLDER = structs.replace(ending().result, case=structs.replace(ending().result.case, problem_version=2))
BY_CUPTI = "measured as kernel/cupti/cold on the base, as kernel/event/cold in the working tree"


@pytest.mark.parametrize(
    ("base", "head", "kind", "reason"),
    [
        (None, {}, NEW, "not in the base"),
        (ending(), {"invalid": "throttled"}, INVALID, "throttled"),
        *(
            (base, {}, VerdictKind.UNCOMPARABLE, reason)
            for base, reason in (
                (ending(invalid="throttled"), "0 of 4 pairs of sessions are valid, 2 needed: throttled"),
                (Ending("failed", "INCORRECT: y\nmore"), "failed on the base: INCORRECT: y"),
                (Ending("skipped", "too large"), "skipped on the base: too large"),
                (Ending("passed", "", result("cupy.exp")), "not measured on the base"),
                (ending(timer="cupti"), BY_CUPTI),
                (Ending("passed", "", OLDER), "problem version 2 on the base, 1 in the working tree"),
            )
        ),
    ],
)
def test_where_the_sides_have_nothing_to_compare_the_verdict_says_why(base, head, kind, reason):
    verdict = only_verdict(((base,) * 4, sessions(BASE_NS, **head)))
    assert (verdict.kind, verdict.reason) == (kind, reason)


def test_a_pair_with_an_invalid_session_is_left_out_and_said():
    head = (ending(2000.0, invalid="throttled"), *sessions(BASE_NS[1:]))
    verdict = only_verdict((sessions(BASE_NS), head))
    assert verdict.kind is VerdictKind.SAME
    assert "1 of 4 pairs of sessions are not valid" in verdict.reason


def test_a_slower_host_variant_is_told_and_never_suspected():
    case = (sessions(BASE_NS, label="host.exp"), sessions(times(1.1), label="host.exp"))
    verdict = only_verdict(case)
    assert (verdict.suspected, verdict.false_alarm) == (False, 0.0)
    assert verdict.kind is not VerdictKind.SLOWER or "fails no test" in verdict.reason


def test_a_verdict_says_what_else_changed_in_the_kernels_and_how_often_they_are_launched():
    h200 = structs.replace(known().result.fingerprint, compute_capability=(9, 0))
    grown = structs.replace(LAUNCH, machine_code_sha256="code:bb", registers=96)
    work = (structs.replace(EXP_KERNEL, count=2.0),)
    after = [known(ns, work, (grown,), fingerprint=h200) for ns in times(1.1)]
    (verdict,) = conclude(([known(ns) for ns in BASE_NS], after), Rule(THRESHOLD, {})).verdicts.values()
    words = ["new machine code", "registers 40 → 96", "occupancy 75 → 25 %", "launches 1 → 2"]
    assert [*map(str, verdict.differences)] == words


LAUNCH = structs.replace(EXP_KERNEL.kernel, machine_code_sha256="code:aa")


def known(median_ns=1000.0, work=(EXP_KERNEL,), kernels=(LAUNCH,), scope="kernel", timer="event", **changes):
    """Returns the ending of a session of which everything is known that its time depends on."""
    order = tuple(place for place, part in enumerate(work) for _ in range(int(part.count)))
    measurement = measured(median_ns, scope, timer, work=work, order=order)
    found = result("cupy.exp", measurement, kernels=kernels, **{"inputs": "1a", **changes})
    return Ending("passed", "", found)


KERNEL, KERNEL_BY_HOST = "kernel/event/cold", "kernel/host/cold"


def test_a_case_that_does_the_same_on_both_sides_is_the_same_code_after_a_short_pair():
    renamed = structs.replace(LAUNCH, name="other", symbol="other")
    again = known(1009.0, (structs.replace(EXP_KERNEL, name="other", kernel=renamed),), (renamed,))
    case = ((known(),), (again,))
    assert same_times(case, THRESHOLD) == ({KERNEL}, True)
    found = conclude(case, Rule(THRESHOLD, {}, same=frozenset([KERNEL]), asked=True))
    same = found.verdicts[KERNEL]
    assert (same.kind, same.suspected, same.false_alarm) == (VerdictKind.SAME_CODE, False, 0.0)
    assert same.ratio == pytest.approx(1.009)
    assert same.reason == (
        "the same machine code, launches and libraries on both sides, with the same inputs and arguments or "
        "times within half the threshold: not measured again"
    )
    assert found.result.measurements == (), "so few samples are no time to report or to record"


@pytest.mark.parametrize("same", [(), (KERNEL,)])
def test_a_case_that_is_measured_for_another_scope_is_the_same_code_where_time_does_not_decide(same):
    case = (sessions(BASE_NS), sessions([1000.0, 1030.0, 970.0, 1030.0]))
    (verdict,) = conclude(case, Rule(THRESHOLD, {}, same=frozenset(same))).verdicts.values()
    assert verdict.kind is (VerdictKind.SAME_CODE if same else VerdictKind.UNDECIDED)
    slower = conclude((case[0], sessions(times(1.1))), Rule(THRESHOLD, {}, same=frozenset(same)))
    assert slower.suspected, "what is slower is measured again, whatever its code is"


def test_what_a_session_that_asked_has_checked_counts_and_its_times_do_not():
    asking = known(5000.0, corners=("n=257",), notes=(Note("seen"),))
    case = tuple((without_times(asking), *sessions(BASE_NS)) for _ in "ab")
    found = concluded(case)
    assert (found.result.corners, found.result.notes) == (("n=257",), (Note("seen"),))
    assert found.verdicts[KERNEL].kind is VerdictKind.SAME
    assert len(found.verdicts[KERNEL].pairs) == len(BASE_NS)
    assert [session.valid for session in found.sessions] == [True] * 3
    wrong = Ending("failed", "INCORRECT: y", None)
    found = concluded((case[0], (wrong, *case[1][1:])))
    assert found.outcome == "failed"


(HOT,) = (structs.replace(time, invalid="throttled") for time in known().result.measurements)
THROTTLED = Ending("passed", "", structs.replace(known(scalars="5c").result, measurements=(HOT,)))
OTHER_CODE = known(kernels=(structs.replace(LAUNCH, machine_code_sha256="code:bb"),))
FAILED, ASKED = Ending("failed", "x", known().result), without_times(known())
COPIES = measured(2e6, "end_to_end", "host", work=(EXP_KERNEL,), order=(0,))
AND_COPIES = structs.replace(known().result, measurements=(*known().result.measurements, COPIES))


@pytest.mark.parametrize(
    ("base", "head", "same"),
    [
        ([known(1011.0)], [known(1011.0)], {KERNEL}),
        ([known()], [known(1011.0)], set()),  # such as by another argument
        ([known()], [known(989.0)], set()),
        ([known()], [OTHER_CODE], set()),
        ([known(), known()], [known(), OTHER_CODE], set()),
        ([known()], [known(work=())], set()),
        ([known()], [known(timer="host")], set()),
        # no time is needed where arguments are known to be the same
        ([known(scalars="5c")], [known(1500.0, scalars="5c")], {KERNEL}),
        ([known(scalars="5c")], [THROTTLED], set()),
        # files tell of no option or variable, and the host's clock is coarse
        ([known(files="1f")], [known(1011.0, files="1f")], set()),
        ([known(files="1f", timer="host")], [known(1240.0, files="1f", timer="host")], {KERNEL_BY_HOST}),
        ([known(files="1f", timer="host")], [known(1260.0, files="1f", timer="host")], set()),
        ([known(files="1f", timer="host")], [known(files="2f", timer="host")], set()),
        # what did not pass with its machine code
        ([known()], [], set()),
        ([known()], [None], set()),
        ([known()], [FAILED], set()),
        ([FAILED], [FAILED], set()),
        ([known()], [ending()], set()),
        ([ending()], [ending()], set()),
        # where one pair does not agree more pairs do on average; what only asked has no times
        ([ASKED, known(), known()], [ASKED, known(1030), known(975)], {KERNEL}),
        ([ASKED, known(), known()], [ASKED, known(1030), known(1010)], set()),
        ([known(), known()], [known(), FAILED], set()),
        # those of the host are never known to be the same
        ([Ending("passed", "", AND_COPIES)], [Ending("passed", "", AND_COPIES)], {KERNEL}),
    ],
)
def test_a_time_is_of_the_same_work_where_both_sides_passed_and_did_what_is_known_to_be_the_same(
    base, head, same
):
    for case in ((base, head), (head, base)):
        assert same_times(case, THRESHOLD) == (same, bool(same) and COPIES not in base[0].result.measurements)


@pytest.mark.parametrize("outcome", ["skipped", "xfailed", None])
def test_what_the_working_tree_did_not_pass_is_what_it_was(outcome):
    found = concluded(((ending(),), (outcome and Ending(outcome, "why"),)))
    not_reported = ("failed", "no session of the working tree reported this test")
    assert found[:3] == (*((outcome, "why") if outcome else not_reported), None)
