"""Runs → the headline, the failures and what changed otherwise, which every form takes."""

import dataclasses

import pytest
from made_up_results import CEILINGS, error, measured, result, verdict
from msgspec import structs

from pytest_gpukern.report.conclusion import cards, change_of, headline, others
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.difference import DEVICE, NEW_CODE, SAME_CODE, Difference
from pytest_gpukern.values.result import Correctness, Finding, GateFailure

KEY = "kernel/event/cold"


def slower(ratio, label="cupy.exp", **changes):
    judged = structs.replace(verdict("SLOWER", ratio, "grew"), **changes)
    return result(label, measured(1000.0 * ratio), verdicts=[judged])


def wrong(label, diagnosis="y is wrong\n  at 3", **changes):
    return result(label, correctness=Correctness.INCORRECT, diagnosis=diagnosis, **changes)


def failing(*results, reason=None, **others):
    """A run whose tests all fail, by the gate if the output is right."""

    def why(of):
        gate = (reason or GateFailure("SLOWER", "grew", KEY),)
        return Failure("wrong") if of.correctness is Correctness.INCORRECT else Failure("grew", gate)

    return RunResults(list(results), failures={of.nodeid: why(of) for of in results}, **others)


def judged_as(kind, ratio=1.0, backend="a", **fields):
    judged = structs.replace(verdict(kind, None if kind == "NEW" else ratio), **fields)
    return result(f"{backend}.v{kind.lower()}", measured(), verdicts=[judged])


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (failing(slower(1.254)), "FAILED: 1 kernel +25.4 %"),
        (failing(slower(1.1, "a.b"), slower(1.3, "a.c")), "FAILED: 2 kernels up to +30.0 %"),
        (failing(slower(1.1), wrong("a.b")), "FAILED: 1 wrong result, 1 kernel +10.0 %"),
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


def test_wrong_results_of_a_variant_share_a_card_that_tells_their_sizes_apart():
    sizes = [{"n": n, "m": 5} for n in (7, 37)]
    run = failing(*(wrong("a.b", f"{point} is wrong", point=point) for point in sizes), wrong("a.c"))
    both, other = cards(run)
    assert (both.title, both.what) == (
        "vector_exp/a.b: n=7, n=37",
        ("{'n': 7, 'm': 5} is wrong", "{'n': 37, 'm': 5} is wrong"),
    )
    assert len(both.nodeids) == 2
    assert other.title == other.name == "vector_exp/a.c/n=1000"


def test_failures_with_the_same_words_are_told_once():
    run = RunResults(failures={f"test_{n}": Failure("no driver" if n < 5 else "KeyError") for n in range(6)})
    many, one = cards(run)
    assert many.title == "5 tests: test_0, test_1, test_2 and 2 more"
    assert many.repeat == "pytest --lf"
    assert (one.title, one.repeat) == ("test_5", "pytest test_5")
    (four,) = cards(RunResults(failures={f"test_{n}": Failure("no driver") for n in range(4)}))
    assert four.title == "4 tests: test_0, test_1, test_2, test_3"


def test_tests_that_fail_by_themselves_share_a_card_by_their_words_whatever_their_variant():
    points = [{"n": n} for n in (1, 2)]
    same, other = ([result(label, point=point) for point in points] for label in ("a.same", "a.other"))
    words = dict(zip((of.nodeid for of in (*same, *other)), "aabc", strict=True))
    run = RunResults([*same, *other], failures={test: Failure(text) for test, text in words.items()})
    assert [card.title for card in cards(run)] == [
        *("vector_exp/a.same: n=1, n=2", "vector_exp/a.other/n=1", "vector_exp/a.other/n=2")
    ]
    both = RunResults(run.results, failures={of.nodeid: Failure("a") for of in (same[0], other[0])})
    assert cards(both)[0].title == "2 tests: vector_exp/a.same/n=1, vector_exp/a.other/n=1"


def test_a_time_has_its_way_its_interval_and_its_share_of_the_limit_before_and_now():
    traffic = 0.5 * 4e12 * 1254e-9  # half of what the device copies in that time
    judged = structs.replace(verdict("SLOWER", 1.254), ratio_low=1.22, ratio_high=1.28)
    time = measured(1254.0, timer="cupti", traffic_bytes=traffic)
    case = result("a.b", time, verdicts=[judged], ceilings=CEILINGS)
    change = change_of(RunResults([case]), case, time.key)
    assert str(change) == "1.00 → 1.25 µs, +25.4 % [+22.0, +28.0]"
    assert change.of_limit == "63 → 50 % of copy"


@pytest.mark.parametrize("ratio", [None, 0.0, -1.0, float("inf")])
def test_what_has_no_ratio_has_no_change(ratio):
    case = slower(1.1)
    case = structs.replace(case, verdicts={KEY: verdict("SLOWER", ratio)})
    assert change_of(RunResults([case]), case, KEY) is None
    (card,) = cards(failing(case))
    assert (card.change, card.headline) == (None, "because")


