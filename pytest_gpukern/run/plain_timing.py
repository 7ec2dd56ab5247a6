"""Times what a plain test calls: the device settles, then the timers that fit take samples."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.measure.by_timer import measured_by, not_of_the_device
from pytest_gpukern.measure.measure import measure, rule_beside, rule_for, warm_up
from pytest_gpukern.measure.observers import Call
from pytest_gpukern.measure.rounds import rule_of_rounds
from pytest_gpukern.timers.timer import NothingLaunched, PerCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.gpu.theory import Floor
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.timers.timer import Executions, Timer
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement


@dataclass(frozen=True)
class PlainTiming:
    """What a plain test's call is timed with.

    Attributes:
        timed: has outputs poisoned now and then while executions are timed.
        inspect: looks at what a timed call left, where that can be looked at.
        environment: the observers.
        marker: the test's own timer, bytes and flops.
        cache: `cold` or `hot`.
        floor: the least time that the call can take, or None.
    """

    timed: Callable[[Executions], Executions]
    inspect: Callable[[], None] | None
    environment: Environment
    marker: MarkerOptions
    cache: str
    floor: Floor | None

    @classmethod
    def of(
        cls,
        timed: Callable[[Executions], Executions],
        inspect: Callable[[], None] | None,
        environment: Environment,
        marker: MarkerOptions,
        cache: str,
    ) -> PlainTiming:
        """With the floor that the marker's bytes give: without dtypes, operations bound nothing."""
        floor = None
        if environment.peaks is not None:
            floor = environment.peaks.floor(cache=cache, traffic_bytes=marker.bytes)
        return cls(timed, inspect, environment, marker, cache, floor)

    def measure(
        self,
        executions: Executions,
        synchronize: Callable[[], None],
        *,
        count: int | None = None,
        calls_a_sample: int = 1,
        refuses_host_calls: bool = False,
    ) -> tuple[Measurement, ...]:
        """Warms up and measures, while this process holds the device.

        Args:
            executions: of the call.
            synchronize: waits for the device.
            count: samples of the main timer, or None to sample until the median is known.
            calls_a_sample: calls in each.
            refuses_host_calls: whether a call that puts nothing on the GPU is no measurement, not even an
                INVALID one.

        Raises:
            NothingLaunched: the call puts nothing on the GPU, and that is refused.
            IncorrectError: a timed call left an output wrong.
        """
        cold = self.cache == "cold"
        warm = warm_up(lambda: executions.take(1, cold=cold)[0].execute(), synchronize, compiled=True)
        by = functools.partial(
            self._by, executions, call_ns=warm.settled_ns, count=count, calls_a_sample=calls_a_sample
        )
        found = self._by_timers(by, refuses_host_calls=refuses_host_calls)
        if self.inspect is not None:
            self.inspect()
        return self.environment.observers.measured(self._call, found[0]), *found[1:]

    def _by_timers(self, by: Callable[..., Measurement], *, refuses_host_calls: bool) -> list[Measurement]:
        from pytest_gpukern.gpu.runtime import runtime

        # The legacy default stream: what Numba, CuPy and PyCUDA launch on unless told otherwise, and
        # what waits for every other blocking stream.
        stream = runtime().device.default_stream
        wanted = self.marker.timer or self.environment.settings.timer
        try:
            return measured_by(by, wanted, scope="kernel", stream=stream, any_stream=True)
        except NothingLaunched as reason:
            if refuses_host_calls:
                raise
            return [not_of_the_device(by, stream, reason)]

    def _by(
        self,
        executions: Executions,
        timer: Timer,
        *,
        call_ns: float,
        count: int | None,
        calls_a_sample: int,
        beside: bool,
    ) -> Measurement:
        """What one timer measures, alone or beside the main one, of a call that takes about `call_ns`."""
        environment, marker = self.environment, self.marker
        rule = rule_beside(call_ns) if beside else rule_for(call_ns)
        return measure(
            self.timed(executions),
            PerCall(timer, calls_a_sample) if calls_a_sample > 1 else timer,
            scope="kernel",
            cache=self.cache,
            call_ns=call_ns,
            rule=rule if count is None else rule_of_rounds(count, rule, beside=beside),
            observing=environment.observers.observe(self._call, timer, beside=beside),
            inspect=self.inspect,
            traffic_bytes=marker.bytes,
            flops=marker.flops,
            beside=beside,
        )

    @property
    def _call(self) -> Call:
        """What observers are told: the call is not theirs to run for longer."""
        return Call("kernel", on_gpu=True, floor=self.floor)
