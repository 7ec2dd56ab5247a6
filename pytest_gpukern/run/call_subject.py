"""Measures a call of a test's own: calls and checks it, times it, and calls and checks it once more."""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpukern.check.check_call import CheckedCalls
from pytest_gpukern.measure.by_timer import measured_by, not_of_the_device
from pytest_gpukern.measure.measure import Repeated, measure, rule_beside, rule_for, warm_up
from pytest_gpukern.measure.observers import Call
from pytest_gpukern.measure.rounds import Rounds, rule_of_rounds
from pytest_gpukern.timers.timer import NothingLaunched, PerCall
from pytest_gpukern.values.result import CaseInfo, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_gpukern.check.check_call import SeenOutputs
    from pytest_gpukern.check.guarded_arrays import GuardedArrays
    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.gpu.theory import Floor
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.run.spine import Found
    from pytest_gpukern.timers.timer import Executions, Timer
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement


class Turn(NamedTuple):
    """One call that may be made, with the arguments that it is made with.

    Attributes:
        call: makes it.
        args: positional arguments.
        kwargs: named ones.
    """

    call: Callable[[], Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Made(NamedTuple):
    """A call that was made, what it returned, and its wall time."""

    turn: Turn
    returned: Any
    time_ns: float


@dataclass(frozen=True)
class CallTarget:
    """What a test of one's own measures.

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

    @classmethod
    def repeated(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        called_after: bool = False,
    ) -> CallTarget:
        """Calls with the same arguments again and again."""
        call = functools.partial(function, *args, **kwargs)
        return cls(function, lambda: Turn(call, args, kwargs), Repeated(call), called_after=called_after)

    @classmethod
    def set_up(
        cls,
        function: Callable[..., Any],
        fresh: Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]],
        check: Callable[..., Any] | None,
    ) -> CallTarget:
        """Calls with arguments that are made for each, ahead of a batch of them."""

        def turn() -> Turn:
            args, kwargs = fresh()
            return Turn(functools.partial(function, *args, **kwargs), args, kwargs)

        return cls(function, turn, Repeated(function, fresh), fixed=False, check=check, called_after=True)

    @classmethod
    def in_rounds(cls, rounds: Rounds, check: Callable[..., Any] | None = None) -> CallTarget:
        """Calls in rounds that were asked for: each is set up, called and torn down before the next."""

        def turn() -> Turn:
            execute = rounds.begin().execute
            return Turn(execute, *rounds.arguments)

        return cls(rounds.target, turn, rounds, fixed=rounds.setup is None, check=check, called_after=True)


class CallSubject:
    """One call of a test's own on its way through the spine.

    Args:
        target: what is called.
        environment: device, settings and instruments.
        marker: arguments of the test's marker.
        nodeid: pytest's name of the test.
        test_file: the test's file; baselines lie beside it.
        guarded: arrays of the test's around which is looked after each call, and after those that are timed.
        leaves_host_calls: whether `NothingLaunched` is raised for a call that puts nothing on the GPU; such a
            test never asked for this plugin, and its calls are not checked.
        runs_once: whether, where nothing is measured, a call is made once unless the marker declares what it
            writes.

    Attributes:
        is_timed: whether it is measured in this run.
        first: what the first call returned.
        last: what the last untimed call returned.
    """

    def __init__(
        self,
        target: CallTarget,
        environment: Environment,
        marker: MarkerOptions,
        nodeid: str,
        test_file: Path,
        guarded: GuardedArrays,
        *,
        leaves_host_calls: bool = False,
        runs_once: bool = False,
    ) -> None:
        assert environment.gpu.device is not None
        self._target = target
        self._environment = environment
        self._marker = marker
        self._nodeid = nodeid
        self._test_file = test_file
        self._guarded = guarded
        self._leaves_host_calls = leaves_host_calls
        self._synchronize = waiting_for(environment.gpu.device)
        self.is_timed = environment.gpu.measures
        self._checks: CheckedCalls | None = None
        if not leaves_host_calls:
            self._checks = CheckedCalls(
                marker.outputs,
                marker.determinism,
                nodeid,
                self._synchronize,
                fixed=target.fixed,
                repeats=self.is_timed or not runs_once,
            )
        self._first_call_ns: float | None = None
        self.first: Any = None
        self.last: Any = None

    @property
    def seen(self) -> SeenOutputs | None:
        """What its calls left in each output; None where they are not checked."""
        return None if self._checks is None else self._checks.seen

    def begin(self) -> Result:
        """Returns the result before anything ran, on the GPU or in the simulator."""
        environment = self._environment
        assert environment.gpu.device is not None
        return Result(
            case=case_of_test(
                self._nodeid, self._test_file, shared_folder=environment.settings.shares_baselines
            ),
            nodeid=self._nodeid,
            fingerprint=environment.gpu.fingerprint.to_json(),
            simulated=environment.gpu.device.is_simulated,
            session=environment.session,
        )

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Ends the last round of `Rounds`, unless something failed in it. All else is the test's own."""
        executions = self._target.executions
        if not isinstance(executions, Rounds):
            yield
            return
        executions.synchronize = self._synchronize
        try:
            yield
        except NothingLaunched:
            executions.finish()
            raise
        executions.finish()

    def check(self, found: Found) -> None:
        """Makes the first call, and as many more as its outputs ask for.

        Raises:
            IncorrectError: one was wrong.
            ValueError: the marker names an output that the call has not, or `determinism` of nothing.
            TypeError: an output is no array that can be written.
        """
        try:
            made = self._call("in the first call")
        finally:
            found.add_first_call(self._first_call_ns)
        self.first = self.last = made.returned
        self._judge(found, made, "before timing")
        calls = 1
        while self._checks is not None and self._checks.wants_another(calls, made.time_ns):
            calls += 1
            made = self._call(f"in call {calls}")
            self._judge(found, made, "before timing")
        if self._checks is not None:
            found.add_note(*self._checks.notes)

    def measure(self, found: Found) -> None:
        """Times the call: its rounds where they were asked for, else until the median is known."""
        executions, marker = self._target.executions, self._marker
        cache = marker.cache or self._environment.settings.cache
        count, each = None, 1
        if isinstance(executions, Rounds):
            executions.warm_up()
            count, each = executions.count, executions.calls(cold=cache == "cold")
            if each < executions.iterations:
                asked = f"iterations={executions.iterations} was asked for"
                found.add_note(f"{asked}: one call a sample, since each needs a cold cache")
        timing = PlainTiming.of(self.timed, self.inspect, self._environment, marker, cache)
        measurements = timing.measure(
            executions,
            self._synchronize,
            count=count,
            calls_a_sample=each,
            refuses_host_calls=self._leaves_host_calls,
        )
        found.add_measurements(measurements)

    def recheck(self, found: Found) -> None:
        """Makes one call more, where it has anything that is checked or returned."""
        if self._target.called_after or (self._checks is not None and self._checks.wanted_after_timing):
            made = self._call("in a call after timing")
            self.last = made.returned
            self._judge(found, made, "after timing")

    # what is timed

    def timed(self, executions: Executions) -> Executions:
        """Returns what is timed, with outputs poisoned now and then."""
        return executions if self._checks is None else self._checks.timed(executions)

    @property
    def inspect(self) -> Callable[[], None] | None:
        """What looks at what a timed call left, where that can be looked at."""
        looks_at_outputs = None if self._checks is None else self._checks.inspect
        if not self._guarded:
            return looks_at_outputs

        def look() -> None:
            self._guarded.check("after timed calls")
            if looks_at_outputs is not None:
                looks_at_outputs()

        return look

    # one call

    def _call(self, place: str) -> _Made:
        """Makes one untimed call, and checks what it did."""
        with self._loading_observed(own=False):
            turn = self._target.next_turn()
            pending = None
            if self._checks is not None:
                pending = self._checks.begin(self._target.function, turn.args, turn.kwargs, place)
            self._synchronize()
        with self._loading_observed(own=True):
            start = time.perf_counter_ns()
            returned = turn.call()
            self._synchronize()
            passed_ns = float(time.perf_counter_ns() - start)
        self._first_call_ns = self._first_call_ns or passed_ns
        self._guarded.check(place)
        if self._checks is not None and pending is not None:
            self._checks.end(pending, returned)
        return _Made(turn, returned, passed_ns)

    def _judge(self, found: Found, made: _Made, when: str) -> None:
        """Has the test's own check look at a call."""
        if self._target.check is None:
            return
        try:
            self._target.check(made.returned, *made.turn.args, **made.turn.kwargs)
        except Exception as error:
            found.fails(f"check {when}: {error}")
            raise
        found.passes()

    def _loading_observed(self, *, own: bool) -> AbstractContextManager[None]:
        """Has the machine code hashed that the first call, or what goes ahead of it, loads."""
        if self._first_call_ns is not None:
            return nullcontext()
        return self._environment.gpu.loading_observed(own=own)


def case_of_test(nodeid: str, test_file: Path, *, shared_folder: bool = False) -> CaseInfo:
    """Returns the case that a test of one's own stands for: its module stands for the problem.

    Args:
        nodeid: pytest's name of the test, which begins with its file's path.
        test_file: the file.
        shared_folder: whether all baselines lie in one folder, where modules of one name must not meet.
    """
    path, _, name = nodeid.partition("::")
    module = path.removesuffix(test_file.suffix) or test_file.stem
    name = name or nodeid
    function, bracket, parameters = name.partition("[")  # in which :: and . may tell two tests apart
    return CaseInfo(
        id=f"{test_file.stem}/{function.replace('::', '.')}{bracket}{parameters}",
        problem=module,
        problem_version=1,
        variant=name,
        backend=None,
        point={},
        measured_point={},
        parameters={},
        baseline_dir=str(test_file.parent / "baselines"),
        baseline_name=".".join(module.split("/")) if shared_folder else test_file.stem,
    )


def waiting_for(device: Device) -> Callable[[], None]:
    """Returns what waits for everything on the device; the simulator has nothing to wait for."""
    if device.is_simulated:
        return lambda: None
    from pytest_gpukern.gpu.runtime import runtime

    return runtime().synchronize


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
        if environment.gpu.peaks is not None:
            floor = environment.gpu.peaks.floor(cache=cache, traffic_bytes=marker.bytes)
        return cls(timed, inspect, environment, marker, cache, floor)

    def _scopes(self, *, refuses_host_calls: bool) -> tuple[str, ...]:
        """The scopes of the marker or the run; the kernel's shows whether anything is put on the device."""
        asked = (self.marker.scope,) if self.marker.scope else self.environment.settings.scopes
        wanted = [scope for scope in asked if scope == "launch"]
        if refuses_host_calls or not wanted or "kernel" in asked:
            wanted.insert(0, "kernel")
        return tuple(wanted)

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
        found: list[Measurement] = []
        for scope in self._scopes(refuses_host_calls=refuses_host_calls):
            by = functools.partial(
                self._by,
                executions,
                scope=scope,
                call_ns=warm.settled_ns,
                count=count,
                calls_a_sample=calls_a_sample,
            )
            main, *beside = self._by_timers(by, scope, refuses_host_calls=refuses_host_calls)
            found += [self.environment.gpu.observers.measured(self._call(scope), main), *beside]
        if self.inspect is not None:
            self.inspect()
        return tuple(found)

    def _by_timers(
        self, by: Callable[..., Measurement], scope: str, *, refuses_host_calls: bool
    ) -> list[Measurement]:
        from pytest_gpukern.gpu.runtime import runtime

        # The legacy default stream: what Numba, CuPy and PyCUDA launch on unless told otherwise, and
        # what waits for every other blocking stream.
        stream = runtime().device.default_stream
        wanted = self.marker.timer or self.environment.settings.timer
        try:
            return measured_by(by, wanted, scope=scope, stream=stream, any_stream=True)
        except NothingLaunched as reason:
            if refuses_host_calls:
                raise
            return [not_of_the_device(by, stream, reason)]

    def _by(
        self,
        executions: Executions,
        timer: Timer,
        *,
        scope: str,
        call_ns: float,
        count: int | None,
        calls_a_sample: int,
        beside: bool,
    ) -> Measurement:
        """What one timer measures, alone or beside the main one, of a call that takes about `call_ns`."""
        environment, marker = self.environment, self.marker
        kernel = scope == "kernel"
        rule = rule_beside(call_ns) if beside else rule_for(call_ns, by_host=not kernel)
        return measure(
            self.timed(executions),
            PerCall(timer, calls_a_sample) if calls_a_sample > 1 else timer,
            scope=scope,
            cache=self.cache if kernel else "hot",
            call_ns=call_ns,
            rule=rule if count is None else rule_of_rounds(count, rule, beside=beside),
            observing=environment.gpu.observers.observe(self._call(scope), timer, beside=beside),
            inspect=self.inspect,
            traffic_bytes=marker.bytes if kernel else None,
            flops=marker.flops if kernel else None,
            beside=beside,
        )

    def _call(self, scope: str) -> Call:
        """What observers are told: the call is not theirs to run for longer."""
        return Call(scope, on_gpu=True, floor=self.floor if scope == "kernel" else None)
