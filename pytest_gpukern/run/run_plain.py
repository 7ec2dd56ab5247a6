"""The spine of a plain test: its callable is called and checked, timed, and called and checked once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpukern.run.plain_calls import PlainCalls
from pytest_gpukern.run.plain_case import plain_case_info
from pytest_gpukern.values.result import Correctness, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpukern.check.call_outputs import SeenOutputs
    from pytest_gpukern.check.check_call import CheckedCalls
    from pytest_gpukern.check.guarded_arrays import GuardedArrays
    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.measure.measure import Executions
    from pytest_gpukern.measure.rounds import Rounds
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.run.outcome import Outcome
    from pytest_gpukern.run.plain_calls import Turn
    from pytest_gpukern.values.marker import MarkerOptions


@dataclass(frozen=True)
class PlainTarget:
    """What a plain test has measured.

    Attributes:
        function: what is called, whose signature may name arguments.
        next_turn: begins the next untimed call.
        executions: what is timed; `Rounds` say themselves how many samples there are, and of how many calls.
        fixed: whether every call has the same arguments.
        check: `check(returned, *args, **kwargs)` raises where an untimed call was wrong.
        called_after: whether a call follows timing also where nothing that it leaves is looked at.
    """

    function: Callable[..., Any]
    next_turn: Callable[[], Turn]
    executions: Executions
    fixed: bool = True
    check: Callable[..., Any] | None = None
    called_after: bool = False


class Returned(NamedTuple):
    """What the first and the last untimed call returned; where nothing is timed, both are the first's."""

    first: Any
    last: Any


class PlainRunner:
    """Runs what one plain test has measured.

    Args:
        target: what that is.
        outcome: what the test found out, whose result has begun.
        environment: device, settings and instruments.
        marker: arguments of the test's marker.
        nodeid: pytest's name of the test.
        guarded: arrays of the test's around which is looked.
        leaves_host_calls: whether `NothingLaunched` is raised for a call that puts nothing on the GPU; such a
            test never asked for this plugin, and its calls are not checked.
        runs_once: whether, where nothing is measured, a call is made once unless the marker declares what it
            writes.

    Attributes:
        synchronize: waits for the device.
    """

    def __init__(
        self,
        target: PlainTarget,
        outcome: Outcome,
        environment: Environment,
        marker: MarkerOptions,
        nodeid: str,
        guarded: GuardedArrays,
        *,
        leaves_host_calls: bool,
        runs_once: bool,
    ) -> None:
        self._target = target
        self._outcome = outcome
        self._environment = environment
        self._marker = marker
        self._guarded = guarded
        self._leaves_host_calls = leaves_host_calls
        self._cache = marker.cache or environment.settings.cache
        assert environment.device is not None
        self.synchronize = waiting_for(environment.device)
        self._measures = environment.measures
        repeats = self._measures or not runs_once
        self._checks = None if leaves_host_calls else self._checked_calls(nodeid, repeats=repeats)

    @property
    def seen(self) -> SeenOutputs | None:
        """What its calls left in each output; None where they are not checked."""
        return None if self._checks is None else self._checks.seen

    def run(self) -> Returned:
        """Calls, measures where measuring is on, and calls again.

        The result has what was found out up to where this raises.

        Raises:
            ValueError: the marker names an output that the call has not, or `determinism` of nothing.
            TypeError: an output is no array that can be written.
            NothingLaunched: the call puts nothing on the GPU, and is left to be measured elsewhere.
        """
        __tracebackhide__ = True
        calls = self._plain_calls()
        with self._outcome.incorrect_fails():
            first = last = self._before_timing(calls)
            if self._measures:
                self._measure(calls)
                if self._target.called_after or calls.wanted_after_timing:
                    last = calls.after_timing()
        return Returned(first, last)

    def _checked_calls(self, nodeid: str, *, repeats: bool) -> CheckedCalls:
        from pytest_gpukern.check.check_call import CheckedCalls

        return CheckedCalls(
            self._marker.outputs,
            self._marker.determinism,
            nodeid,
            self.synchronize,
            fixed=self._target.fixed,
            repeats=repeats,
        )

    def _plain_calls(self) -> PlainCalls:
        """The untimed calls: not kept, since they refer back to this, and to the arrays of the test."""
        return PlainCalls(
            self._target.function,
            self._target.next_turn,
            self._checks,
            self._environment,
            self.synchronize,
            self._guarded,
            judge=self._judge,
        )

    def _before_timing(self, calls: PlainCalls) -> Any:
        try:
            return calls.before_timing()
        finally:
            if calls.first_call_ns is not None:
                self._outcome.update(first_call_ns=calls.first_call_ns)

    def _judge(self, returned: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], when: str) -> None:
        """Has the test's own check look at a call."""
        if self._target.check is None:
            return
        try:
            self._target.check(returned, *args, **kwargs)
        except Exception as error:
            self._outcome.update(correctness=Correctness.INCORRECT, diagnosis=f"check {when}: {error}")
            raise
        self._outcome.update(correctness=Correctness.PASSED)

    def _measure(self, calls: PlainCalls) -> None:
        from pytest_gpukern.measure.rounds import Rounds

        executions = self._target.executions
        if isinstance(executions, Rounds):
            self._measure_rounds(executions, calls)
        else:
            self._time(executions, calls)

    def _measure_rounds(self, rounds: Rounds, calls: PlainCalls) -> None:
        with self._environment.exclusive():
            rounds.warm_up()
        each = rounds.calls(cold=self._cache == "cold")
        self._time(rounds, calls, count=rounds.count, calls_a_sample=each)
        if each < rounds.iterations:
            asked = f"iterations={rounds.iterations} was asked for"
            self._outcome.add_note(f"{asked}: one call a sample, since each needs a cold cache")

    def _time(
        self,
        executions: Executions,
        calls: PlainCalls,
        *,
        count: int | None = None,
        calls_a_sample: int = 1,
    ) -> None:
        """Adds measurements to the result, and what is known of the kernels and the device."""
        from pytest_gpukern.run.plain_timing import PlainTiming
        from pytest_gpukern.run.run_case import with_facts

        timing = PlainTiming.of(calls, self._environment, self._marker, self._cache)
        with self._environment.exclusive():
            measurements = timing.measure(
                executions,
                self.synchronize,
                count=count,
                calls_a_sample=calls_a_sample,
                refuses_host_calls=self._leaves_host_calls,
            )
            self._outcome.update(measurements=measurements)
            assert self._outcome.result is not None
            self._outcome.result = with_facts(self._outcome.result, self._environment)


def begun_result(environment: Environment, nodeid: str, test_file: Path) -> Result:
    """The result of a plain test before anything ran, on the GPU or in the simulator."""
    assert environment.device is not None
    return Result(
        case=plain_case_info(nodeid, test_file, shared_folder=environment.settings.shares_baselines),
        nodeid=nodeid,
        fingerprint=environment.fingerprint.to_json(),
        simulated=environment.device.is_simulated,
        session=environment.session,
    )


def waiting_for(device: Device) -> Callable[[], None]:
    """What waits for everything on the device; the simulator has nothing to wait for."""
    if device.is_simulated:
        return lambda: None
    from pytest_gpukern.gpu.runtime import runtime

    return runtime().synchronize
