"""Measures the canaries of a session once a process, by the timer used for kernels."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpukern.measure.measure import Repeated, Sampler, warm_up
from pytest_gpukern.measure.statistics import StoppingRule
from pytest_gpukern.timers.timer import TimerUnavailable, open_timer
from pytest_gpukern.values.timer_table import auto_timers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpukern.gpu.runtime import CudaRuntime
    from pytest_gpukern.timers.timer import Timer
    from pytest_gpukern.values.result import Measurement

_RULE = StoppingRule(target_half_width=0.001, min_samples=30, max_samples=100, budget_s=0.03)


@dataclass(frozen=True)
class Canaries:
    """The canaries' times in a session.

    Attributes:
        times_ns: name → median time; the name ends with `/event` if CUPTI could not time it.
        complaints: what could not be measured and why, in words.
    """

    times_ns: Mapping[str, float] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()


def measure_canaries() -> Canaries:
    """Measures each canary on the pinned device in about 0.2 s; nothing else may use the device meanwhile.

    We discard nothing for low clocks: canaries are there to show what slows the device down.
    """
    from pytest_gpukern.gpu.ceiling_kernels import CANARIES, NotMeasuredError
    from pytest_gpukern.gpu.libcuda import CudaError
    from pytest_gpukern.gpu.runtime import runtime

    cuda = runtime()
    times_ns: dict[str, float] = {}
    complaints = []
    for name, make in CANARIES.items():
        try:
            with make(cuda) as call:
                found = _measured(call, cuda)
        except (CudaError, NotMeasuredError) as error:
            complaints.append(f"the canary {name} could not be measured: {error}")
            continue
        by = "" if found.timer == auto_timers()[0] else f"/{found.timer}"
        times_ns[name + by] = found.summary.median_ns
    return Canaries(times_ns, tuple(complaints))


def _measured(call: Callable[[], None], cuda: CudaRuntime) -> Measurement:
    call_ns = warm_up(call, cuda.synchronize, compiled=True).settled_ns
    *better, last = auto_timers()
    for name in better:
        with contextlib.suppress(TimerUnavailable):
            return _by(open_timer(name, cuda.stream), call, call_ns)
    return _by(open_timer(last, cuda.stream), call, call_ns)


def _by(timer: Timer, call: Callable[[], None], call_ns: float) -> Measurement:
    return Sampler(Repeated(call), timer, scope="kernel", cache="hot", call_ns=call_ns, rule=_RULE).measure()
