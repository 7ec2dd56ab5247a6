"""What the `gpu_benchmark` fixture gives to a test: call, measure, verify, run a case, reject one."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpukern.check.guarded_arrays import GuardedArrays
from pytest_gpukern.findings.findings import explained, failures
from pytest_gpukern.measure.measure import Repeated
from pytest_gpukern.run.memory_watch import FollowedMemory
from pytest_gpukern.run.outcome import Outcome
from pytest_gpukern.run.plain_calls import Turn
from pytest_gpukern.run.run_plain import PlainRunner, PlainTarget, begun_result
from pytest_gpukern.values.result import Correctness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpukern.check.call_outputs import SeenOutputs
    from pytest_gpukern.measure.rounds import Rounds
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Result


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
        self._loading = ExitStack()
        self._guarded = GuardedArrays(environment.backend)
        self._outcome = Outcome()
        self._seen: SeenOutputs | None = None

    def begin(self) -> None:
        """Follows the device's memory, and machine code that the test loads before anything is called."""
        self.memory.begin()
        self._loading.enter_context(self._environment.loading_observed(own=False))

    def stop_observing(self) -> None:
        """Looks at no more code that the test loads, but at what its calls do."""
        self._loading.close()

    @property
    def result(self) -> Result | None:
        """What the test found out so far; None before anything ran."""
        return self._outcome.result

    @result.setter
    def result(self, result: Result | None) -> None:
        self._outcome.result = result

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
        self._begin_use()
        bound = functools.partial(function, *args, **kwargs)
        target = PlainTarget(function, lambda: Turn(bound, args, kwargs), Repeated(bound))
        return self._runner(target).run().first

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
        self._begin_use()
        if setup is not None and (args or kwargs):
            raise TypeError("pedantic: give setup, or args and kwargs, not both")
        fresh = functools.partial(_fresh, setup, args, dict(kwargs or {}))
        target = PlainTarget(
            function,
            lambda: Turn.of(function, *fresh()),
            Repeated(function, fresh),
            fixed=setup is None,
            check=check,
            called_after=True,
        )
        return self._runner(target).run().first

    def measure_rounds(self, rounds: Rounds) -> Any:
        """As calling the fixture, in rounds that were asked for; returns what a last, untimed call returned.

        The number of rounds is the number of samples by the main timer. The target runs more often: the first
        call is untimed, the device settles after `rounds.warmup_count` rounds as always, and where a second
        timer is kept beside the first, that has rounds of its own. Where nothing is measured it runs once.
        """
        __tracebackhide__ = True
        self._begin_use()

        def turn() -> Turn:
            execute = rounds.begin().execute
            return Turn(execute, *rounds.arguments)

        target = PlainTarget(rounds.target, turn, rounds, fixed=rounds.setup is None, called_after=True)
        runner = self._runner(target)
        rounds.synchronize = runner.synchronize
        returned = runner.run().last
        rounds.finish()
        return returned

    def once_more(self, call: Callable[[], Any]) -> Any:
        """Calls once after measuring, untimed, and waits for the device; returns what `call` returned."""
        from pytest_gpukern.gpu.runtime import runtime

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
        from pytest_gpukern.check.verify import check_against_reference

        if self._environment.has_gpu:
            from pytest_gpukern.gpu.runtime import runtime

            runtime().synchronize()
        number = len(self.result.errors) + 1 if self.result else 1
        name = "output" if number == 1 else f"output {number}"
        found = check_against_reference(
            name,
            actual,
            expected,
            rtol,
            atol,
            seen=self._seen,
            hashes=self._environment.measures,
            asks_what_else=self.result is not None,
        )
        if found.loose is not None:
            self._outcome.add_note(found.loose)
        self._outcome.record_check(found.diagnosis, {} if found.error is None else {name: found.error})

    def guarded(self, array: Any, name: str | None = None) -> Any:
        """A copy of an array with a guard zone before and behind it, until the end of the test.

        Whatever a call writes there is INCORRECT with the place, though its values may be right: after each
        call that is not timed, after the timed ones, and at the end of the test. What it reads there is NaN.
        To be made before what is measured is called, not in each call.

        Args:
            array: of NumPy's, or on the device of Numba's, CuPy's, PyCUDA's or PyTorch's.
            name: what the array is called in what is said of it.

        Returns:
            An array of the same library, shape and dtype, in C order, whose memory is freed with the test.

        Raises:
            TypeError: it is no such array.
        """
        with self._environment.exclusive():
            return self._guarded.copy(array, name)

    def guarded_like(self, array: Any, name: str | None = None) -> Any:
        """As `guarded`, for an array that a call writes: with a poison in it, and other zones around it.

        What reads one element too many mostly writes one too many, and would leave the zones of a copy as
        they are.

        Args:
            array: whose library, shape and dtype it has.
            name: what it is called in what is said of it.

        Raises:
            TypeError: as for `guarded`.
        """
        with self._environment.exclusive():
            return self._guarded.like(array, name)

    # cases of a problem

    def run(self, case: Case) -> None:
        """Checks a case, measures it where measuring is on, checks it again, and fails the test if wrong.

        The test is skipped, with the reason, where the case cannot run here.
        """
        __tracebackhide__ = True
        from pytest_gpukern.problems.call_by_name import ProblemError
        from pytest_gpukern.run.prepare import NotRunError
        from pytest_gpukern.run.run_case import run_case

        self._begin_use()
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
        from pytest_gpukern.problems.call_by_name import ProblemError
        from pytest_gpukern.run.prepare import NotRunError
        from pytest_gpukern.run.reject import why_not_rejected

        self.rejected = case
        self.stop_observing()
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
        from pytest_gpukern.run.confirm import with_verdicts

        result, environment, settings = self.result, self._environment, self._environment.settings
        self.concluded = True
        if result is None:
            return None
        self._fail_where_unsettled()
        with self._outcome.incorrect_fails():
            self._guarded.check("at the end of the test")
        if result.measurements:
            judged = with_verdicts(result, environment, self._marker)
            self.sessions += judged.sessions
            self.result = result = explained(judged.result, environment.past, deciding=judged.deciding)
        if settings.gate == "off":
            return None
        # The reason first: pytest's short summary, which names the test already, cuts what is long.
        lines = failures(result, strict=settings.strict, gate_on=settings.gate_on, accepts=settings.accepts)
        return "\n".join(lines) or None

    def let_go(self) -> None:
        """Lets go of the arrays that are kept for `verify`, and of guarded ones."""
        self._seen = None
        self._guarded.close()

    # inside

    def _fail_where_unsettled(self) -> None:
        """Fails the test where calls differ, and it never verified what they wrote."""
        diagnosis = None if self._seen is None else self._seen.unsettled()
        if diagnosis is not None:
            self._outcome.record_check(diagnosis, {})

    def _begin_use(self) -> None:
        self.stop_observing()
        if self.result is not None:
            raise RuntimeError("gpu_benchmark measures once a test: split the test, or parametrize it")

    def _runner(self, target: PlainTarget) -> PlainRunner:
        """Begins the test's result; returns what runs what the test measures."""
        __tracebackhide__ = True  # a skip is shown at the line of the test that asked
        environment = self._environment
        if environment.device is None:
            pytest.skip(environment.why_no_gpu)
        self.result = begun_result(environment, self._nodeid, self._test_file)
        runner = PlainRunner(
            target,
            self._outcome,
            environment,
            self._marker,
            self._nodeid,
            self._guarded,
            leaves_host_calls=self.leaves_host_calls,
            runs_once=self.runs_once,
        )
        self._seen = runner.seen
        return runner


def _fresh(
    setup: Callable[[], Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and named arguments of one call more: those given, where no `setup` makes them."""
    return (args, kwargs) if setup is None else _arguments(setup())


def _arguments(made: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What a `setup` returned, as positional and named arguments."""
    if isinstance(made, tuple):
        if len(made) == 2 and isinstance(made[0], (tuple, list)) and isinstance(made[1], dict):
            return tuple(made[0]), made[1]
        return made, {}
    raise TypeError(
        f"setup returned {type(made).__name__}: it returns (args, kwargs), or a tuple of positional arguments"
    )


def _fail(message: str) -> NoReturn:
    pytest.fail(message, pytrace=False)
