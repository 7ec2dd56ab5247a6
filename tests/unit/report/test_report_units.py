"""Numbers → text."""

from __future__ import annotations

import math

import pytest

from pytest_gpukern.report import units


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (1310.0, "1.31 µs"),
        (48_600.0, "48.6 µs"),
        (3.02e9, "3.02 s"),
        (0.5, "0.500 ns"),
        (0.0, "0 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (999_999.0, "1.00 ms"),
        (2.5e12, "2500 s"),
    ],
)
def test_a_time_is_written_in_the_largest_unit_that_leaves_it_above_one(nanoseconds, text):
    assert units.time(nanoseconds) == text


def test_a_time_that_is_known_well_gets_a_fourth_digit():
    assert units.time(48_623.4, half_width=0.0025) == "48.62 µs"
    assert units.time(48_623.4, half_width=0.02) == "48.6 µs"


@pytest.mark.parametrize(("seconds", "text"), [(8.9, "8 s"), (130, "2 min 10 s"), (3900, "1 h 5 min")])
def test_a_wait_is_written_as_people_say_it(seconds, text):
    assert units.duration(seconds) == text


def test_rates_are_decimal_and_take_the_time_in_nanoseconds():
    assert units.bandwidth(8e7, 48_600.0) == "1.65 TB/s"
    assert units.bandwidth(714.0, 1.0) == "714 GB/s"
    assert units.bandwidth(5.0, 1e9) == "5.00 B/s"
    assert units.throughput(2 * 8192**3, 21.43e6) == "51.3 TFLOP/s"
    assert units.throughput(2.0, 0.0) == units.NOTHING


def test_a_speedup_below_one_keeps_its_digits_and_a_large_one_has_no_exponent():
    assert units.factor(12.34) == "12.3×"
    assert units.factor(0.8504) == "0.850×"
    assert units.factor(12_345.0) == "12345×"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.053, "+5.3 %"), (0.98, "−2.0 %"), (1.0001, "0.0 %"), (0.9999, "0.0 %"), (12.34, "×12.3")],
)
def test_a_change_is_signed_and_becomes_a_factor_when_it_is_tenfold(ratio, text):
    assert units.change(ratio) == text


def test_errors_say_what_they_are_relative_to():
    assert units.ulps(0.5) == "0.5 ULP"
    assert units.ulps(12.0) == "12 ULP"
    assert units.ulps(1.2e6) == "1.2e+06 ULP"
    assert units.relative_error(2.3e-7) == "2.3e-07"
    assert units.absolute_error(2.3e-7) == "2.3e-07 abs"
    assert units.ulps(0) == units.relative_error(0) == units.absolute_error(0) == "exact"


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_what_is_no_finite_number_is_a_dash_everywhere(missing):
    functions = (
        units.time,
        units.size,
        units.factor,
        units.change,
        units.ulps,
        units.relative_error,
        units.absolute_error,
    )
    assert {function(missing) for function in functions} == {"–"}
    assert units.bandwidth(missing, 1.0) == units.throughput(1.0, missing)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (2800.0, 3100.0, "2.80 µs … 3.10 µs"),
        (2801.0, 2802.0, "2.80 µs"),
        (950.0, 1100.0, "950 ns … 1.10 µs"),
    ],
)
def test_a_range_of_times_is_one_where_both_read_alike(low, high, text):
    assert units.time_range(low, high) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97, "97 %"),
        (0.9949, "99 %"),
        (0.995, "100 %"),
        (1.234, "123 %"),
        (0.0342, "3.4 %"),
        (0.00123, "0.12 %"),
        (0.00001, "0.001 %"),
        (1.7e-7, "< 0.001 %"),
        (0.0, "0 %"),
        (None, "–"),
    ],
)
def test_a_share_is_a_percentage(value, text):
    assert units.share(value) == text
