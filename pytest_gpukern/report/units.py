"""Turns numbers into text; the one place that does.

Every function takes plain numbers in the unit that its argument names, and returns `NOTHING` for a number
that is None or not finite: results cross processes as JSON, which has neither infinity nor NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TypeGuard

from pytest_gpukern.values.result import Value

NOTHING = "–"

EXACT = "exact"

_PRECISE = 0.005
"""Half widths below this justify a fourth significant digit."""

TIMES = ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
RATES = ((1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_BYTES = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))


def time(nanoseconds: float | None, half_width: float | None = None, *, digits: int | None = None) -> str:
    """Returns a time: `1.31 µs`, `48.6 µs`, `3.02 s`; four digits where it is known to better than ±0.5 %.

    Args:
        half_width: half its 95 % interval relative to it, 0.0025 for ±0.25 %; only for the number of digits.
        digits: the number of digits, if it is not to follow from that.
    """
    if digits is None:
        digits = 4 if is_number(half_width) and half_width < _PRECISE else 3
    return _scaled(nanoseconds, TIMES, digits)


def time_range(low_ns: float, high_ns: float, half_width: float | None = None) -> str:
    """Returns two times as a range, or one where both read alike; digits as of `time`."""
    low, high = time(low_ns, half_width), time(high_ns, half_width)
    return low if low == high else f"{low} … {high}"


def share(value: float | None) -> str:
    """Returns a part of a whole in percent with two digits: 0.97 → `97 %`, 0.0342 → `3.4 %`."""
    if not is_number(value):
        return NOTHING
    percent = 100 * value
    if 0 < percent < 0.001:
        return "< 0.001 %"
    return f"{percent:.0f} %" if percent >= 99.5 else f"{percent:.2g} %"


def duration(seconds: float) -> str:
    """Returns a time that somebody waited: `8 s`, `2 min 10 s`, `1 h 5 min`."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    if whole >= 3600:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def bandwidth(count: float | None, nanoseconds: float | None) -> str:
    """Returns bytes in a time, in decimal units: `714 GB/s`, `4.29 TB/s`."""
    return _rate(count, nanoseconds, "B/s")


def throughput(flops: float | None, nanoseconds: float | None) -> str:
    """Returns floating-point operations in a time: `853 GFLOP/s`, `51.3 TFLOP/s`."""
    return _rate(flops, nanoseconds, "FLOP/s")


def size(count: float | None) -> str:
    """Returns an amount of memory in bytes, in binary units: `512 MiB`, `1.50 GiB`."""
    if not is_number(count):
        return NOTHING
    return f"{count:.0f} B" if abs(count) < 1024 else _scaled(count, _BYTES, 3)


def quantity(value: Value, unit: str) -> str:
    """Returns a value that an observer saw, in its unit: `1980 MHz`, `512 MiB`, `3.4 %`, `yes`, `a, b`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return ", ".join(value) if isinstance(value, tuple) else value or NOTHING
    match unit:
        case "bytes":
            return size(value)
        case "ns":
            return time(value)
        case "share":
            return share(value)
    return f"{value:.6g} {unit}".rstrip() if is_number(value) else NOTHING


def factor(value: float | None) -> str:
    """Returns a speed-up: `0.850×`, `12.3×`, `1230×`."""
    return f"{_significant(value, 3)}×" if is_number(value) else NOTHING


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


SHOWN = 3
"""Names that a line, a title or a command has room for."""


def named(items: Iterable[object], most: int = 5) -> str:
    """Returns the first names, and counts the others: `node1, node2 and 3 more`."""
    names = [*map(str, items)]
    shown = names[:most] if len(names) > most + 1 else names  # the last one takes no more room than its count
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def change(ratio: float | None) -> str:
    """Writes new ÷ old as a signed change: 1.053 → `+5.3 %`; from a tenfold value on as a factor, `×12.3`."""
    if not is_number(ratio):
        return NOTHING
    if ratio >= 10:
        return f"×{_significant(ratio, 3)}"
    text = f"{100 * (ratio - 1):+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text.replace("-", "−")


def size_of_change(ratio: float | None) -> float:
    """Returns |ln(new ÷ old)|: twice and half are equally large. Without a positive number it is 0."""
    return abs(math.log(ratio)) if is_number(ratio) and ratio > 0 else 0.0


def change_interval(low: float | None, high: float | None) -> str:
    """Writes the ends of an interval of new ÷ old in percent: `[+4.1, +6.5]`, or nothing without one."""
    ends = (change(low).removesuffix(" %"), change(high).removesuffix(" %"))
    return f"[{', '.join(ends)}]" if is_number(low) and is_number(high) else ""


def way(before_ns: float, now_ns: float) -> str:
    """Writes from which time to which: `37.4 → 46.8 µs`, with one unit where both have the same."""
    before, now = time(before_ns), time(now_ns)
    return f"{before.removesuffix(now[now.index(' ') :])} → {now}"


def ulps(value: float | None) -> str:
    """Returns an error in units in the last place: `0.5 ULP`, `4000 ULP`, `1.2e+06 ULP`."""
    if not is_number(value) or value == 0:
        return EXACT if value == 0 else NOTHING
    digits = ".2g" if value < 9.95 else ".0f" if value < 99999.5 else ".1e"
    return f"{value:{digits}} ULP"


def relative_error(value: float | None) -> str:
    if not is_number(value) or value == 0:
        return EXACT if value == 0 else NOTHING
    return f"{value:.1e}"


def absolute_error(value: float | None) -> str:
    """Returns an absolute error, said to be one: `2.3e-07 abs`."""
    text = relative_error(value)
    return text if text in (NOTHING, EXACT) else f"{text} abs"


def is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def per_second(amount: float | None, nanoseconds: float | None) -> float | None:
    if not is_number(amount) or not is_number(nanoseconds) or nanoseconds <= 0:
        return None
    return amount / nanoseconds * 1e9


def _rate(amount: float | None, nanoseconds: float | None, unit: str) -> str:
    rate = per_second(amount, nanoseconds)
    if rate is not None and 0 < rate < 1e3:
        return f"< 0.001 M{unit}"
    return NOTHING if rate is None else _scaled(rate, RATES, 3) + unit


@functools.lru_cache(4096)  # a report tells most times more than once
def _scaled(value: float | None, units: tuple[tuple[float, str], ...], digits: int) -> str:
    """Returns the value in the largest unit in which it is at least one, after rounding to `digits`."""
    if not is_number(value):
        return NOTHING
    rounded = abs(float(f"{value:.{digits - 1}e}"))
    scale, unit = next((unit for unit in reversed(units) if rounded >= unit[0]), units[0])
    return f"{_significant(value / scale, digits)} {unit}"


def _significant(value: float, digits: int) -> str:
    """Returns `digits` significant digits without an exponent, and never fewer than the whole part has."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if exponent < -digits:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"
