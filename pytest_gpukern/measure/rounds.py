"""Runs the rounds of `gpu_benchmark.pedantic` with any timer: setup, calls and teardown in turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gpukern.measure.measure import BATCH_CALLS, Arguments
from pytest_gpukern.timers.timer import Iteration


@dataclass
class Rounds:
    """Executions of one target in rounds: each is `setup`, some calls, `teardown`, and ends before the next.

    A setup may reset what all calls share, and a teardown may free what the next setup takes. So a timer
    takes one round at a time: `take` ends the round before and begins the next. A round that was not executed
    is taken again. Without setup and teardown rounds are all alike, and a timer takes as many as it can
    queue.

    Attributes:
        args: positional arguments of the target, if `setup` makes none.
        setup: untimed, before each round; returns (args, kwargs), or nothing.
        teardown: untimed, after each round, with the same arguments.
        count: rounds that become samples, or None to sample until the median is known.
        warmup_count: rounds before them.
        iterations: calls in a round.
        synchronize: waits for the device, so that a teardown frees nothing that a kernel still uses, and work
            of a setup does not count as the call's.

    Raises:
        ValueError: a number is not whole or too small, or there is a `setup` with several `iterations`.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[[], Any] | None = None
    teardown: Callable[..., Any] | None = None
    count: int | None = None
    warmup_count: int = 0
    iterations: int = 1
    synchronize: Callable[[], None] = lambda: None
    buffer_sets: int = field(default=1, init=False)
    _open: Arguments | None = field(default=None, init=False, repr=False)
    _executed: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("rounds", self.count, 1),
            ("warmup_rounds", self.warmup_count, 0),
            ("iterations", self.iterations, 1),
        ):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"pedantic({name}={value!r}): must be a whole number, at least {least}")
        if self.setup is not None and self.iterations > 1:
            raise ValueError(
                f"pedantic(iterations={self.iterations}, setup=…): a setup prepares one call; "
                "use iterations=1 and more rounds"
            )
        in_turn = self.setup is not None or self.teardown is not None
        self.largest_batch = 1 if in_turn else BATCH_CALLS

    def take(self, count: int, *, cold: bool, refilled: bool = False) -> list[Iteration]:  # noqa: ARG002
        """Ends the round before, and begins the next `count` rounds, at most `largest_batch`."""
        return [self.begin(self.calls(cold=cold)) for _ in range(count)]

    def calls(self, *, cold: bool) -> int:
        """Returns the calls in a sample; one if `cold`, since only the first would find a cold cache."""
        return 1 if cold else self.iterations

    def begin(self, calls: int = 1) -> Iteration:
        """Ends the round before and begins one of so many calls.

        It always claims to need its own arguments, so that no timer adds calls to it.
        """
        args, kwargs = self._next()
        call = functools.partial(self.target, *args, **kwargs)
        return Iteration(
            call if calls == 1 else functools.partial(_repeat, call, calls),
            before=self._note_execution,
            fresh=functools.partial(self.begin, calls),
            launches=calls,
        )

    @property
    def arguments(self) -> Arguments:
        assert self._open is not None
        return self._open

    def warm_up(self) -> None:
        for _ in range(self.warmup_count):
            self.begin(self.iterations).execute()

    def finish(self) -> None:
        ended, self._open = self._open, None
        if ended is not None and self.teardown is not None:
            self.synchronize()
            args, kwargs = ended
            self.teardown(*args, **kwargs)

    def _note_execution(self) -> None:
        self._executed = True

    def _next(self) -> Arguments:
        """Returns the arguments of the open round, or of the next if that was executed."""
        if self._open is not None and not self._executed:
            return self._open
        self.finish()
        made = None
        if self.setup is not None:
            made = self.setup()
            self.synchronize()
        if made and (self.args or self.kwargs):
            raise TypeError("pedantic: give args and kwargs, or a setup that returns them, not both")
        self._open = arguments_made(made) if made else (self.args, self.kwargs)
        self._executed = False
        return self._open


def arguments_made(made: Any) -> Arguments:
    """Returns a setup's result as (args, kwargs); TypeError if it is neither that, a tuple nor None."""
    if made is None:
        return (), {}
    if isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[1], dict):
        return tuple(made[0]), made[1]
    if isinstance(made, tuple):
        return made, {}
    raise TypeError(
        f"setup returned {type(made).__name__}: it must return (args, kwargs), a tuple of positional "
        "arguments, or nothing"
    )


def _repeat(call: Callable[[], Any], calls: int) -> None:
    for _ in range(calls):
        call()
