"""How many times faster a measurement is than the variant that its problem compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.values.result import Measurement, Result


def speedup(result: Result, measurement: Measurement, peers: Sequence[Result]) -> str:
    """The reference variant's time ÷ this one's, or `–` where either is missing or invalid.

    The reference is taken at the same point as run, in the same scope if it has it, else in its only scope;
    by the same timer if it has that, else by its main one.
    Of a reference with several parameter values, the same ones count if they are there, else the fastest.
    """
    if not result.speedup_against:
        return ""
    reference = _reference(result, measurement, peers)
    own = measurement.summary.median_ns
    if reference is None or measurement.invalid is not None or not units.is_number(own) or own <= 0:
        return units.NOTHING
    return units.factor(reference / own)


def _reference(result: Result, measurement: Measurement, peers: Sequence[Result]) -> float | None:
    """Median of the variant compared with, in nanoseconds."""
    candidates = [peer for peer in peers if _compares(peer, result)]
    same = [peer for peer in candidates if peer.case.parameters == result.case.parameters]
    times = [time for peer in same or candidates if (time := _time(peer, measurement)) is not None]
    return min(times, default=None)


def _compares(peer: Result, result: Result) -> bool:
    case = peer.case
    return (
        f"{case.backend}.{case.variant}" == result.speedup_against
        and case.problem == result.case.problem
        and case.point == result.case.point
        and case.measured_point == result.case.measured_point
        and peer.valid
    )


def _time(peer: Result, measurement: Measurement) -> float | None:
    found = [each for each in peer.measurements if each.scope == measurement.scope]
    if not found and len({each.scope for each in peer.measurements}) == 1:
        found = list(peer.measurements)
    found.sort(key=lambda each: (each.timer != measurement.timer, each.beside))
    time = found[0].summary.median_ns if found else None
    return time if units.is_number(time) else None
