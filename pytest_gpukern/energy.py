"""Energy of a call: calls back to back for a second, between two readings of the device's counter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_gpukern.validity import energy_per_call_mj

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.device import DeviceState
    from pytest_gpukern.measure import Executions

_LONG_ENOUGH_S = 1.2
"""The counter moves about every 0.1 s: in so long, an update more or less is under a tenth."""
_QUEUED_S = 0.02
_MOST_QUEUED = 256


def energy_of_a_call_mj(
    executions: Executions,
    state: Callable[[], DeviceState],
    synchronize: Callable[[], None],
    *,
    call_ns: float,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Millijoules that the whole board draws for a call with a hot cache; None where 10 % cannot be told.

    That is so where the device has no counter, and for calls so short that launching them takes longer: then
    the board mostly waits, and what it draws is no call's.

    Args:
        executions: of the call, warm and checked.
        state: asks for the device's state now.
        synchronize: waits for the device.
        call_ns: how long a call takes.
        clock: seconds.
    """
    count = max(1, min(_MOST_QUEUED, executions.largest_batch, int(_QUEUED_S * 1e9 / max(call_ns, 1.0))))
    synchronize()
    before = state()
    calls, began = 0, clock()
    while clock() - began < _LONG_ENOUGH_S:
        for execution in executions.take(count, cold=False):
            execution.run()
        synchronize()
        calls += count
    return energy_per_call_mj(before, state(), calls, call_ns)
