"""Numbers → text."""

from __future__ import annotations

import functools
import math

import pytest

from pytest_gpukern.report import units

precisely = functools.partial(units.time, half_width=0.0025)


@pytest.mark.parametrize(
    ("write", "figures", "text"),
    [
        # a time is in the largest unit that leaves it above one
        (units.time, (1310.0,), "1.31 µs"),
        (units.time, (48_600.0,), "48.6 µs"),
        (units.time, (3.02e9,), "3.02 s"),
        (units.time, (0.5,), "0.500 ns"),
        (units.time, (0.0,), "0 ns"),
        (units.time, (999.4,), "999 ns"),
        (units.time, (999.6,), "1.00 µs"),
        (units.time, (999_999.0,), "1.00 ms"),
        (units.time, (2.5e12,), "2500 s"),
        # one that is known well gets a fourth digit
        (precisely, (48_623.4,), "48.62 µs"),
        (units.time, (48_623.4, 0.02), "48.6 µs"),
        # a range is one time where both read alike
        (units.time_range, (2800.0, 3100.0), "2.80 µs … 3.10 µs"),
        (units.time_range, (2801.0, 2802.0), "2.80 µs"),
        # a wait is written as people say it
        (units.duration, (8.9,), "8 s"),
        (units.duration, (130,), "2 min 10 s"),
        (units.duration, (3900,), "1 h 5 min"),
        # rates are decimal and take the time in nanoseconds
        (units.bandwidth, (8e7, 48_600.0), "1.65 TB/s"),
        (units.bandwidth, (8000.0, 1e9), "0.00800 MB/s"),
        (units.bandwidth, (5.0, 1e9), "< 0.001 MB/s"),
        (units.throughput, (2 * 8192**3, 21.43e6), "51.3 TFLOP/s"),
        (units.throughput, (2.0, 0.0), "–"),
        # a speed-up below one keeps its digits, and a large one has no exponent
        (units.factor, (12.34,), "12.3×"),
        (units.factor, (0.8504,), "0.850×"),
        (units.factor, (12_345.0,), "12345×"),
        # a change is signed, and a factor from a tenfold value on
        (units.change, (1.053,), "+5.3 %"),
        (units.change, (0.98,), "−2.0 %"),
        (units.change, (1.0001,), "0.0 %"),
        (units.change, (0.9999,), "0.0 %"),
        (units.change, (12.34,), "×12.3"),
        # errors say what they are relative to
        (units.ulps, (0.5,), "0.5 ULP"),
        (units.ulps, (12.0,), "12 ULP"),
        (units.ulps, (1.2e6,), "1.2e+06 ULP"),
        (units.ulps, (0,), "exact"),
        (units.relative_error, (2.3e-7,), "2.3e-07"),
        (units.relative_error, (0,), "exact"),
        (units.absolute_error, (2.3e-7,), "2.3e-07 abs"),
        (units.absolute_error, (0,), "exact"),
        # a share has two digits
        (units.share, (0.97,), "97 %"),
        (units.share, (0.9949,), "99 %"),
        (units.share, (0.995,), "100 %"),
        (units.share, (1.234,), "123 %"),
        (units.share, (0.0342,), "3.4 %"),
        (units.share, (0.00001,), "0.001 %"),
        (units.share, (1.7e-7,), "< 0.001 %"),
        (units.share, (0.0,), "0 %"),
        # what an observer saw is in its unit
        (units.quantity, (1980.0, "MHz"), "1980 MHz"),
        (units.quantity, (612.512, "W"), "612.512 W"),
        (units.quantity, (2**24, "bytes"), "16.0 MiB"),
        (units.quantity, (1500, "ns"), "1.50 µs"),
        (units.quantity, (0.034, "share"), "3.4 %"),
        (units.quantity, (True, ""), "yes"),
        (units.quantity, (3, ""), "3"),
        (units.quantity, ("a", "W"), "a"),
        (units.quantity, (None, "W"), "–"),
        (units.quantity, (math.inf, "W"), "–"),
        (units.quantity, (("a", "b"), ""), "a, b"),
    ],
)
def test_a_number_is_written_with_its_unit(write, figures, text):
    assert write(*figures) == text


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_what_is_no_finite_number_is_a_dash_everywhere(missing):
    functions = (units.time, units.size, units.factor, units.change)
    functions += (units.share, units.ulps, units.relative_error, units.absolute_error)
    assert {function(missing) for function in functions} == {"–"}
    assert units.bandwidth(missing, 1.0) == units.throughput(1.0, missing)
