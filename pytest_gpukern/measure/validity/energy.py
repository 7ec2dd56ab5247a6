"""Energy per call, where the counter is fine enough to say and the device was never left waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpukern.gpu.nvml import DeviceState

UPDATE_S = 0.1
"""How often NVML's energy counter moves: about every 100 ms on recent data-centre GPUs, 20 ms on a V100
(https://ml.energy/blog/energy/measurement/thermally-stable-profiling-for-accurate-gpu-energy-measurement)."""

NO_COUNTER = "NVML counts no energy for this device, as for MIG instances and before Volta"
COUNTER_STANDS = "NVML's energy counter did not move while the calls ran"
TOO_SHORT = "the calls ran for too short a time: NVML's energy counter moves about every 0.1 s"
HOST_BOUND = (
    "launching takes longer than the call, or the call waits for the device itself: so the device waits for "
    "the host, and what the board draws is not the call's"
)

_WORST = 0.1
_LONG_CALL_NS = 1e6
"""From here on what a cold L2 costs is within 10 %: an H200 reads its 50 MiB in 12 µs at 4.3 TB/s, and has as
much to write back at worst."""


@dataclass(frozen=True)
class Energy:
    """Energy of a call, or why it cannot be told.

    Attributes:
        call_mj: what the whole board drew per call, in millijoules.
        power_w: the board's average power meanwhile, in watts.
        untold: why there is neither, in words that are the same for all such cases.
    """

    call_mj: float | None = None
    power_w: float | None = None
    untold: str | None = None


def energy_per_call(
    before: DeviceState,
    after: DeviceState,
    calls: int,
    *,
    starved_ns: float,
    busy_ns: float | None = None,
) -> Energy:
    """Energy that the whole board drew per call, if it can be told to 10 %, else why not.

    The difference of two readings is wrong by up to what is drawn between two updates of the counter, so the
    calls must go on for ten of them, 1 s. And for nine tenths of the time the device must have had calls to
    execute, since what the card draws while it waits for the host is no call's. Whether it had is known from
    the queue, not from the time of a call: with a cold cache that is longer than back to back, and without
    the 1 or 2 µs between two kernels shorter. Calls that wait for the device themselves leave it nothing to
    go on with; of those whose kernels run so long that the cache does not matter, their time alone tells. On
    A100 and H100 the sensor behind the counter looks at a quarter of the time only (arXiv:2312.02741), which
    evens out over repeated calls.

    Args:
        before: state before the first call.
        after: state once the last had ended.
        calls: how many.
        starved_ns: for how much of that time nothing shows that the device had a call to execute.
        busy_ns: for how long kernels run in a call, as a timer saw it; None where none did.
    """
    passed_ns = after.at_ns - before.at_ns
    if before.energy_mj is None or after.energy_mj is None:
        return Energy(untold=NO_COUNTER)
    if calls < 1 or _WORST * passed_ns < UPDATE_S * 1e9:
        return Energy(untold=TOO_SHORT)
    fed = starved_ns <= _WORST * passed_ns
    long = busy_ns is not None and busy_ns >= _LONG_CALL_NS
    filled = long and calls * (busy_ns or 0.0) >= (1 - _WORST) * passed_ns
    if not (fed or filled):
        return Energy(untold=HOST_BOUND)
    drawn_mj = after.energy_mj - before.energy_mj
    if drawn_mj <= 0:
        return Energy(untold=COUNTER_STANDS)
    return Energy(drawn_mj / calls, 1e6 * drawn_mj / passed_ns)
