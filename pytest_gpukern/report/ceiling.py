"""How near a time comes to what the device was seen to do at best."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpukern.measure.ceilings import Ceilings
from pytest_gpukern.report import units

if TYPE_CHECKING:
    from pytest_gpukern.report.scope_time import ScopeTime
    from pytest_gpukern.values.result import Measurement, Result

COPY, FMA, HOST_COPY = "copy", "FMA", "host copy"
"""Ceilings: the device's copy bandwidth, its rate of multiply-adds, and copies to and from the host."""

_HOST_MEMORY = ("pageable", "pinned")


def ceiling_text(result: Result, time: ScopeTime) -> str:
    """The nearest ceiling: `97 % copy`, `81 % FMA`, `62 % host copy`; empty where none is known."""
    found = ceiling_shares(result, time)
    if not found:
        return ""
    nearest = max(found, key=lambda name: found[name])
    return f"{units.share(found[nearest])} {nearest}"


def ceiling_shares(result: Result, time: ScopeTime) -> dict[str, float]:
    """Ceiling → share of it that a time reaches, 0.97 for 97 %; of a kernel, or of the copies in a scope."""
    measurement, ns = time.shown, time.shown.summary.median_ns
    if not result.ceilings or not result.case.on_gpu or result.simulated or not units.is_number(ns):
        return {}
    names = [field.name for field in dataclasses.fields(Ceilings)]  # another release may know others
    ceilings = Ceilings(**{name: result.ceilings.get(name) for name in names})
    shares = {HOST_COPY: _host_copies(ceilings, time)}
    if measurement.scope == "kernel":
        shares = {
            COPY: ceilings.bandwidth_share(measurement.traffic_bytes, ns, measurement.cache),
            FMA: _multiply_adds(ceilings, measurement, result.dtype),
        }
    return {name: share for name, share in shares.items() if share is not None}


def _multiply_adds(ceilings: Ceilings, measurement: Measurement, dtype: str | None) -> float | None:
    if dtype is None:
        return None
    try:
        return ceilings.compute_share(measurement.flops, measurement.summary.median_ns, dtype)
    except TypeError:  # the name of a dtype that only a library which is not here gives to NumPy
        return None


def _host_copies(ceilings: Ceilings, time: ScopeTime) -> float | None:
    """Which part of the time the copies that were seen take at best, one after the other."""
    bytes_in: Counter[str] = Counter()
    bytes_out: Counter[str] = Counter()
    for entry in time.seen.work if time.seen else ():
        direction, _, memory = entry.name.removeprefix("memcpy ").partition(", ")
        if direction in ("HtoD", "DtoH"):
            (bytes_in if direction == "HtoD" else bytes_out)[memory] += int(entry.size_bytes)
    kinds = bytes_in | bytes_out
    if not kinds or not set(kinds) <= set(_HOST_MEMORY):
        return None
    ns = time.shown.summary.median_ns
    parts = [ceilings.host_copy_share(bytes_in[kind], bytes_out[kind], ns, kind) for kind in kinds]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
