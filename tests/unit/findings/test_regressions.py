"""Errors, bits, resources and slow calls against a record."""

from __future__ import annotations

import math
import statistics

import pytest
from made_up_past import KEY, accuracy, facts, kernel, past, session
from msgspec import structs

from pytest_gpukern.baseline.record import as_recorded, trimmed_time
from pytest_gpukern.findings.regressions import (
    grown_errors,
    grown_resources,
    other_bits,
    other_determinism,
    over_sessions,
    resource_changes,
    slow_calls,
)
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.result import Finding, Measurement, Summary

BITS = "splitmix64:00000000deadbeef"
OTHER = "splitmix64:0000000012345678"


EXACT = accuracy(0.0, 0.0, 0.0)
GREW = "2 → 12 ULP, 6e-08 → 1.4e-06 relative, 1e-07 → 3e-06 absolute"
NEAR_ZERO, NEAR = accuracy(1000.0, 0.3, 1e-7), accuracy(999.0, 0.3, 1e-7)


@pytest.mark.parametrize(
    ("now", "recorded", "grown"),
    [
        ((12.0, 1.4e-6, 3e-6), [accuracy(), accuracy(ulp=2.0), accuracy(ulp=1.0)], GREW),
        # within the factor of the largest, or of four ULP, it is rounding
        ((12.4, 1.2e-6, 2.4e-6), [accuracy(3.1, 3e-7, 6e-7), accuracy()], None),
        ((12.5, 1.2e-6, 2.4e-6), [accuracy(3.1, 3e-7, 6e-7), accuracy()], "3.1 → 12.5 ULP"),
        ((4.0, 2e-7, 4e-7), [accuracy(0.01, 1e-10, 1e-10)], None),
        ((4.1, 1e-10, 1e-10), [accuracy(0.01, 1e-10, 1e-10)], "0.01 → 4.1 ULP"),
        ((8.0, 1e-6, 1e-6), [EXACT], "exact → 8 ULP, exact → 1e-06 relative, exact → 1e-06 absolute"),
        # integers have no ULP
        ((None, 1e-3, 1.0), [accuracy(None, 0.0, 0.0)], "exact → 0.001 relative, exact → 1 absolute"),
        ((None, 0.0, 0.0), [accuracy(None, 0.0, 0.0)], None),
        # beside a reference near zero only the absolute error counts
        ((5e7, 8.0, 4e-7), [NEAR_ZERO], None),
        ((5e7, 8.0, 1e-6), [NEAR_ZERO], "1e-07 → 1e-06 absolute"),
        ((5e7, 1.0, 1e-7), [NEAR], "999 → 5e+07 ULP"),
        # what one side lacks is not compared
        ((50.0, None, None), [accuracy(None, None, None)], None),
        ((50.0, None, None), [accuracy(), accuracy(ulp=None)], None),
        ((None, None, None), [accuracy()], None),
        ((50.0, None, None), [], None),
    ],
)
def test_an_error_that_grew_is_a_finding_with_both_values(now, recorded, grown):
    sessions = [session(errors={"y": each}) for each in recorded] or [session(errors={})] * 2
    count = f"the largest of {len(sessions)} sessions" if len(sessions) > 1 else "of one session"
    expected = (Finding("accuracy", f"y: error {grown} (recorded: {count})"),) if grown else ()
    assert tuple(grown_errors({"y": accuracy(*now)}, past(*sessions))) == expected


