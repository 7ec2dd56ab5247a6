"""Gives a test the `gpu_benchmark` fixture: call, measure, verify, run a case, reject one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.measure.rounds import Rounds, arguments_made
from pytest_gpukern.run.call_subject import CallTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.run.measured_test import MeasuredTest


class GpuBenchmark:
    """Measures and verifies what one test launches; the value of the `gpu_benchmark` fixture.

    A test measures once: it calls the fixture, or `pedantic`, or `run`, or `reject`. Without a GPU it is
    skipped; in the simulator, and without `--gpu-benchmark`, it is called and checked, and not timed.
    """

    def __init__(self, test: MeasuredTest) -> None:
        self._test = test

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function` untimed, then measures it; returns what the first call returned.

        The first call compiles and loads; its time is reported apart. Where the marker declares arguments as
        outputs, or new arrays are returned, up to two more calls follow and one after timing, and each is
        checked. The device is synchronized around every sample, whatever library the function launches with.
        Work on a non-blocking stream that outlasts the call makes the measurement INVALID; so does a call
        that launches nothing.

        Raises:
            ValueError: the marker names an output that the call has not, or `determinism` of nothing.
            TypeError: an output is no array that can be written.
        """
        __tracebackhide__ = True
        return self._test.measure_call(CallTarget.repeated(function, args, kwargs)).first

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int | None = None,
        warmup_rounds: int = 0,
        iterations: int = 1,
        *,
        check: Callable[..., Any] | None = None,
    ) -> Any:
        """Measures in rounds, or with fresh arguments for every call; takes what pytest-benchmark's takes.

        A kernel that updates in place needs only `setup` and `check`, or the marker's `inout=` without
        `pedantic`. Then arguments are made for a batch of
        calls ahead, and sampling ends once the median is known. With `args`, `teardown`, `rounds`,
        `warmup_rounds` or `iterations`, each round is set up, called and torn down before the next begins.

        Args:
            target: what is measured.
            args: its positional arguments, where `setup` makes none.
            kwargs: its named arguments, where `setup` makes none.
            setup: untimed, before each call; returns (args, kwargs), a tuple of positional arguments,
                or nothing, where `args` and `kwargs` are given.
            teardown: untimed, after each round, with the same arguments.
            rounds: number of samples by the main timer; by default as many as the median needs.
            warmup_rounds: untimed rounds before them.
            iterations: calls in a sample, where the cache is hot; with a cold one each sample is one call.
            check: `check(returned, *args, **kwargs)` raises where an untimed call was wrong. It judges those
                before timing and the one after it.

        Returns:
            What the first call returned.

        Raises:
            TypeError: `setup` and the test both give arguments, or `setup` returns something else.
            ValueError: a number is no whole number or too small, or a `setup` is to serve several calls.
        """
        __tracebackhide__ = True
        in_turn = teardown is not None or rounds is not None or warmup_rounds != 0 or iterations != 1
        if setup is not None and not (args or kwargs or in_turn):

            def fresh() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
                return arguments_made(setup())

            chosen = CallTarget.set_up(target, fresh, check)
        else:
            asked = Rounds(target, args, kwargs or {}, setup, teardown, rounds, warmup_rounds, iterations)
            chosen = CallTarget.in_rounds(asked, check)
        return self._test.measure_call(chosen).first

    def verify(
        self,
        actual: Any,
        expected: Any,
        rtol: float | None = None,
        atol: float | None = None,
        *,
        expect_failure: bool = False,
    ) -> None:
        """Compares an output with its reference, records the error, and fails the test where it is outside.

        An element passes where ``|actual − expected| ≤ atol + rtol · |expected|``. `expected` is the
        reference, in the same or a higher precision. NaN passes only where the reference is NaN. Without
        bounds they are those of `Tolerance.for_dtype` for the dtype of `actual`, the absolute one at most a
        hundredth of the largest reference value. What else would have passed, zeros or a lower precision, is
        a note.

        Args:
            actual: array on the device or the host, any shape.
            expected: reference of the same shape.
            rtol: relative bound; 0 where only `atol` is given.
            atol: absolute bound; 0 where only `rtol` is given.
            expect_failure: whether the test expects the output to be wrong, and fails where it is right. A
                failure that the test catches itself fails it at its end.

        Raises:
            TypeError: `actual` is lazy, either is of a subclass of NumPy's array, or holds no numbers.
            ValueError: a bound is negative or not finite, the two arrays share memory, `expected` is nothing
                but NaN, or there is no element to compare, and no call was given an empty array.
        """
        __tracebackhide__ = True
        self._test.verify(actual, expected, rtol, atol, expect_failure=expect_failure)

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
        with self._test.environment.gpu.exclusive():
            return self._test.guarded.copy(array, name)

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
        with self._test.environment.gpu.exclusive():
            return self._test.guarded.like(array, name)

    def run(self, case: Case) -> None:
        """Checks a case, measures it where measuring is on, checks it again, and fails the test if wrong.

        The test is skipped, with the reason, where the case cannot run here.
        """
        __tracebackhide__ = True
        self._test.measure_case(case)

    def reject(self, case: Case) -> None:
        """Fails the test unless the checker rejects this deliberately broken case for its declared reason."""
        __tracebackhide__ = True
        self._test.reject(case)