def test_why_leaves_out_the_card_and_says_what_is_the_same_if_nothing_differs():
    other_card = Difference(DEVICE, None, "GPU-2", others=5)
    registers = Difference("registers", "30", "53")
    (card,) = cards(failing(slower(1.1, differences=(registers, other_card))))
    assert card.why == ("registers 30 → 53",)
    (card,) = cards(failing(slower(1.1, differences=(NEW_CODE, registers, other_card))))
    assert card.why == ("new machine code", "registers 30 → 53", "the code, not the machine")
    (card,) = cards(failing(slower(1.1, differences=(NEW_CODE, Difference("CPUs", "16", "32")))))
    assert card.why == ("new machine code", "CPUs 16 → 32")
    (card,) = cards(failing(slower(1.1, differences=(SAME_CODE, other_card))))
    assert card.why == ("same machine code",)


@pytest.mark.parametrize(
    ("rel", "ulp", "looks_like"),
    [(1.2e-8, 6.7e7, "float32"), (4e-4, 4e3, "float16 or TF32"), (1e-5, 1e8, None), (5e-8, 0.5, None)],
)
def test_an_error_of_the_size_of_another_precisions_rounding_is_why(rel, ulp, looks_like):
    run = failing(wrong("a.b", errors={"y": error(rel=rel, ulp=ulp)}))
    (card,) = cards(run)
    told = f"no relative error of y exceeds {rel:.1e}: like values rounded to {looks_like}"
    assert card.why == ((told,) if looks_like else ())


def test_what_is_slower_is_accepted_from_the_file_that_was_read_and_a_revision_is_not():
    (card,) = cards(failing(slower(1.1), name="run.json"))
    assert card.accept == (
        "gpukern baseline merge run.json --accept vector_exp/cupy.exp/n=1000 --reason TEXT"
    )
    (card,) = cards(failing(slower(1.1), name="run.json", compared_with="main"))
    assert card.accept == ""


@pytest.mark.parametrize(
    ("label", "kind", "key", "fail_on", "accepted"),
    [
        ("a.b", "SLOWER", KEY, "", True),
        ("host.b", "SLOWER", KEY, "host", True),
        ("a.b", "resources", "", "resources", True),
        ("a.b", "bits", "", "accuracy", True),
        ("a.b", "memory", "", "memory", False),
        ("a.b", "unchecked", "", "unchecked", False),
        ("a.b", "UNDECIDED", KEY, "undecided", False),
        ("a.b", "--rootdir=/", "", "", False),
    ],
)
def test_a_repeat_fails_by_the_same_and_what_is_beyond_the_record_can_be_accepted(
    label, kind, key, fail_on, accepted
):
    (card,) = cards(failing(slower(1.1, label), reason=GateFailure(kind, "grew", key), name="run.json"))
    option = f" --gpukern-fail-on={fail_on}" if fail_on else ""
    assert card.repeat.endswith(f" --gpu-benchmark{option}")
    assert card.accept.startswith("gpukern baseline merge run.json --accept") == accepted


def test_what_changed_otherwise_is_grouped_by_its_cause_which_may_be_the_machine():
    cpus = (Difference("CPUs", "16", "32"),)
    results = [
        result(f"a.v{n}", measured(), verdicts=[structs.replace(verdict("FASTER", ratio), differences=cpus)])
        for n, ratio in enumerate((0.9, 0.6, 0.8))
    ]
    results.append(result("a.code", measured(), verdicts=[verdict("FASTER", 0.95)]))
    machine, code = others(RunResults(results))
    assert (machine.cases, machine.change) == ("3 timings of vector_exp", "−10.0 % to −40.0 %")
    assert machine.cause == "CPUs 16 → 32: the machine, not the change"
    assert (code.cases, code.change, code.cause) == ("vector_exp/a.code/n=1000", "−5.0 %", "")


def test_of_what_is_undecided_what_looks_slowest_comes_first():
    doubts = [verdict("UNDECIDED", ratio) for ratio in (1.2, 0.5, 1.05)]
    doubts[2] = structs.replace(doubts[2], unconfirmed=True)
    results = [result(f"a.v{n}", measured(), verdicts=[doubt]) for n, doubt in enumerate(doubts)]
    (group,) = others(RunResults(results))
    assert group.change == "the largest suspicion +20.0 %, vector_exp/a.v0/n=1000"
    assert [name.split("/")[1] for name in group.names] == ["a.v0", "a.v2", "a.v1"]
    (group,) = others(RunResults([results[1], result("a.v3", measured(), verdicts=[doubts[1]])]))
    assert group.change == "none looks slower"


def test_failed_tests_are_no_others_and_findings_and_expected_wrong_results_are():
    found = result("a.b", measured(), findings=(Finding("memory", "1 MiB is kept"),))
    run = dataclasses.replace(failing(slower(1.1)), results=[slower(1.1), wrong("a.c"), found])
    assert [(other.kind, other.names, other.cause) for other in others(run)] == [
        ("INCORRECT", ("vector_exp/a.c/n=1000",), "y is wrong"),
        ("memory", ("vector_exp/a.b/n=1000",), "1 MiB is kept"),
    ]