@pytest.mark.parametrize(
    ("now", "recorded", "kernels", "differs"),
    [
        (OTHER, (BITS, BITS), (facts(),), True),
        # without two sessions that agree on other bits nothing is said
        (OTHER, (BITS,), (facts(),), False),
        (OTHER, (BITS, OTHER), (facts(),), False),
        (OTHER, (BITS, None), (facts(),), False),
        (OTHER, (None, None), (facts(),), False),
        (OTHER, ("crc32-16mib:deadbeef",) * 2, (facts(),), False),
        (OTHER, (OTHER, OTHER), (facts(),), False),
        (None, (BITS, BITS), (facts(),), False),
        # other code may give other bits
        (OTHER, (BITS, BITS), (facts(code="cafe"),), False),
        (OTHER, (BITS, BITS), (facts(code=None),), False),
        (OTHER, (BITS, BITS), (), False),
        (OTHER, (BITS, BITS), (facts(), facts("another")), False),
    ],
)
def test_other_bits_from_the_same_code_are_a_finding(now, recorded, kernels, differs):
    sessions = [session(bits=each) for each in recorded]
    text = f"y: other bits from the same machine code and inputs: {BITS} in 2 sessions, now {OTHER}"
    expected = (Finding("bits", text),) if differs else ()
    assert tuple(other_bits({"y": accuracy(bits=now)}, kernels, past(*sessions))) == expected


def looked(*found, code="beef"):
    """Sessions that each found a determinism and a hash."""
    outputs = [accuracy(bits=bits, determinism=determinism) for determinism, bits in found]
    return past(*(session(kernel(code=code), errors={"y": each}) for each in outputs))


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (["bitwise"] * 3, "tolerant", "y: bitwise in 3 recorded sessions, now tolerant"),
        (["run-to-run"], "tolerant", "y: run-to-run in 1 recorded sessions, now tolerant"),
        (["bitwise", "tolerant"], "tolerant", None),
        (["tolerant"] * 2, "bitwise", "y: tolerant in 2 recorded sessions, now bitwise"),
        (["tolerant"], "bitwise", None),  # three equal launches are no change from one that differed
        (["tolerant", "bitwise"], "bitwise", None),
        (["tolerant"] * 2, "tolerant", None),
        (["bitwise"] * 2, "bitwise", None),
        ([None, "bitwise"], "tolerant", "y: bitwise in 1 recorded sessions, now tolerant"),
        ([None] * 2, "tolerant", None),  # records of older releases
        (["bitwise"], None, None),
    ],
)
def test_another_determinism_than_recorded_is_a_finding(before, now, text):
    recorded = looked(*((kind, BITS) for kind in before))
    expected = (Finding("determinism", text),) if text else ()
    errors = {"y": accuracy(determinism=now), "z": accuracy(determinism=now)}
    assert tuple(other_determinism(errors, recorded)) == expected


@pytest.mark.parametrize(
    ("before", "code", "kernels", "now", "expected"),
    [
        ([BITS, OTHER], "beef", [facts()], "bitwise", "run-to-run"),
        ([BITS, BITS], "beef", [facts()], "bitwise", "bitwise"),
        # of other code, or code that is not known, it is what this session found
        ([BITS, OTHER], "f00d", [facts()], "bitwise", "bitwise"),
        ([BITS, OTHER], "beef", [], "bitwise", "bitwise"),
        ([BITS, OTHER], "beef", [facts()], None, None),
    ],
)
def test_other_bits_in_other_processes_of_the_same_code_are_run_to_run(before, code, kernels, now, expected):
    recorded = looked(*(("bitwise", bits) for bits in before), code=code)
    errors = over_sessions({"y": accuracy(bits=BITS, determinism=now)}, kernels, recorded)
    assert errors["y"].determinism == expected


def test_growth_beyond_every_session_is_a_finding_a_kernel():
    recorded = past(session(kernel(registers=32), kernel("scale")), session(kernel(registers=40)))
    fresh = facts("fresh", registers=255)
    grown = grown_resources([facts(registers=96, local_bytes=48), facts("scale"), fresh], recorded)
    assert tuple(grown) == (Finding("resources", "saxpy: registers 40 → 96, local 0 → 48 B"),)
    for registers in (24, 32, 40, 39):
        assert not [*grown_resources([facts(registers=registers)], recorded)]


