"""Buffer sets of a checked case with different contents, used in turn while it is timed.

A call on one set again and again would find its inputs where the call before left them, whatever the cache
policy says, and could replay an answer that it has given before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.timers.timer import Iteration

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.check.launch import Prepared

_STAY = 8
"""Hot executions on one set before the next one's turn."""
_LARGEST_BATCH = 256


class Rotation:
    """Executions on each set in turn.

    With a cold cache the outputs are poisoned and the L2 is flushed ahead of each execution, and each goes to
    another set. With a hot one the turn changes every eight executions; ahead of them an untimed launch
    brings the set into the cache, and then its outputs are poisoned, which leaves them there.

    Args:
        sets: the case prepared on each set.
        calls: what is timed on each.
        stream: the timed stream, as a cuda.core stream; None on the host.
        poisons: whether a call writes the outputs, so that they may be poisoned before it.
    """

    def __init__(
        self, sets: list[Prepared], calls: list[Callable[[], Any]], *, stream: Any, poisons: bool
    ) -> None:
        self._sets = sets
        self._calls = calls
        self._stream = stream
        self._poisons = poisons
        self._taken = 0
        self.buffer_sets = len(sets)
        self.largest_batch = max(_LARGEST_BATCH, len(sets))

    @property
    def last(self) -> Prepared:
        """The set of the last execution that was handed out."""
        return self._last

    def take(self, count: int, *, cold: bool) -> list[Iteration]:
        """The next `count` executions."""
        return [self._cold() if cold else self._hot(first=not number) for number in range(count)]

    def _cold(self) -> Iteration:
        prepared, call = self._turn(1)
        launches = 2 + len(prepared.dataset.specs)
        return Iteration(call, self._poison(prepared) if self._poisons else None, launches=launches)

    def _hot(self, *, first: bool) -> Iteration:
        """Also the first of a batch finds its set in the cache, whoever ran before."""
        changed = self._taken % _STAY == 0
        prepared, call = self._turn(_STAY)
        if not (first or changed):
            return Iteration(call, launches=2)
        poison = self._poison(prepared) if self._poisons else None

        def warm() -> None:
            call()
            if poison is not None:
                poison()

        return Iteration(call, warm, launches=3 + len(prepared.dataset.specs))

    def _turn(self, stay: int) -> tuple[Prepared, Callable[[], Any]]:
        number = self._taken // stay % len(self._sets)
        self._taken += 1
        self._last = self._sets[number]
        return self._last, self._calls[number]

    def _poison(self, prepared: Prepared) -> Callable[[], None]:
        return lambda: prepared.workspace.queue_poison(self._stream)
