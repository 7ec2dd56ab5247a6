"""From measurements and recorded sessions, or from pairs of measurements, to the change and its error."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

from pytest_gpukern.gate.change import SAME_DEVICE, Change, Devices
from pytest_gpukern.gate.spread import (
    PRIOR_SPREAD_OF_DEVICES,
    ROUNDING,
    assumed_spread,
    between_devices,
    case_spread,
    spread_of_ratios,
    within_devices,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gate.comparability import SessionTime
    from pytest_gpukern.gate.spread import CaseSpread, SharedSpread
    from pytest_gpukern.values.result import Measurement, Summary

Pair = tuple["Measurement", "Measurement"]
"""Measurements of one case in neighbouring sessions: of the base and of the working tree."""

_SIGMAS_IN_95 = 1.96  # half a 95 % interval in standard errors
_KNOWS_NOTHING = 1e6  # relative errors are capped here, so that medians near zero cannot overflow
_NOTHING = 1e-12


def change_since(
    sessions: Sequence[SessionTime],
    fresh: Sequence[Measurement],
    *,
    jitter_ns: float,
    device: str | None,
    shared: SharedSpread | None,
) -> Change:
    """The change of a case since its recorded sessions, by new ones on `device`.

    The variance of the case is that between sessions of one device, shrunk towards the suite's; what fresh
    sessions differ among themselves is pooled with it. Sessions of one device share that device's deviation
    from the others: where device d has the share w_d of the recorded sessions, it makes the difference of the
    means vary by τ²·(1 − 2·w_own + Σ w_d²). That is nothing where all are of one device, and τ²·(1 + 1/D)
    where the record has as many of each of D others. τ² is that of the case, shrunk like the other variance,
    and beside it that of all cases.
    """
    timer = fresh[0].timer
    shared = shared or assumed_spread(timer)
    logs = [math.log(session.median_ns) for session in sessions]
    new = [math.log(measurement.summary.median_ns) for measurement in fresh]
    devices = [session.device for session in sessions]
    shortest = min(*(each.summary.median_ns for each in fresh), *(each.median_ns for each in sessions))
    variance, dof = within_devices(logs, devices)
    floor = _floor(shortest, jitter_ns)
    spread = case_spread(variance, dof, shared, floor=floor)
    noise = statistics.fmean(_within(each.summary) for each in fresh)
    recorded_noise = statistics.fmean(_within(session) for session in sessions)
    weight = _weight_of_devices(devices, device)
    return Change(
        delta=statistics.fmean(new) - statistics.fmean(logs),
        spread=_with_own(spread, new),
        fresh=len(new),
        recorded=len(logs),
        noisier=max(0.0, noise - recorded_noise),
        devices=_of_case(logs, devices, timer, shared, weight=weight, floor=floor),
        all_devices=_of_all_cases(timer, shared, weight=weight),
    )


def change_of_pairs(pairs: Sequence[Pair], *, jitter_ns: float, shared: SharedSpread | None) -> Change:
    """The change between two revisions, by the mean of the log ratios of neighbouring sessions."""
    timer, ratios = pairs[0][0].timer, log_ratios(pairs)
    shared = shared or spread_of_ratios(timer, ())
    shortest = min(each.summary.median_ns for pair in pairs for each in pair)
    floor = 2 * _floor(shortest, jitter_ns)
    spread = case_spread(statistics.variance(ratios), len(ratios) - 1, shared, floor=floor)
    return Change(statistics.fmean(ratios), spread, fresh=len(ratios), recorded=0)


def log_ratios(pairs: Sequence[Pair]) -> list[float]:
    """log(working tree ÷ base) of each pair."""
    return [math.log(head.summary.median_ns / base.summary.median_ns) for base, head in pairs]


def _floor(median_ns: float, jitter_ns: float) -> float:
    """The variance of a log median that the timer makes by itself, its step included."""
    jitter = min(jitter_ns / median_ns, _KNOWS_NOTHING)
    return max(jitter, ROUNDING) ** 2


def _within(known: Summary | SessionTime) -> float:
    """The relative variance of a session's median, from its 95 % interval."""
    half = (known.high_ns - known.low_ns) / 2
    return min(half / _SIGMAS_IN_95 / known.median_ns, _KNOWS_NOTHING) ** 2


def _with_own(spread: CaseSpread, logs: Sequence[float]) -> CaseSpread:
    """The spread with what several fresh sessions say about it."""
    own = len(logs) - 1
    if not own:
        return spread
    pooled = (spread.dof * spread.variance + own * statistics.variance(logs)) / (spread.dof + own)
    return dataclasses.replace(spread, variance=pooled, dof=spread.dof + own)


def _weight_of_devices(recorded: Sequence[str | None], device: str | None) -> float:
    """By how many times τ² the means of the recorded sessions and of new ones on `device` differ."""
    shares = {each: recorded.count(each) / len(recorded) for each in recorded}
    weight = 1 - 2 * shares.get(device, 0.0) + sum(share**2 for share in shares.values())
    return weight if weight >= _NOTHING else 0.0


def _of_case(
    logs: Sequence[float],
    devices: Sequence[str | None],
    timer: str,
    shared: SharedSpread,
    *,
    weight: float,
    floor: float,
) -> Devices:
    """What the devices of a case give to the change, of which it has no more degrees of freedom than devices
    less one, since one device may be off in all the cases from which the spread was taken."""
    if not weight or shared.between_devices is None:
        return _of_all_cases(timer, shared, weight=weight)
    variance, dof = between_devices(logs, devices)
    found = case_spread(variance, dof, shared.between_devices, floor=floor)
    return Devices(weight * found.variance, min(found.dof, shared.devices_dof))


def _of_all_cases(timer: str, shared: SharedSpread, *, weight: float) -> Devices:
    if not weight:
        return SAME_DEVICE
    if shared.devices is not None:
        return Devices(weight * shared.devices**2, shared.devices_dof)
    prior = PRIOR_SPREAD_OF_DEVICES.get(timer, PRIOR_SPREAD_OF_DEVICES["host"])
    return Devices(weight * prior**2)
