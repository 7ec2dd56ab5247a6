"""Returns the properties of a test in pytest's JUnit file: its verdict, time, change and reason."""

from __future__ import annotations

from pytest_gpukern.report import units
from pytest_gpukern.report.rows import judged, scope_times
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.verdict_table import INCORRECT


def properties(result: Result, failure: str | None = None) -> list[tuple[str, str]]:
    """Returns names and values as text, for the scope that the report shows first, without empty ones.

    Changes are relative, 0.05 for 5 % longer, within a 90 % interval. `failure` says why the test failed by
    itself.
    """
    time = next(iter(scope_times(result)), None)
    kind, reason, verdict = judged(result, time, failure)
    timed = time if not result.simulated and kind != INCORRECT else None
    values = {
        "time_ns": _number(timed.shown.summary.median_ns, 3) if timed else "",
        "change": _change(verdict.ratio) if verdict else "",
        "low": _change(verdict.ratio_low) if verdict else "",
        "high": _change(verdict.ratio_high) if verdict else "",
        "verdict": kind,
        "reason": reason.partition("\n")[0],
        "device": result.fingerprint.hardware(on_gpu=result.case.on_gpu) or "",
    }
    return [(f"gpukern.{name}", value) for name, value in values.items() if value]


def _change(ratio: float | None) -> str:
    return "" if ratio is None else _number(ratio - 1, 6)


def _number(value: float, digits: int) -> str:
    return str(round(value, digits) + 0.0) if units.is_number(value) else ""  # no -0.0
