"""Errors, bits, resources and slow calls against a record."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from made_up_past import KEY, accuracy, facts, kernel, past, session
from msgspec import structs

from pytest_gpukern.baseline.record import as_recorded, time_of
from pytest_gpukern.findings.regressions import (
    grown_errors,
    grown_resources,
    other_bits,
    resource_changes,
    slow_calls,
)
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.result import Finding, Measurement, OutputError, Summary

BITS = "splitmix64:00000000deadbeef"
OTHER = "splitmix64:0000000012345678"


def error(ulp=0.5, rel=6e-8, absolute=1e-7, bits=None):
    return OutputError(1000, 0, absolute, rel, ulp, bits)


def drift(now, *recorded):
    found = grown_errors({"y": now}, past(*(session(outputs={"y": each}) for each in recorded)))
    return [finding.text for finding in found]


def test_an_error_that_grew_is_a_finding_with_both_values():
    recorded = [accuracy(), accuracy(ulp=2.0), accuracy(ulp=1.0)]
    found = grown_errors(
        {"y": error(12.0, 1.4e-6, 3e-6)},
        past(*(session(outputs={"y": each}) for each in recorded)),
    )
    text = "y: error 2 → 12 ULP, 6e-08 → 1.4e-06 relative, 1e-07 → 3e-06 absolute"
    assert found == (Finding("accuracy", f"{text} (recorded: the largest of 3 sessions)"),)


@pytest.mark.parametrize(("ulp", "grew"), [(1.0, False), (4.0, False), (4.1, True)])
def test_up_to_the_factor_in_ulp_an_error_is_rounding_whatever_it_was(ulp, grew):
    assert bool(drift(error(ulp, ulp * 6e-8, ulp * 1e-7), accuracy(0.01, 1e-10, 1e-10))) is grew


def test_an_error_within_the_factor_of_the_largest_is_no_finding():
    assert drift(error(12.0, 1e-6, 2e-6), accuracy(3.1, 3e-7, 6e-7), accuracy()) == []


def test_an_exact_result_that_is_no_longer_exact_is_a_finding():
    assert drift(error(8.0, 1e-6, 1e-6), accuracy(0.0, 0.0, 0.0)) == [
        "y: error exact → 8 ULP, exact → 1e-06 relative, exact → 1e-06 absolute (recorded: of one session)"
    ]


def test_an_integer_that_was_exact_and_is_not_is_a_finding():
    found = drift(error(None, 1e-3, 1.0), accuracy(None, 0.0, 0.0))
    assert found == ["y: error exact → 0.001 relative, exact → 1 absolute (recorded: of one session)"]
    assert drift(error(None, 0.0, 0.0), accuracy(None, 0.0, 0.0)) == []


def test_beside_a_reference_near_zero_only_the_absolute_error_counts():
    before = accuracy(2e6, 0.3, 1e-7)
    assert drift(error(5e7, 8.0, 1.1e-7), before) == []
    assert drift(error(5e7, 8.0, 1e-6), before) == [
        "y: error 1e-07 → 1e-06 absolute (recorded: of one session)"
    ]


def test_figures_that_one_side_lacks_are_not_compared():
    assert drift(error(50.0, None, None), accuracy(None, None, None)) == []
    assert drift(error(None, None, None), accuracy()) == []
    assert grown_errors({"new": error(50.0)}, past()) == ()


SAXPY = facts()


def bits(now, *recorded, kernels=(SAXPY,), code="beef"):
    sessions = [session(kernel(code=code), bits=each) for each in recorded]
    return other_bits({"y": error(bits=now)}, kernels, past(*sessions))


def test_other_bits_from_the_same_code_are_a_finding():
    (found,) = bits(OTHER, BITS, BITS, BITS)
    assert found.kind == "bits"
    assert found.text == (
        f"y: other bits from the same machine code and inputs: {BITS} in 3 sessions, now {OTHER}"
    )


@pytest.mark.parametrize(
    "recorded",
    [(BITS,), (BITS, OTHER), (BITS, None), (None, None), ("crc32-16mib:deadbeef",) * 2, (OTHER, OTHER)],
    ids=["one-session", "not-deterministic", "one-without", "none-known", "another-method", "the-same"],
)
def test_without_two_sessions_that_agree_on_other_bits_nothing_is_said(recorded):
    assert bits(OTHER, *recorded) == ()


@pytest.mark.parametrize(
    "kernels",
    [(facts(code="cafe"),), (facts(code=None),), (), (facts(), facts("another"))],
    ids=["new-code", "code-not-known", "no-kernels", "one-kernel-more"],
)
def test_other_code_may_give_other_bits(kernels):
    assert bits(OTHER, BITS, BITS, kernels=kernels) == ()


def test_an_output_whose_hash_was_not_taken_has_no_other_bits():
    assert bits(None, BITS, BITS) == ()


def test_growth_beyond_every_session_is_a_finding_a_kernel():
    recorded = past(session(kernel(registers=32), kernel("scale")), session(kernel(registers=40)))
    found = grown_resources(
        [facts(registers=96, local=48), facts("scale"), facts("fresh", registers=255)], recorded
    )
    assert found == (Finding("resources", "saxpy: registers 40 → 96, local 0 → 48 B"),)


@pytest.mark.parametrize("registers", [24, 32, 40])
def test_what_some_session_took_or_less_is_no_growth(registers):
    recorded = past(session(kernel(registers=40)), session(kernel(registers=32)))
    assert grown_resources([facts(registers=registers)], recorded) == ()


def test_a_kernel_launched_twice_grows_by_its_largest_launch():
    before = [kernel(shared_bytes=0), kernel(shared_bytes=2048)]
    new = [as_recorded(facts(shared=size)) for size in (1024, 2048)]
    assert resource_changes(new, before, grown=True) == []
    larger = Difference("shared", "2048", "4096 B")
    assert resource_changes([*new, kernel(shared_bytes=4096)], before, grown=True) == [larger]


# slow calls beside a median that is no slower

CALM = [1000.0 + step for step in (-2, -1, 0, 1, 2)] * 20
TENTH = [3 * ns if number % 10 == 9 else ns for number, ns in enumerate(CALM)]
FIFTIETH = [11 * ns if number % 50 == 9 else ns for number, ns in enumerate(CALM)]
SPIKY = [1.1 * ns if number % 12 == 9 else ns for number, ns in enumerate(CALM)]


def timed(samples):
    median_ns = statistics.median(samples)
    summary = Summary(median_ns, median_ns, median_ns, len(samples))
    return Measurement("kernel", "cupti", "", "cold", tuple(samples), 1, summary, "")


def slow(samples, *recorded, older=False):
    """Texts about new samples, by sessions of recorded ones; those of an older release have no mean."""
    times = [time_of(timed(each)) for each in recorded]
    times = [structs.replace(time, mean_ns=None) for time in times] if older else times
    sessions = (dataclasses.replace(session(), times={KEY: time}) for time in times)
    found = slow_calls([timed(samples)], past(*sessions))
    return [finding.text for finding in found]


def test_one_call_in_ten_three_times_as_slow_is_a_finding_by_mean_and_percentile():
    (text,) = slow(TENTH, CALM, CALM, CALM)
    assert text == (
        f"{KEY}: the median is no slower, but the mean is 1.20 times it (recorded: 1.00), "
        "the 95th percentile is 3.01 times it (recorded: 1.00)"
    )


def test_calls_rarer_than_one_in_twenty_show_in_the_mean_which_older_records_lack():
    (text,) = slow(FIFTIETH, CALM, CALM, CALM)
    assert "the mean is 1.20 times it" in text
    assert "percentile" not in text
    assert slow(FIFTIETH, CALM, CALM, CALM, older=True) == []
    assert "percentile" in slow(TENTH, CALM, CALM, CALM, older=True)[0]


@pytest.mark.parametrize(
    ("samples", "recorded"),
    [
        (CALM, (CALM, CALM, CALM)),
        ([1.5 * ns for ns in SPIKY], (SPIKY, SPIKY, SPIKY)),
        (TENTH, (CALM, CALM, TENTH)),
        (SPIKY, (CALM, CALM, [1.04 * ns if ns > 1001 else ns for ns in CALM])),
        (TENTH, (CALM, CALM)),
        (TENTH[:19], (CALM, CALM, CALM)),
    ],
    ids=["unchanged", "all-slower", "recorded-once", "within-the-spread", "two-sessions", "few-samples"],
)
def test_what_was_recorded_or_cannot_be_told_is_no_finding(samples, recorded):
    assert slow(samples, *recorded) == []
