"""The untimed calls around measuring a test's own callable: checked, and made once more afterwards."""

from __future__ import annotations

import functools
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpukern.check.check_call import CheckedCalls
    from pytest_gpukern.check.guarded_arrays import GuardedArrays
    from pytest_gpukern.measure.measure import Executions
    from pytest_gpukern.run.environment import Environment


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

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Turn:
        """A call of `function` with these arguments."""
        return cls(functools.partial(function, *args, **kwargs), args, kwargs)


class PlainCalls:
    """Calls of what a test measures.

    Args:
        function: what the test measures, whose signature may name arguments.
        next_turn: begins the next call.
        checks: looks at each call; None where nothing does.
        environment: whose device no other process measures on meanwhile.
        synchronize: waits for the device.
        guarded: arrays around which is looked after each call, and after those that are timed.
        judge: the test's own check of a call: `judge(returned, args, kwargs, when)`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        next_turn: Callable[[], Turn],
        checks: CheckedCalls | None,
        environment: Environment,
        synchronize: Callable[[], None],
        guarded: GuardedArrays,
        *,
        judge: Callable[[Any, tuple[Any, ...], Mapping[str, Any], str], None] | None = None,
    ) -> None:
        self._function = function
        self._next_turn = next_turn
        self._checks = checks
        self._environment = environment
        self._synchronize = synchronize
        self._guarded = guarded
        self._judge = judge
        self.first_call_ns: float | None = None

    def before_timing(self) -> Any:
        """Makes the first call, and as many more as its outputs ask for; returns what the first returned.

        Raises:
            IncorrectError: one was wrong.
        """
        returned, last_ns = self._one("before timing", "in the first call")
        calls = 1
        while self._checks is not None and self._checks.wants_another(calls, last_ns):
            calls += 1
            _, last_ns = self._one("before timing", f"in call {calls}")
        return returned

    def after_timing(self) -> Any:
        """Makes one call more; returns what it returned.

        Raises:
            IncorrectError: it was wrong.
        """
        return self._one("after timing", "in a call after timing")[0]

    @property
    def wanted_after_timing(self) -> bool:
        """Whether a call after timing has anything that is checked."""
        return self._checks is not None and self._checks.wanted_after_timing

    def timed(self, executions: Executions) -> Executions:
        """What is timed, with outputs poisoned now and then."""
        return executions if self._checks is None else self._checks.timed(executions)

    @property
    def inspect(self) -> Callable[[], None] | None:
        """Looks at what a timed call left, where that can be looked at."""
        looks_at_outputs = None if self._checks is None else self._checks.inspect
        if not self._guarded:
            return looks_at_outputs

        def look() -> None:
            self._guarded.check("after timed calls")
            if looks_at_outputs is not None:
                looks_at_outputs()

        return look

    def _one(self, when: str, place: str) -> tuple[Any, float]:
        """Makes one call; returns what it returned, and its wall time in nanoseconds."""
        with self._environment.exclusive():  # another process may be measuring on this device
            with self._loading_observed(own=False):
                turn = self._next_turn()
                pending = None
                if self._checks is not None:
                    pending = self._checks.begin(self._function, turn.args, turn.kwargs, place)
                self._synchronize()
            with self._loading_observed(own=True):
                start = time.perf_counter_ns()
                returned = turn.call()
                self._synchronize()
                passed_ns = float(time.perf_counter_ns() - start)
            self.first_call_ns = self.first_call_ns or passed_ns
            self._environment.look_at_memory()
            self._guarded.check(place)
            if self._checks is not None and pending is not None:
                self._checks.end(pending, returned)
        if self._judge is not None:
            self._judge(returned, turn.args, turn.kwargs, when)
        return returned, passed_ns

    def _loading_observed(self, *, own: bool) -> AbstractContextManager[None]:
        """Has the machine code hashed that the first call, or what goes ahead of it, loads."""
        if self.first_call_ns is not None:
            return nullcontext()
        return self._environment.loading_observed(own=own)
