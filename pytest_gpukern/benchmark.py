"""What the `gpu_benchmark` fixture gives to a test: call, measure, verify, run a case, reject one."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpukern.changes import explained
from pytest_gpukern.failures import failures
from pytest_gpukern.following import FollowedMemory
from pytest_gpukern.measure import Repeated
from pytest_gpukern.plain_calls import PlainCalls, Turn
from pytest_gpukern.plain_case import plain_case_info
from pytest_gpukern.result import Correctness, OutputError, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pytest_gpukern.checked_calls import CheckedCalls
    from pytest_gpukern.environment import Environment
    from pytest_gpukern.marker import MarkerOptions
    from pytest_gpukern.measure import Executions
    from pytest_gpukern.problem import Case
    from pytest_gpukern.result import Measurement
    from pytest_gpukern.rounds import Rounds
    from pytest_gpukern.timers import Timer
    from pytest_gpukern.tolerance import Tolerance
    from pytest_gpukern.verify import Diagnosis


class GpuBenchmark:
    """Measures and verifies what one test launches; one object a test.

    Args:
        environment: device, settings, backends and baselines.
        marker: arguments of the test's marker.
        nodeid: pytest's name of the test.
        test_file: the test's file; baselines lie beside it.
    """

    def __init__(self, environment: Environment, marker: MarkerOptions, nodeid: str, test_file: Path) -> None:
        self._environment = environment
        self._marker = marker
        self._nodeid = nodeid
        self._test_file = test_file
        self.result: Result | None = None
        """What the test found out so far; None before anything ran."""
        self.sessions: tuple[Result, ...] = ()
        """What fresh sessions of the same test found, in the order in which they were measured."""
        self.leaves_host_calls = False
        """Whether `NothingLaunched` is raised for a call that puts nothing on the GPU, so that it can be
        measured elsewhere; otherwise its measurement is INVALID."""
        self.runs_once = False
        """Whether an unmeasured call is made once, unless the marker declares what it writes."""
        self.rejected: Case | None = None
        """The broken case that `reject` looked at."""
        self.replaceable = False
        """Whether another process takes over where this one has lost its CUDA context."""
        self.failed_by_the_gate = False
        """Whether the gate, and nothing before it, failed the test."""
        self.memory = FollowedMemory(environment)
        """The device's memory from the test's set-up to its teardown."""
        self.concluded = False
        """Whether its body came to its end."""
        self._checks: CheckedCalls | None = None

    # any callable of the user's

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function` untimed, then measures it; returns what the first call returned.

        The first call compiles and loads; its time is reported apart. Where arguments are declared as outputs
        by the marker, or new arrays are returned, up to two more calls follow and one after timing, and each
        is checked; see `checked_calls`. The device is synchronized around
        every sample, whatever library the function launches with; work on a non-blocking stream of its own
        that outlasts the call makes the measurement INVALID, and so does a call that launches nothing.

        Without a GPU the test is skipped; in the simulator, and without `--gpu-benchmark`, the function is
        called and checked, and not measured.

        Raises:
            ValueError: the marker names an output that the call has not, or `determinism` of nothing.
            TypeError: an output is no array that can be written.
        """
        __tracebackhide__ = True
        self._refuse_second_use()
        bound = functools.partial(function, *args, **kwargs)
        synchronize = self._start()
        calls = self._calls(function, lambda: Turn(bound, args, kwargs), synchronize)
        with self._incorrect_fails():
            returned = self._before_timing(calls)
            if self._measures:
                self._measure(Repeated(bound), calls, synchronize)
                if calls.wanted_after_timing:
                    calls.after_timing()
        return returned

    def pedantic(
        self,
        function: Callable[..., Any],
        /,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        setup: Callable[[], Any] | None = None,
        check: Callable[..., Any] | None = None,
    ) -> Any:
        """As calling the fixture, with fresh arguments for every call: for kernels that update in place.

        Args:
            function: what is measured.
            args: its positional arguments, where there is no `setup`.
            kwargs: its named arguments, where there is no `setup`.
            setup: untimed; returns (args, kwargs), or a tuple of positional arguments alone.
            check: `check(returned, *args, **kwargs)` raises where the call was wrong. It judges each call
                before timing, the first or, with outputs declared or arrays returned, up to three, and one
                more after timing.

        Raises:
            TypeError: both `setup` and arguments are given, or `setup` returns something else.
        """
        __tracebackhide__ = True
        self._refuse_second_use()
        if setup is not None and (args or kwargs):
            raise TypeError("pedantic: give setup, or args and kwargs, not both")
        named = dict(kwargs or {})

        def fresh() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
            return (args, named) if setup is None else _arguments(setup())

        def turn() -> Turn:
            fresh_args, fresh_kwargs = fresh()
            return Turn(functools.partial(function, *fresh_args, **fresh_kwargs), fresh_args, fresh_kwargs)

        synchronize = self._start()
        judge = functools.partial(self._judge_call, check)
        calls = self._calls(function, turn, synchronize, fixed=setup is None, judge=judge)
        with self._incorrect_fails():
            returned = self._before_timing(calls)
            if self._measures:
                self._measure(Repeated(function, fresh), calls, synchronize)
                calls.after_timing()
        return returned

    def measure_rounds(self, rounds: Rounds) -> Any:
        """As calling the fixture, in rounds that were asked for; returns what a last, untimed call returned.

        The number of rounds is the number of samples by the main timer. The target runs more often: the first
        call is untimed, the device settles after `rounds.warmup_count` rounds as always, and where a second
        timer is kept beside the first, that has rounds of its own. Where nothing is measured it runs once.
        """
        __tracebackhide__ = True
        self._refuse_second_use()
        rounds.synchronize = synchronize = self._start()

        def turn() -> Turn:
            execute = rounds.begin().execute
            return Turn(execute, *rounds.arguments)

        calls = self._calls(rounds.target, turn, synchronize, fixed=rounds.setup is None)
        with self._incorrect_fails():
            returned = self._before_timing(calls)
            if self._measures:
                with self._environment.exclusive():
                    rounds.warm_up()
                each = rounds.calls(cold=self._cache == "cold")
                self._measure(rounds, calls, synchronize, count=rounds.count, calls_a_sample=each)
                if each < rounds.iterations:
                    asked = f"iterations={rounds.iterations} was asked for"
                    self._add_note(f"{asked}: one call a sample, since each needs a cold cache")
                returned = calls.after_timing()
        rounds.finish()
        return returned

    def once_more(self, call: Callable[[], Any]) -> Any:
        """Calls once after measuring, untimed, and waits for the device; returns what `call` returned."""
        from pytest_gpukern.backends.cuda import runtime

        with self._environment.exclusive():
            returned = call()
            runtime().synchronize()
        return returned

    def verify(
        self, actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None
    ) -> None:
        """Compares an output with its reference, records the error, and fails the test where it is outside.

        An element passes where |actual − expected| ≤ atol + rtol · |expected|; `expected` is the reference,
        in the same or a higher precision. NaN passes only where the reference is NaN.

        Args:
            actual: array on the device or the host, any shape.
            expected: reference of the same shape.
            rtol: relative bound; by default that of `Tolerance.for_dtype` for the dtype of `actual`.
            atol: absolute bound; 0 where only `rtol` is given.

        Raises:
            TypeError: `actual` is lazy, either is of a subclass of NumPy's array, or holds no numbers.
            ValueError: a bound is negative or not finite, or the two arrays share memory.
        """
        from pytest_gpukern.backends.convert import refuse_what_proves_nothing, to_host
        from pytest_gpukern.backends.host import bits_of
        from pytest_gpukern.comparison import compare
        from pytest_gpukern.problem import Output, Tolerance
        from pytest_gpukern.verify import diagnose_form, diagnose_values

        if self._environment.has_gpu:
            from pytest_gpukern.backends.cuda import runtime

            runtime().synchronize()
        refuse_what_proves_nothing(actual, expected)
        found, reference = to_host(actual), to_host(expected)
        if rtol is None and atol is None:
            tolerance = Tolerance.for_dtype(found.dtype)
        else:
            tolerance = Tolerance(rtol=rtol or 0.0, atol=atol or 0.0)
        number = len(self.result.errors) + 1 if self.result else 1
        name = "output" if number == 1 else f"output {number}"
        diagnosis = diagnose_form(name, found.shape, found.dtype, Output(reference.shape, found.dtype))
        errors: dict[str, OutputError] = {}
        if diagnosis is None:
            comparison = compare(found, reference, tolerance, poison=None)
            bits = bits_of(found) if self._measures else None
            output = None if self._checks is None else self._checks.seen.name_of(actual, found)
            determinism = None
            diagnosis = diagnose_values(name, comparison, tolerance)
            if self._checks is not None and output is not None:
                determinism = self._checks.seen.determinism(output)
                diagnosis = diagnosis or self._checks.seen.diagnose_others(output, reference, tolerance)
            errors = {name: dataclasses.replace(comparison.error, bits=bits, determinism=determinism)}
        if diagnosis is None and self.result is not None and (rtol, atol) != (None, None):
            self._note_loose(name, reference, found.dtype, tolerance)
        self._record_check(diagnosis, errors)

    # cases of a problem

    def run(self, case: Case) -> None:
        """Checks a case, measures it where measuring is on, checks it again, and fails the test if wrong.

        The test is skipped, with the reason, where the case cannot run here.
        """
        __tracebackhide__ = True
        from pytest_gpukern.prepared_case import NotRunError
        from pytest_gpukern.problem import ProblemError
        from pytest_gpukern.runner import run_case

        self._refuse_second_use()
        try:
            self.result = run_case(case, self._environment, self._marker, self._nodeid, self._test_file)
        except NotRunError as reason:
            pytest.skip(str(reason))
        except ProblemError as error:
            _fail(str(error))
        if self.result.correctness is Correctness.INCORRECT:
            _fail(f"INCORRECT: {self.result.diagnosis}")

    def reject(self, case: Case) -> None:
        """Fails the test unless the checker rejects this deliberately broken case for its declared reason."""
        __tracebackhide__ = True
        from pytest_gpukern.prepared_case import NotRunError
        from pytest_gpukern.problem import ProblemError
        from pytest_gpukern.rejection import why_not_rejected

        self.rejected = case
        try:
            complaint = why_not_rejected(case, self._environment, replaceable=self.replaceable)
        except NotRunError as reason:
            pytest.skip(str(reason))
        except ProblemError as error:
            _fail(str(error))
        if complaint is not None:
            _fail(complaint)

    # the end of the test

    def conclude(self) -> str | None:
        """Judges what was measured, and has what is suspected confirmed by fresh sessions.

        Returns why the gate fails the test, in words, or None.
        """
        from pytest_gpukern.confirming import with_verdicts

        result, environment, settings = self.result, self._environment, self._environment.settings
        self.concluded = True
        if result is None:
            return None
        self._fail_where_unsettled()
        if result.measurements:
            judged = with_verdicts(result, environment, self._marker)
            self.sessions += judged.sessions
            self.result = result = explained(
                judged.result, environment.past, drift=settings.drift, deciding=judged.deciding
            )
        if settings.gate == "off":
            return None
        # The reason first: pytest's short summary, which names the test already, cuts what is long.
        lines = failures(result, strict=settings.strict, gate_on=settings.gate_on, accepts=settings.accepts)
        return "\n".join(lines) or None

    def let_go(self) -> None:
        """Lets go of the arrays that are kept for `verify`."""
        self._checks = None

    # inside

    def _fail_where_unsettled(self) -> None:
        """Fails the test where calls differ, and it never verified what they wrote."""
        diagnosis = None if self._checks is None else self._checks.seen.unsettled()
        if diagnosis is not None:
            self._record_check(diagnosis, {})

    @property
    def _measures(self) -> bool:
        return self._environment.settings.benchmark and self._environment.has_gpu

    def _refuse_second_use(self) -> None:
        if self.result is not None:
            raise RuntimeError("gpu_benchmark measures once a test: split the test, or parametrize it")

    def _start(self) -> Callable[[], None]:
        """Begins the test's result; returns what waits for the device."""
        __tracebackhide__ = True  # a skip is shown at the line of the test that asked
        environment = self._environment
        if environment.device is None:
            pytest.skip(environment.why_no_gpu)
        self.result = Result(
            case=plain_case_info(
                self._nodeid, self._test_file, shared_folder=environment.settings.shares_baselines
            ),
            nodeid=self._nodeid,
            fingerprint=environment.fingerprint.to_json(),
            simulated=environment.device.is_simulated,
            session=environment.session,
        )
        if environment.device.is_simulated:
            return _nothing
        from pytest_gpukern.backends.cuda import runtime

        return runtime().synchronize

    def _calls(
        self,
        function: Callable[..., Any],
        turn: Callable[[], Turn],
        synchronize: Callable[[], None],
        *,
        fixed: bool = True,
        judge: Callable[..., None] | None = None,
    ) -> PlainCalls:
        """The calls of what the test measures, checked unless the test never asked for this plugin."""
        marker = self._marker
        if not self.leaves_host_calls:
            from pytest_gpukern.checked_calls import CheckedCalls

            self._checks = CheckedCalls(
                marker.outputs,
                marker.determinism,
                self._nodeid,
                synchronize,
                fixed=fixed,
                repeats=self._measures or not self.runs_once,
            )
        return PlainCalls(
            function,
            turn,
            self._checks,
            self._environment,
            synchronize,
            judge=judge,
            observing=self._code_observed,
        )

    def _before_timing(self, calls: PlainCalls) -> Any:
        try:
            return calls.before_timing()
        finally:
            if calls.first_call_ns is not None:
                self._update(first_call_ns=calls.first_call_ns)

    @contextmanager
    def _incorrect_fails(self) -> Iterator[None]:
        """Records what is raised as incorrect, and fails the test with its diagnosis."""
        __tracebackhide__ = True
        from pytest_gpukern.verify import IncorrectError

        try:
            yield
        except IncorrectError as error:
            try:
                self._record_check(error.diagnosis, {})
            except pytest.fail.Exception as failure:
                raise failure from None  # what timing went through before says nothing

    def _code_observed(self) -> AbstractContextManager[None]:
        """Has the machine code hashed that the first call loads."""
        if not self._measures:
            return nullcontext()
        from pytest_gpukern.timers.machine_code import loading_observed

        return loading_observed()

    @property
    def _cache(self) -> str:
        return self._marker.cache or self._environment.settings.cache

    def _measure(
        self,
        executions: Executions,
        calls: PlainCalls,
        synchronize: Callable[[], None],
        *,
        count: int | None = None,
        calls_a_sample: int = 1,
    ) -> None:
        """Warms up and measures; with `count` samples of the main timer, each of `calls_a_sample`."""
        from pytest_gpukern.backends.cuda import runtime
        from pytest_gpukern.measure import measure, rule_beside, rule_for, warm_up
        from pytest_gpukern.rounds import rule_of_rounds
        from pytest_gpukern.runner import with_facts
        from pytest_gpukern.scopes import measured_by, not_of_the_device
        from pytest_gpukern.timers import NothingLaunched
        from pytest_gpukern.timers.per_call import PerCall
        from pytest_gpukern.watch import BatchWatch

        environment, cache = self._environment, self._cache
        floor = None
        if environment.peaks is not None:  # without dtypes, operations bound nothing
            floor = environment.peaks.floor(cache=cache, traffic_bytes=self._marker.bytes)

        def by(timer: Timer, *, beside: bool) -> Measurement:
            rule = rule_beside(warm.settled_ns) if beside else rule_for(warm.settled_ns)
            return measure(
                calls.timed(executions),
                PerCall(timer, calls_a_sample) if calls_a_sample > 1 else timer,
                scope="kernel",
                cache=cache,
                call_ns=warm.settled_ns,
                rule=rule if count is None else rule_of_rounds(count, rule, beside=beside),
                watch=BatchWatch(
                    environment.instruments,
                    floor=floor,
                    device_timed=timer.name != "host",
                    beside=beside,
                    memory=environment.memory,
                ),
                inspect=calls.inspect,
                traffic_bytes=self._marker.bytes,
                flops=self._marker.flops,
                beside=beside,
            )

        with environment.exclusive():
            warm = warm_up(
                lambda: executions.take(1, cold=cache == "cold")[0].execute(), synchronize, compiled=True
            )
            # The legacy default stream: what Numba, CuPy and PyCUDA launch on unless told otherwise, and
            # what waits for every other blocking stream.
            stream = runtime().device.default_stream
            wanted = self._marker.timer or environment.settings.timer
            try:
                found = measured_by(by, wanted, scope="kernel", stream=stream, any_stream=True)
            except NothingLaunched as reason:
                if self.leaves_host_calls:
                    raise
                found = [not_of_the_device(by, stream, reason)]
            if calls.inspect is not None:
                calls.inspect()
            self._update(measurements=(self._without_energy(found[0]), *found[1:]))
            assert self.result is not None
            self.result = with_facts(self.result, environment)

    def _without_energy(self, measurement: Measurement) -> Measurement:
        """The measurement with why there is no energy, where that was asked for."""
        from pytest_gpukern.energy import OF_CALLABLES, with_energy
        from pytest_gpukern.validity import Energy

        if not self._environment.settings.energy:
            return measurement
        return with_energy(measurement, Energy(untold=OF_CALLABLES))

    def _judge_call(
        self,
        check: Callable[..., Any] | None,
        returned: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        when: str,
    ) -> None:
        if check is None:
            return
        try:
            check(returned, *args, **kwargs)
        except Exception as error:
            self._update(correctness=Correctness.INCORRECT, diagnosis=f"check {when}: {error}")
            raise
        self._update(correctness=Correctness.PASSED)

    def _record_check(self, diagnosis: Diagnosis | None, errors: dict[str, OutputError]) -> None:
        if self.result is not None:
            failed = diagnosis is not None or self.result.correctness is Correctness.INCORRECT
            self._update(
                correctness=Correctness.INCORRECT if failed else Correctness.PASSED,
                diagnosis=diagnosis.message if diagnosis else self.result.diagnosis,
                errors={**self.result.errors, **errors},
            )
        if diagnosis is not None:
            _fail(f"INCORRECT: {diagnosis.message}")

    def _note_loose(self, name: str, reference: Any, dtype: Any, tolerance: Tolerance) -> None:
        """Notes what else would have passed within bounds that the test gave."""
        from pytest_gpukern.soundness import passes_lower_precision, passes_zeros

        loose = passes_lower_precision(name, reference, dtype, tolerance)
        if reference.any():
            loose = passes_zeros(name, reference, dtype, tolerance) or loose
        if loose is not None:
            self._add_note(loose)

    def _add_note(self, note: str) -> None:
        assert self.result is not None
        self._update(notes=(*self.result.notes, note))

    def _update(self, **changes: Any) -> None:
        assert self.result is not None
        self.result = dataclasses.replace(self.result, **changes)


def _arguments(made: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What a `setup` returned, as positional and named arguments."""
    if isinstance(made, tuple):
        if len(made) == 2 and isinstance(made[0], (tuple, list)) and isinstance(made[1], dict):
            return tuple(made[0]), made[1]
        return made, {}
    raise TypeError(
        f"setup returned {type(made).__name__}: it returns (args, kwargs), or a tuple of positional arguments"
    )


def _nothing() -> None:
    """The simulator has nothing to wait for."""


def _fail(message: str) -> NoReturn:
    pytest.fail(message, pytrace=False)
