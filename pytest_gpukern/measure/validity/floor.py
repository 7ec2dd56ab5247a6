"""Is a time shorter than the hardware allows?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpukern.gpu.theory import Floor

MARGIN = 0.02
"""How far a time may lie below the floor: clocks are told in steps of up to 0.8 % and timers tick."""


def below_floor(median_ns: float, floor: Floor | None, *, resolution_ns: float = 0.0) -> str | None:
    """Why a median is impossible, in words, or None.

    Args:
        median_ns: the measured median of a call.
        floor: the least time that the declared work can take; None where nothing is known.
        resolution_ns: the smallest difference that the timer can show.
    """
    if floor is None or median_ns + resolution_ns >= (1 - MARGIN) * floor.ns:
        return None
    return (
        f"{_micros(median_ns)} is impossible: {floor.bound}, take {_micros(floor.ns)} at least. "
        "Either the timer missed work (on another stream, in a thread, not waited for), "
        "or the declared bytes or flops are more than the call needs, or its data were still in a cache"
    )


def _micros(ns: float) -> str:
    return f"{ns / 1e3:.3g} µs"
