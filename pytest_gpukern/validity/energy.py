"""Energy per call, where the counter is fine enough to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpukern.device import DeviceState

UPDATE_S = 0.1
"""How often NVML's energy counter moves: about every 100 ms on recent data-centre GPUs, 20 ms on a V100
(https://ml.energy/blog/energy/measurement/thermally-stable-profiling-for-accurate-gpu-energy-measurement)."""

_WORST = 0.1
_FEWEST_BUSY = 0.9


def energy_per_call_mj(before: DeviceState, after: DeviceState, calls: int, call_ns: float) -> float | None:
    """Energy that the whole board drew per call, in millijoules, or None where it cannot be told to 10 %.

    The difference of two readings is wrong by up to what is drawn between two updates of the counter, so the
    calls must go on for ten of them, 1 s; and nine tenths of the time must have been calls, since what the
    card draws while it flushes caches or idles is no call's. Timed batches rarely qualify: run calls back to
    back for a second. On A100 and H100 the sensor behind it looks at a quarter of the time only
    (arXiv:2312.02741), which evens out over repeated calls.

    Args:
        before: state before the first call.
        after: state once the last had ended.
        calls: how many.
        call_ns: time of one, in nanoseconds.
    """
    passed_ns = after.at_ns - before.at_ns
    if before.energy_mj is None or after.energy_mj is None or calls < 1 or passed_ns <= 0:
        return None
    drawn_mj = after.energy_mj - before.energy_mj
    long_enough = _WORST * passed_ns >= UPDATE_S * 1e9
    busy = calls * call_ns >= _FEWEST_BUSY * passed_ns
    return drawn_mj / calls if long_enough and busy and drawn_mj > 0 else None
