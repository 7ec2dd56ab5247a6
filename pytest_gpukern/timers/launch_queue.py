"""Executes what is to be timed behind a blocking kernel, so that the host's launch cost is in no number.

While the kernel keeps the stream busy the host queues a whole part of the executions; then it lets go.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpukern.timers.blocking_kernel import blocking_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gpu.runtime import CudaRuntime
    from pytest_gpukern.timers.timer import Iteration

LARGEST_PART = 64
_QUEUE_ENTRIES = 512
"""What is queued at once: half of the about 1000 entries of the launch queue, since one launch may take
several."""
ENTRIES_OF_BEFORE = 4
"""Assumed of what comes before a call: a memset for each of a few outputs."""
_QUEUEING_NS = 40_000_000
"""No more is queued after this time, well before the blocking kernel gives up."""
LAUNCH_COST = "the call waits for the device, so the host's launch cost is in the number"


class Marks(Protocol):
    """What a timer does around each execution of a part."""

    def open(self, count: int) -> None:
        """A part of `count` executions begins; what an unfinished part left is void."""

    def start(self, number: int) -> None:
        """Execution `number` of the part comes next on the stream."""

    def end(self, number: int) -> None:
        """It was launched."""

    def close(self) -> None:
        """No more of the part will be launched."""

    def take(self, count: int) -> None:
        """The first `count` executions of the part are done and count."""

    def restart(self) -> None:
        """Nothing of what was taken counts: everything is executed again."""


class LaunchQueue:
    """Executes on one stream, queued where that is possible.

    Args:
        runtime: context, kernels and L2 of the pinned device.
        stream: the stream that the executions launch on, as a cuda.core stream.
        queues: whether to try; calls that are known to wait for the device need not be tried.
    """

    def __init__(self, runtime: CudaRuntime, stream: Any, *, queues: bool = True) -> None:
        self._runtime = runtime
        self._stream = stream
        self._blocking = blocking_kernel()
        self._limit = LARGEST_PART if queues else 0
        runtime.reset_persisting_l2()
        runtime.flush_l2(stream)  # compiled and loaded before anything can be blocked
        runtime.synchronize()

    @property
    def queues(self) -> bool:
        """Whether calls are queued, as far as is known by now."""
        return self._limit > 0

    def give_up(self) -> None:
        """Has calls executed unqueued from now on, from an idle device each."""
        self._limit = 0

    def execute(self, iterations: Sequence[Iteration], marks: Marks, *, cold: bool) -> bool:
        """Executes each iteration once, in order; whether all could be queued.

        A call that waits for the device itself cannot be queued: the blocking kernel times out, and all is
        executed unqueued, from an idle device each, with the launch cost in the number. What was executed in
        vain is executed again, with fresh arguments where it needs them.
        """
        todo, done = list(iterations), 0
        entries = max((_entries(iteration, cold=cold) for iteration in todo), default=1)
        fitting = max(1, min(LARGEST_PART, _QUEUE_ENTRIES // entries))
        while self._limit and done < len(todo):
            part = slice(done, done + min(self._limit, fitting))
            queued, blocked = self._queued(todo[part], marks, cold=cold)
            if blocked:
                marks.take(queued)
                done += queued
                continue
            todo[part] = [iteration.again() for iteration in todo[part]]
            # The last one queued is the one that did not fit; one that does not fit alone waits itself.
            self._limit = 0 if self._limit == 1 else max(1, (queued - 1) // 2)
        if self._limit:
            return True
        todo[:done] = [iteration.again() for iteration in todo[:done]]
        self._unqueued(todo, marks, cold=cold)
        return False

    def _queued(self, iterations: Sequence[Iteration], marks: Marks, *, cold: bool) -> tuple[int, bool]:
        """How many could be queued in time, and whether the stream was blocked all the while."""
        queued = 0
        self._runtime.synchronize()
        marks.open(len(iterations))
        deadline = time.perf_counter_ns() + _QUEUEING_NS
        self._blocking.block(self._stream)
        try:
            for number, iteration in enumerate(iterations):
                self._prepare(iteration, cold=cold)
                marks.start(number)
                iteration.run()
                marks.end(number)
                queued += 1
                if time.perf_counter_ns() > deadline:
                    break
        finally:
            self._blocking.release()
            marks.close()
        self._runtime.synchronize()
        return queued, not self._blocking.timed_out

    def _unqueued(self, iterations: Sequence[Iteration], marks: Marks, *, cold: bool) -> None:
        marks.restart()
        marks.open(len(iterations))
        try:
            for number, iteration in enumerate(iterations):
                self._runtime.synchronize()  # or the flush would slow what still runs on another stream
                self._prepare(iteration, cold=cold)
                self._runtime.synchronize()
                marks.start(number)
                iteration.run()
                marks.end(number)
        finally:
            marks.close()
        self._runtime.synchronize()
        marks.take(len(iterations))

    def _prepare(self, iteration: Iteration, *, cold: bool) -> None:
        """Queues what comes before the execution."""
        if iteration.before is not None:
            iteration.before()
        if cold:
            self._runtime.flush_l2(self._stream)


def _entries(iteration: Iteration, *, cold: bool) -> int:
    """Entries of the launch queue that a sample takes: two events, the flush, and what it launches."""
    launches = iteration.launches
    if launches is None:
        launches = 1 if iteration.before is None else 1 + ENTRIES_OF_BEFORE
    return 2 + cold + launches
