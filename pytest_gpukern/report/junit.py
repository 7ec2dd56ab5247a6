"""Returns the properties of a test in pytest's JUnit file: its verdict, time, change and reason."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpukern.report import units
from pytest_gpukern.report.rows import judged, scope_times, without_a_time
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.verdict_table import INCORRECT


def properties(result: Result, failure: str | None = None) -> list[tuple[str, str]]:
    """Returns names and values, for the scope that the report shows first; what has no value is left out.

    Args:
        result: what the test found out.
        failure: the first line of why the test failed by itself, or None.
    """
    values = {name: value for name, value in _values(result, failure) if value}
    return [(f"gpukern.{name}", value) for name, value in values.items()]


def _values(result: Result, failure: str | None) -> Iterator[tuple[str, str]]:
    """Yields names and values as text. Changes are relative, 0.05 for 5 % longer, within a 90 % interval."""
    kind, reason = without_a_time(result, failure)
    time = None if kind == INCORRECT else next(iter(scope_times(result)), None)
    if time is not None:
        came_to = judged(result, time)
        if not kind:  # a test that failed after it was timed failed
            kind, reason = came_to.kind, came_to.reason
        median_ns = time.shown.summary.median_ns
        yield "time_ns", "" if result.simulated else _number(median_ns, 3)
        verdict = came_to.verdict
        if verdict is not None:
            yield "change", _change(verdict.ratio)
            yield "low", _change(verdict.ratio_low)
            yield "high", _change(verdict.ratio_high)
    yield "verdict", kind
    yield "reason", reason.partition("\n")[0]
    yield "device", result.fingerprint.hardware(on_gpu=result.case.on_gpu) or ""


def _change(ratio: float | None) -> str:
    return _number(ratio - 1, 6) if units.is_number(ratio) else ""


def _number(value: float, digits: int) -> str:
    return str(round(value, digits) + 0.0) if units.is_number(value) else ""  # no -0.0