def test_a_kernel_launched_twice_grows_by_its_largest_launch():
    before = [kernel(shared_bytes=0), kernel(shared_bytes=2048)]
    new = [as_recorded(facts(shared_bytes=size)) for size in (1024, 2048)]
    assert resource_changes(new, before, grown=True) == []
    assert resource_changes(new, before) == [Difference("shared", "2048", "2048 B")]
    larger = Difference("shared", "2048", "4096 B")
    assert resource_changes([*new, kernel(shared_bytes=4096)], before, grown=True) == [larger]


# slow calls beside a median that is no slower

CALM = [1000.0 + step for step in (-2, -1, 0, 1, 2)] * 20
TENTH = [3 * ns if number % 10 == 9 else ns for number, ns in enumerate(CALM)]
FIFTIETH = [11 * ns if number % 50 == 9 else ns for number, ns in enumerate(CALM)]
SPIKY = [1.1 * ns if number % 12 == 9 else ns for number, ns in enumerate(CALM)]
NEARLY = [1.04 * ns if ns > 1001 else ns for ns in CALM]


def timed(samples):
    known = [ns for ns in samples if ns is not None]
    summary = Summary(statistics.median(known), min(known), max(known), len(samples))
    return Measurement("kernel", "cupti", "cold", 1, summary, samples_ns=tuple(samples))


def slow(samples, *recorded, older=False):
    """Texts about new samples, by sessions of recorded ones; those of an older release have no mean."""
    kept = [trimmed_time(timed(each)) for each in recorded]
    times = [SessionTime(structs.replace(time, mean_ns=None) if older else time) for time in kept]
    grown = slow_calls([timed(each) for each in samples], times)
    assert all(finding.kind == "tail" for finding in grown)
    return "".join(finding.text for finding in grown).removeprefix(f"{KEY}: the median is no slower, but ")


def test_slow_calls_show_in_the_mean_or_the_95th_percentile():
    percentile = "the 95th percentile is 3.01 times it (recorded: 1.00)"
    mean, calm = "the mean is 1.20 times it (recorded: 1.00)", [CALM] * 3
    assert slow([TENTH], *calm) == f"{mean}, {percentile}"
    assert slow([TENTH], *calm, older=True) == percentile
    assert slow([TENTH[:20], TENTH], *calm) == f"{mean}, {percentile}"
    assert slow([FIFTIETH], *calm) == mean, "rarer than one in twenty"


@pytest.mark.parametrize(
    ("samples", "recorded"),
    [
        ([CALM], [CALM] * 3),
        ([[1.5 * ns for ns in SPIKY]], [SPIKY] * 3),  # all are slower
        ([TENTH], [CALM, CALM, TENTH]),  # recorded once
        ([SPIKY], [CALM, CALM, NEARLY]),  # within the spread
        ([NEARLY], [CALM] * 3),  # by less than 5 %
        ([TENTH], [CALM] * 2),
        ([TENTH[:19]], [CALM] * 3),
        ([TENTH, TENTH[:19]], [CALM] * 3),
        ([[*TENTH, None]], [CALM] * 3),
        ([[*TENTH, math.inf]], [CALM] * 3),
    ],
)
def test_what_was_recorded_or_cannot_be_told_is_no_finding(samples, recorded):
    assert slow(samples, *recorded) == ""


@pytest.mark.parametrize(("count", "t995"), [(3, 9.925), (5, 4.604)])
def test_a_tail_grew_beyond_students_prediction_interval(count, t995):
    """On 2 or 4 degrees of freedom, in standard deviations times √(1 + 1/n)."""
    calm = trimmed_time(timed(CALM))
    time = structs.replace(calm, quantiles_ns=(*calm.quantiles_ns[:4], 9000.0))
    logs = [0.2, 0.18, 0.22, 0.18, 0.22][:count]
    recorded = [SessionTime(structs.replace(time, mean_ns=1000 * math.exp(log))) for log in logs]
    bound = 0.2 + t995 * 0.02 * math.sqrt(1 + 1 / count)
    for mean, grew in ((bound - 1e-3, False), (bound + 1e-3, True)):
        samples = [1000.0] * 99 + [1000 * (100 * math.exp(mean) - 99)]
        assert bool(slow_calls([timed(samples)], recorded)) is grew
