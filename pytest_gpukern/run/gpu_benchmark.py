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

    A test measures once: it calls the fixture, `pedantic`, `run` or `reject`. With neither a GPU nor the
    simulator the test is skipped there, unless only the host's clock times it. In the simulator, and without
    `--gpu-benchmark`, its calls are checked and not timed.
    """

    def __init__(self, test: MeasuredTest) -> None:
        self._test = test

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function` untimed, then measures it. Returns what the first call returned.

        The first call compiles and loads; its time is reported apart. If the marker names `outputs`, or a
        call returns new arrays, we check up to three calls before timing and one after it. The device is
        synchronized around every sample, whatever library the function launches with. The measurement is
        INVALID if the call launches nothing. Timed by events alone, it is INVALID too if work on a
        non-blocking stream outlasts the default stream; CUPTI times such work.

        The test fails if the marker names an output that the call does not have or cannot write, or sets
        `determinism` without any.
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

        A kernel that updates in place needs only `setup` and `check` here, or the marker's `inout` without
        `pedantic`. With these two alone, `setup` makes arguments for a batch of calls ahead, and sampling
        ends once the median is known. With any other argument, each round is set up, called and torn down
        before the next begins.

        Args:
            target: the function to measure.
            args: its positional arguments, if `setup` makes none.
            kwargs: its keyword arguments, if `setup` makes none.
            setup: runs untimed before each call. It returns `(args, kwargs)`, a tuple of positional
                arguments, or nothing if `args` and `kwargs` are given.
            teardown: runs untimed after each round, with the same arguments.
            rounds: number of samples by the main timer; by default as many as the median needs.
            warmup_rounds: untimed rounds before them.
            iterations: calls in a sample with a hot cache; with a cold one each sample is one call.
            check: `check(returned, *args, **kwargs)` raises if an untimed call was wrong. It judges those
                before timing and the one after it.

        Returns:
            The value that the first call returned.

        Raises:
            TypeError: `setup` and the test both give arguments, or `setup` returns something else.
            ValueError: a number is not whole or too small, or `setup` is combined with several iterations.
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
        """Compares an output with its reference, records the error, and fails the test if it is wrong.

        An element passes if ``|actual − expected| ≤ atol + rtol · |expected|``. By any bounds it passes if it
        is the reference rounded to NumPy's dtype of `actual`: no such number is nearer. NaN passes only where
        the reference is NaN. Without bounds we use those of `Tolerance.for_dtype` for the dtype of `actual`,
        with `atol` at most a hundredth of the largest reference value. A note says if zeros or a lower
        precision would pass too.

        Args:
            actual: array on the device or the host, any shape; also of bfloat16 and float8.
            expected: reference of the same shape, in the same or a higher precision.
            rtol: relative bound; 0 if only `atol` is given.
            atol: absolute bound; 0 if only `rtol` is given.
            expect_failure: whether the output must be wrong; then a right one fails the test. A test that
                catches the failure itself fails at its end.

        Raises:
            TypeError: `actual` is lazy, either is of a subclass of NumPy's array, or holds no numbers.
            ValueError: a bound is negative or not finite, the two arrays share memory, `expected` holds only
                NaN, or both are empty although no call was given an empty array.
        """
        __tracebackhide__ = True
        self._test.verify(actual, expected, rtol, atol, expect_failure=expect_failure)

    def guarded(self, array: Any, name: str | None = None) -> Any:
        """Returns a copy of an array with a guard zone before and behind it, until the end of the test.

        A call that writes into a zone is INCORRECT, with the place, even if its values are right. We look
        after each untimed call, after the timed ones, and at the end of the test. A call that reads a zone
        gets NaN. Make the copy before the measured call, not inside it.

        Args:
            array: array of NumPy, or on the device of Numba, CuPy, PyCUDA or PyTorch.
            name: the array's name in messages.

        Returns:
            An array of the same library, shape and dtype, in C order, whose memory is freed with the test.

        Raises:
            TypeError: it is no such array.
        """
        with self._test.environment.gpu.exclusive():
            return self._test.guarded.copy(array, name)

    def guarded_like(self, array: Any, name: str | None = None) -> Any:
        """Returns a guarded array like another, for a call to write.

        It holds a poison, and its zones differ from those of `guarded`. A kernel that copies one element too
        many would write a zone of a guarded copy into an equal zone, and nobody would see it.

        Args:
            array: has the same library, shape and dtype.
            name: the array's name in messages.

        Raises:
            TypeError: as for `guarded`.
        """
        with self._test.environment.gpu.exclusive():
            return self._test.guarded.like(array, name)

    def run(self, case: Case) -> None:
        """Checks a case, measures it if measuring is on, checks it again, and fails the test if it is wrong.

        The test is skipped, with the reason, if the case cannot run here.
        """
        __tracebackhide__ = True
        self._test.measure_case(case)

    def reject(self, case: Case) -> None:
        """Fails the test unless the checker rejects this deliberately broken case for its declared fault."""
        __tracebackhide__ = True
        self._test.reject(case)
