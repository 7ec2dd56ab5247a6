"""Returns the properties of a test in pytest's JUnit file: its verdict, time, change and reason."""

from __future__ import annotations

from pytest_gpukern.report import units
from pytest_gpukern.report.conclusion import cards
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.untrusted_json import printable


def properties(run: RunResults) -> list[tuple[str, str]]:
    """Returns names and values as text, of a run of one test, without empty ones.

    They are of the scope that the report shows first. Headline, since when, why and the command to repeat are
    of the worst failure. Changes are relative, 0.05 for 5 % longer, within a 90 % interval.
    """
    (result,), (row, *_) = run.results, run.rows
    (kind, _, verdict), timed = row.standing, row.timed
    card = next(iter(cards(run)), None)
    values = {
        "headline": f"{card.kind}: {card.headline}" if card else "",
        "time_ns": _number(timed.summary.median_ns, 3) if timed else "",
        "change": _change(verdict.ratio) if verdict else "",
        "low": _change(verdict.ratio_low) if verdict else "",
        "high": _change(verdict.ratio_high) if verdict else "",
        "verdict": kind,
        "reason": row.standing.line,
        "findings": "; ".join(f"{found.kind}: {found.text}" for found in result.findings),
        "since": "; ".join(card.since) if card else "",
        "why": ", ".join(card.why) if card else "",
        "repeat": card.repeat if card else "",
        "device": result.fingerprint.hardware(on_gpu=result.case.on_gpu) or "",
    }
    return [(f"gpukern.{name}", printable(value)) for name, value in values.items() if value]


def _change(ratio: float | None) -> str:
    return "" if ratio is None else _number(ratio - 1, 6)


def _number(value: float, digits: int) -> str:
    return str(round(value, digits) + 0.0) if units.is_number(value) else ""  # no -0.0
